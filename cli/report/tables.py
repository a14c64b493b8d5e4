# SPDX-License-Identifier: GPL-2.0-only
"""The tables of a report: planes, peers, paths and counters."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from cli.console.render import bit_rate, micros, size
from cli.report.data import Observed, averages, lost_by_plane
from cli.report.marks import WORDS, badge, condition, per_second, percent, plane_badge
from cli.report.markup import Child, el
from cli.state.pathtable import RANKS
from mrcd.model import NetworkInfo, NicSpot, PathInfo, PeerInfo, PlaneInfo
from mrcd.shortlist import Standing, foremost
from mrcd.wording import duration

PEERS_MAX, SUMMED_MAX, WORST_MAX = 100, 64, 25
"""The most rows for peers, for the paths to a peer, and for single paths."""
LONG = 22
"""A text of more characters gets a wider column."""
PEER_MARKS = {"established": "ok", "connecting": "unseen", "silent": "dead"}
PATH_MARKS = {"GOOD": "ok", "SKIP": "slow", "ASSUMED_BAD": "dead", "DENIED": "unseen"}


def table(columns: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    """Return a table; the heading of a column of figures ends with ``#``, which is not shown."""
    right = [column.endswith("#") for column in columns]
    head = [
        el("th", column.rstrip("#"), class_="figure" if to_right else None, scope="col")
        for column, to_right in zip(columns, right, strict=True)
    ]
    body = [
        el("tr", *(
            el("td", "-" if cell is None else cell, class_=_kind(cell, to_right))
            for cell, to_right in zip(row, right, strict=True)
        ))
        for row in rows
    ]  # fmt: skip
    made = el("table", el("thead", el("tr", *head)), el("tbody", *body))
    return el("div", made, class_="scroll", tabindex="0")


def _kind(cell: Child, to_right: bool) -> str | None:
    if to_right:
        return "figure"
    return "long" if isinstance(cell, str) and len(cell) > LONG else None


def nics(found: Observed) -> list[Element]:
    """Return the table of all hosts' NICs as the survey sees them, where there is no fabric."""
    if found.map["networks"]:
        return _networks(found.map["networks"], found.map["loose"])
    names = [host.name for host in found.map["hosts"]][:PEERS_MAX]
    if not names:
        return []
    by_place = {
        (each.name.rpartition(":")[0], each.plane): each
        for each in found.map["elements"]
        if each.kind == "nic"
    }
    rows: list[list[Child]] = []
    for name in names:
        there = (by_place.get((name, k)) for k in range(found.map["planes"]))
        rows.append([name, *(badge(nic.state, condition(nic)) if nic else None for nic in there)])
    columns = ["Host", *(f"Plane {k}" for k in range(found.map["planes"]))]
    return [el("h3", "NICs by host and plane"), table(columns, rows)]


def _networks(networks: Sequence[NetworkInfo], loose: Sequence[NicSpot]) -> list[Element]:
    """Return the table of cables and networks between hosts that do not share all of them."""

    def named(nics: Sequence[NicSpot]) -> str:
        return ", ".join(f"{nic.host}:{nic.nic}" for nic in nics)

    rows: list[list[Child]] = []
    for each in networks[:PEERS_MAX]:
        whither = f" to {each.towards}" if each.towards is not None else ""
        words = f"loses {100 * each.loss:.1f} %{whither}" if each.state == "loss" else ""
        kind = "cable" if len(each.nics) == 2 else "switched"
        rows.append([kind, named(each.nics), badge(each.state, words or WORDS[each.state])])
    rows += [["unknown", named([nic]), badge("unseen", "far end unknown")] for nic in loose]
    return [el("h3", "Cables and networks"), table(["Network", "NICs", "State"], rows)]


