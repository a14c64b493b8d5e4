# SPDX-License-Identifier: GPL-2.0-only
"""Test what a member makes of Hellos: several members and hosts that look for them, in memory."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cli.quick.discovery import Discovery
from mrcd.config import config
from mrcd.config.config import Config, Peer
from mrcd.fabric import network
from mrcd.fabric.hosts import Host
from mrcd.fabric.ranking import Rank
from mrcd.handshake.hello import HOSTS_MAX, Hello
from mrcd.peers.heard import KNOWN_MAX
from mrcd.peers.meeting import (
    APART_NS,
    ASKED_S,
    CALM_S,
    EAGER_S,
    FORGET_NS,
    FORWARDING_S,
    SECOND,
    TOO_MANY,
    TWICE_NS,
    Meeting,
    Met,
    kept,
)

PLANES = 2


def configuration(name: str, ip: str, planes: int = PLANES) -> Config:
    nics = "".join(f'[[plane]]\ninterface = "eth{k + 1}"\n' for k in range(planes))
    return config.loads(
        f'[host]\nname = "{name}"\n[mrc0]\naddresses = ["{ip}/24"]\n'
        f'[keys]\nsecret_file = "s"\ndiscover = true\n{nics}',
        Path("/nowhere/mrcd.toml"),
    )


class Member:
    """One member, and the hosts that it has met; it takes those that are ready as peers."""

    def __init__(
        self, name: str, ip: str, seed: int = 0, planes: int = PLANES, *, forward: bool = False
    ) -> None:
        self.config = configuration(name, ip, planes)
        ends = tuple(ip_address(address(name, nic)) for nic in range(planes))
        self.config = replace(
            self.config,
            host=replace(self.config.host, endpoints=ends),
            keys=replace(self.config.keys, forward=forward),
            fabric=replace(self.config.fabric, mtu=1500),
        )
        self.meeting = Meeting(lambda: self.config, random.Random(f"{name} {seed}"), seed)
        self.met: list[Met] = []
        self.found: dict[str, Met] = {}

    @property
    def name(self) -> str:
        return self.config.host.name

    def hear(self, plane: int, source: str, hello: Hello, now_ns: int) -> None:
        if self.meeting.hear(plane, source, hello, now_ns=now_ns):
            self.look(now_ns)

    def look(self, now_ns: int) -> None:
        for met in self.meeting.met(now_ns=now_ns):
            self.found[met.name] = met
            if met.ready and met.name not in self.config.by_name:
                self.met.append(met)
                host = network.host(met.name, met.endpoints)
                self.config = replace(self.config, peers=(*self.config.peers, Peer(host, ())))

    def ends(self, name: str) -> list[str]:
        """Return where another host is, by plane."""
        return [str(end) for end in self.found[name].endpoints]


def address(name: str, nic: int) -> str:
    return f"fe80::{ord(name[0]):x}:{nic + 1}"


def talk(members: list[Member], wires: dict[tuple[str, int], int], now_ns: int) -> None:
    """Have each member say Hello by each NIC to all others on that network.

    `wires` has the network of a member's NIC where it is not that of the plane.
    """

    def net(name: str, plane: int) -> int:
        return wires.get((name, plane), plane)

    for one in members:
        one.look(now_ns)

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
    assert all(not one.meeting.hello(0).said.heard for one in members)
    assert members[0].meeting.period_s(now_ns=20 * SECOND) == CALM_S


def test_members_hurry_while_somebody_asks_for_them(members: list[Member]) -> None:
    one, new = members[0], Discovery("b", "run", ["eth1", "eth2"], ("10.9.0.2",))
    assert one.meeting.period_s(now_ns=0) == CALM_S
    one.hear(0, address("b", 0), new.hello(0), SECOND)
    assert one.meeting.period_s(now_ns=SECOND) == EAGER_S
    one.hear(0, address("b", 0), new.hello(0), 3 * SECOND)
    assert one.meeting.period_s(now_ns=3 * SECOND) == ASKED_S, "it says the same again"
    new.hear(0, address("a", 0), one.meeting.hello(0), now_s=4.0)
    one.hear(0, address("b", 0), new.hello(0), 4 * SECOND)
    assert one.meeting.period_s(now_ns=4 * SECOND) == EAGER_S
    assert one.meeting.period_s(now_ns=20 * SECOND) == CALM_S


def test_host_is_no_peer_before_it_hears_us(members: list[Member]) -> None:
    one, other = members[:2]
    for turn in range(4):
        for plane in range(PLANES):
            one.hear(plane, address("b", plane), other.meeting.hello(plane), turn * SECOND)
    assert one.met == []
    assert one.ends("b") == ["::", "::"]
    for turn in range(4, 7):
        talk([one, other], {}, turn * SECOND)
    assert [met.name for met in one.met] == ["b"]


def test_host_on_one_of_our_networks_is_a_peer_there(members: list[Member]) -> None:
    """As soon as nothing is new: its other NIC may only be slower."""
    one, other = members[:2]
    talk([one, other], {("b", 1): 7}, 0)
    talk([one, other], {("b", 1): 7}, SECOND // 4)
    assert one.met == other.met == []
    talk([one, other], {("b", 1): 7}, SECOND)
    assert [met.name for met in one.met] == ["b"]
    assert one.ends("b") == [address("b", 0), "::"]


def test_network_that_comes_later_is_shared_then(members: list[Member]) -> None:
    one, other = members[:2]
    for turn in range(4):
        talk([one, other], {("b", 1): 7}, turn * SECOND)
    assert one.meeting.hello(0).seeks == ()
    for turn in range(4, 8):
        talk([one, other], {}, turn * SECOND)
    assert one.ends("b") == [address("b", 0), address("b", 1)]
    assert other.ends("a") == [address("a", 0), address("a", 1)]


def test_planes_may_have_other_numbers_at_others(members: list[Member]) -> None:
    one, other = members[:2]
    for turn in range(4):
        talk([one, other], {("b", 0): 1, ("b", 1): 0}, turn * SECOND)
    assert one.ends("b") == [address("b", 1), address("b", 0)]
    assert other.ends("a") == [address("a", 1), address("a", 0)]


@pytest.mark.parametrize("planes", [1, 3, 8])
def test_hosts_may_have_unequal_numbers_of_nics(planes: int) -> None:
    one, other = Member("a", "10.9.0.1"), Member("b", "10.9.0.2", planes=planes)
    for turn in range(4):
        talk([one, other], {}, turn * SECOND)
    both = min(planes, PLANES)
    there = [address("b", nic) for nic in range(both)]
    assert one.ends("b") == [*there, *["::"] * (PLANES - both)]
    assert len(other.ends("a")) == planes
    assert one.meeting.hello(0).seeks == ()


def cabled(cables: list[tuple[str, str]]) -> tuple[list[Member], dict[tuple[str, int], int]]:
    """Return hosts that forward, and the network of each NIC: those of a host in cables' order."""
    nics: dict[str, int] = {}
    wires: dict[tuple[str, int], int] = {}
    for number, cable in enumerate(cables):
        for name in cable:
            wires[name, nics.get(name, 0)] = 100 + number
            nics[name] = nics.get(name, 0) + 1
    return [
        Member(name, f"10.9.0.{ord(name) - 96}", planes=count, forward=True)
        for name, count in nics.items()
    ], wires


