# SPDX-License-Identifier: GPL-2.0-only
"""Find the cases in which another way does better than mrc0 (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.compare.results import Figure
from bench.compare.routes import Mrc0

MRC0 = Mrc0.title

MORE, LESS = 1, -1
BETTER = {
    "goodput": MORE, "all flows": MORE, "slowest flow": MORE, "victim beside it": MORE,
    "while it lasts": MORE, "longest gap of a connection": LESS, "connections lost": LESS,
    "failed steps": LESS, "p50": LESS, "p99": LESS, "p99.9": LESS, "p99.9, rounds together": LESS,
    "p99.99, rounds together": LESS, "worst": LESS, "p50 while it lasts": LESS,
    "steps a second": MORE, "slower direction": MORE, "requests a second": MORE,
}  # fmt: skip
"""The figures that decide which way is better, and whether more or less is better.

Figures relative to a competitor's own others are not among them.
"""

_APART = 0.02  # medians that differ by no more count as equal
STATELESS = "stateless"
"""What the titles of ceilings begin with: nobody could use them in mrc0's place."""


@dataclass(frozen=True, slots=True)
class Win:
    """A figure in which a competitor beats mrc0; `clear` means in each of several rounds."""

    figure: Figure
    ours: Figure
    clear: bool


def wins(figures: Sequence[Figure]) -> Iterator[Win]:
    """Yield every figure in which a competitor's median beats mrc0's by more than 2 %."""
    ours = {(each.workload, each.case, each.what): each for each in figures if each.route == MRC0}
    for each in figures:
        mine = ours.get((each.workload, each.case, each.what))
        way = BETTER.get(each.what)
        if each.route.startswith(STATELESS):
            continue
        if way is None or mine is None or each is mine or not each.values or not mine.values:
            continue
        theirs_, mine_ = each.median or 0.0, mine.median or 0.0
        if way * (theirs_ - mine_) > _APART * max(abs(theirs_), abs(mine_)):
            clear = len(each.values) > 1 and (
                min(way * value for value in each.values)
                > max(way * value for value in mine.values)
            )
            yield Win(each, mine, clear)