def planes(found: Observed) -> list[Element]:
    """Return the table of this host's planes, with what is wrong with each."""
    lost = lost_by_plane(found.paths_before, found.paths)
    columns = ["Plane#", "NIC", "State", "What is wrong", "Sent#", "Received#", "Lost/s#"]
    columns += ["Paths used#", "Bad#", "Shortest trip#", "MTU#"]
    columns += ["Address and gateway"]
    used = Counter(path.plane for path in found.paths if path.role == "active")
    bad = Counter(path.plane for path in found.paths if path.state == "ASSUMED_BAD")
    rows: list[list[Child]] = []
    for plane in found.status.planes:
        series = found.rates.get(plane.index, ())
        sent, received, _lost = averages(series)
        trips = [
            rtt
            for peer in found.peers
            if plane.index < len(peer.planes_srtt_us)
            and (rtt := peer.planes_srtt_us[plane.index]) is not None
        ]
        rows.append([
            plane.index, plane.interface, plane_badge(plane), plane_trouble(plane),
            _lines(bit_rate(sent), size(plane.tx_bytes)),
            _lines(bit_rate(received), size(plane.rx_bytes)),
            per_second(lost[plane.index], found.seconds), used[plane.index], bad[plane.index],
            micros(min(trips, default=None)),
            plane.mtu, _lines(plane.address, plane.gateway),
        ])  # fmt: skip
    return [table(columns, rows)]


def _lines(*texts: str) -> Element:
    """Return texts below each other, the first of them the most important."""
    shown = [text for text in texts if text]
    spans = [el("span", text, class_="quiet" if i else None) for i, text in enumerate(shown)]
    return el("div", *spans, class_="stack")


def plane_trouble(plane: PlaneInfo) -> str:
    """Return what is wrong with a plane, or an empty text."""
    words = [each for each in (plane.wrong, plane.sick) if each is not None]
    if plane.drained:
        words.append("an operator drained it")
    if not plane.up:
        words.append(f"{plane.interface} is down")
    elif not plane.carrier:
        words.append(f"{plane.interface} has no carrier")
    elif plane.gateway and plane.gateway_mac is None:
        words.append(f"gateway {plane.gateway} does not answer")
    return "; ".join(dict.fromkeys(words))


def peers(found: Observed) -> list[Element]:
    """Return the table of peers: those in trouble first, then the busiest."""
    shown = _foremost(found, PEERS_MAX)
    columns = ["Peer", "State", "Planes up at both ends", "Shares", "Sent packets/s#"]
    columns += ["Received packets/s#", "Shortest trip#", "Heard", "QPs#", "Framing", "Addresses"]
    rows: list[list[Child]] = []
    every = [plane.index for plane in found.status.planes]
    for peer in shown:
        was = found.peers_before.get(peer.name, peer)
        trips = [rtt for rtt in peer.planes_srtt_us if rtt is not None]
        even = all(share >= 1 for share in peer.shares)
        state: Child = badge(PEER_MARKS[peer.state], peer.state)
        if peer.refused is not None:
            state = el("span", state, f" {peer.refused}")
        usable = "all" if peer.planes_usable == every else ", ".join(map(str, peer.planes_usable))
        rows.append([
            peer.name, state, usable or badge("dead", "none"),
            "even" if even else " / ".join(f"{100 * share:.0f}" for share in peer.shares) + " %",
            per_second(peer.tx_packets - was.tx_packets, found.seconds),
            per_second(peer.rx_packets - was.rx_packets, found.seconds),
            micros(min(trips, default=None)),
            "never" if peer.last_heard_s is None else f"{duration(peer.last_heard_s)} ago",
            peer.qps, peer.framing, ", ".join(peer.addresses),
        ])  # fmt: skip
    return [table(columns, rows), *_more(len(found.peers) - len(shown), "peers", found.peers)]


def _more(count: int, what: str, peers: Sequence[PeerInfo]) -> list[Element]:
    if count <= 0:
        return []
    states = Counter[str](peer.state for peer in peers)
    told = ", ".join(f"{number} {state}" for state, number in states.items())
    text = f"{count} more {what} are not listed; of all {len(peers)}: {told}."
    return [el("p", text, class_="quiet")]


def _foremost(found: Observed, count: int) -> list[PeerInfo]:
    by_name = {peer.name: peer for peer in found.peers}

    def packets(peer: PeerInfo) -> float:
        was = found.peers_before.get(peer.name, peer)
        return peer.tx_packets - was.tx_packets + peer.rx_packets - was.rx_packets

    standings = (Standing(peer.name, peer.state, packets(peer)) for peer in found.peers)
    return [by_name[name] for name in foremost(standings, count)]


