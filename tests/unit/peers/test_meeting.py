# SPDX-License-Identifier: GPL-2.0-only
"""Test what a member makes of Hellos: several members and hosts that look for them, in memory."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from cli.quick.discovery import Discovery
from mrcd.config import config
from mrcd.config.config import Config, Peer
from mrcd.fabric import network
from mrcd.handshake.hello import HOSTS_MAX, Hello
from mrcd.peers.meeting import ASKED_S, CALM_S, EAGER_S, FORGET_NS, SECOND, TWICE_NS, Meeting, Met

PLANES = 2


def configuration(name: str, ip: str, planes: int = PLANES) -> Config:
    nics = "".join(f'[[plane]]\ninterface = "eth{k + 1}"\n' for k in range(planes))
    return config.loads(
        f'[host]\nname = "{name}"\n[mrc0]\naddresses = ["{ip}/24"]\n'
        f'[keys]\nsecret_file = "s"\ndiscover = true\n{nics}',
        Path("/nowhere/mrcd.toml"),
    )


class Member:
    """One member, and the hosts that it has met."""

    def __init__(self, name: str, ip: str, seed: int = 0, planes: int = PLANES) -> None:
        self.config = configuration(name, ip, planes)
        self.meeting = Meeting(lambda: self.config, random.Random(f"{name} {seed}"))
        self.met: list[Met] = []

    def hear(self, plane: int, source: str, hello: Hello, now_ns: int) -> None:
        met = self.meeting.hear(plane, source, hello, now_ns=now_ns)
        if met is not None and met.ready and met.name not in self.config.by_name:
            self.met.append(met)
            host = network.host(met.name, met.endpoints)
            self.config = replace(self.config, peers=(*self.config.peers, Peer(host, ())))


def address(name: str, nic: int) -> str:
    return f"fe80::{ord(name[0]):x}:{nic + 1}"


def talk(members: list[Member], wires: dict[tuple[str, int], int], now_ns: int) -> None:
    """Have each member say Hello by each NIC to all others on that network.

    `wires` has the network of a member's NIC where it is not that of the plane.
    """

    def net(name: str, plane: int) -> int:
        return wires.get((name, plane), plane)

    for one in members:
        for plane in range(one.config.fabric.planes):
            name = one.config.host.name
            hello = one.meeting.hello(plane)
            for other in members:
                for theirs in range(other.config.fabric.planes):
                    if other is not one and net(other.config.host.name, theirs) == net(name, plane):
                        other.hear(theirs, address(name, plane), hello, now_ns)


@pytest.fixture
def members() -> list[Member]:
    return [Member(name, f"10.9.0.{number}") for number, name in enumerate("abc", 1)]


def test_members_meet(members: list[Member]) -> None:
    for turn in range(3):
        talk(members, {}, turn * SECOND)
    for one in members:
        others = {each.config.host.name for each in members if each is not one}
        assert {met.name for met in one.met} == others
    met = next(met for met in members[0].met if met.name == "b")
    assert [str(each) for each in met.endpoints] == [address("b", 0), address("b", 1)]
    assert met.inner == ("10.9.0.2",)


def test_members_that_are_peers_speak_of_nobody(members: list[Member]) -> None:
    for turn in range(4):
        talk(members, {}, turn * SECOND)
    assert all(not one.meeting.hello(0).heard for one in members)
    assert members[0].meeting.period_s(now_ns=20 * SECOND) == CALM_S


def test_members_hurry_while_somebody_asks_for_them(members: list[Member]) -> None:
    one, new = members[0], Discovery("b", "run", ["eth1", "eth2"], ("10.9.0.2",), 2)
    assert one.meeting.period_s(now_ns=0) == CALM_S
    one.hear(0, address("b", 0), new.hello(0), SECOND)
    assert one.meeting.period_s(now_ns=SECOND) == EAGER_S
    one.hear(0, address("b", 0), new.hello(0), 3 * SECOND)
    assert one.meeting.period_s(now_ns=3 * SECOND) == ASKED_S, "it says the same again"
    new.hear(0, address("a", 0), one.meeting.hello(0), now_s=4.0)
    one.hear(0, address("b", 0), new.hello(0), 4 * SECOND)
    assert one.meeting.period_s(now_ns=4 * SECOND) == EAGER_S
    assert one.meeting.period_s(now_ns=20 * SECOND) == CALM_S


def test_host_is_no_peer_before_it_hears_us_on_every_plane(members: list[Member]) -> None:
    one, other = members[:2]
    wires = {("b", 1): 7}
    for turn in range(4):
        talk([one, other], wires, turn * SECOND)
    assert one.met == other.met == []
    wires.clear()
    for turn in range(4, 7):
        talk([one, other], wires, turn * SECOND)
    assert [met.name for met in one.met] == ["b"]


def test_planes_in_another_order_are_named(members: list[Member]) -> None:
    one, other = members[:2]
    for turn in range(4):
        talk([one, other], {("b", 0): 1, ("b", 1): 0}, turn * SECOND)
    assert one.met == []
    assert "name the planes in one order on both" in one.meeting.refusals["b"]
    assert "b" in other.meeting.hello(0).refused or "a" in other.meeting.hello(0).refused


def test_unequal_planes_are_named() -> None:
    one, other = Member("a", "10.9.0.1"), Member("b", "10.9.0.2", planes=3)
    for turn in range(3):
        talk([one, other], {}, turn * SECOND)
    assert one.met == []
    assert one.meeting.refusals["b"] == "b has 3 NICs and a 2: give both as many"


def test_host_that_looks_for_members_takes_their_planes(members: list[Member]) -> None:
    """Its NICs are plugged in the other way round."""
    for turn in range(3):
        talk(members, {}, turn * SECOND)
    new = Discovery("A0", "run", ["eth1", "eth2"], ("10.9.0.9",), 2)
    for turn in range(3, 12):
        now = turn * SECOND
        for one in members:
            for plane in range(PLANES):
                new.hear(
                    1 - plane, address(one.config.host.name, plane), one.meeting.hello(plane),
                    now_s=float(turn),
                )  # fmt: skip
                one.hear(plane, address("A", 1 - plane), new.hello(1 - plane), now)
        new.settled(now_s=float(turn), hosts=2)
    plan = new.plan()
    assert plan is not None
    assert plan.planes == (1, 0)
    assert {peer.name for peer in plan.peers} == {"a", "b", "c"}
    for one in members:
        met = one.met[-1]
        assert met.name == "A0"
        assert [str(each) for each in met.endpoints] == [address("A", 1), address("A", 0)]


def test_host_is_judged_before_it_has_found_everybody(members: list[Member]) -> None:
    one, new = members[0], Discovery("b", "run", ["eth1", "eth2"], ("10.1.2.3",), 2)
    met = one.meeting.hear(0, address("b", 0), new.hello(0), now_ns=SECOND)
    assert met is not None
    assert (met.name, met.inner, met.ready) == ("b", ("10.1.2.3",), False)


def test_two_hosts_of_one_name(members: list[Member]) -> None:
    one, b1 = members[:2]
    b2 = Member("b", "10.9.0.2", seed=1)
    talk([one, b1], {}, 0)
    for turn in range(1, 3):
        talk([one, b1, b2], {}, turn * SECOND)
    (text,) = one.meeting.twice(now_ns=3 * SECOND)
    assert text.startswith("two hosts are called b: ")
    assert "this host" in b1.meeting.twice(now_ns=3 * SECOND)[0]
    assert [met.name for met in one.met] == ["b"]
    assert one.meeting.twice(now_ns=3 * SECOND + TWICE_NS) == []


def test_host_that_comes_again_is_not_two(members: list[Member]) -> None:
    one, b1 = members[:2]
    for turn in range(3):
        talk([one, b1], {}, turn * SECOND)
    b2 = Member("b", "10.9.0.2", seed=1)
    for turn in range(3, 6):
        talk([one, b2], {}, turn * SECOND)
    assert one.meeting.twice(now_ns=6 * SECOND) == []


def test_host_that_leaves(members: list[Member]) -> None:
    one, other = members[:2]
    for turn in range(3):
        talk([one, other], {}, turn * SECOND)
    hello = other.meeting.hello(0, leaving=True)
    assert not one.meeting.left(replace(hello, run="another"))
    assert not one.meeting.left(replace(hello, leaving=False))
    assert one.meeting.left(hello)
    assert not one.meeting.left(hello)
    assert one.meeting.count == 0


def test_silent_hosts_are_forgotten(members: list[Member]) -> None:
    one, other = members[:2]
    talk([one, other], {}, SECOND)
    one.meeting.refuse("b", "it may not")
    one.meeting.forget_silent(now_ns=SECOND + FORGET_NS)
    assert one.meeting.count == 1
    one.meeting.forget_silent(now_ns=2 * SECOND + FORGET_NS)
    assert one.meeting.count == 0
    assert one.meeting.refusals == {}


def test_refusal_is_told_and_ends(members: list[Member]) -> None:
    one, other = members[:2]
    talk([one, other], {}, SECOND)
    one.meeting.refuse("b", "it may not")
    assert one.meeting.hello(0).refused == {"b": "it may not"}
    new = Discovery("b", "run", ["eth1", "eth2"], ("10.9.0.2",), 2)
    new.hear(0, address("a", 0), one.meeting.hello(0), now_s=1.0)
    assert new.clash == "a does not take this host: it may not"
    talk([one, other], {}, 2 * SECOND)
    assert one.meeting.refusals == {}, "it was asked again and nothing is wrong any more"


def test_many_hosts_are_bounded() -> None:
    one = Member("a", "10.9.0.1")
    hello = Member("b", "10.9.0.2").meeting.hello(0)
    for number in range(10 * HOSTS_MAX):
        one.hear(
            0, f"fe80::{number + 1:x}", replace(hello, name=f"h{number}", run=str(number)), number
        )
    assert one.meeting.count == 2 * HOSTS_MAX
    assert len(one.meeting.hello(0).heard) == HOSTS_MAX
