# SPDX-License-Identifier: GPL-2.0-only
"""Test that the fault map names cables and hosts where hosts are cabled as people do."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator

import pytest

from mrcd.linux import netns
from rigs.cabled_hosts import Cable, Cabled, ring
from rigs.lab_hosts import eventually
from rigs.quick_hosts import finished, inner
from rigs.traffic import Stream

pytestmark = pytest.mark.timeout(600)

WHOLE_S = 60.0
DEAD_S = 3.0
LOSS_S = 20.0
CALM_S = 20.0
BUSY = 4.0
"""How many times longer it may take on a busy machine; docs/operations.md has the times."""
CLEARED_S = 60.0
MIXED: list[Cable] = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "c")]
"""Hosts with two and three NICs."""


class Faulty(Cabled):
    """Hosts with cables, and what their fault maps name."""

    def named(self, host: str) -> dict[str, str]:
        """Return what a host names: kinds by element."""
        code, out, error = finished(self.mrcctl(host, "fault", "list", "--json"))
        assert code == 0, error
        return {fault["element"]: fault["kind"] for fault in json.loads(out)["faults"]}

    def mapped(self, hosts: str) -> None:
        """Wait until each host gets what all others count, and names nothing."""
        for host in hosts:
            eventually(lambda host=host: self._hears(host, len(hosts) - 1), f"{host} hears all", 60)
            eventually(lambda host=host: not self.named(host), lambda host=host:
                       f"{host} names nothing: {self.named(host)}", 60)  # fmt: skip

    def _hears(self, host: str, count: int) -> bool:
        _code, out, _error = finished(self.mrcctl(host, "fault", "list", "--json"))
        survey = json.loads(out)["survey"]
        return bool(survey["hosts_heard"] == count and survey["arrived"])

    def all_name(self, hosts: str, expected: dict[str, str], within_s: float) -> None:
        for host in hosts:
            eventually(
                lambda host=host: self.named(host) == expected,
                lambda host=host: f"{host} names {expected}: {self.named(host)}",
                BUSY * within_s,
            )

    def title(self, one: str, other: str, by: str = " - ") -> str:
        first, second = self.between[one, other]
        return f"cable {one}:{first}{by}{other}:{second}"

    def drop(self, host: str, nic: str, rule: str) -> None:
        """Have nftables drop what arrives by a NIC."""
        chain = f"type filter hook ingress device {nic} priority 0; {rule};"
        self.run(host, "nft", f"table netdev t {{ chain c {{ {chain} }}; }}")

    def vanish(self, host: str) -> None:
        for nic in self.nics.pop(host):
            with netns.entered(self.namespace(host)):
                self.ip(host, f"link del {nic}")
        self.kill_daemon(host)


@pytest.fixture
def hosts() -> Iterator[Faulty]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    made = Faulty(f"y{os.getpid()}", 2)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def streams(hosts: Cabled, *pairs: str) -> Iterator[None]:
    """Send by TCP between these pairs meanwhile."""
    running = [Stream(hosts, one, other, inner(hosts, other)).start() for one, other in pairs]
    yield
    for stream in running:
        stream.progress(1 << 20, 30)
        stream.finish(60)


def holds(condition: Callable[[], bool], what: Callable[[], str], for_s: float) -> None:
    """Assert that something is so all the time."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        assert condition(), what()


