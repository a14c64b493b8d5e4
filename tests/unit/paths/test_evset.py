# SPDX-License-Identifier: GPL-2.0-only
"""Test EV sets: equal parts of each plane, backups, choices that differ by QP and host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.fabric import usid
from mrcd.paths import evset

planes = st.integers(1, 8)
paths = st.integers(1, 512)
wanted = st.integers(evset.ACTIVE_MIN, evset.ACTIVE_MAX)


def universe(planes: int, paths: int) -> list[list[int]]:
    return [[usid.ev(p, t1) for t1 in range(1, paths + 1)] for p in range(planes)]


def chosen(planes: int, paths: int, wanted: int, seed: str = "h1 h2 0") -> list[evset.PlaneSet]:
    slots = evset.slots_per_plane(paths, planes, wanted)
    return list(evset.generate(universe(planes, paths), wanted, slots, seed))


@given(planes, paths, wanted)
def test_every_plane_has_as_many_in_use(planes: int, paths: int, wanted: int) -> None:
    sets = chosen(planes, paths, wanted)
    assert len(sets) == planes
    assert len({one.active for one in sets}) == 1
    assert sum(one.active for one in sets) <= max(wanted, planes)
    # No more than wanted are in use, but as many as equal parts allow.
    assert sets[0].active == max(1, min(paths, wanted // planes, evset.SLOTS_MAX))


@given(planes, paths, wanted)
def test_evs_are_different_ones_of_their_plane(planes: int, paths: int, wanted: int) -> None:
    for plane, one in enumerate(chosen(planes, paths, wanted)):
        assert len(set(one.evs)) == len(one.evs)
        assert set(one.evs) <= set(universe(planes, paths)[plane])


@given(planes, paths, wanted)
def test_backups_are_as_many_as_the_active_where_there_are_so_many(
    planes: int, paths: int, wanted: int
) -> None:
    for one in chosen(planes, paths, wanted):
        room = min(paths, evset.SLOTS_MAX)
        assert len(one.evs) - one.active >= min(one.active, room - one.active)


@given(planes, paths, wanted)
def test_slots_are_a_power_of_two_that_a_set_fits_into(
    planes: int, paths: int, wanted: int
) -> None:
    slots = evset.slots_per_plane(paths, planes, wanted)
    assert slots & (slots - 1) == 0
    assert 1 <= slots <= evset.SLOTS_MAX
    assert slots >= min(paths, evset.active_per_plane(paths, planes, wanted))


@pytest.mark.parametrize(
    ("planes", "paths", "wanted", "active", "backups"),
    [
        (8, 32, 128, 16, 16),  # hundreds of paths: half of the chosen ones are backups
        (8, 32, 256, 32, 0),
        (4, 128, 256, 64, 64),
        (2, 512, 256, 128, 0),  # no more slots
        (1, 512, 256, 128, 0),
        (4, 8, 128, 8, 0),  # a small fabric: all of its paths
        (4, 20, 32, 8, 8),
        (8, 1, 128, 1, 0),  # both hosts on one T0
        (3, 100, 100, 33, 67),  # equal parts; the number of slots is a power of two, all filled
    ],
)
def test_sizes(planes: int, paths: int, wanted: int, active: int, backups: int) -> None:
    for one in chosen(planes, paths, wanted):
        assert (one.active, len(one.evs) - one.active) == (active, backups)


def test_same_seed_gives_the_same_set() -> None:
    assert chosen(4, 64, 64) == chosen(4, 64, 64)


@pytest.mark.parametrize("other", ["h1 h2 1", "h1 h3 0", "h2 h1 0"])
def test_qps_peers_and_hosts_choose_differently(other: str) -> None:
    """Paths and order must differ, since senders that rotate alike would keep colliding."""
    mine, theirs = chosen(4, 64, 64), chosen(4, 64, 64, other)
    for one, another in zip(mine, theirs, strict=True):
        assert set(one.evs[: one.active]) != set(another.evs[: another.active])
    small, others = chosen(4, 16, 64), chosen(4, 16, 64, other)
    for one, another in zip(small, others, strict=True):
        assert set(one.evs) == set(another.evs)  # all paths ...
        assert one.evs != another.evs  # ... in another order


def test_planes_of_a_set_are_rotated_differently() -> None:
    orders = {tuple(usid.ev_t1(ev) for ev in one.evs) for one in chosen(8, 32, 256)}
    assert len(orders) == 8


def test_every_ev_is_chosen_by_somebody() -> None:
    seen = {
        ev for qp in range(64) for one in chosen(2, 100, 16, f"h1 h2 {qp}")
        for ev in one.evs[: one.active]
    }  # fmt: skip
    assert seen == {ev for plane in universe(2, 100) for ev in plane}


@given(st.integers(0, evset.SLOTS_MAX))
def test_words_hold_the_first_slots(slots: int) -> None:
    low, high = evset.words(slots)
    assert low < 1 << 64 > high
    assert high << 64 | low == (1 << slots) - 1
