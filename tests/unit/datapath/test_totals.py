# SPDX-License-Identifier: GPL-2.0-only
"""Test where counts go when a build takes over the counters of another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mrcd.datapath.totals import moves, renamed
from mrcd.wire.abi import ABI, COUNTERS

ROOM = 8
NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=ROOM)


def entries(*names: str) -> list[str]:
    return [*names, *[""] * (ROOM - len(names))]


def taken_over(
    there: list[str], counts: dict[str, int], ours: list[str]
) -> tuple[list[str], list[int]]:
    """Return the names and the counts of all entries after a build has taken them over."""
    values = [counts.get(name, 0) for name in there]
    moved = {i: 0 if j is None else values[j] for i, j in moves(there, ours).items()}
    names = renamed(there, ours)
    return (
        [names.get(i, name) for i, name in enumerate(there)],
        [moved.get(i, value) for i, value in enumerate(values)],
    )


def test_same_build__touches_nothing() -> None:
    assert moves(entries("a", "b"), ["a", "b"]) == {}
    assert renamed(entries("a", "b"), ["a", "b"]) == {}


def test_new_maps__get_names() -> None:
    assert moves(entries(), ["a", "b"]) == {}
    assert renamed(entries(), ["a", "b"]) == {0: "a", 1: "b"}


def test_upgrade__old_counts_stay_and_the_new_counter_begins_at_zero() -> None:
    assert moves(entries("a", "b"), ["a", "b", "c"]) == {}
    assert renamed(entries("a", "b"), ["a", "b", "c"]) == {2: "c"}


def test_downgrade__touches_nothing_so_that_the_count_goes_on_after_an_upgrade() -> None:
    assert moves(entries("a", "b", "c"), ["a", "b"]) == {}
    assert renamed(entries("a", "b", "c"), ["a", "b"]) == {}


def test_other_counter_in_the_same_place__begins_at_zero() -> None:
    assert taken_over(entries("a", "x"), {"a": 1, "x": 9}, ["a", "b"]) == (
        entries("a", "b"),
        [1, *[0] * (ROOM - 1)],
    )


def test_counters_that_change_places__take_their_counts_along() -> None:
    names, counts = taken_over(entries("a", "b", "c"), {"a": 1, "b": 2, "c": 3}, ["c", "a"])
    assert names == entries("c", "a")
    assert counts[:2] == [3, 1]


@given(there=NAMES, ours=NAMES)
def test_each_counter_has_its_own_count_or_zero(there: list[str], ours: list[str]) -> None:
    counts = {name: 10 + index for index, name in enumerate(there)}
    names, values = taken_over(entries(*there), counts, ours)
    assert names[: len(ours)] == ours
    assert values[: len(ours)] == [counts.get(name, 0) for name in ours]
    named = [name for name in names if name]
    assert len(set(named)) == len(named)
    for name, value in zip(names[len(ours) :], values[len(ours) :], strict=True):
        assert value == counts.get(name, value)


def test_there_is_room_for_counters_and_their_names() -> None:
    assert len(COUNTERS) < ABI.MRC_COUNTERS_ROOM
    size = ABI.structs["mrc_counter_name"].size
    assert max(len(name) for _index, name, _help in COUNTERS) < size
