# SPDX-License-Identifier: GPL-2.0-only
"""Hold mrc0, in each framing, against one competitor in every case (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.compare.duplex import SLOWER
from bench.compare.exchange import PER_S as REQUESTS
from bench.compare.results import Figure, number
from bench.compare.routes import Mrc0
from bench.compare.targets import ratios
from bench.compare.training import PER_S
from bench.compare.ways import STEAL, BareMptcp, Offloads

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table: a figure of some workloads, and how it relates to the competitor's."""

    heading: str
    workloads: tuple[str, ...]
    what: str
    theirs: str
    relation: str  # the heading of the column; {} is the way of mrcd
    relate: Callable[[float], float]  # of mrc0's figure to the competitor's, in a round


def _same(ratio: float) -> float:
    return ratio


def _ahead(ratio: float) -> float:
    return 100 * (1 / ratio - 1)


COMPARISONS = (
    Comparison(
        "mrc0 and TCP with every offload: goodput, Gb/s",
        ("speed", "direct"), "goodput", Offloads.title, "{} to TCP", _same,
    ),
    Comparison(
        "mrc0 and MPTCP on planes with a rate: goodput, Mb/s",
        ("gigabit",), "goodput", BareMptcp.title, "MPTCP ahead of {} by, %", _ahead,
    ),
    Comparison(
        "mrc0 and MPTCP, hosts that send to each other: goodput of the slower direction, Mb/s; Gb/s"
        " without a rate limit",
        ("duplex",), SLOWER, BareMptcp.title, "MPTCP ahead of {} by, %", _ahead,
    ),
    Comparison(
        "mrc0 and MPTCP: requests answered a second",
        ("requests",), REQUESTS, BareMptcp.title, "MPTCP ahead of {} by, %", _ahead,
    ),
    Comparison(
        "mrc0 and TCP with every offload: requests answered a second",
        ("requests",), REQUESTS, Offloads.title, "{} to TCP", _same,
    ),
    Comparison(
        "mrc0 and MPTCP in training: gloo's steps a second",
        ("steps",), PER_S, BareMptcp.title, "MPTCP ahead of {} by, %", _ahead,
    ),
    Comparison(
        "mrc0 and TCP with every offload in training: gloo's steps a second",
        ("steps",), PER_S, Offloads.title, "{} to TCP", _same,
    ),
)  # fmt: skip


def tables(figures: Sequence[Figure]) -> Iterator[tuple[str, list[Row]]]:
    """Yield each comparison that has figures: its heading, and its rows, headings first."""
    for comparison in COMPARISONS:
        rows = list(_rows(comparison, figures))
        if rows:
            yield comparison.heading, rows


def _rows(comparison: Comparison, figures: Sequence[Figure]) -> Iterator[Row]:
    mine = [each for each in figures if each.workload in comparison.workloads]
    wanted = [each for each in mine if each.what == comparison.what and each.values]
    routes = list(dict.fromkeys(each.route for each in wanted))
    ours = [route for route in routes if route.startswith(Mrc0.title)]
    cells = {(each.workload, each.case, each.route): each for each in wanted}
    cases = [key for key in dict.fromkeys((each.workload, each.case) for each in wanted)
             if (*key, comparison.theirs) in cells]  # fmt: skip
    if not ours or not cases:
        return
    relations = [comparison.relation.format(route) for route in ours]
    yield "", *ours, comparison.theirs, *relations, f"{STEAL}, %"
    for workload, case in cases:
        theirs = cells[workload, case, comparison.theirs]
        found = [cells.get((workload, case, route)) for route in ours]
        yield (
            f"{workload}, {case}",
            *("" if each is None else str(each) for each in found),
            str(theirs),
            *("" if each is None else _related(comparison, each, theirs) for each in found),
            _steal(each for each in mine if (each.workload, each.case) == (workload, case)),
        )


def _related(comparison: Comparison, ours: Figure, theirs: Figure) -> str:
    values = tuple(comparison.relate(ratio) for ratio in ratios(ours, theirs))
    return str(Figure("", "", "", "", "", values))


def _steal(figures: Iterator[Figure]) -> str:
    """Return the range of all turns of a case."""
    values = [value for each in figures if each.what == STEAL for value in each.values]
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"
