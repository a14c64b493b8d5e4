# SPDX-License-Identifier: GPL-2.0-only
"""Test which few of many peers are shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mrcd.model import PeerState
from mrcd.shortlist import InTurn, Standing, foremost


def crowd(silent: int, connecting: int, established: int) -> list[Standing]:
    """Return this number of peers in each state; the later the name, the more traffic."""
    counts: dict[PeerState, int] = {
        "silent": silent,
        "connecting": connecting,
        "established": established,
    }
    return [
        Standing(f"{state[0]}{number}", state, number)
        for state, count in counts.items()
        for number in range(count)
    ]


def test_foremost__all_where_they_fit_trouble_first() -> None:
    assert foremost(crowd(1, 2, 2), 10) == ["s0", "c1", "c0", "e1", "e0"]


def test_foremost__neither_kind_hides_the_other() -> None:
    assert foremost(crowd(2, 5000, 5000), 6) == ["s1", "s0", "c4999", "e4999", "e4998", "e4997"]


def test_foremost__one_kind_takes_what_the_other_leaves() -> None:
    assert foremost(crowd(0, 5000, 1), 4) == ["c4999", "c4998", "c4997", "e0"]
    assert foremost(crowd(1, 0, 5000), 4) == ["s0", "e4999", "e4998", "e4997"]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 30))
def test_foremost__as_many_as_there_is_room_for(
    silent: int, connecting: int, established: int, count: int
) -> None:
    peers = crowd(silent, connecting, established)
    found = foremost(peers, count)
    assert len(found) == len(set(found)) == min(count, len(peers))


def test_names_take_turns() -> None:
    turns = InTurn(2)
    assert [turns.take("cab") for _ in range(3)] == [["a", "b"], ["c"], ["a", "b"]]
    assert turns.take("a") == ["a"]  # some have gone
    assert turns.take("") == []
