# SPDX-License-Identifier: GPL-2.0-only
"""Compare the project's targets with the figures: met, or missed by how much and why (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.compare.latency import LINE_RATE, TOGETHER
from bench.compare.results import Figure, number
from bench.compare.routes import Mrc0, Plane
from bench.compare.training import RATIO
from bench.compare.unlimited import BareSeg6, Plain
from bench.instruments.metrics import spread
from bench.instruments.result import Target, at_least, at_most
from mrcd.wire.packet import WIRE

NOT_MEASURED = "not measured"
MRC0, PLANE = Mrc0.title, Plane.title
_TCP_IP = 20 + 32  # IPv4, and TCP with time stamps
_OUTER = 40  # the IPv6 header that direct planes do without


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of a target: a value for each round, and an explanation."""

    values: tuple[float, ...]
    why: str = ""


class Found:
    """The figures, found by workload, case, route and name."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        self._figures = figures

    def case(self, workload: str, words: str) -> str | None:
        """Return the first case of a workload that contains the words."""
        for figure in self._figures:
            if figure.workload == workload and words in figure.case:
                return figure.case
        return None

    def get(self, workload: str, case: str | None, route: str, what: str) -> Figure | None:
        """Return a figure that has values; None if there is none."""
        for figure in self._figures:
            if (figure.workload, figure.case, figure.route, figure.what) == (
                workload, case, route, what,
            ) and figure.values:  # fmt: skip
                return figure
        return None

    def told(
        self, workload: str, case: str | None, route: str, named: Sequence[tuple[str, str]]
    ) -> list[str]:
        """Return the existing ones of several figures as words."""
        figures = ((self.get(workload, case, route, what), words) for what, words in named)
        return [words.format(figure) for figure, words in figures if figure is not None]


@dataclass(frozen=True, slots=True)
class Goal:
    """A target: `take` finds its measurement, and `only` is the workload that measures it."""

    about: str
    bound: Target
    unit: str
    take: Callable[[Found], Measured | None]
    only: str


def ratios(one: Figure, other: Figure) -> tuple[float, ...]:
    """Return the ratios of two figures by round, or that of the medians if a round is missing."""
    if len(one.values) == len(other.values) and not one.missing and not other.missing:
        return tuple(a / b for a, b in zip(one.values, other.values, strict=True))
    return (spread(one.values).median / spread(other.values).median,)


def _of_plain(workload: str, words: str, bound: float) -> Callable[[Found], Measured | None]:
    """Return how to compare mrc0's goodput with plain TCP's without segmentation offload."""

    def take(found: Found) -> Measured | None:
        case = found.case(workload, words)
        ours = found.get(workload, case, MRC0, "goodput")
        plain = found.get(workload, case, Plain.title, "goodput")
        if case is None or ours is None or plain is None:
            return None
        mtu = int(re.findall(r"MTU (\d+)", case)[0])
        headers = WIRE.MRC_DATA_OVERHEAD - (_OUTER if workload == "direct" else 0)
        mss = {MRC0: mtu - headers - _TCP_IP, PLANE: mtu - _TCP_IP}
        took = mss[MRC0] * 8 / spread(ours.values).median
        plain_took = mss[PLANE] * 8 / spread(plain.values).median
        allowed = mss[MRC0] * 8 / (bound * spread(plain.values).median)
        seg6 = found.get(workload, case, BareSeg6.title, "goodput")
        routed = "" if seg6 is None else (
            " The kernel's own source routes, without mrcd, reach"
            f" {number(spread(ratios(seg6, plain)).median)} of plain TCP."
        )  # fmt: skip
        return Measured(
            ratios(ours, plain),
            f"A packet takes mrc0 {number(took)} ns of wall clock from end to end, plain TCP"
            f" {number(plain_took)}; the target leaves {number(allowed)}. Its CPUs were"
            f" {ours.busy:.0%} busy: what a packet costs on the two of them is the limit"
            f" (docs/performance.md has where it goes), not the fabric.{routed}",
        )

    return take


def _round_trip(found: Found) -> Measured | None:
    case = found.case("speed", "idle round trip, MTU 9000") or found.case("speed", "idle")
    ours, plain = (found.get("speed", case, route, "p50") for route in (MRC0, Plain.title))
    if ours is None or plain is None:
        return None
    us, theirs = spread(ours.values).median, spread(plain.values).median
    return Measured(
        ratios(ours, plain),
        f"mrc0 {number(us)} us, plain TCP {number(theirs)}: mrcd's programs, mrc0's own veth pair"
        f" and its queue take {number(us - theirs)} us of a request and its answer together.",
    )


def _tail(found: Found) -> Measured | None:
    case, what = found.case("latency", LINE_RATE), f"p99.9, {TOGETHER}"
    ours, plain = (found.get("latency", case, route, what) for route in (MRC0, PLANE))
    if ours is None or plain is None:
        return None
    us, theirs = spread(ours.values).median / 1e3, spread(plain.values).median / 1e3
    return Measured(
        ratios(ours, plain),
        f"mrc0 {number(us)} ms, plain TCP {number(theirs)}, each beside four connections of its own"
        " that fill all planes, or the one; the queues of full links, some 12 ms at MTU 9000, are"
        " most of both.",
    )


def _kept(found: Found) -> Measured | None:
    case = "1 % loss"  # and not 0.1
    ours = found.get("faults", case, MRC0, "kept")
    if ours is None:
        return None
    plain = found.get("faults", case, PLANE, "kept")
    words = f"Plain TCP on one plane keeps {plain.short} %. " if plain else ""
    resent = found.get("faults", case, MRC0, "TCP retransmissions")
    if resent is not None:
        words += f"TCP over mrc0 sent {resent.short} segments again meanwhile."
    return Measured(ours.values, words)


def _died(what: str) -> Callable[[Found], Measured | None]:
    def take(found: Found) -> Measured | None:
        case = found.case("speed", "a plane dies silently, 1 connection, MTU 9000")
        case = case or found.case("speed", "a plane dies silently")
        ours = found.get("speed", case, MRC0, what)
        if ours is None:
            return None
        named = (
            ("loaded round trip", "TCP's smoothed round trip was {} ms before"),
            ("longest gap", "the longest gap was {} ms"),
            ("... without a fault", "{} ms in a second without a fault"),
            ("... at a moment without a fault", "the same figure for such a second is {} ms"),
        )
        parts = found.told("speed", case, MRC0, named)
        return Measured(ours.values, "; ".join(parts) + ".")

    return take


def _steps(what: str) -> Callable[[Found], Measured | None]:
    def take(found: Found) -> Measured | None:
        case = found.case("training", "half-way")
        ours = found.get("training", case, MRC0, what)
        if ours is None:
            return None
        named = (
            ("steps", "{} steps"), ("p50 before", "the median {} ms before the fault"),
            ("p50 while it lasts", "{} ms with three planes of four"),
            ("the fault's own step", "the fault's own step {} ms"),
            ("worst other step", "the worst other {} ms"),
        )  # fmt: skip
        parts = found.told("training", case, MRC0, named)
        theirs = found.get("training", case, "MPTCP", what)
        if theirs is not None:
            parts.append(f"MPTCP: {theirs}")
        return Measured(ours.values, "; ".join(parts) + ".")

    return take


def _speed(about: str, workload: str, words: str, bound: float) -> Goal:
    return Goal(about, at_least(bound), "", _of_plain(workload, words, bound), workload)


GOALS = (
    _speed(
        "TCP over mrc0, of plain TCP without segmentation offload, MTU 1500",
        "speed", "1 connection, MTU 1500", 0.75,
    ),
    _speed("the same with 4 connections", "speed", "4 connections, MTU 1500", 0.75),
    _speed("the same at MTU 9000, 1 connection", "speed", "1 connection, MTU 9000", 0.85),
    _speed("... 4 connections", "speed", "4 connections, MTU 9000", 0.85),
    _speed(
        "the same on direct planes, MTU 1500, 1 connection",
        "direct", "1 connection, MTU 1500", 0.7,
    ),
    Goal("idle round trip, of the plain path's", at_most(1.5), "", _round_trip, "speed"),
    Goal("p99.9 at line rate, of plain TCP's", at_most(1), "", _tail, "latency"),
    Goal("goodput kept with 1 % loss on all planes", at_least(90), "%", _kept, "faults"),
    Goal(
        "goodput that a plane's silent death costs, no rate limit", at_most(2), "ms",
        _died("goodput lost"), "speed",
    ),
    Goal(
        "... longest gap, in loaded round trips", at_most(3), "",
        _died("longest gap, in loaded round trips"), "speed",
    ),
    Goal(
        "gloo all-reduce, a plane dies half-way: failed steps", at_most(0), "",
        _steps("failed steps"), "training-long",
    ),
    Goal(
        "... p99.9 step, of the median outside the fault's own step", at_most(1.5), "",
        _steps(RATIO), "training-long",
    ),
)  # fmt: skip


def verdict(bound: Target, values: Sequence[float]) -> str:
    """Return whether the median and every round meet a target, or by how much it is missed."""
    median = spread(values).median
    if bound.met(median):
        short = sum(not bound.met(value) for value in values)
        return f"met by the median, not by {short} of {len(values)} rounds" if short else "met"
    by = abs(median - bound.bound)
    share = f" ({by / bound.bound:.0%})" if bound.bound else ""
    return f"**missed by {number(by)}**{share}"


def rows(figures: Sequence[Figure]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield for each target: what, wanted, measured, verdict, the workload that measures it."""
    found = Found(figures)
    for goal in GOALS:
        wanted = f"{goal.bound} {goal.unit}".strip()
        measured = goal.take(found)
        if measured is None:
            yield goal.about, wanted, "", NOT_MEASURED, goal.only
        else:
            cell = str(Figure("", "", "", "", "", measured.values))
            yield goal.about, wanted, cell, verdict(goal.bound, measured.values), goal.only


def reasons(figures: Sequence[Figure]) -> Iterator[tuple[str, str]]:
    """Yield each measured target with its explanation."""
    found = Found(figures)
    for goal in GOALS:
        measured = goal.take(found)
        if measured is not None and measured.why:
            yield goal.about, measured.why
