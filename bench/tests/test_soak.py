# SPDX-License-Identifier: GPL-2.0-only
"""Tests that a soak's schedule is repeatable, clears everything, and spares planes."""

from __future__ import annotations

import pytest

from bench.soak import schedule
from bench.soak.schedule import BLACKOUT_MAX_S, KINDS, LEAD_S, Episode, Ground, Spell
from cli.lab import faults, topology
from mrcd.fabric import description

GROUND = Ground(planes=4, t0=3, t1=4, hosts=("h1", "h2", "h3"), rate_mbps=50)
SECONDS = 1200.0


@pytest.fixture(scope="module", params=[1, 2, 3])
def planned(request: pytest.FixtureRequest) -> list[Episode]:
    return schedule.episodes(request.param, SECONDS, GROUND)


def test_same_seed_gives_the_same_schedule() -> None:
    one, again, other = (schedule.episodes(seed, 300, GROUND) for seed in (7, 7, 8))
    assert one == again
    assert one != other


def test_schedule_has_every_kind_and_blackouts(planned: list[Episode]) -> None:
    assert {episode.kind for episode in planned} == set(KINDS)
    assert any(episode.blackout for episode in planned)
    assert any(len(episode.elements) > 1 and not episode.blackout for episode in planned)
    assert len(planned) > SECONDS / 5


def test_elements_and_actions_exist(planned: list[Episode]) -> None:
    plan = topology.plan(description.generate(name="soak", hosts=3, planes=4, t1=4))
    for change in schedule.changes(planned):
        for element, action in change.actions.items():
            assert faults.canonical(plan, element) == element
            faults.parse_action(action)


def test_everything_is_cleared_within_the_time(planned: list[Episode]) -> None:
    changes = schedule.changes(planned)
    assert changes[0].at_s >= LEAD_S
    assert changes[-1].at_s <= SECONDS
    broken = set()
    for change in changes:
        for element, action in change.actions.items():
            (broken.discard if action == "clear" else broken.add)(element)
    assert not broken


def test_elements_of_overlapping_episodes_differ(planned: list[Episode]) -> None:
    for i, one in enumerate(planned):
        for other in planned[i + 1 :]:
            if other.start_s <= one.end_s and one.start_s <= other.end_s:
                assert not set(one.elements) & set(other.elements)


def test_no_packet_is_damaged_twice(planned: list[Episode]) -> None:
    damaging = [episode for episode in planned if episode.kind == "corrupt"]
    assert all(":" in element for episode in damaging for element in episode.elements)
    for i, one in enumerate(damaging):
        assert len(one.elements) == 1
        assert all(other.start_s > one.end_s for other in damaging[i + 1 :])


def test_cuts_leave_a_plane_but_for_short_blackouts(planned: list[Episode]) -> None:
    for one in planned:
        if one.blackout:
            assert one.end_s - one.start_s <= BLACKOUT_MAX_S + 0.1
            continue
        beside = [
            other for other in planned
            if other.cuts and other.start_s <= one.start_s <= other.end_s
        ]  # fmt: skip
        cut = set().union(*(other.planes for other in beside))
        assert len(cut) < GROUND.planes or any(other.blackout for other in beside)


@pytest.mark.parametrize(
    ("element", "plane"), [("p3", 3), ("p1t0-2", 1), ("p0t0-1:p0t1-4", 0), ("h12:p7", 7)]
)
def test_plane_of(element: str, plane: int) -> None:
    assert schedule.plane_of(element) == plane


def test_spells_are_the_times_in_which_every_plane_is_cut() -> None:
    applied = [
        (10, 11, {"p0": "down"}),
        (20, 21, {"p1t0-1": "blackhole", "p0t1-1": "loss=5%"}),
        (30, 31, {"p0": "clear"}),
        (40, 41, {"h1:p0": "down"}),
        (50, 51, {"h1:p0": "clear", "p1t0-1": "clear"}),
    ]
    assert schedule.spells(applied, planes=2) == [Spell(20, 31), Spell(40, 51)]
    assert schedule.spells(applied, planes=3) == []


@pytest.mark.parametrize(
    ("progress", "without", "longest"),
    [
        ([0, 10, 40, 50], [], 30),
        ([0, 10, 40, 50], [Spell(15, 38)], 10),  # 10 to 15, 38 to 40, but 0 to 10 as well
        ([0, 100], [Spell(20, 30), Spell(35, 60)], 40),
        ([0, 100], [Spell(-5, 120)], 0),
        ([0, 5, 100], [Spell(2, 50)], 50),
    ],
)
def test_longest_stall(progress: list[int], without: list[Spell], longest: int) -> None:
    assert schedule.longest_stall_ns(progress, without) == longest
