# SPDX-License-Identifier: GPL-2.0-only
"""Test loops: where they lead, what they cross, and that all hosts together cover everything."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest

from mrcd.fabric import loops, usid
from mrcd.fabric.hosts import HostRange
from mrcd.fabric.loops import loops_of
from mrcd.fabric.usid import ROLE_HOST, ROLE_T0, ROLE_T1
from tests.unit.fault_double import elements_of, fabric_of

SHAPES = [(2, 2, 2, 1), (4, 3, 2, 2), (4, 2, 4, 1), (3, 4, 1, 1), (2, 2, 3, 2), (16, 2, 8, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_link_and_switch_is_probed(shape: tuple[int, int, int, int]) -> None:
    fabric = fabric_of(*shape)
    per_plane = fabric.t0 + fabric.t1 + fabric.t0 * fabric.t1 + len(fabric.hosts)
    assert len(elements_of(fabric)) == fabric.planes * per_plane


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_links_are_probed_by_two_hosts_from_either_side_where_there_are_two(
    shape: tuple[int, int, int, int],
) -> None:
    fabric = fabric_of(*shape)
    sides: dict[tuple[str, bool], set[str]] = {}
    for host in fabric.hosts:
        for loop in loops_of(fabric, host):
            if loop.kind != "near":
                name = loops.link(loop.plane, loop.t0 or host.t0, loop.t1).name
                sides.setdefault((name, loop.kind == "up"), set()).add(host.name)
    members = Counter(host.t0 for host in fabric.hosts)
    for (name, own), probers in sides.items():
        j = int(name.split(":")[0].rpartition("-")[2])
        there = members[j] if own else len(fabric.hosts) - members[j]
        assert len(probers) == min(loops.PROBERS, there), name
    assert len(sides) == fabric.planes * fabric.t0 * fabric.t1 * (2 if fabric.t0 > 1 else 1)


def test_usids_of_a_far_loop_use_all_six_and_end_at_the_sender() -> None:
    fabric = fabric_of(2, 2, 2, 1)
    host = fabric.host("h1")
    far = next(x for x in loops_of(fabric, host) if (x.plane, x.kind, x.t1) == (1, "far", 2))
    parts = [usid.split(value) for value in far.usids]
    assert [(part.plane, part.role, part.index) for part in parts] == [
        (1, ROLE_T0, 1),
        (1, ROLE_T1, 2),
        (1, ROLE_T0, 2),
        (1, ROLE_T1, 2),
        (1, ROLE_T0, 1),
        (1, ROLE_HOST, 1),
    ]
    assert str(far) == "h1 - p1t0-1 - p1t1-2 - p1t0-2"
    names = {element.name: times for element, times in far.crossings.items()}
    assert names == {
        "h1:p1": 2,
        "p1t0-1": 2,
        "p1t1-2": 2,
        "p1t0-2": 1,
        "p1t0-1:p1t1-2": 2,
        "p1t0-2:p1t1-2": 2,
    }


@pytest.mark.parametrize("kind", ["near", "up", "far"])
def test_crossings_follow_from_the_usids(kind: str) -> None:
    """Consecutive uSIDs cross a link; a switch counts once for each time a packet enters it."""
    fabric = fabric_of(4, 2, 3, 2)
    host = fabric.host("h3")
    loop = next(x for x in loops_of(fabric, host) if x.kind == kind)
    walk = [usid.split(value) for value in loop.usids[:-1]]
    want: Counter[str] = Counter({f"h3:p{loop.plane}": 2})
    layer = {ROLE_T0: "t0", ROLE_T1: "t1"}
    for part in walk:
        want[f"p{part.plane}{layer[part.role]}-{part.index}"] += 1
    for a, b in itertools.pairwise(walk):
        low, high = (a, b) if a.role == ROLE_T0 else (b, a)
        want[f"p{a.plane}t0-{low.index}:p{a.plane}t1-{high.index}"] += 1
    assert {element.name: times for element, times in loop.crossings.items()} == want


def test_planes_take_turns_and_the_first_round_is_near() -> None:
    fabric = fabric_of(2, 4, 2, 1)
    found = loops_of(fabric, fabric.hosts[0])
    assert [loop.plane for loop in found[:8]] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {loop.kind for loop in found[:4]} == {"near"}


def test_a_large_fabric_is_shared_and_bounded() -> None:
    shared = fabric_of(64, 2, 8, 4)
    found = loops_of(shared, shared.hosts[5])
    # 16 T0s x 8 T1s; two of 64 remote hosts and two of its T0's four hosts probe each link
    assert len(found) < 2 * (1 + 8 + 2 * 16 * 8 // 64 * 2)
    huge = dataclasses.replace(fabric_of(2, 8, 254, 1), t0=254)
    assert len(loops_of(huge, huge.hosts[0])) == loops.LOOPS_MAX


def test_published_fabric_is_shared_in_a_moment() -> None:
    """131,072 hosts on 512 T0s and 256 T1s per plane have only a few loops each."""
    hosts = HostRange(131072, 256, "h", ())
    fabric = dataclasses.replace(fabric_of(2, 8, 2, 1), t0=512, t1=256, hosts=hosts)
    members = loops.members_of(fabric)
    found = loops_of(fabric, hosts[70000], members)
    assert len({loop.usids for loop in found}) == len(found)
    assert 8 <= len(found) <= 8 * 12