def test_ring(hosts: Faulty) -> None:
    """Calm under load it names nothing; then a cut cable, one that loses, and a host that dies."""
    hosts.lay(ring("abcde"))
    hosts.raise_all("--forward")
    hosts.whole(WHOLE_S)
    hosts.mapped("abcde")
    with streams(hosts, "ab", "ac"):
        holds(lambda: not any(hosts.named(host) for host in "ace"),
              lambda: str([hosts.named(host) for host in "ace"]), CALM_S)  # fmt: skip
        hosts.cut("b", "c")
        hosts.all_name("abcde", {hosts.title("b", "c"): "dead"}, DEAD_S)
        hosts.cut("b", "c", up=True)
        hosts.all_name("abcde", {}, CLEARED_S)
    nic = hosts.between["c", "d"][1]
    hosts.drop("d", nic, "numgen random mod 100 < 3 drop")
    hosts.all_name("abcde", {hosts.title("c", "d", " to "): "loss"}, LOSS_S)
    hosts.run("d", "nft", "delete table netdev t")
    hosts.all_name("abcde", {}, CLEARED_S)
    code, text, _error = finished(hosts.mrcctl("a", "fabric", "map"))
    assert code == 0
    lines = text.splitlines()
    assert any(line.startswith("a:eth1 --- b:eth1") for line in lines), text
    last = ("e:eth1 --- d:eth2", "d:eth2 --- e:eth1")
    assert any(line.startswith(last) for line in lines), text
    assert text.count("(hands packets on)") == 5
    hosts.vanish("e")
    hosts.all_name("abcd", {"host e": "dead"}, DEAD_S)
    holds(lambda: hosts.named("b") == {"host e": "dead"}, lambda: str(hosts.named("b")), 5)
    assert "fault map: host e is dead" in hosts.warnings("b")
    assert "x e " in finished(hosts.mrcctl("b", "fabric", "map"))[1]


def test_triangle_names_a_cable_that_swallows_all(hosts: Faulty) -> None:
    """The carrier is up: only probes tell."""
    hosts.lay(ring("abc"))
    hosts.raise_all("--forward")
    hosts.whole(WHOLE_S)
    hosts.mapped("abc")
    for name, nic in zip("bc", hosts.between["b", "c"], strict=True):
        hosts.drop(name, nic, "drop")
    hosts.all_name("abc", {hosts.title("b", "c"): "dead"}, 2 * DEAD_S)


def test_unequal_numbers_of_nics(hosts: Faulty) -> None:
    """Hosts with two and three NICs name a cut cable, and a host that dies."""
    hosts.lay(MIXED)
    hosts.raise_all("--forward")
    hosts.whole(WHOLE_S)
    hosts.mapped("abcd")
    hosts.cut("a", "c")
    hosts.all_name("abcd", {hosts.title("a", "c"): "dead"}, DEAD_S)
    hosts.cut("a", "c", up=True)
    hosts.all_name("abcd", {}, CLEARED_S)
    hosts.vanish("b")
    hosts.all_name("acd", {"host b": "dead"}, DEAD_S)


def test_chain_names_its_last_cable(hosts: Faulty) -> None:
    """Nobody can tell a host with one cable from it."""
    hosts.lay([("a", "b"), ("b", "c")])
    hosts.raise_all("--forward")
    hosts.whole(WHOLE_S)
    hosts.mapped("abc")
    hosts.cut("b", "c")
    hosts.all_name("ab", {hosts.title("b", "c"): "dead"}, DEAD_S)


def test_switch_with_a_cable_beside_it(hosts: Faulty) -> None:
    """Three hosts on a bridge, two of them with a cable: the cut cable, and a host that dies."""
    hosts.lay([("a", "b")])
    hosts.add("m")
    hosts.ip("m", "link add br0 type bridge mcast_snooping 0")
    hosts.ip("m", "link set br0 up")
    hosts.add("c")
    hosts.nics["c"] = []
    for name in "abc":
        nic = f"eth{len(hosts.nics[name]) + 1}"
        hosts.cable(name, nic, "m", f"{name}0")
        hosts.ip("m", f"link set {name}0 master br0")
        hosts.nics[name].append(nic)
        hosts.link_local(name, nic)
    hosts.raise_all()
    hosts.whole(WHOLE_S)
    hosts.mapped("abc")
    hosts.cut("a", "b")
    hosts.all_name("abc", {hosts.title("a", "b"): "dead"}, DEAD_S)
    hosts.cut("a", "b", up=True)
    hosts.all_name("abc", {}, CLEARED_S)
    hosts.vanish("b")
    hosts.all_name("ac", {"host b": "dead"}, DEAD_S)
