# SPDX-License-Identifier: GPL-2.0-only
"""One frame of ``mrcctl top``: planes, peers and paths, cut to the size of the terminal.

This module uses neither a clock nor a socket: a frame depends only on its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.console.render import BAD, GOOD, WARN, bit_rate, micros
from cli.state.pathtable import RANKS, STATE_COLOURS
from cli.state.status import STATE_COLOURS as DAEMON_COLOURS
from cli.state.status import plane_state
from cli.top.view import HELP, Sort, View, matches
from mrcd.model import MonitorSample, PathInfo, PeerInfo, PlaneInfo
from mrcd.shortlist import Standing, foremost
from mrcd.wording import duration

WIDE = 120
"""A terminal with at least this many columns has room for addresses, histories and uSID lists."""
PEER_COLOURS = {"established": GOOD, "connecting": WARN, "silent": BAD}
BLOCKS = " ▁▂▃▄▅▆▇█"
BAR, BAR_NARROW = 10, 6
HISTORY = 24
PEERS_SHARE = 3  # peers get a third of the lines that the planes leave free

WHOLE = View()
"""The view that a frame has without a user: from the first path, the worst first."""

PathKey = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """A sample and the paths, read at the same moment."""

    sample: MonitorSample
    paths: Sequence[PathInfo]

    @property
    def by_path(self) -> Mapping[PathKey, PathInfo]:
        """Return the paths by peer, QP and EV."""
        return {(path.peer, path.qp, path.ev): path for path in self.paths}


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame, and that `page` of the `rows` of paths fit it."""

    shown: RenderableType
    page: int
    rows: int


