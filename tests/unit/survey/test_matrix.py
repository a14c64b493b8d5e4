# SPDX-License-Identifier: GPL-2.0-only
"""Test what hosts without a fabric conclude from each other's counts, over time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mrcd.survey import told
from mrcd.survey.matrix import INTERVAL_NS, SECOND, Matrix
from mrcd.survey.messages import EvidenceError
from mrcd.survey.shots import Probe
from mrcd.survey.told import Nic, Self, Way

MS = 1_000_000
Lost = Callable[[str, str, int], float]
Carrier = Callable[[str, int], bool]


@pytest.mark.parametrize("took", [float("inf"), float("-inf"), float("nan"), 1e17])
def test_time_that_none_can_take_is_refused(took: float) -> None:
    way = Way(1, 0, 3, 4, 5, 6, 7, took, ())
    own = Self("h1", 1, 2, (Nic("eth1", 1500, True, 0, 0),))
    for message in told.encode(own, {"h2": (way,)}):
        with pytest.raises(EvidenceError):
            told.decode(message)


class Hosts:
    """Hosts that probe and tell each other in a time of their own."""

    def __init__(self, names: str, planes: int, pps: int = 200) -> None:
        self.rng = random.Random(7)
        self.planes = planes
        self.now = 100 * SECOND
        self.per_interval = pps * INTERVAL_NS // SECOND // 2
        self.lost: Lost = lambda _sender, _host, _plane: 0.0
        self.told: Lost = lambda _sender, _host, _plane: 0.0
        self.up: Carrier = lambda _host, _plane: True
        self.downs: dict[tuple[str, int], int] = {}
        self.all = {
            name: Matrix(name, names, planes, pps, 1000 + k, 2000 + k)
            for k, name in enumerate(names)
        }

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * SECOND / INTERVAL_NS)):
            self.interval()

    def until(self, condition: Callable[[], bool], within_s: float) -> float:
        began = self.now
        while not condition():
            assert self.now - began < within_s * SECOND, {n: self.named(n) for n in self.all}
            self.interval()
        return (self.now - began) / SECOND

    def interval(self) -> None:
        self.now += INTERVAL_NS
        for name, matrix in self.all.items():
            for k in range(self.per_interval):
                self.shoot(name, matrix, self.now - INTERVAL_NS + k * MS)
        for name, matrix in self.all.items():
            nics = tuple(
                Nic(f"eth{k + 1}", 1500, self.up(name, k), self.downs.get((name, k), 0), 0)
                for k in range(self.planes)
            )
            said = list(matrix.tell(nics, {}, now_ns=self.now))
            for other, theirs in self.all.items():
                reached = any(
                    self.rng.random() >= self.told(name, other, k) for k in range(self.planes)
                )
                for datagram in said if other != name and reached else ():
                    theirs.receive(datagram, now_ns=self.now, sender=name)
        for matrix in self.all.values():
            _changes, found = matrix.judge(now_ns=self.now)
            matrix.aim(found)

    def shoot(self, name: str, matrix: Matrix, at: int) -> None:
        target = matrix.shots.next()
        if target is None:
            return
        peer, plane = target
        number = matrix.shots.number(target)
        matrix.shots.sent(target)
        for each in (number, number + 1):
            if self.rng.random() >= self.lost(name, peer, plane):
                probe = Probe(matrix.hosts[peer].token, matrix.run, plane, each, at)
                self.all[peer].probe(probe, plane, at + MS // 10, at)

    def named(self, host: str) -> dict[str, str]:
        named = self.all[host].list.named
        return {each.fault.element.name: each.fault.kind for each in named}

    def all_name(self, expected: dict[str, str]) -> Callable[[], bool]:
        return lambda: all(self.named(host) == expected for host in self.all)


def test_a_loss_is_named_and_forgotten() -> None:
    hosts = Hosts("abcd", 2)
    hosts.run(20)
    assert hosts.all_name({})()
    hosts.lost = lambda s, d, p: 0.02 * ((s, p) == ("a", 0))
    hosts.until(hosts.all_name({"a:eth1 sending": "loss"}), 20)
    hosts.lost = lambda s, d, p: 0.0
    hosts.until(hosts.all_name({}), 30)


def test_a_black_hole_is_named_within_three_seconds() -> None:
    hosts = Hosts("abcd", 2)
    hosts.run(20)
    hosts.lost = lambda s, d, p: float((d, p) == ("b", 0))
    assert hosts.until(hosts.all_name({"b:eth1 receiving": "dead"}), 10) <= 3


def test_with_one_plane_the_others_tell() -> None:
    """The host that hears nothing any more is not told what was sent to it."""
    hosts = Hosts("abc", 1)
    hosts.run(20)
    hosts.lost = lambda s, d, p: float(d == "b")
    hosts.told = lambda s, d, p: float(d == "b")
    hosts.until(lambda: hosts.named("a") == hosts.named("c") == {"b:eth1 receiving": "dead"}, 10)
    hosts.run(4)
    assert hosts.named("b") == {}
    assert [name for name, _since in hosts.all["b"].silent(hosts.now)] == ["a", "c"]


def test_a_firewall_before_all_probes_is_no_fault() -> None:
    hosts = Hosts("abc", 2)
    hosts.lost = lambda s, d, p: float(d == "b")
    hosts.run(20)
    assert hosts.all_name({})()


def test_a_plane_that_was_dead_from_the_start_is_named() -> None:
    hosts = Hosts("abc", 2)
    hosts.lost = lambda s, d, p: float((s, d, p) == ("a", "b", 1))
    hosts.until(hosts.all_name({"a:eth2 to b:eth2": "dead"}), 15)


def test_a_nic_without_a_carrier_says_so_itself() -> None:
    hosts = Hosts("abc", 2)
    hosts.run(10)
    hosts.up = lambda host, plane: (host, plane) != ("a", 0)
    hosts.lost = lambda s, d, p: float("a" in (s, d) and p == 0)
    hosts.downs["a", 0] = 1
    hosts.until(hosts.all_name({"a:eth1": "dead"}), 5)
    hosts.up = lambda host, plane: True
    hosts.lost = lambda s, d, p: 0.0
    hosts.until(hosts.all_name({}), 5)
    hosts.run(10)
    assert hosts.all_name({})()


def test_a_nic_that_flaps() -> None:
    hosts = Hosts("abc", 2)
    hosts.run(10)
    for _ in range(3):
        hosts.downs["a", 0] = hosts.downs.get(("a", 0), 0) + 1
        hosts.run(1)
    hosts.until(hosts.all_name({"a:eth1": "flap"}), 5)


def test_a_host_that_restarts_has_lost_nothing() -> None:
    hosts = Hosts("abc", 2)
    hosts.run(10)
    hosts.all["b"] = Matrix("b", "abc", 2, 200, 77, 78)
    hosts.run(20)
    assert hosts.all_name({})()
    assert hosts.all["a"].heard(hosts.now) == 2


def test_a_host_that_joins_is_taken_in() -> None:
    hosts = Hosts("abc", 2)
    assert not hosts.all["a"].join("b")
    assert hosts.all["a"].join("d")
    hosts.run(1)
    assert "d" in hosts.all["a"].layout.hosts
    hosts.all["a"].leave("d")
    assert "d" not in hosts.all["a"].layout.hosts


def test_noise_names_nobody() -> None:
    hosts = Hosts("abcd", 2)
    hosts.lost = lambda s, d, p: 0.0004
    for _ in range(240):
        hosts.interval()
        assert hosts.all_name({})()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (b"x", "no message of this kind"),
        (None, "in the name of b"),
    ],
)
def test_what_is_refused(change: bytes | None, text: str) -> None:
    hosts = Hosts("ab", 1)
    hosts.run(1)
    nics = (Nic("eth1", 1500, True, 0, 0),)
    (datagram,) = hosts.all["b"].tell(nics, {}, now_ns=hosts.now)
    with pytest.raises(EvidenceError, match=text):
        hosts.all["a"].receive(
            datagram if change is None else change + datagram,
            now_ns=hosts.now,
            sender="c" if change is None else "b",
        )


def test_what_came_by_another_plane_before_only_shows_that_its_host_lives() -> None:
    hosts = Hosts("ab", 2)
    hosts.run(1)
    ours, nics = hosts.all["a"], (Nic("eth1", 1500, True, 0, 0), Nic("eth2", 1500, True, 0, 0))
    (datagram,) = hosts.all["b"].tell(nics, {}, now_ns=hosts.now)
    ours.receive(datagram, now_ns=hosts.now, sender="b")
    host = ours.hosts["b"]
    before = {target: [*times] for target, times in host.sent.items()}
    ours.receive(datagram, now_ns=hosts.now + MS, sender="b")
    assert host.heard_ns == hosts.now + MS
    assert {target: [*times] for target, times in host.sent.items()} == before
    with pytest.raises(EvidenceError, match="in the name of b"):
        ours.receive(datagram, now_ns=hosts.now + MS, sender="c")


def test_a_host_that_comes_back_is_taken_from_what_it_said_before() -> None:
    hosts = Hosts("abc", 1)
    hosts.run(1)
    ours, nics = hosts.all["a"], (Nic("eth1", 1500, True, 0, 0),)
    (datagram,) = hosts.all["b"].tell(nics, {}, now_ns=hosts.now)
    ours.receive(datagram, now_ns=hosts.now, sender="b")
    ours.leave("b")
    ours.join("b")
    ours.receive(datagram, now_ns=hosts.now, sender="b")
    assert "b" in ours.hosts


def test_strangers_probes_are_not_counted() -> None:
    hosts = Hosts("ab", 1)
    hosts.run(1)
    ours = hosts.all["a"]
    good = Probe(ours.token, hosts.all["b"].run, 0, 500, 0)
    assert ours.probe(good, 0, 0, hosts.now)
    assert not ours.probe(good, 1, 0, hosts.now)
    assert not ours.probe(Probe(1, good.run, 0, 501, 0), 0, 0, hosts.now)
    assert not ours.probe(Probe(ours.token, 1, 0, 501, 0), 0, 0, hosts.now)
