# SPDX-License-Identifier: GPL-2.0-only
"""Tests of step responses: bins, the time to the new share, overshoot."""

from __future__ import annotations

import numpy as np
import pytest

from bench.instruments.metrics import MS, Arrivals, S
from bench.instruments.response import Response, overshoot, reached, response
from bench.instruments.result import Line
from bench.transport import steps

STEP = 1 * S
BIN = 20 * MS
FULL = 8e6  # b/s of 1,000 bytes each ms


def record(*stretches: tuple[int, int, int]) -> Arrivals:
    """Return arrivals in the middle of each ms of (from ms, to ms, bytes each ms)."""
    rows = [(ms * MS + MS // 2, size) for start, end, size in stretches for ms in range(start, end)]
    times, sizes = np.array(rows, dtype=np.int64).T
    return Arrivals(times, sizes)


def judge(arrivals: Arrivals, before: float, share: float) -> Response:
    return response(
        arrivals, step_ns=STEP, until_ns=3 * S, before_bps=before, share_bps=share, bin_ns=BIN,
        last_ns=S,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "span", "most", "first"),
    [
        pytest.param([0, 0.5, 0.9, 1.0], 2, None, 2, id="from 90 % on"),
        pytest.param([0, 0.89, 0.89], 1, None, None, id="never"),
        pytest.param([1.0, 0.1, 1.0, 1.0], 2, None, 2, id="a bin that does not last"),
        pytest.param([2.0, 1.11, 1.1, 1.0], 1, 1.1, 2, id="what is to be given up"),
        pytest.param([2.0, 0.2, 0.9, 1.0], 2, 1.1, 2, id="a dip: not below either"),
        pytest.param([1.0], 2, None, None, id="too few to know"),
        pytest.param([], 1, None, None, id="none"),
    ],
)
def test_reached(parts: list[float], span: int, most: float | None, first: int | None) -> None:
    assert reached(np.array(parts), span, most) == first


def test_overshoot__of_the_largest_and_never_negative() -> None:
    assert overshoot(np.array([0.9, 1.25, 1.0])) == pytest.approx(0.25)
    assert overshoot(np.array([0.9, 0.95])) == 0


def test_response__a_newcomer_that_overshoots() -> None:
    found = judge(record((1030, 1100, 500), (1100, 1120, 750), (1120, 3000, 500)), 0, FULL / 2)
    assert found.reached_ns == 60 * MS  # the bin from 20 to 40 ms holds only half of it
    assert found.over == pytest.approx(0.5)
    assert found.settled == pytest.approx(1)


def test_response__one_that_has_to_give_up_half() -> None:
    found = judge(record((0, 1100, 1000), (1100, 3000, 500)), FULL, FULL / 2)
    assert found.reached_ns == 120 * MS
    assert found.over == 0  # what it had before does not count


def test_response__too_fast_for_ever() -> None:
    found = judge(record((0, 3000, 1000)), FULL, FULL / 2)
    assert (found.reached_ns, found.over) == (None, None)
    assert found.settled == pytest.approx(2)


def test_response__silence_then_all_of_it() -> None:
    found = judge(record((0, 1000, 1000), (1200, 3000, 750)), FULL, FULL * 0.75)
    assert found.reached_ns == 220 * MS
    assert found.over == 0


def test_arguments__cases_and_kinds_of_lab() -> None:
    words = "--only flows dies --mtu 1500 9000 --framing mrc"
    args = steps.arguments().parse_args(words.split())
    assert (args.only, args.mtu, args.framing) == (["flows", "dies"], [1500, 9000], ["mrc"])
    assert (args.congestion_control, args.rounds, args.bin) == (["on", "off"], 3, 20)


def test_how__figures_name_case_and_lab() -> None:
    figures = steps.How(BIN, "MTU 9000").figures("a plane dies")
    figures.note("new share", "Mb/s", 750.0)
    figures.note("within 10 % of it after", "ms", None)
    assert list(figures.lines()) == [
        Line("steps, MTU 9000", "a plane dies", "new share", "Mb/s", (750.0,)),
        Line("steps, MTU 9000", "a plane dies", "within 10 % of it after", "ms", (), None, 1),
    ]