RING = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]


def test_hosts_of_a_ring_know_each_other() -> None:
    members, wires = cabled(RING)
    for turn in range(8):
        talk(members, wires, turn * SECOND)
    a = members[0]
    assert {met.name for met in a.met} == {*"bcde"}
    assert a.ends("c") == [address("c", 0), address("c", 1)]
    met = a.found["c"]
    assert [str(via) for via in met.vias] == [address("b", 0), address("e", 1)]
    assert met.spare == 0b10, "the way by e and d is the longer one"
    handed = {(each.source, each.target): each.via for each in members[1].meeting.handed_on()}
    assert handed[address("a", 0), address("c", 0)] == address("c", 0)


def test_slow_cable_is_spare_beside_a_fast_way_through_a_host() -> None:
    members, wires = cabled([("a", "b"), ("a", "c"), ("b", "c")])
    for each, rates in zip(members, ((10, 1000), (10, 1000), (1000, 1000)), strict=True):
        each.meeting.set_rates(rates)
    for turn in range(8):
        talk(members, wires, turn * SECOND)
    a, b, c = members
    for one, other in ((a, "b"), (b, "a")):
        assert one.found[other].spare == 0b01
        assert one.found[other].ranks == (Rank(0, 10), Rank(1, 1000))
    assert a.found["c"].spare == 0b01, "the way by b is longer, and slower"
    assert len(c.meeting.handed_on()) == 2
    c.meeting.set_rates((1000, 10))
    for turn in range(8, 12):
        talk(members, wires, turn * SECOND)
    assert a.found["b"].spare == b.found["a"].spare == 0b10, "c has said that a cable is slow"