def frame(
    before: Reading,
    now: Reading,
    history: Mapping[int, Sequence[float]],
    *,
    width: int,
    height: int,
    clock: str,
    view: View = WHOLE,
) -> Frame:
    """Return a frame of the changes between two readings, no larger than the terminal.

    `history` has the bits per second sent on each plane, oldest first.
    """
    seconds = max(1e-9, (now.sample.monotonic_ns - before.sample.monotonic_ns) / 1e9)
    wide = width >= WIDE
    head = _head(before, now, seconds, clock, width)
    if view.help:
        return Frame(_help(head, height), 0, 0)
    reasons = now.sample.status.reasons
    shown = max(1, min(len(reasons), height // 8)) if reasons else 0
    lines = [Text(f"! {reason}", style=BAD) for reason in reasons[:shown]]
    if len(reasons) > shown:
        lines[-1] = Text(f"! {reasons[shown - 1]} (and {len(reasons) - shown} more)", style=BAD)
    planes = _planes(before, now, seconds, history, wide=wide)
    left = height - 1 - len(lines) - (2 + planes.row_count)
    peers = _peers(before, now, seconds, wide=wide, room=max(1, left // PEERS_SHARE - 2))
    rest = _rest(now, peers.row_count)
    left -= 2 + peers.row_count + len(rest)
    parts: list[RenderableType] = [head, *lines, Text(""), planes, Text(""), peers, *rest]
    rows = _rows(before, now, seconds, view)
    page = max(0, left - 3)
    if page:
        first = max(0, min(view.first, len(rows) - page))
        shown_rows = rows[first : first + page]
        title = _title(view, first, len(shown_rows), len(rows))
        parts += [title, _paths(shown_rows, wide=wide)]
    if left >= 1:
        parts.append(_foot(now))
    for part in parts:
        if isinstance(part, Text):
            part.truncate(width, overflow="ellipsis")
    return Frame(Group(*parts), page, len(rows))


def _table(*columns: tuple[str, bool]) -> Table:
    """Return an empty table; a column is (name, whether it is right-aligned, as figures are)."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, right in columns:
        table.add_column(
            name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    return table


def _head(before: Reading, now: Reading, seconds: float, clock: str, width: int) -> Text:
    status = now.sample.status
    sent, received = _counters(before, now, "tx_bytes"), _counters(before, now, "rx_bytes")
    head = Text.assemble(
        (f"mrcd {status.host} ", "bold"),
        (status.state, DAEMON_COLOURS[status.state]),
        f"  up {duration(status.uptime_s)}",
        f"  peers {status.peers_up}/{status.peers_total}",
        f"  {status.mrc0.name} tx {bit_rate(8 * sent / seconds)}",
        f" rx {bit_rate(8 * received / seconds)}",
    )
    head.append(clock.rjust(max(len(clock) + 1, width - len(head.plain))))
    return head


def _counters(before: Reading, now: Reading, name: str) -> int:
    def value(reading: Reading) -> int:
        return sum(c.value for c in reading.sample.stats.counters if c.name == name)

    return max(0, value(now) - value(before))


def _planes(
    before: Reading,
    now: Reading,
    seconds: float,
    history: Mapping[int, Sequence[float]],
    *,
    wide: bool,
) -> Table:
    earlier = {plane.index: plane for plane in before.sample.status.planes}
    known = before.by_path
    lost: Counter[int] = Counter()
    states: Counter[tuple[int, str]] = Counter()
    for key, path in now.by_path.items():
        lost[path.plane] += max(0, path.lost - known[key].lost) if key in known else 0
        # A backup is not in use, whatever its state; of the others, the withdrawn ones matter.
        states[path.plane, "USED" if path.role == "active" else path.state] += 1
    rates = {
        plane.index: 8 * (plane.tx_bytes - earlier.get(plane.index, plane).tx_bytes) / seconds
        for plane in now.sample.status.planes
    }
    most = max([*rates.values(), 1.0])
    columns = [("PLANE", True), ("NIC", False), ("STATE", False), ("TX", True), ("RX", True)]
    columns += [("", False), ("PATHS", True), ("BAD", True), ("LOST/s", True)]
    more = [("DENIED", True), ("SRTT", True), ("TX OVER TIME", False)]
    table = _table(*columns, *(more if wide else []))
    for plane in now.sample.status.planes:
        was, index = earlier.get(plane.index, plane), plane.index
        bad, denied = states[index, "ASSUMED_BAD"], states[index, "DENIED"]
        row: list[RenderableType] = [
            str(index),
            plane.interface,
            Text(plane_state(plane), style=_plane_colour(plane)),
            bit_rate(rates[index]),
            bit_rate(8 * (plane.rx_bytes - was.rx_bytes) / seconds),
            _bar(rates[index] / most, BAR if wide else BAR_NARROW),
            str(states[index, "USED"]),
            Text(str(bad), style=BAD if bad else ""),
            _rate(lost[index] / seconds, BAD),
        ]
        if wide:
            row.append(Text(str(denied), style=WARN if denied else ""))
            row += [_srtt(now.sample.peers, index), spark(history.get(index, ()))]
        table.add_row(*row)
    return table


def _plane_colour(plane: PlaneInfo) -> str:
    return GOOD if plane.usable and plane.wrong is None else WARN if plane.drained else BAD


def _bar(share: float, length: int) -> str:
    return ("█" * round(length * min(1.0, share))).ljust(length, "·")


def _rate(per_second: float, shade: str) -> Text:
    text = f"{per_second:.0f}" if per_second >= 9.5 or per_second == 0 else f"{per_second:.1f}"
    return Text(text, style=shade if per_second else "")


def _srtt(peers: Sequence[PeerInfo], plane: int) -> str:
    """Return the shortest round trip of any peer over a plane."""
    found = [p.planes_srtt_us[plane] for p in peers if plane < len(p.planes_srtt_us)]
    return micros(min((rtt for rtt in found if rtt is not None), default=None)) or "-"


def spark(values: Sequence[float]) -> str:
    """Return a history as a line of blocks; the largest value is a full block."""
    most = max(values, default=0)
    if most <= 0:
        return ""
    return "".join(BLOCKS[round(value / most * (len(BLOCKS) - 1))] for value in values)


def _peers(before: Reading, now: Reading, seconds: float, *, wide: bool, room: int) -> Table:
    earlier = {peer.name: peer for peer in before.sample.peers}
    columns = [("PEER", False), ("STATE", False), ("PLANES", False), ("SHARES", False)]
    columns += [("TX pkt/s", True), ("RX pkt/s", True), ("SRTT", True)]
    table = _table(*columns, *([("HEARD", False), ("ADDRESSES", False)] if wide else []))
    traffic = {
        peer.name: (
            max(0, peer.tx_packets - earlier.get(peer.name, peer).tx_packets) / seconds,
            max(0, peer.rx_packets - earlier.get(peer.name, peer).rx_packets) / seconds,
        )
        for peer in now.sample.peers
    }
    total = now.sample.status.peers_total
    fitting = len(traffic) if total <= room else max(0, room - 1)
    peers = {peer.name: peer for peer in now.sample.peers}
    standings = (
        Standing(peer.name, peer.state, sum(traffic[peer.name])) for peer in peers.values()
    )
    for peer in map(peers.__getitem__, foremost(standings, fitting)):
        sent, received = traffic[peer.name]
        trips = [rtt for rtt in peer.planes_srtt_us if rtt is not None]
        span = (micros(min(trips)) or "-") if trips else "-"
        row: list[RenderableType] = [
            peer.name,
            Text(peer.state, style=PEER_COLOURS[peer.state]),
            ",".join(map(str, peer.planes_usable)) or "none",
            "even" if all(share >= 1 for share in peer.shares) else _shares(peer.shares),
            f"{sent:.0f}",
            f"{received:.0f}",
            span,
        ]
        if wide:
            heard = peer.last_heard_s
            row += [
                "never" if heard is None else f"{duration(heard)} ago",
                " ".join(peer.addresses),
            ]
        table.add_row(*row)
    return table


def _rest(now: Reading, shown: int) -> list[Text]:
    """Return a line on the peers that are not shown, if any, with the states of all peers."""
    status = now.sample.status
    if status.peers_total <= shown:
        return []
    waiting = status.peers_total - status.peers_up - status.peers_silent
    words = [f"{status.peers_up} established"]
    words += [f"{status.peers_silent} silent"] * (status.peers_silent > 0)
    words += [f"{waiting} connecting"] * (waiting > 0)
    all_of_them = f"of {status.peers_total}: {', '.join(words)}"
    return [Text(f"{status.peers_total - shown} more {all_of_them}", style="dim")]


def _shares(shares: Sequence[float]) -> str:
    return "/".join(f"{100 * share:.0f}" for share in shares) + " %"


@dataclass(frozen=True, slots=True)
class _Row:
    """A path with its rates, in packets a second."""

    path: PathInfo
    key: PathKey
    sent: float
    lost: float


_ORDERS: Mapping[Sort, Callable[[_Row], tuple[Any, ...]]] = {
    "trouble": lambda row: (RANKS[row.path.state], -row.lost, -row.sent, row.key),
    "lost": lambda row: (-row.lost, -row.path.lost, row.key),
    "sent": lambda row: (-row.sent, -row.path.sent, row.key),
    "srtt": lambda row: (-(row.path.srtt_us or 0), row.key),
}


def _rows(before: Reading, now: Reading, seconds: float, view: View) -> list[_Row]:
    """Return the paths of the view in its order."""
    known = before.by_path
    nics = {plane.index: plane.interface for plane in now.sample.status.planes}
    rows = []
    for key, path in now.by_path.items():
        if not matches(view.wanted, path, nics.get(path.plane, "")):
            continue
        was = known.get(key, path)
        sent, lost = max(0, path.sent - was.sent), max(0, path.lost - was.lost)
        rows.append(_Row(path, key, sent / seconds, lost / seconds))
    return sorted(rows, key=_ORDERS[view.sort])


def _paths(rows: Sequence[_Row], *, wide: bool) -> Table:
    """Return a table of paths."""
    columns = [("PEER", False), ("QP", True), ("EV", False), ("PLANE", True), ("T1", True)]
    columns += [("STATE", False), ("SENT/s", True), ("LOST/s", True), ("LOST", True)]
    more = [("SRTT", True)]
    if wide:
        more += [("ROLE", False), ("SENT", True), ("ACKED", True), ("MARKED", True)]
        more.append(("USIDS", False))
    table = _table(*columns, *more)
    for each in rows:
        path = each.path
        row: list[RenderableType] = [
            path.peer,
            str(path.qp),
            f"0x{path.ev:08x}",
            str(path.plane),
            str(path.t1 or "-"),
            Text(path.state, style=STATE_COLOURS[path.state]),
            f"{each.sent:.0f}",
            _rate(each.lost, BAD),
            str(path.lost),
            micros(path.srtt_us) or "-",
        ]
        if wide:
            row.append("slow" if path.slow else path.role)
            row += [str(path.sent), str(path.acked), str(path.marked), path.usids]
        table.add_row(*row)
    return table


def _title(view: View, first: int, shown: int, rows: int) -> Text:
    """Return the line above the paths: empty, or what of them is shown, and how."""
    if view.typing:
        return Text(f"/{view.wanted}_")
    if (view.sort, view.wanted, first) == ("trouble", "", 0):
        return Text("")
    words = f"paths {first + 1} to {first + shown} of {rows}" if rows else "no paths"
    words += f', matching "{view.wanted}"' if view.wanted else ""
    return Text(f"{words}, by {view.sort}", style="dim")


def _help(head: Text, height: int) -> Group:
    """Return a frame with the keys instead of the paths."""
    table = _table(("KEY", False), ("", False))
    for key, meaning in HELP[: max(0, height - 3)]:
        table.add_row(key, meaning)
    return Group(head, Text(""), table)


def _foot(now: Reading) -> Text:
    counted = Counter[str](path.state for path in now.paths)
    shown = len({path.peer for path in now.paths})
    there = now.sample.status.peers_up + now.sample.status.peers_silent
    words = [f"{len(now.paths)} paths"]
    if shown < there:
        words[0] += f" to {shown} of {there} peers"
    words += [f"{counted[state]} {state}" for state in RANKS if counted[state]]
    if now.sample.missed:
        words.append(f"{now.sample.missed} samples missed")
    return Text("  ".join(words) + "   h help  q quits", style="dim")
