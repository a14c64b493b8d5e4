# SPDX-License-Identifier: GPL-2.0-only
"""Test who hears of another configuration, and where peers and this host are afterwards."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mrcd.config.change import Change
from mrcd.config.config import Config, with_endpoint
from mrcd.config.inforce import InForce
from tests.unit.config.test_change import AWAY, FAR, HOME, network

OURS = ip_address("192.0.2.1")
NONE = ip_address("0.0.0.0")


class Parts:
    """What two parts hear, and what they read when they do."""

    def __init__(self, in_force: InForce) -> None:
        self.heard: list[tuple[str, Change, list[str]]] = []
        for part in ("first", "second"):

            def hear(change: Change, part: str = part) -> None:
                self.heard.append((part, change, [peer.name for peer in in_force().peers]))

            in_force.follow(hear)


@pytest.fixture
def in_force() -> InForce:
    return InForce(network("b"))


def switch(in_force: InForce, config: Config) -> None:
    in_force.tell(in_force.replace(config))


def endpoint(in_force: InForce) -> object:
    return in_force().by_name["b"].host.endpoints[0]


def test_parts_hear_in_their_order_and_read_what_is_new(in_force: InForce) -> None:
    parts = Parts(in_force)
    other = network("b", "c")
    switch(in_force, other)
    change = Change.between(network("b"), other)
    assert parts.heard == [("first", change, ["b", "c"]), ("second", change, ["b", "c"])]
    assert in_force() is in_force.config is other


def test_what_is_gone_can_be_ended_before_anybody_hears(in_force: InForce) -> None:
    parts = Parts(in_force)
    change = in_force.replace(network("c"))
    assert [peer.name for peer in in_force().peers] == ["c"]
    assert [peer.name for peer in change.gone] == ["b"]
    assert parts.heard == []


def test_peer_that_moved_stays_there_when_the_files_are_read_again(in_force: InForce) -> None:
    parts = Parts(in_force)
    in_force.peer_moved("b", 0, AWAY)
    ((_, change, _), _) = parts.heard
    assert [(a.name, b.host.endpoints[0]) for a, b in change.readdressed] == [("b", AWAY)]
    switch(in_force, in_force.placed(network("b", "c")))
    assert endpoint(in_force) == AWAY


def test_peer_goes_where_the_files_say_when_they_say_something_else(in_force: InForce) -> None:
    in_force.peer_moved("b", 0, AWAY)
    said = with_endpoint(network("b"), "b", 0, FAR)
    switch(in_force, in_force.placed(said))
    assert endpoint(in_force) == FAR
    switch(in_force, in_force.placed(network("b")))
    assert endpoint(in_force) == HOME


def test_own_addresses_change_without_a_word_of_the_files(in_force: InForce) -> None:
    parts = Parts(in_force)
    assert in_force.we_moved((OURS, NONE)) == [0]
    assert len(parts.heard) == 2
    assert in_force.we_moved((OURS, NONE)) == []
    assert in_force.placed(network("b")).host.endpoints == (OURS, NONE)