def test_cable_that_is_cut_is_known_at_once() -> None:
    members, wires = cabled(RING)
    for turn in range(8):
        talk(members, wires, turn * SECOND)
    wires[("b", 1)] = 900
    for name, nic in (("b", 1), ("c", 0)):
        member = next(each for each in members if each.name == name)
        member.meeting.unplugged(nic, now_ns=8 * SECOND)
    for turn in range(8, 12):
        talk(members, wires, turn * SECOND)
    a = members[0]
    assert a.ends("c") == ["::", address("c", 1)]
    assert a.meeting.period_s(now_ns=60 * SECOND) == FORWARDING_S


def test_hello_that_no_longer_comes_parts_hosts_that_forward() -> None:
    members, wires = cabled(RING)
    for turn in range(8):
        talk(members, wires, turn * SECOND)
    wires[("b", 1)] = 900  # the NICs see nothing of it
    for turn in range(8, 10 + APART_NS // SECOND):
        for each in members:
            each.meeting.forget_silent(now_ns=turn * SECOND)
        talk(members, wires, turn * SECOND)
    assert members[0].ends("c") == ["::", address("c", 1)]


def test_way_that_is_not_known_any_more_stays_in_reserve() -> None:
    nowhere, ends = ip_address("::"), tuple(ip_address(f"fe80::{k}") for k in range(1, 4))
    before = Host("c", 1, 1, (), "", ends[:2], (), (ends[2], nowhere), 0b01)
    after = Host("c", 1, 1, (), "", (nowhere, ends[1]))
    found = kept(before, after)
    assert (found.endpoints, found.vias, found.spare) == (ends[:2], (ends[2], nowhere), 0b01)
    moved = kept(before, Host("c", 1, 1, (), "", (nowhere, ends[0])))
    assert moved.endpoints == (nowhere, ends[0]), "its address is on another plane now"
    assert kept(before, Host("c", 1, 1, (), "", (ends[2], ends[1]))).endpoints == (ends[2], ends[1])


def test_better_way_that_comes_back_is_spare_until_it_is_known() -> None:
    """A cable is pulled out, and data goes by two other hosts; beside them it is not used."""
    nowhere, ends = ip_address("::"), tuple(ip_address(f"fe80::{k}") for k in range(1, 4))
    cable, longer = Rank(0, 1000), Rank(2, 1000)
    both = Host("c", 1, 1, (), "", ends[:2], (), (nowhere, ends[2]), 0b10, (cable, longer))
    left = replace(both, endpoints=(nowhere, ends[1]), spare=0, ranks=(Rank(), longer))
    without = kept(both, left)
    assert without == replace(both, spare=0b01)
    assert kept(without, left) == without
    assert kept(without, both) == both, "both are known again: at once, and at no time both serve"
    alike = replace(both, vias=(), spare=0, ranks=(cable, cable))
    gone = replace(alike, endpoints=(nowhere, ends[1]), ranks=(Rank(), cable))
    assert kept(alike, gone) == alike, "one of two cables may come back at any time"


def test_host_that_looks_for_members_takes_their_planes(members: list[Member]) -> None:
    """Its NICs are plugged in the other way round."""
    for turn in range(3):
        talk(members, {}, turn * SECOND)
    new = Discovery("A0", "run", ["eth1", "eth2"], ("10.9.0.9",))
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
    assert plan.planes == (1, 0), "as the members have them"
    assert {peer.name for peer in plan.peers} == {"a", "b", "c"}
    for one in members:
        met = one.met[-1]
        assert met.name == "A0"
        assert [str(each) for each in met.endpoints] == [address("A", 1), address("A", 0)]


def test_host_is_judged_before_it_has_found_everybody(members: list[Member]) -> None:
    one, new = members[0], Discovery("b", "run", ["eth1", "eth2"], ("10.1.2.3",))
    assert one.meeting.hear(0, address("b", 0), new.hello(0), now_ns=SECOND)
    (met,) = one.meeting.met(now_ns=SECOND)
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


def test_second_host_of_a_name_is_not_followed(members: list[Member]) -> None:
    """The one that was there stays where it is for the others, as long as it speaks."""
    one, b1 = members[:2]
    talk([one, b1], {}, 0)
    b2 = Member("b", "10.9.0.2", seed=1)
    for turn in range(1, 5):
        talk([one, b1], {}, turn * SECOND)
        for plane in range(PLANES):
            one.hear(plane, f"fe80::bad:{plane}", b2.meeting.hello(plane), turn * SECOND + 1)
            b2.meeting.hear(
                plane, address("a", plane), one.meeting.hello(plane), now_ns=turn * SECOND + 1
            )
    assert one.ends("b") == [address("b", 0), address("b", 1)]


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
    assert not one.meeting.left(replace(hello, said=replace(hello.said, run="another")))
    assert not one.meeting.left(replace(hello, said=replace(hello.said, leaving=False)))
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
    new = Discovery("b", "run", ["eth1", "eth2"], ("10.9.0.2",))
    new.hear(0, address("a", 0), one.meeting.hello(0), now_s=1.0)
    assert new.clash == "a does not take this host: it may not"
    other.hear(0, address("a", 0), one.meeting.hello(0), 2 * SECOND)
    assert other.meeting.refusers == ["a does not take this host: it may not"]
    one.meeting.reconsider("b")
    assert one.meeting.refusals == {}, "it is judged again and nothing is wrong any more"
    other.hear(0, address("a", 0), one.meeting.hello(0), 3 * SECOND)
    assert other.meeting.refusers == []


def test_many_hosts_are_bounded() -> None:
    one = Member("a", "10.9.0.1")
    hello = Member("b", "10.9.0.2").meeting.hello(0)
    for number in range(KNOWN_MAX + 100):
        said = replace(hello.said, name=f"h{number}", run=str(number))
        one.meeting.hear(0, f"fe80::{number + 1:x}", replace(hello, said=said), now_ns=number)
    assert one.meeting.count == KNOWN_MAX
    assert len(one.meeting.hello(0).said.heard) == HOSTS_MAX


def test_what_is_said_again_is_the_same() -> None:
    """So that it need not be read again; but where it is told to others, it has to go on."""
    one, other = Member("a", "10.9.0.1"), Member("b", "10.9.0.2")
    first = one.meeting.hello(0)
    assert one.meeting.hello(0) == first
    assert one.meeting.hello(1).said == first.said
    other.hear(0, address("a", 0), first, 0)
    one.hear(0, address("b", 0), other.meeting.hello(0), 0)
    changed = one.meeting.hello(0)
    assert changed.said.seq > first.said.seq
    forwarding = Member("c", "10.9.0.3", forward=True).meeting
    before = forwarding.hello(0).said.seq
    assert forwarding.hello(1).said.seq == before
    assert forwarding.hello(0).said.seq > before


def crowd(one: Member, count: int, *, forwards: bool = False) -> None:
    """Have a member hear as many hosts that are no peers of it; each of them hears it."""
    hello = Member("b", "10.9.0.2").meeting.hello(0)
    for number in range(count):
        heard = {one.name: ((0, 0),)}
        said = replace(
            hello.said, name=f"h{number}", run=str(number), forwards=forwards, heard=heard
        )
        one.meeting.hear(0, f"fe80::{number + 1:x}", replace(hello, said=said), now_ns=0)


def test_hosts_that_are_too_many_for_a_hello_take_turns() -> None:
    """None waits for ever because others do: hosts that are refused, or cannot hear us."""
    one, count = Member("a", "10.9.0.1"), 3 * HOSTS_MAX + 7
    crowd(one, count)
    turns = [one.meeting.hello(0).said.heard for _ in range(5)]
    assert all(len(heard) == HOSTS_MAX for heard in turns)
    assert len({name for heard in turns for name in heard}) == count
    assert one.meeting.hello(0).said.heard != one.meeting.hello(0).said.heard
    assert one.meeting.crowded == []


def test_planes_say_the_same_of_those_that_wait() -> None:
    one = Member("a", "10.9.0.1")
    crowd(one, 2 * HOSTS_MAX)
    assert one.meeting.hello(0).said == one.meeting.hello(1).said


def test_host_beyond_those_of_a_hello_is_told_where_hosts_forward() -> None:
    one = Member("a", "10.9.0.1", forward=True)
    crowd(one, HOSTS_MAX)
    assert one.meeting.crowded == []
    assert one.meeting.hello(0).refused == {}
    crowd(one, HOSTS_MAX + 2)
    hello = one.meeting.hello(0)
    beyond = f"h{HOSTS_MAX}", f"h{HOSTS_MAX + 1}"
    assert len(hello.said.heard) == HOSTS_MAX
    assert not {*beyond} & {*hello.said.heard}
    assert hello.refused == dict.fromkeys(beyond, TOO_MANY)
    assert one.meeting.crowded == [f"2 hosts are not taken, h{HOSTS_MAX} first: {TOO_MANY}"]
    other = Member(beyond[0], "10.9.0.66")
    other.meeting.hear(0, address("a", 0), hello, now_ns=0)
    assert other.meeting.refusers == [f"a does not take this host: {TOO_MANY}"]


def test_what_hellos_cost_grows_with_the_hosts_and_not_with_their_square() -> None:
    """The joints of a host are not gone through for each of the others."""

    def steps(count: int) -> int:
        one = Member("a", "10.9.0.1")
        crowd(one, count)
        traced = 0

        def trace(_frame: FrameType, _event: str, _arg: object) -> Any:
            nonlocal traced
            traced += 1
            return trace

        sys.settrace(trace)
        try:
            assert len([met for met in one.meeting.met(now_ns=SECOND) if met.ready]) == count
        finally:
            sys.settrace(None)
        return traced

    few = steps(100)
    assert steps(400) < 5 * few


# ---- hosts behind routers, which speak to each other one by one


def speak(members: list[Member], now_ns: int) -> None:
    """Have each member say Hello to each other one from each NIC to each of its NICs' addresses."""
    for one in members:
        for other in members:
            if one is not other:
                for plane in range(one.config.fabric.planes):
                    for contacts in one.meeting.contacts_for(other.name, now_ns=now_ns):
                        hello = one.meeting.hello_to(other.name, plane, contacts)
                        for theirs in range(other.config.fabric.planes):
                            other.hear(theirs, address(one.name, plane), hello, now_ns)


def test_where_every_nic_reaches_every_other_both_hosts_pair_them_alike() -> None:
    one, two = Member("a", "10.9.0.1"), Member("b", "10.9.0.2")
    for now in range(4):
        speak([one, two], now * SECOND)
        one.look(now * SECOND)
        two.look(now * SECOND)
    assert one.ends("b") == [address("b", 0), address("b", 1)]
    assert two.ends("a") == [address("a", 0), address("a", 1)]


def test_hello_to_one_host_says_only_what_concerns_it() -> None:
    one, two, three = (Member(name, f"10.9.0.{k}") for k, name in enumerate("abc", 1))
    speak([one, two, three], 0)
    hello = one.meeting.hello_to("b", 1, {})
    assert [*hello.said.heard] == ["b"]
    assert not hello.said.whole
    again = one.meeting.hello_to("b", 0, {})
    assert again.said == hello.said  # the same bytes, so that it need not be read again


def test_numbers_of_what_is_said_to_one_host_never_go_back() -> None:
    """What is sent to a seed whose name is not known counts as well."""
    one, two = Member("a", "10.9.0.1"), Member("b", "10.9.0.2")
    speak([one, two], 0)
    said = [one.meeting.hello_to(name, 0, {}).said.seq for name in ("b", "b", "", "b", "b", "")]
    assert said == sorted(said)
    assert said[0] == said[1]
    two.meeting.hear(0, address("a", 0), one.meeting.hello_to("b", 0, {}), now_ns=1)
    newest = one.meeting.hello_to("b", 0, {})
    assert not two.meeting.is_old(newest)
    assert two.meeting.is_old(replace(newest, said=replace(newest.said, seq=said[0])))


def test_members_tell_members_of_members_once_a_minute() -> None:
    one, two, three = (Member(name, f"10.9.0.{k}") for k, name in enumerate("abc", 1))
    speak([one, two, three], 0)
    there = {"c": tuple(address("c", nic) for nic in range(PLANES))}
    assert one.meeting.contacts_for("b", now_ns=SECOND) == [there]  # b has just come
    assert one.meeting.contacts_for("b", now_ns=SECOND) == [there]
    assert one.meeting.contacts_for("nobody", now_ns=SECOND) == [{}]
    speak([one, two, three], 9 * SECOND)
    assert one.meeting.contacts_for("b", now_ns=9 * SECOND) == [{}]
    speak([one, two, three], 59 * SECOND)
    assert one.meeting.contacts_for("b", now_ns=61 * SECOND) == [there]
    assert one.meeting.contacts_for("b", now_ns=62 * SECOND) == [{}]


def test_members_do_not_tell_of_hosts_that_are_silent() -> None:
    one, two, three = (Member(name, f"10.9.0.{k}") for k, name in enumerate("abc", 1))
    speak([one, two, three], 0)
    speak([one, two], APART_NS + SECOND)
    assert one.meeting.contacts_for("b", now_ns=APART_NS + SECOND) == [{}]


def test_contacts_leave_out_planes_without_an_address() -> None:
    one, two, three = (Member(name, f"10.9.0.{k}") for k, name in enumerate("abc", 1))
    ends = (ip_address("::"), ip_address(address("c", 1)))
    three.config = replace(three.config, host=replace(three.config.host, endpoints=ends))
    speak([one, two, three], 0)
    assert one.meeting.contacts_for("b", now_ns=0) == [{"c": (address("c", 1),)}]


def test_who_has_a_name_already_is_asked_before_another_host_gets_it() -> None:
    one, first, second = Member("a", "10.9.0.1"), Member("b", "10.9.0.2"), Member("b", "10.9.0.3")
    speak([one, first], 0)
    hello = second.meeting.hello(0)
    elsewhere = replace(hello, said=replace(hello.said, run="x", addresses=("fe80::99", "")))
    there = one.meeting.before(elsewhere, now_ns=SECOND)
    assert there is not None
    assert there.said.run == first.meeting.run
    assert one.meeting.before(elsewhere, now_ns=APART_NS) is None  # it may have been off for long
    assert one.meeting.before(replace(hello, said=replace(hello.said, run="x")), now_ns=1) is None
    why = one.meeting.note_second(elsewhere, "fe80::99", there, now_ns=SECOND)
    assert "two hosts are called b: fe80::" in why
    assert one.meeting.twice(now_ns=SECOND) == [why]
    speak([one, first], SECOND)
    assert one.meeting.before(first.meeting.hello(0), now_ns=SECOND) is None
    one.hear(0, "fe80::99", elsewhere, SECOND)
    assert one.meeting.before(elsewhere, now_ns=2 * SECOND) is None  # it is known


@pytest.mark.parametrize(
    ("born_ns", "again_ns", "reason"),
    [
        (0, 100 * SECOND, None),
        (100 * SECOND, 10 * SECOND, "the clock of b is behind what it was .* by 90 s"),
        (100 * SECOND, 99 * SECOND, None),
        (0, 5000 * SECOND, "b says that it began [0-9]+ s from now: the clock of this host"),
    ],
)
def test_clocks_that_are_wrong_are_named(born_ns: int, again_ns: int, reason: str | None) -> None:
    one = Member("a", "10.9.0.1", seed=1000 * SECOND)
    one.meeting.begin(now_ns=0)
    for born in (born_ns, again_ns):
        two = Member("b", "10.9.0.2", seed=born)
        one.hear(0, address("b", 0), two.meeting.hello(0), SECOND)
    found = one.meeting.twice(now_ns=SECOND)
    assert len(found) == (reason is not None)
    assert reason is None or re.search(reason, found[0]), found