def paths(found: Observed) -> list[Element]:
    """Return a table with a row for each peer and a cell for each plane."""
    groups: dict[tuple[str, int], list[PathInfo]] = {}
    for path in found.paths:
        groups.setdefault((path.peer, path.plane), []).append(path)
    there = {peer for peer, _plane in groups}
    names = [peer.name for peer in _foremost(found, len(found.peers)) if peer.name in there]
    indices = [plane.index for plane in found.status.planes]
    rows = [
        [name, *(_summed(groups.get((name, index), ())) for index in indices)]
        for name in names[:SUMMED_MAX]
    ]
    total = len(found.paths)
    counted = Counter[str](path.state for path in found.paths)
    states = ", ".join(f"{counted[state]} {state}" for state in RANKS if counted[state])
    note = f"{total} paths to {len(there)} of {len(found.peers)} peers: {states or 'none'}. "
    note += "A cell has the paths in use, those withdrawn, the share of packets lost since the "
    note += "counters began, and the median round trip."
    rest = len(names) - SUMMED_MAX
    made = [el("p", note), table(["Peer", *(f"Plane {index}" for index in indices)], rows)]
    if rest > 0:
        made.append(el("p", f"Paths to {rest} more peers are not listed.", class_="quiet"))
    return made


def _summed(group: Sequence[PathInfo]) -> Child:
    if not group:
        return None
    active = sum(path.role == "active" and path.state in ("GOOD", "SKIP") for path in group)
    sent, lost = sum(path.sent for path in group), sum(path.lost for path in group)
    trips = [path.srtt_us for path in group if path.srtt_us is not None]
    states = Counter[str](path.state for path in group)
    words = [f"{active} in use"]
    if trips:
        words.append(micros(statistics.median(trips)) or "")
    parts: list[Child] = [el("span", ", ".join(words))]
    if states["ASSUMED_BAD"]:
        parts += [badge("dead", f"{states['ASSUMED_BAD']} bad")]
    if states["DENIED"]:
        parts += [badge("unseen", f"{states['DENIED']} denied")]
    if lost:
        parts += [badge("loss", f"lost {percent(lost / max(1, sent))}")]
    return el("div", *parts, class_="stack")


def worst(found: Observed) -> list[Element]:
    """Return the paths in trouble, those that lose most first; none if every path is well."""
    rows = []
    for path in found.paths:
        was = found.paths_before.get((path.peer, path.qp, path.ev), path)
        lately = max(0, path.lost - was.lost)
        if path.state != "GOOD" or path.lost or path.slow:
            share = path.lost / max(1, path.sent)
            rows.append((RANKS[path.state], -lately, -share, -path.lost, path.ev, path))
    rows.sort(key=lambda row: (*row[:5], row[5].peer, row[5].qp))
    if not rows:
        return [el("p", badge("ok", "no path is withdrawn, slow, or has ever lost a packet"))]
    columns = ["Peer", "QP#", "EV", "Plane#", "T1#", "State", "Role", "Sent#", "Lost#", "Share#"]
    columns += ["Lost/s#", "Marked#", "Round trip#", "uSIDs"]
    shown: list[list[Child]] = [
        [
            path.peer, path.qp, f"0x{path.ev:08x}", path.plane, path.t1 or None,
            badge(PATH_MARKS[path.state], path.state), "slow" if path.slow else path.role,
            path.sent, path.lost, percent(-share) if path.sent else None,
            per_second(-lately, found.seconds), path.marked, micros(path.srtt_us),
            el("code", path.usids),
        ]
        for _rank, lately, share, _lost, _ev, path in rows[:WORST_MAX]
    ]  # fmt: skip
    note = f"{len(rows)} paths are withdrawn, slow, or have lost a packet"
    note += f"; the worst {WORST_MAX}:" if len(rows) > WORST_MAX else ":"
    return [el("p", note), table(columns, shown)]


def counters(found: Observed) -> list[Element]:
    """Return the counters that moved while the report was made, and refused messages by source."""
    rows: list[list[Child]] = []
    for counter in found.stats.counters:
        moved = counter.value - found.stats_before.get(counter.name, counter.value)
        if moved:
            rows.append([
                el("code", counter.name), f"{moved:,}", per_second(moved, found.seconds),
                f"{counter.value:,}", counter.help,
            ])  # fmt: skip
    moved_table = table(["Counter", "Moved by#", "Per second#", "Now#", "Meaning"], rows)
    made = [moved_table if rows else el("p", "No counter moved.")]
    if found.stats.sources:
        sources: list[list[Child]] = [
            [source.source, source.beyond_budget, source.forged] for source in found.stats.sources
        ]
        columns = ["Messages refused from", "Beyond the budget#", "Forged#"]
        made.append(table(columns, sources[:PEERS_MAX]))
    return made
