# SPDX-License-Identifier: GPL-2.0-only
"""Test the search of the largest packet that gets through."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mrcd.paths.largest import LEAST, STEP, search

LIKELY = (1280, 1450, 1500, 4000)


def found(longest: int, fits: int, likely: Sequence[int] = LIKELY) -> tuple[int, int]:
    """Search in a network that lets packets of `fits` bytes through; return result and trials."""
    steps, trials = search(longest, likely), 1
    length = next(steps)
    while True:
        try:
            length = steps.send(length <= fits)
        except StopIteration as end:
            return end.value, trials
        trials += 1


def test_what_fits_at_once_is_tried_once() -> None:
    assert found(8960, 8960) == (8960, 1)


def test_nothing_gets_through() -> None:
    assert found(8960, LEAST - 1) == (0, 2)


def test_a_short_mtu_is_all_or_nothing() -> None:
    assert found(400, 399) == (0, 2)
    assert found(400, 400) == (400, 1)


@given(st.integers(LEAST, 9000), st.integers(LEAST, 9000))
def test_result_gets_through_and_little_more_does(longest: int, fits: int) -> None:
    most, trials = found(longest, fits)
    assert most <= min(longest, fits) <= most + STEP
    assert trials <= 20


def test_network_that_has_changed_meanwhile() -> None:
    steps = search(8960, LIKELY)
    length, trials = next(steps), 0
    try:
        while True:
            trials += 1
            length = steps.send(trials > 1)
    except StopIteration as end:
        assert (end.value, length) == (8960, 8960)
