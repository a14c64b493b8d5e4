# SPDX-License-Identifier: GPL-2.0-only
"""Test how the length of cells follows what the planes carry."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mrcd.datapath.dial import FIRST_BYTES, JUDGED, Dial

MS = 1_000_000
MBIT = 1e6 / 8
JUMBO, USUAL = 8960, 1460


class Turned:
    """A dial that is told rates every 100 ms."""

    def __init__(
        self, packet: int = USUAL, least: int = 0, most: int = 65000, rate: float = 0
    ) -> None:
        self.dial = Dial(packet, least, most, rates=[MBIT * rate])
        self.now = 0

    def carry(self, *mbits: float, times: int = 1, queued: bool = True) -> int:
        """Measure these rates, in Mb/s by plane, and return how often the length changed."""
        changes = 0
        for _ in range(times):
            self.now += 100 * MS
            rates = [MBIT * rate for rate in mbits]
            changes += self.dial.measured(rates, queued=queued, now_ns=self.now)
        return changes

    @property
    def bytes(self) -> int:
        return self.dial.bytes


@pytest.mark.parametrize(("packet", "packets"), [(USUAL, FIRST_BYTES // USUAL), (JUMBO, 3)])
def test_first_length(packet: int, packets: int) -> None:
    dial = Turned(packet).dial
    assert (dial.packets, dial.bytes) == (packets, packets * packet)


@pytest.mark.parametrize(
    ("rate", "packet", "length"),
    [
        (10, USUAL, USUAL),
        (250, USUAL, 5 * USUAL),
        (250, JUMBO, JUMBO),
        (1000, JUMBO, 3 * JUMBO),
        (10_000, USUAL, 65000),
        (100_000, JUMBO, 65000),
    ],
)
def test_first_length_where_it_is_known_what_planes_carry_at_most(
    rate: float, packet: int, length: int
) -> None:
    turned = Turned(packet, rate=rate)
    assert turned.bytes == length
    assert turned.carry(1, 1, times=100, queued=False) == 0
    turned.carry(5, 5, times=3)
    assert turned.bytes == packet
    turned.carry(5, 5, times=100, queued=False)
    assert turned.bytes == length


@pytest.mark.parametrize(
    ("rates", "packet", "length"),
    [
        ((250,) * 4, USUAL, 5 * USUAL),  # 7.8 KB are a quarter of a millisecond
        ((250,) * 4, JUMBO, JUMBO),
        ((10_000,) * 4, USUAL, 65000),
        ((10_000,) * 4, JUMBO, 65000),
        ((1000,) * 4, JUMBO, 3 * JUMBO),
        ((10,) * 4, USUAL, USUAL),
        ((250, 250, 250, 25), USUAL, USUAL),  # the slow plane counts
        ((10_000, 10_000, 10_000, 1000), USUAL, 21 * USUAL),
        ((1000, 1000, 1000, 2), USUAL, 21 * USUAL),  # one that carries only probes does not
        ((1000, 0, 0, 0), USUAL, 21 * USUAL),
    ],
)
def test_length_by_what_planes_carry(rates: Sequence[float], packet: int, length: int) -> None:
    turned = Turned(packet)
    turned.carry(*rates, times=20)
    assert turned.bytes == length


def test_cells_grow_at_once_and_shrink_at_the_third_long_queue() -> None:
    turned = Turned()
    assert turned.carry(10_000, 10_000, queued=False) == 1
    assert turned.bytes == 65000
    turned = Turned()
    assert turned.carry(100, 100, times=2) == 0
    assert turned.carry(100, 100, times=20, queued=False) == 0
    assert turned.carry(100, 100) == 1
    assert turned.bytes == 2 * USUAL


def test_low_rate_without_a_queue_says_nothing_of_the_planes() -> None:
    turned = Turned(JUMBO)
    first = turned.bytes
    assert turned.carry(1, 1, times=300, queued=False) == 0
    turned.carry(50, 50, times=20)
    assert turned.bytes == JUMBO
    assert turned.carry(50, 50, times=99, queued=False) == 0  # queues were long within 10 s
    assert turned.carry(50, 50, queued=False) == 1
    assert turned.bytes == first


def test_largest_rate_of_ten_seconds_counts() -> None:
    turned = Turned()
    turned.carry(10_000, 10_000)
    assert turned.carry(1, 1, times=98) == 0
    assert turned.carry(1, 1, times=2) == 1
    assert turned.bytes == USUAL


@pytest.mark.parametrize("rate", [60, 250, 777, 1900])
def test_rates_that_vary_by_a_tenth_do_not_flap(rate: float) -> None:
    turned = Turned()
    turned.carry(rate, rate, times=20)
    changes = sum(turned.carry(rate * factor, rate) for factor in (0.9, 1.1, 1) * 200)
    assert changes <= 1


@pytest.mark.parametrize(
    ("least", "most", "slow", "fast"),
    [
        (0, 0, USUAL, USUAL),
        (0, 8000, USUAL, 8000),
        (16000, 65000, 10 * USUAL, 65000),
        (8000, 8000, 8000, 8000),
        (0, 2000, USUAL, USUAL),  # no room for two packets
    ],
)
def test_bounds(least: int, most: int, slow: int, fast: int) -> None:
    turned = Turned(least=least, most=most)
    turned.carry(1, 1, times=20)
    assert turned.bytes == slow
    turned.carry(40_000, 40_000)
    assert turned.bytes == fast


def test_new_bounds_hold_from_the_next_measurement() -> None:
    turned = Turned()
    turned.carry(10_000, 10_000)
    turned.dial.reconfigure(0, 4000)
    assert turned.carry(10_000, 10_000) == 1
    assert turned.bytes == 4000
    assert turned.dial.packets == 2


def test_length_in_force_is_kept_by_the_next_daemon() -> None:
    dial = Dial(USUAL, 0, 65000, start=5 * USUAL)
    assert dial.bytes == 5 * USUAL


def test_cells_that_carry_less_when_shorter_become_as_long_again_and_stay_so() -> None:
    turned = Turned(rate=250)
    assert turned.bytes == 5 * USUAL
    turned.carry(100, 100, times=3)
    assert turned.bytes == 2 * USUAL
    turned.carry(70, 70, times=JUDGED - 1)
    assert turned.bytes == 2 * USUAL
    turned.carry(70, 70)
    assert turned.bytes == 5 * USUAL
    assert turned.carry(70, 70, times=10 * 59) == 0, "not within a minute"
    while turned.bytes == 5 * USUAL:
        turned.carry(70, 70)
    assert turned.now < 70_000 * MS
    turned.carry(40, 40, times=JUDGED)
    assert turned.bytes == 5 * USUAL
    assert turned.carry(40, 40, times=10 * 115) == 0, "nor within two then"


def test_cells_that_carry_as_much_when_shorter_stay_short() -> None:
    turned = Turned(rate=250)
    turned.carry(100, 100, times=3)
    assert turned.bytes == 2 * USUAL
    assert turned.carry(90, 90, times=10 * JUDGED) == 0
