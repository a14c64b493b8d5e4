# SPDX-License-Identifier: GPL-2.0-only
"""A plane of a large fabric as a matrix: T0s down, T1s across, the NIC links of hosts at the right.

A healthy cell is not drawn, so that the size depends on the faults and not on the fabric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

from cli.report.marks import AT_FAULT, WORST
from cli.report.markup import el
from mrcd.model import ElementInfo, ElementState

EXPLANATION = (
    "A cell is a link: T0 switches down, T1 switches across, and at the right the NIC links of "
    "each T0's hosts. The strips at the edges are the switches themselves. "
)
CELLS_MAX, HOSTS_MAX = 64, 32
"""More columns or rows than these are joined; a joined cell shows the worst of its links."""
RINGS_MAX = 24
"""Rings point at faulty cells unless there are more of them than this."""
_CELL = 10
_EDGE = 3  # cells between the strip of the switches and the matrix, with the strip
_GAP = 3
_SHAPES: dict[ElementState, str] = {
    "dead": "h{w}v10h-{w}z",
    "loss": "m0 10h{w}v-10z",
    "slow": "m0 5h{w}v5h-{w}z",
    "unseen": "m0 3h{w}v4h-{w}z",
}

Cells = Sequence[Sequence[ElementState | None]]
"""States by row and column; None where there is nothing."""


def matrix(
    t0s: Sequence[ElementInfo],
    t1s: Sequence[ElementInfo],
    nics: Mapping[int, Sequence[ElementInfo]],
    by_name: Mapping[str, ElementInfo],
) -> Element:
    """Return the figure of one plane."""
    rows, columns = _joined(len(t0s), CELLS_MAX), _joined(len(t1s), CELLS_MAX)
    links: Cells = [
        [
            _worst([by_name[f"{t0s[j].name}:{t1s[m].name}"].state for j in row for m in column])
            for column in columns
        ]
        for row in rows
    ]
    most = max((len(group) for group in nics.values()), default=0)
    places = _joined(most, HOSTS_MAX)
    hosts: Cells = [
        [
            _worst([nics[j + 1][i].state for j in row for i in place if i < len(nics[j + 1])])
            for place in places
        ]
        for row in rows
    ]
    across: Cells = [[_worst([t1s[m].state for m in column]) for column in columns]]
    down: Cells = [[_worst([t0s[j].state for j in row])] for row in rows]
    left, top = 5 * _CELL, 5 * _CELL
    right = left + (_EDGE + len(columns) + _GAP) * _CELL
    width = right + max(len(places), 4) * _CELL + _CELL
    height = top + (_EDGE + len(rows)) * _CELL + _CELL
    size = max(9.0, width / 34)
    body, begin = left + _EDGE * _CELL, top + _EDGE * _CELL
    parts = [
        *_region(across, body, top),
        *_region(down, left, begin),
        *_region(links, body, begin),
        *_region(hosts, right, begin),
        *_rings([(across, body, top), (down, left, begin), (links, body, begin),
                 (hosts, right, begin)], size),
        _label(f"T1 1 to {len(t1s)}", body, top - 0.5 * size, size),
        _label("NICs", right, top - 0.5 * size, size),
        _label("T0", 0, begin + size, size),
        _label("1", 0, begin + 2.1 * size, size),
        _label(str(len(t0s)), 0, begin + len(rows) * _CELL, size),
    ]  # fmt: skip
    return el(
        "svg",
        *parts,
        viewBox=f"0 0 {width} {height}",
        class_="map matrix",
        style="min-width:320px;max-width:560px",
        role="img",
        aria_label="the plane's links as a matrix; faults are listed below",
    )


def _joined(count: int, most: int) -> list[range]:
    """Return at most `most` runs of equal length that cover `count` indices."""
    each = max(1, -(-count // most))
    return [range(start, min(count, start + each)) for start in range(0, count, each)]


def _worst(states: Sequence[ElementState]) -> ElementState | None:
    return min(states, key=WORST.index, default=None)


def _region(cells: Cells, x: float, y: float) -> list[Element]:
    """Return a background for the healthy cells, and one path for all cells of each other state."""
    columns = len(cells[0]) if cells else 0
    if not columns:
        return []
    drawn: dict[ElementState, list[str]] = {}
    holes: list[str] = []  # in the background, where nothing is known, or is
    for r, row in enumerate(cells):
        c = 0
        for state, run in groupby(row):
            length = len(list(run))
            places = [f"M{x + (c + i) * _CELL:g} {y + r * _CELL:g}" for i in range(length)]
            if state in AT_FAULT:  # each its own shape
                shape = _SHAPES[state].format(w=_CELL)
                drawn.setdefault(state, []).extend(f"{place}{shape}" for place in places)
            elif state != "ok":
                wide = length * _CELL
                holes.append(f"{places[0]}h{wide}v{_CELL}h-{wide}z")
                if state == "unseen":
                    shape = _SHAPES[state].format(w=wide)
                    drawn.setdefault(state, []).append(f"{places[0]}{shape}")
            c += length
    ground = el("rect", x=x, y=y, width=columns * _CELL, height=len(cells) * _CELL, class_="ground")
    lines = [f"M{x + c * _CELL:g} {y:g}v{len(cells) * _CELL}" for c in range(8, columns, 8)]
    lines += [f"M{x:g} {y + r * _CELL:g}h{columns * _CELL}" for r in range(8, len(cells), 8)]
    below = [("hole", holes), ("rule", lines)]
    return [
        ground,
        *(el("path", d="".join(each), class_=name) for name, each in below if each),
        *(el("path", d="".join(d), class_=f"cell {s}") for s, d in drawn.items()),
    ]


def _rings(regions: Sequence[tuple[Cells, float, float]], size: float) -> list[Element]:
    found = [
        (state, x + (c + 0.5) * _CELL, y + (r + 0.5) * _CELL)
        for cells, x, y in regions
        for r, row in enumerate(cells)
        for c, state in enumerate(row)
        if state in AT_FAULT
    ]
    if len(found) > RINGS_MAX:
        return []
    return [el("circle", cx=x, cy=y, r=size * 0.8, class_=f"ring {state}") for state, x, y in found]


def _label(text: str, x: float, y: float, size: float) -> Element:
    return el("text", text, x=x, y=y, style=f"font-size:{size:.1f}px")
