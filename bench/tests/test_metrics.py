# SPDX-License-Identifier: GPL-2.0-only
"""Tests of what the benchmarks compute from a record of arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from bench.instruments.metrics import (
    MS,
    Arrivals,
    Order,
    S,
    imbalance,
    last_at,
    order_of,
    outage,
    spread,
)
from bench.instruments.result import Line, at_least, at_most

FAULT = 1 * S
END = 2 * S
FULL = 1000  # bytes each ms: 8 Mb/s


def record(*stretches: tuple[int, int, int]) -> Arrivals:
    """Return arrivals in the middle of each ms of (from ms, to ms, bytes each ms); none for 0."""
    times, sizes = [], []
    for start, end, size in stretches:
        for ms in range(start, end) if size else ():
            times.append(ms * MS + MS // 2)
            sizes.append(size)
    return Arrivals(np.array(times, dtype=np.int64), np.array(sizes, dtype=np.int64))


def judge(arrivals: Arrivals, left: float = 0.75) -> tuple[int | None, int, int]:
    found = outage(arrivals, steady_ns=0, fault_ns=FAULT, until_ns=END, left=left)
    assert found.before_bps == pytest.approx(FULL * 8000)
    return (
        None if found.back_ns is None else found.back_ns // MS,
        round(found.lost_ns / MS),
        found.gap_ns // MS,
    )


@pytest.mark.parametrize(
    ("stretches", "back_ms", "lost_ms", "gap_ms"),
    [
        pytest.param([(0, 2000, 1000)], 0, 0, 1, id="nothing happens"),
        pytest.param([(0, 1000, 1000), (1000, 2000, 750)], 0, 0, 1, id="exactly the rest is left"),
        pytest.param([(0, 1000, 1000), (1000, 2000, 720)], 0, 0, 1, id="within 5 % of the rest"),
        pytest.param([(0, 1000, 1000), (1020, 2000, 750)], 20, 20, 21, id="a pause of 20 ms"),
        pytest.param([(0, 1000, 1000)], None, 1000, 1000, id="silence for ever"),
        pytest.param(
            [(0, 1000, 1000), (1000, 1100, 375), (1100, 2000, 750)], 100, 50, 1, id="half for 100"
        ),
        pytest.param(
            [(0, 1000, 1000), (1010, 1015, 2000), (1100, 2000, 750)], 100, 87, 86,
            id="a burst that does not last is not recovery",
        ),
        pytest.param(
            [(0, 1010, 1000), (1020, 2000, 750)], 20, 7, 11, id="what was under way arrives first"
        ),
        pytest.param(
            [(0, 1000, 1000), (1000, 1500, 750), (1510, 2000, 750)], 0, 0, 11,
            id="a pause much later is a gap, but not this fault's dip",
        ),
    ],
)  # fmt: skip
def test_outage(
    stretches: list[tuple[int, int, int]], back_ms: int | None, lost_ms: int, gap_ms: int
) -> None:
    assert judge(record(*stretches)) == (back_ms, lost_ms, gap_ms)


def test_outage__a_burst_after_the_pause_refunds_nothing() -> None:
    arrivals = record((0, 1000, 1000), (1010, 1015, 4000), (1015, 2000, 750))
    assert judge(arrivals) == (10, 10, 11)


def test_outage__rates_of_its_own() -> None:
    found = outage(
        record((0, 1000, 1000), (1000, 2000, 500)),
        steady_ns=0, fault_ns=FAULT, until_ns=END, left=0.5, reference_bps=16e6,
    )  # fmt: skip
    assert found.surviving_bps == 8e6
    assert found.back_ns is None
    assert found.lost_ns == pytest.approx(S // 2)


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "gap_ms"),
    [
        pytest.param(0, 100, 1, id="steady"),
        pytest.param(50, 250, 101, id="all of it inside"),
        pytest.param(150, 250, 101, id="began before: counted in full"),
        pytest.param(50, 150, 50.5, id="lasts beyond the end: cut there"),
        pytest.param(150, 160, 60.5, id="both"),
        pytest.param(400, 500, 200.5, id="nothing ever came again"),
    ],
)
def test_longest_gap(start_ms: int, end_ms: int, gap_ms: float) -> None:
    arrivals = record((0, 100, 10), (200, 300, 10))
    assert arrivals.longest_gap_ns(start_ms * MS, end_ms * MS) == gap_ms * MS


def test_bins__sum_up_and_leave_out_a_partial_one() -> None:
    arrivals = record((0, 25, 1000))
    bins = arrivals.bins_bps(0, 24 * MS, 5 * MS)
    assert bins.tolist() == [8e6] * 4


def test_bins__are_zero_where_nothing_came() -> None:
    assert record((5, 10, 1000)).bins_bps(0, 15 * MS, 5 * MS).tolist() == [0, 8e6, 0]


def test_bps__counts_from_start_to_before_end() -> None:
    arrivals = Arrivals(np.array([0, S, 2 * S]), np.array([1, 10, 100]))
    assert arrivals.bps(0, S) == 8
    assert arrivals.bps(S, 2 * S) == 80


@pytest.mark.parametrize(
    ("sent", "numbers", "expected"),
    [
        (4, [0, 1, 2, 3], Order(0, 0, 0)),
        (4, [0, 2, 3], Order(1, 0, 0)),
        (4, [0, 2, 1, 3], Order(0, 1, 0)),
        (4, [0, 1, 1, 2, 3], Order(0, 0, 1)),
        (5, [3, 0, 1, 1, 4], Order(1, 2, 1)),
        (3, [], Order(3, 0, 0)),
    ],
)
def test_order(sent: int, numbers: list[int], expected: Order) -> None:
    assert order_of(sent, numbers) == expected


def test_last_at__holds_the_last_sample() -> None:
    samples = [(10, 1), (20, 5)]
    assert [last_at(samples, at) for at in (5, 10, 19, 20, 99)] == [0, 1, 1, 5, 5]


def test_imbalance__is_the_largest_deviation_either_way() -> None:
    assert imbalance([100, 100, 100, 60]) == pytest.approx(30 / 90)
    assert imbalance([0, 0]) == 0


def test_spread() -> None:
    found = spread([3, 1, 2])
    assert (found.median, found.low, found.high, found.count) == (2, 1, 3, 3)


@pytest.mark.parametrize(
    ("values", "missing", "verdict"),
    [
        ((9.0, 10.0), 0, "ok"),
        ((9.0, 9.5, 12.0), 0, "mostly"),
        ((9.0, 11.0, 12.0), 0, "MISSED"),
        ((9.0,), 1, "MISSED"),
        ((), 1, "MISSED"),
    ],
)
def test_verdict(values: tuple[float, ...], missing: int, verdict: str) -> None:
    assert Line("", "", "", "ms", values, at_most(10), missing).verdict == verdict


def test_target__at_least() -> None:
    assert at_least(3).met(3)
    assert not at_least(3).met(2.9)
