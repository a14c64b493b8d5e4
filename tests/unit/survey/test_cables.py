# SPDX-License-Identifier: GPL-2.0-only
"""Test the fault map of hosts that are cabled as people do, over time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from mrcd.survey.cables import CabledLayout, Joints
from mrcd.survey.hoststate import SECOND
from mrcd.survey.matrix import INTERVAL_NS, Matrix
from mrcd.survey.shots import Probe
from mrcd.survey.told import Nic

MS = 1_000_000
End = tuple[str, int]


def ring(names: str) -> list[tuple[str, ...]]:
    return [(one, other) for one, other in zip(names, names[1:] + names[0], strict=True)]


class Cabled:
    """Hosts on networks, each a tuple of hosts, that probe and tell each other in their own time.

    What daemons say arrives from every host that lives and has a way, also through others.
    """

    def __init__(self, networks: Sequence[tuple[str, ...]], pps: int = 200) -> None:
        self.rng = random.Random(5)
        self.now = 100 * SECOND
        self.per_interval = pps * INTERVAL_NS // SECOND // 2
        self.places: dict[str, list[int]] = {}
        self.networks: list[list[End]] = []
        for number, members in enumerate(networks):
            ends = []
            for name in members:
                nics = self.places.setdefault(name, [])
                ends.append((name, len(nics)))
                nics.append(number)
            self.networks.append(ends)
        self.loss: dict[tuple[int, str], float] = {}
        self.cut: set[int] = set()
        self.dead: set[str] = set()
        self.stopped: set[str] = set()
        self.all = {
            name: Matrix(name, list(self.places), len(nics), pps, 1000 + k, 2000 + k)
            for k, (name, nics) in enumerate(self.places.items())
        }
        for name, matrix in self.all.items():
            matrix.connect({other: self.pairs(name, other) for other in self.all if other != name})

    def pairs(self, name: str, other: str) -> tuple[int, ...]:
        theirs = self.places[other]
        return tuple(theirs.index(n) if n in theirs else -1 for n in self.places[name])

    def up(self, name: str, nic: int) -> bool:
        number = self.places[name][nic]
        ends = self.networks[number]
        gone = len(ends) == 2 and any(host in self.dead for host, _nic in ends)
        return number not in self.cut and not gone

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * SECOND / INTERVAL_NS)):
            self.interval()

    def interval(self) -> None:
        self.now += INTERVAL_NS
        live = {n: m for n, m in self.all.items() if n not in self.dead | self.stopped}
        for name, matrix in live.items():
            for k in range(self.per_interval):
                self.shoot(name, matrix, self.now - INTERVAL_NS + k * MS)
        for name, matrix in live.items():
            facts = tuple(
                Nic(f"eth{k + 1}", 1500, self.up(name, k), int(not self.up(name, k)), 0)
                for k in range(len(self.places[name]))
            )
            for datagram in list(matrix.tell(facts, {}, now_ns=self.now)):
                for other, theirs in live.items():
                    if other != name and other in self.reached(name):
                        theirs.receive(datagram, now_ns=self.now, sender=name)
        for matrix in live.values():
            _changes, found = matrix.judge(now_ns=self.now)
            matrix.aim(found)

    def reached(self, name: str) -> set[str]:
        found, queue = {name}, [name]
        for host in queue:
            for nic, number in enumerate(self.places[host]):
                if self.up(host, nic):
                    new = {h for h, _n in self.networks[number]} - found - self.dead
                    found |= new
                    queue += sorted(new)
        return found

    def shoot(self, name: str, matrix: Matrix, at: int) -> None:
        target = matrix.shots.next()
        if target is None:
            return
        peer, nic = target
        number = self.places[name][nic]
        first = matrix.shots.number(target)
        matrix.shots.sent(target)
        if peer in self.stopped:
            matrix.refused(peer, at)
        if peer in self.dead | self.stopped or not self.up(name, nic):
            return
        theirs = self.places[peer].index(number)
        for each in (first, first + 1):
            if self.rng.random() >= self.loss.get((number, name), 0.0):
                probe = Probe(matrix.hosts[peer].token, matrix.run, nic, each, at)
                assert self.all[peer].probe(probe, theirs, at + MS // 10, at)

    def named(self, host: str) -> dict[str, str]:
        named = self.all[host].list.named
        return {each.fault.element.name: each.fault.kind for each in named}

    def all_name(self, expected: dict[str, str], within_s: float) -> None:
        """Run until all that live name this; nothing else is named before."""
        began = self.now

        def done() -> bool:
            for host in self.all.keys() - self.dead - self.stopped:
                assert self.named(host).items() <= expected.items(), (host, self.named(host))
            return all(
                self.named(h) == expected for h in self.all.keys() - self.dead - self.stopped
            )

        while not done():
            assert self.now - began < within_s * SECOND, {n: self.named(n) for n in self.all}
            self.interval()


SHAPES = {
    "ring": ring("abcde"),
    "triangle": ring("abc"),
    "chain": [("a", "b"), ("b", "c"), ("c", "d")],
    "switch and cable": [("a", "b", "c"), ("a", "b"), ("b", "c"), ("c", "a")],
    "two and three NICs": [("a", "b"), ("a", "b"), ("b", "c"), ("c", "a")],
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_calm_hosts_name_nothing(shape: list[tuple[str, ...]]) -> None:
    hosts = Cabled(shape)
    hosts.run(20)
    assert all(not hosts.named(host) for host in hosts.all)
    assert all(each.seen.sent for matrix in hosts.all.values() for each in matrix.counted)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_cable_is_named_with_both_ends_and_its_direction(shape: list[tuple[str, ...]]) -> None:
    hosts = Cabled(shape)
    number = next(k for k, ends in enumerate(hosts.networks) if len(ends) == 2)
    (one, nic), (other, theirs) = hosts.networks[number]
    hosts.run(10)
    hosts.loss[number, one] = 0.03
    hosts.all_name({f"cable {one}:eth{nic + 1} to {other}:eth{theirs + 1}": "loss"}, 25)
    hosts.loss = {(number, one): 1.0, (number, other): 1.0}
    hosts.run(20)
    expected = {f"cable {one}:eth{nic + 1} - {other}:eth{theirs + 1}": "dead"}
    assert all(hosts.named(host) == expected for host in hosts.all)


@pytest.mark.parametrize("shape", ["ring", "triangle", "switch and cable", "two and three NICs"])
def test_a_cut_cable_is_named_within_three_seconds(shape: str) -> None:
    hosts = Cabled(SHAPES[shape])
    hosts.run(10)
    number = next(k for k, ends in enumerate(hosts.networks) if len(ends) == 2)
    (one, nic), (other, theirs) = hosts.networks[number]
    hosts.cut.add(number)
    hosts.all_name({f"cable {one}:eth{nic + 1} - {other}:eth{theirs + 1}": "dead"}, 3)
    hosts.run(5)
    assert len(hosts.named(one)) == 1
    hosts.cut.clear()
    hosts.run(10)
    assert all(not hosts.named(host) for host in hosts.all)


@pytest.mark.parametrize("shape", ["ring", "switch and cable", "two and three NICs"])
def test_a_dead_host_is_named_and_its_cables_are_not(shape: str) -> None:
    hosts = Cabled(SHAPES[shape])
    hosts.run(10)
    hosts.dead.add("c")
    hosts.all_name({"host c": "dead"}, 3)
    for _ in range(40):
        hosts.interval()
        assert all(hosts.named(h) == {"host c": "dead"} for h in hosts.all.keys() - {"c"})


def test_a_host_whose_mrcd_does_not_run_is_not_dead() -> None:
    hosts = Cabled(SHAPES["ring"])
    hosts.run(10)
    hosts.stopped.add("c")
    for _ in range(40):
        hosts.interval()
        assert all(not hosts.named(h) for h in hosts.all.keys() - {"c"})


def test_two_cut_cables_are_no_dead_host() -> None:
    """A ring falls into two parts, and each part knows its ends of what was cut."""
    hosts = Cabled(SHAPES["ring"])
    hosts.run(10)
    hosts.cut |= {0, 2}
    hosts.run(6)
    cables = {"cable a:eth1 - b:eth1": "dead", "cable c:eth2 - d:eth1": "dead"}
    assert all(hosts.named(host) == cables for host in "ade")


def test_a_switch_and_its_nics_keep_their_elements() -> None:
    hosts = Cabled(SHAPES["switch and cable"])
    hosts.run(10)
    hosts.loss[0, "b"] = 0.05
    hosts.all_name({"b:eth1 sending": "loss"}, 25)
    hosts.loss = {(0, name): 0.05 for name in "abc"}
    hosts.run(40)
    expected = {"network of a:eth1, b:eth1 and c:eth1": "loss"}
    assert all(hosts.named(host) == expected for host in hosts.all)


def test_hosts_that_share_all_planes_are_told_apart_by_planes() -> None:
    alike = Cabled([("a", "b", "c"), ("a", "b", "c")])
    alike.run(5)
    assert all(not isinstance(m.layout, CabledLayout) for m in alike.all.values())
    ways: Callable[[str], int] = lambda name: len(alike.all[name].layout.ways(name))  # noqa: E731
    assert ways("a") == 4


def test_networks_are_found_whatever_their_numbers() -> None:
    joints = frozenset({(("a", 0), ("b", 1)), (("b", 1), ("c", 0)), (("c", 1), ("a", 1))})
    layout = CabledLayout("a", ("a", "b", "c"), {}, joints)
    assert layout.networks == ((("a", 0), ("b", 1), ("c", 0)), (("a", 1), ("c", 1)))
    assert layout.network(1).name == "cable a:p1 - c:p1"
    assert layout.theirs("b", 1, "a") == 0
    assert layout.theirs("a", 0, "c") is None
    assert [way.title for way in layout.ways("a")] == ["b:p1 to a:p0", "c:p1 to a:p1"]


def test_what_is_heard_decides_what_a_nic_leads_to() -> None:
    joints = Joints()
    seen = {"b": {(0, 1)}, "c": {(1, 0)}}
    pairs = {"b": (1, -1), "c": (-1, 0)}
    assert joints.certain(pairs, seen) == pairs
    assert joints.certain({"b": (1, 0), "c": (-1, 0)}, seen) == pairs, "a way through c is none"
    assert joints.certain({"b": (-1, -1), "c": (-1, 0)}, {"c": {(1, 0)}}) == pairs, "b is silent"
    moved = {"b": {(1, 1)}, "c": {(0, 0)}}
    found = joints.certain({"b": (-1, 1), "c": (0, -1)}, moved)
    found = joints.certain({"b": (-1, 1), "c": (0, -1)}, moved)
    assert (found["b"][1], found["c"][0]) == (1, 0)
