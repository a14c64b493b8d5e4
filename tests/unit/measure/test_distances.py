# SPDX-License-Identifier: GPL-2.0-only
"""Test which planes are far, with a double of the table of peers."""

from __future__ import annotations

from typing import Any

import pytest

from mrcd.datapath import view
from mrcd.measure.distances import FAR_NS, LOOKED_AT, Distances, far_planes
from mrcd.service import log
from mrcd.wire.abi import ABI

MS = 1_000_000


@pytest.mark.parametrize(
    ("trips_ms", "known", "expected"),
    [
        ((0.1, 0.2), 0, 0b00),
        ((0.1, 10), 0, 0b00),  # data goes by it all the same
        ((0.1, 40), 0, 0b10),
        ((40, 0.1), 0, 0b01),
        ((40, 60), 0, 0b00),  # beside a way of 40 ms that is little
        ((40, 61), 0, 0b10),
        ((0.1, 14), 0b10, 0b10),  # far until it is clearly nearer
        ((0.1, 12), 0b10, 0b00),
        ((0.1, 0), 0b10, 0b10),  # nothing was heard of it
        ((0.1, 0), 0b00, 0b00),
        ((0, 40), 0b10, 0b00),  # the nearest that is left
        ((0, 0), 0b10, 0b00),
        ((0.1, 40, 5), 0, 0b010),
    ],
)
def test_far_planes(trips_ms: tuple[float, ...], known: int, expected: int) -> None:
    trips = [round(trip * MS) for trip in trips_ms]
    assert far_planes(trips, 0b111, known) == expected


def test_planes_that_are_not_compared_are_neither() -> None:
    assert far_planes([MS, FAR_NS * 3, FAR_NS * 3], 0b011, 0b100) == 0b010
    assert far_planes([MS, FAR_NS * 3], 0, 0b10) == 0


def balance(at: int, near: int, before: int) -> bytes:
    """Return an entry of map balances with these of plane 0."""
    return ABI.structs["mrc_balance"].pack(
        near_at=(at, *[0] * 7), near_ns=(near, *[0] * 7), near_before_ns=(before, *[0] * 7)
    )


@pytest.mark.parametrize(
    ("at", "near", "before", "expected"),
    [
        (1000, 7, 5, 5),
        (1000, 5, 7, 5),
        (1000, 5, 0, 0),  # a queue could be taken for the way
        (999, 5, 0, 5),  # a part of time has passed
        (998, 5, 5, 0),  # long ago
        (0, 0, 0, 0),
    ],
)
def test_shortest_round_trip_of_late(at: int, near: int, before: int, expected: int) -> None:
    now_ns = (1000 << ABI.MRC_NEAR_SHIFT) + 1
    assert view.nearest_ns(balance(at, near, before), now_ns)[0] == expected


class Table:
    """A double of the table of peers, each of which has two planes."""

    def __init__(self, *names: str) -> None:
        self.planes = dict.fromkeys(names, 0b11)
        self.spare: dict[str, int] = {}
        self.far: dict[str, int] = {}
        self.trips = dict.fromkeys(names, (MS, 40 * MS))
        self.looked: list[str] = []
        self.told: list[tuple[str, int]] = []

    def nearest_ns(self, peer: str) -> tuple[int, ...]:
        self.looked.append(peer)
        return self.trips[peer]

    def set_far(self, peer: str, mask: int) -> None:
        self.far[peer] = mask
        self.told.append((peer, mask))


def distances(table: Any, standby: int = 0) -> Distances:
    log.configure("json", strict=True)
    return Distances(table, lambda: list(table.planes), lambda: standby)


def test_the_table_is_told_what_changes() -> None:
    table = Table("b")
    ours = distances(table)
    ours.look()
    ours.look()
    assert table.told == [("b", 0b10)]
    table.trips["b"] = (MS, MS)
    ours.look()
    assert table.told == [("b", 0b10), ("b", 0)]


@pytest.mark.parametrize("which", ["standby", "spare", "one plane"])
def test_nothing_is_far_where_nothing_is_compared(which: str) -> None:
    table = Table("b")
    if which == "spare":
        table.spare["b"] = 0b10
    if which == "one plane":
        table.planes["b"] = 0b10
    distances(table, 0b10 if which == "standby" else 0).look()
    assert table.told == []


def test_many_peers_are_looked_at_in_turn() -> None:
    table = Table(*(f"h{n:03}" for n in range(LOOKED_AT + 10)))
    ours = distances(table)
    ours.look()
    assert len(table.looked) == LOOKED_AT
    ours.look()
    assert len({*table.looked}) == LOOKED_AT + 10
    ours.look()
    assert len(table.looked) == 2 * LOOKED_AT + 10
