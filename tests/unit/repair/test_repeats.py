# SPDX-License-Identifier: GPL-2.0-only
"""Test that only repairs which follow each other quickly count as a quarrel."""

from __future__ import annotations

from mrcd.repair.repeats import MOST, WITHIN_S, Repeats


def test_repairs_of_one_object_within_a_minute() -> None:
    repeats = Repeats()
    for second in range(MOST):
        repeats.repaired("mrc0 MTU", float(second))
        repeats.repaired("mrc0 name", float(second))
    assert repeats.quarrels(MOST) == {}
    repeats.repaired("mrc0 MTU", float(MOST))
    assert repeats.quarrels(MOST) == {"mrc0 MTU": MOST + 1}
    assert repeats.quarrels(WITHIN_S) == {}


def test_rare_repairs_are_no_quarrel() -> None:
    repeats = Repeats()
    for number in range(100):
        at = number * WITHIN_S / MOST
        repeats.repaired("mrc0 MTU", at)
        assert repeats.quarrels(at) == {}
