# SPDX-License-Identifier: GPL-2.0-only
"""Tables of paths, the worst first: one row for each path, or for each peer and plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cli.console.render import BAD, GOOD, WARN, Cell, micros, table
from mrcd.model import PathInfo, PathSums

STATE_COLOURS = {"GOOD": GOOD, "SKIP": WARN, "ASSUMED_BAD": BAD, "DENIED": BAD}
RANKS = {"ASSUMED_BAD": 0, "DENIED": 1, "SKIP": 2, "GOOD": 3}
"""The order of states, the worst first."""
ROWS = 64
"""The rows that a terminal shows of a longer table."""


def worst_first(paths: Sequence[PathInfo]) -> list[PathInfo]:
    """Return the paths by state, then by lost packets, then by name."""
    return sorted(
        paths, key=lambda path: (RANKS[path.state], -path.lost, path.peer, path.qp, path.ev)
    )


def render(paths: Sequence[PathInfo], limit: int | None = None) -> str:
    """Return a table with a row for each path, the worst first; at most `limit` of them."""
    shown = worst_first(paths)[:limit]
    text = table(
        [
            "PEER",
            "QP",
            "EV",
            "PLANE",
            "T1",
            "STATE",
            "ROLE",
            "SENT",
            "ACKED",
            "LOST",
            "MARKED",
            "SRTT",
            "USIDS",
        ],
        [
            [
                path.peer,
                path.qp,
                f"0x{path.ev:08x}",
                path.plane,
                path.t1 or None,
                path.state,
                "slow" if path.slow else path.role,
                path.sent,
                path.acked,
                path.lost,
                path.marked,
                micros(path.srtt_us),
                path.usids,
            ]
            for path in shown
        ],
        [{5: STATE_COLOURS[path.state]} for path in shown],
    )
    return text + _rest(len(paths) - len(shown)) + _losing(paths)


def _losing(paths: Sequence[PathInfo]) -> str:
    """Return a line for each peer and plane with paths that lose data and answer probes."""
    lines = []
    groups = _grouped([path for path in paths if path.loses_data])
    for (peer, plane), group in sorted(groups.items()):
        lost, sent = sum(path.lost for path in group), sum(path.sent for path in group)
        many = f"{len(group)} paths answer probes and lose"
        verbs = many if len(group) > 1 else "1 path answers probes and loses"
        lines.append(f"\n{peer}, plane {plane}: {verbs} data: {lost:,} of {sent:,} packets")
    return "".join(lines)


def _grouped(paths: Sequence[PathInfo]) -> dict[tuple[str, int], list[PathInfo]]:
    """Return the paths of each peer and plane."""
    groups: dict[tuple[str, int], list[PathInfo]] = {}
    for path in paths:
        groups.setdefault((path.peer, path.plane), []).append(path)
    return groups


def _rest(rows: int) -> str:
    return f"\n{rows} more; --all shows them" if rows > 0 else ""


def summed(paths: Sequence[PathInfo]) -> list[PathSums]:
    """Return the sums of each peer and plane, the worst first."""
    sums = [_sums(peer, plane, group) for (peer, plane), group in _grouped(paths).items()]
    return sorted(
        sums,
        key=lambda each: (
            -each.assumed_bad, -each.denied, -each.skip, -each.lost, each.peer, each.plane
        ),
    )  # fmt: skip


def _sums(peer: str, plane: int, paths: Sequence[PathInfo]) -> PathSums:
    states = Counter[str](path.state for path in paths)
    trips = [path.srtt_us for path in paths if path.srtt_us is not None]
    return PathSums(
        peer=peer,
        plane=plane,
        good=states["GOOD"],
        skip=states["SKIP"],
        assumed_bad=states["ASSUMED_BAD"],
        denied=states["DENIED"],
        sent=sum(path.sent for path in paths),
        acked=sum(path.acked for path in paths),
        lost=sum(path.lost for path in paths),
        marked=sum(path.marked for path in paths),
        srtt_min_us=min(trips, default=None),
        srtt_max_us=max(trips, default=None),
    )


def render_sums(sums: Sequence[PathSums], limit: int | None = None) -> str:
    """Return a table with a row for each peer and plane; at most `limit` of them."""
    rows: list[list[Cell]] = [
        [
            each.peer,
            each.plane,
            each.good,
            each.skip,
            each.assumed_bad,
            each.denied,
            each.sent,
            each.acked,
            each.lost,
            each.marked,
            micros(each.srtt_min_us),
            micros(each.srtt_max_us),
        ]
        for each in sums[:limit]
    ]
    columns = ["PEER", "PLANE", "GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "SENT", "ACKED", "LOST"]
    colours = [{4: BAD} if each.assumed_bad else {} for each in sums[:limit]]
    text = table([*columns, "MARKED", "SRTT MIN", "SRTT MAX"], rows, colours)
    return text + _rest(len(sums) - len(rows))
