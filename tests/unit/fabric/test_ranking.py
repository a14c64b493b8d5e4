# SPDX-License-Identifier: GPL-2.0-only
"""Test which ways carry data, and which wait for the time when better ones fail."""

from __future__ import annotations

import pytest

from mrcd.fabric.ranking import CLEARLY, Rank, spare

SLOW, FAST = Rank(0, 10), Rank(1, 1000)


@pytest.mark.parametrize(
    ("longer", "shorter", "expected"),
    [
        (Rank(1, 1000), Rank(0, 10), True),
        (Rank(1, 100_000), Rank(0, 10_000), True),
        (Rank(1, 100_000), Rank(0, 25_000), False),  # exactly CLEARLY times as much
        (Rank(1, 2500), Rank(0, 1000), False),
        (Rank(2, 1000), Rank(0, 100), False),  # ten times as much, through two hosts
        (Rank(2, 1000), Rank(0, 10), True),
        (Rank(2, 1000), Rank(1, 100), True),
        (Rank(1, 1000), Rank(0, 0), False),
        (Rank(1, 0), Rank(0, 10), False),
        (Rank(0, 1000), Rank(0, 10), False),  # no host more: that is no question of preference
    ],
)
def test_beats(longer: Rank, shorter: Rank, expected: bool) -> None:
    assert longer.beats(shorter) is expected
    assert not shorter.beats(longer)


def test_beats__not_by_what_a_rate_wavers() -> None:
    edge = Rank(1, 1000 * CLEARLY)
    assert not edge.beats(Rank(0, 1000))
    for percent in range(50, 100):
        assert not Rank(1, edge.mbps * percent // 100).beats(Rank(0, 1000))


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ({}, 0),
        ({0: Rank(0, 1000), 1: Rank(1, 1000)}, 0b10),
        ({0: Rank(), 1: Rank(3), 2: Rank(1)}, 0b110),
        ({0: SLOW, 1: FAST}, 0b01),
        ({0: FAST, 1: FAST}, 0),
        ({0: SLOW, 1: FAST, 2: Rank(1, 10)}, 0b101),  # the third is no better than the cable
        ({0: SLOW, 1: FAST, 2: Rank(1, 500)}, 0b001),  # as good as one: both are clearly better
        ({0: SLOW, 1: Rank(1, 100), 2: Rank(2, 2000)}, 0b011),
        ({0: SLOW, 1: FAST, 2: Rank(2, 1000)}, 0b101),
        ({0: SLOW, 1: Rank(0, 1000), 2: Rank(1, 1000)}, 0b100),  # cables as before, however slow
        ({0: SLOW, 1: Rank(0, 0), 2: FAST}, 0b100),  # the second may be as fast
        ({0: SLOW, 1: Rank(1, 0)}, 0b10),
    ],
)
def test_spare(ways: dict[int, Rank], expected: int) -> None:
    assert spare(ways, ways) == expected


@pytest.mark.parametrize(
    ("ways", "known", "expected"),
    [
        ({0: Rank(0, 1000), 1: Rank(3, 1000)}, [1], 0b01),  # a cable that was pulled out
        ({0: SLOW, 1: FAST}, [0], 0b10),  # the host in between is gone
        ({0: SLOW, 1: FAST}, [1], 0b01),
        ({0: Rank(0, 1000), 1: Rank(0, 1000)}, [0], 0),  # one of two cables, alike
        ({0: FAST, 1: FAST, 2: SLOW}, [1, 2], 0b100),
        ({0: Rank(0), 1: Rank(1)}, [], 0),
    ],
)
def test_spare__a_way_that_is_not_known_stays_behind_worse_ones(
    ways: dict[int, Rank], known: list[int], expected: int
) -> None:
    assert spare(ways, known) == expected
