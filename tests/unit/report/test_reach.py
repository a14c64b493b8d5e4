# SPDX-License-Identifier: GPL-2.0-only
"""Test which planes are named because they do not lead to a peer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mrcd.planes.nexthops import Hop
from mrcd.report.reach import (
    QUIET_NS,
    Judged,
    Reach,
    away,
    by_one_nic,
    sentences,
    unheard_since,
    without_neighbor,
)
from mrcd.wire.abi import ABI

_TX = ABI.structs["mrc_tx"]
PLANES = ABI.MRC_MAX_PLANES


def tx(**sets: dict[int, int]) -> bytes:
    """Return a QP that has these words in its sets."""
    packed = bytearray(_TX.size)
    for name, words in sets.items():
        for word, value in words.items():
            at = _TX.fields[name].offset + 8 * word
            packed[at : at + 8] = value.to_bytes(8, "little")
    return bytes(packed)


@pytest.mark.parametrize(
    ("sets", "mask"),
    [
        ({}, 0),
        ({"all": {0: 0b11}, "use": {0: 0b01}}, 0),
        ({"all": {0: 0b11}, "spare": {0: 0b10}}, 0),
        ({"all": {0: 0b11, 2: 1}, "use": {0: 0b01}}, 0b10),
        ({"all": {0: 0b11, 3: 1}, "use": {3: 1}}, 0b01),
        ({"all": {2: 0b11}, "denied": {2: 0b11}}, 0),
        ({"all": {2: 0b11}, "denied": {2: 0b01}}, 0b10),
        ({"all": {15: 1}}, 1 << PLANES - 1),
    ],
)
def test_away__is_a_plane_without_a_path_that_is_not_bad(
    sets: dict[str, dict[int, int]], mask: int
) -> None:
    assert away(tx(**sets)) == mask


UP = {"h2": 0b11, "h3": 0b11, "h4": 0b11}


def test_sentences__nothing_is_wrong() -> None:
    assert sentences({}, UP, {1: "p1t1-2 dead"}) == Reach({}, dict.fromkeys(range(PLANES), 0), [])


def test_sentences__a_plane_is_named_with_the_peers_behind_it() -> None:
    found = sentences({"h3": {1: 9.04}}, UP, {})
    assert found.lines == ["plane 1: no path gets through to peer h3, for 9.0 s"]
    assert found.wrong == {1: "no path gets through to peer h3, for 9.0 s"}
    found = sentences({"h3": {1: 9}, "h4": {1: 12}}, UP, {})
    assert found.lines == ["plane 1: no path gets through to 2 peers, h3 first, for 12 s"]
    assert (found.unreached[0], found.unreached[1]) == (0, 2)


def test_sentences__a_plane_that_reaches_nobody_is_named_with_what_the_survey_says() -> None:
    dead = {name: {1: 9.0} for name in UP}
    assert sentences(dead, UP, {0: "p0t1-1 loss", 1: "h1:p1 dead"}).lines == [
        "plane 1: no path gets through, for 9.0 s; fault map: h1:p1 dead"
    ]


def test_sentences__a_peer_that_no_plane_leads_to_is_not_the_fault_of_the_planes() -> None:
    planes = {"h2": 0b11, "h3": 0b11}
    found = sentences({"h2": {0: 1.0}, "h3": {0: 2.0, 1: 3.0}}, planes, {})
    assert found.lines == [
        "plane 0: no path gets through to peer h2, for 1.0 s",
        "no path gets through to peer h3 on any plane",
    ]
    assert found.wrong == {0: "no path gets through to peer h2, for 1.0 s"}


def test_sentences__when_nobody_is_reached_every_plane_says_so() -> None:
    found = sentences({"h2": {0: 2.0, 1: 3.0}}, {"h2": 0b11}, {0: "h1:p0 dead"})
    assert found.lines == [
        "no path gets through to peer h2 on any plane",
        "plane 0: fault map: h1:p0 dead",
    ]
    assert set(found.wrong) == {0, 1}


def test_without_neighbor__what_is_wrong_with_each_usable_plane() -> None:
    reached = {"h2": 0b111, "h3": 0b001, "h4": 0b001}
    found: Any = SimpleNamespace(
        config=SimpleNamespace(peers=[SimpleNamespace(name=name) for name in reached]),
        planes=SimpleNamespace(planes=[SimpleNamespace(index=k) for k in range(3)], mask=0b011),
        table=SimpleNamespace(
            peers=SimpleNamespace(
                reached=reached.__getitem__, shared=lambda peer: shared.get(peer.name, 0b111)
            )
        ),
    )
    shared: dict[str, int] = {}
    assert without_neighbor(found) == {1: "no neighbour answers that leads to 2 peers, h3 first"}
    reached["h3"] = 0b011
    assert without_neighbor(found) == {1: "no neighbour answers that leads to peer h4"}
    shared["h4"] = 0b101
    assert without_neighbor(found) == {}, "h4 is not on that network"


NOW = 100 * QUIET_NS
OLD = NOW - 10 * QUIET_NS
"""The path was withdrawn then."""


@pytest.mark.parametrize(
    ("paths", "since"),
    [
        ([Judged(OLD - 5, OLD, 3, OLD - 9)], OLD),
        ([Judged(OLD - 5, OLD, 2, OLD - 9)], None),
        # a full queue: probes are lost, data or the last probe but three is not
        ([Judged(NOW - QUIET_NS + 1, OLD, 9, OLD)], None),
        ([Judged(OLD, OLD, 9, NOW - QUIET_NS + 1)], None),
        ([Judged(OLD, OLD, 9, NOW - QUIET_NS)], NOW - QUIET_NS),
        ([Judged(OLD + 7, OLD, 9, OLD), Judged(OLD, OLD, 9, OLD)], OLD + 7),
        ([Judged(OLD, OLD, 9, OLD), Judged(OLD, OLD, 0, OLD)], None),
        ([Judged(OLD, OLD, 9, OLD), Judged(NOW - 1, OLD, 9, OLD)], None),
    ],
)
def test_unheard_since__none_while_a_path_gets_through(
    paths: list[Judged], since: int | None
) -> None:
    assert unheard_since(paths, NOW) == since


def test_by_one_nic__names_peers_that_answer_for_two_planes_by_one_address() -> None:
    one, other = b"\x02" * 6, b"\x04" * 6
    apart = [Hop("b", 0, "10.0.0.2", "10.0.0.2", one), Hop("b", 1, "10.0.0.12", "10.0.0.12", other)]
    routed = [Hop("c", k, f"10.{k}.0.2", "10.9.0.1", one) for k in range(2)]
    unknown = [Hop("d", k, f"10.0.0.{k}", f"10.0.0.{k}") for k in range(2)]
    assert by_one_nic([*apart, *routed, *unknown]) == []
    (line,) = by_one_nic(
        [*routed, *(Hop("b", k, f"10.0.0.{k}", f"10.0.0.{k}", one) for k in (2, 0))]
    )
    assert line.startswith(
        "planes 0, 2 lead to peer b by one link-layer address, 02:02:02:02:02:02"
    )
    assert "arp_ignore=1" in line
