# SPDX-License-Identifier: GPL-2.0-only
"""Test the search of the largest packet that gets through."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from mrcd.paths.largest import LEAST, STEP, search

LIKELY = (1500, 4000, 1450, 1280)


def run(longest: int, passes: Callable[[int], bool]) -> tuple[int, int]:
    """Search in a network that lets through what `passes`; return result and number of trials."""
    steps, trials = search(longest, LIKELY), 1
    length = next(steps)
    while True:
        try:
            length = steps.send(passes(length))
        except StopIteration as end:
            return end.value, trials
        trials += 1


def found(longest: int, fits: int) -> tuple[int, int]:
    """Search where packets of `fits` bytes get through."""
    return run(longest, lambda length: length <= fits)


def lost(longest: int, fits: int) -> int:
    """Search where packets of `fits` bytes get through, and return how many trials are lost."""
    gone = []

    def passes(length: int) -> bool:
        gone.append(length > fits)
        return length <= fits

    run(longest, passes)
    return sum(gone)


def test_what_fits_at_once_is_tried_once() -> None:
    assert found(8960, 8960) == (8960, 1)


def test_nothing_gets_through() -> None:
    assert found(8960, LEAST - 1) == (0, 2)


def test_a_short_mtu_is_all_or_nothing() -> None:
    assert found(400, 399) == (0, 2)
    assert found(400, 400) == (400, 1)


def test_what_is_likely_is_found_by_few_losses() -> None:
    """Each length that is lost costs a wait: here the longest twice, and one just above the MTU."""
    assert lost(8960, 1500) == 3
    assert lost(8960, 4000) == 3
    assert lost(8960, 1450) == 4


@given(st.integers(LEAST, 9000), st.integers(LEAST, 9000))
def test_result_gets_through_and_little_more_does(longest: int, fits: int) -> None:
    most, trials = found(longest, fits)
    assert most <= min(longest, fits) <= most + STEP
    assert trials <= 20


def test_network_that_has_changed_meanwhile() -> None:
    """The longest is tried again at the end."""
    tried = 0

    def passes(_length: int) -> bool:
        nonlocal tried
        tried += 1
        return tried > 1

    assert run(8960, passes) == (8960, tried)
    assert tried > 3
