# SPDX-License-Identifier: GPL-2.0-only
"""Test the arithmetic of what has arrived."""

from __future__ import annotations

import pytest

from mrcd.measure.tally import Tally, limited_by_host, lost

MS = 1_000_000


def test_nothing_has_no_rate_and_no_delay() -> None:
    tally = Tally()
    assert (tally.mbps, tally.waited_us(0.5), tally.packets) == (0.0, 0.0, 0)
    tally.add(10, 1500, 0, 5)
    assert tally.mbps == 0.0  # all at once: over no time


def test_the_rate_leaves_out_what_came_with_the_first_packet() -> None:
    tally = Tally()
    for number in range(101):
        tally.add(8, 1500, 0, 500 + number * MS)
    assert tally.packets == 808
    assert tally.mbps == pytest.approx(8 * 1500 * 8 / 1000)  # in each millisecond


def test_delay_is_what_exceeds_the_least_whatever_the_two_clocks_say() -> None:
    tally, ahead = Tally(), -3_600_000 * MS
    for number in range(1000):
        waits = min(number, 20) * MS  # a queue fills up, and stays at 20 ms
        tally.add(1, 1500, number * MS, ahead + number * MS + waits)
    assert tally.waited_us(0.5) == 20_000
    assert tally.waited_us(0.99) == 20_000
    assert tally.waited_us(0.0) == 0


def test_samples_of_the_delay_are_half_a_millisecond_apart() -> None:
    tally = Tally()
    for number in range(1000):
        tally.add(1, 1500, 0, MS + number * 1000)  # a microsecond apart
    assert len(tally._delays) == 2


@pytest.mark.parametrize(
    ("sent", "arrived", "share"), [(0, 0, 0.0), (100, 100, 0.0), (100, 75, 0.25), (100, 101, 0.0)]
)
def test_loss(sent: int, arrived: int, share: float) -> None:
    assert lost(sent, arrived) == share


@pytest.mark.parametrize(
    ("at_work", "loss", "behind", "limited"),
    [
        (0.99, 0.95, False, False),  # the link takes a small part of what is sent
        (0.2, 0.0, False, False),  # the sender waits for its NIC
        (0.99, 0.0, False, True),  # the sender sends what it can, and all arrives
        (0.2, 0.95, True, True),  # the receiver reads what it can
    ],
)
def test_whether_a_host_is_what_limits(
    at_work: float, loss: float, behind: bool, limited: bool
) -> None:
    assert limited_by_host(at_work=at_work, loss=loss, behind=behind) is limited
