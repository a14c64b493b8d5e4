# SPDX-License-Identifier: GPL-2.0-only
"""Test what is counted of the probes that arrive on one way."""

from __future__ import annotations

import random

from mrcd.survey.arrivals import MS, PORTS, WAIT_NS, Arrivals, is_long, port_of

CLOCKS = 12345 * MS
"""How far the receiver's clock is ahead."""
GAP = 40 * MS


class Line:
    """Sends pairs of probes over a line, and settles what becomes of them."""

    def __init__(self) -> None:
        self.arrivals = Arrivals(7, 0)
        self.now = 0
        self.number = 0

    def pair(self, *, lost: str = "", late: str = "") -> None:
        """Send a pair of which some (`s`, `l`) are lost or late."""
        for name in "sl":
            if name not in lost:
                took = (21 if name in late else 1) * MS
                self.arrive(self.number, took)
            self.number += 1
        self.now += GAP
        self.arrivals.settle(self.now)

    def arrive(self, number: int, took: int = MS) -> None:
        at = self.now + took + CLOCKS
        self.arrivals.arrived(number, self.now, at, self.now)

    def pairs(self, count: int) -> None:
        for _ in range(count):
            self.pair()

    @property
    def counts(self) -> tuple[int, int, int]:
        found = self.arrivals
        return found.received, found.lost, found.excused


def test_all_arrive() -> None:
    line = Line()
    line.pairs(50)
    assert line.counts == (100, 0, 0)
    assert line.arrivals.take_least() == MS + CLOCKS
    assert line.arrivals.take_least() is None


def test_a_loss_between_prompt_probes_counts() -> None:
    line = Line()
    line.pairs(20)
    line.pair(lost="l")
    line.pair(lost="s")
    line.pair(lost="sl")
    line.pairs(20)
    assert line.counts == (82, 4, 0)
    assert line.arrivals.kinds.long[1] == 2
    assert line.arrivals.kinds.short[1] == 2


def test_losses_of_a_full_queue_are_excused() -> None:
    line = Line()
    line.pairs(20)
    line.pair(late="sl")
    line.pair(lost="l", late="s")
    line.pair(lost="sl")
    line.pair(late="sl")
    line.pairs(20)
    assert line.counts == (20 * 4 + 5, 3, 3)
    assert line.arrivals.kinds.short[1] == line.arrivals.kinds.long[1] == 0


def test_bad_cable_shows_beside_single_late_probes() -> None:
    line, rng, lost = Line(), random.Random(1), 0
    for _ in range(1000):
        drop = "l" if rng.random() < 0.05 else ""
        lost += len(drop)
        line.pair(lost=drop, late="s" if rng.random() < 0.02 else "")
    line.pairs(20)
    assert line.arrivals.lost == lost
    assert line.arrivals.excused < 0.1 * lost


def test_what_comes_after_all_was_not_lost() -> None:
    line = Line()
    line.pairs(5)
    number = line.number
    line.pair(lost="s")
    line.pairs(20)
    assert line.counts == (51, 1, 0)
    line.arrive(number)
    assert line.counts == (52, 0, 0)
    assert line.arrivals.kinds.short[1] == 0


def test_repeated_and_moved() -> None:
    line = Line()
    line.pairs(5)
    line.arrive(3)
    assert line.arrivals.kinds.repeated == 1
    line.arrive(line.number + 1)
    line.arrive(line.number)
    assert line.arrivals.kinds.moved == 1
    assert line.counts == (12, 0, 0)


def test_other_ports_may_overtake() -> None:
    line = Line()
    line.pairs(PORTS)
    first = line.number
    for number in (first + 2, first + 3, first, first + 1):
        line.arrive(number)
    assert port_of(first) != port_of(first + 2)
    assert line.arrivals.kinds.moved == 0


def test_another_run_begins_anew() -> None:
    line = Line()
    line.pairs(50)
    line.arrivals.begin_again(8, 0)
    line.number = 0
    line.pairs(5)
    line.now += WAIT_NS
    line.arrivals.settle(line.now)
    assert line.counts == (110, 0, 0)


def test_a_leap_is_no_loss() -> None:
    line = Line()
    line.pairs(5)
    line.number += 100_000
    line.pairs(20)
    assert line.counts == (50, 0, 0)


def test_numbers_say_length_and_port() -> None:
    assert [is_long(number) for number in range(4)] == [False, True, False, True]
    assert [port_of(number) for number in (0, 1, 2, 2 * PORTS)] == [0, 0, 1, 0]
