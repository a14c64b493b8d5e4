# SPDX-License-Identifier: GPL-2.0-only
"""Test that each competitor of the comparison uses its own planes, as their counters show."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.compare import collisions, configuration, faults, marks, routes, traffic
from bench.compare.arena import Arena
from bench.compare.results import Results
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow
from bench.instruments import backlog, counters
from bench.instruments.backlog import Backlogs
from bench.instruments.counters import Watch
from bench.instruments.experiment import Shape
from bench.instruments.metrics import S
from cli.lab import lab, state, topology
from mrcd.linux import netns

BY_KEY = {competitor.key: competitor for competitor in routes.EVERY}
PLANES = ("plane0", "plane1", "plane2", "plane3")
SECONDS = 0.6
KEYS_WITH_LINKS = ("ecmp", "seg6", "vxlan")


@pytest.fixture(scope="module")
def arena(module_labs: Any) -> Any:
    return module_labs(daemons=True, mtu=4200, rate_mbps=100)


@pytest.fixture
def competitor(arena: Any, request: pytest.FixtureRequest) -> Iterator[Competitor]:
    found = BY_KEY[request.param]
    try:
        configuration.prepare(arena.name, found)
    except configuration.Unavailable as problem:
        pytest.skip(str(problem))
    yield found
    configuration.remove(arena.name, found)


def received(name: str, interfaces: tuple[str, ...]) -> tuple[int, ...]:
    """Return the bytes that interfaces of h2 have received."""
    watched = counters.Interfaces(f"{name}-h2", interfaces)
    try:
        return watched.read()
    finally:
        watched.close()


def sent_over(
    name: str, competitor: Competitor, connections: int
) -> tuple[int, list[float], traffic.Traffic]:
    """Send traffic from h1 to h2; return the bytes that arrived and the share of each plane."""
    before = received(name, PLANES)
    seen = traffic.run(name, competitor, [Flow("h1", "h2", connections)], SECONDS)
    grown = [now - was for was, now in zip(before, received(name, PLANES), strict=True)]
    assert seen.broken == 0
    moved = sum(each.received for each in seen.connections)
    assert sum(grown) > moved > 100_000
    return moved, [bytes_ / sum(grown) for bytes_ in grown], seen


def octets6(name: str, node: str) -> int:
    """Return the bytes of IPv6 packets that a node has received."""
    with netns.entered(f"{name}-{node}"):
        rows = Path("/proc/thread-self/net/snmp6").read_text().splitlines()
    return int(dict(row.split() for row in rows)["Ip6InOctets"])


@pytest.mark.parametrize("competitor", ["mrc0", "mptcp"], indirect=True)
def test_one_connection_uses_all_planes(arena: Any, competitor: Competitor) -> None:
    _, shares, _ = sent_over(arena.name, competitor, 1)
    assert min(shares) > 0.1, shares


@pytest.mark.parametrize("competitor", ["tcp"], indirect=True)
def test_plain_tcp_stays_on_plane_0(arena: Any, competitor: Competitor) -> None:
    _, shares, _ = sent_over(arena.name, competitor, 4)
    assert shares[0] > 0.95, shares


@pytest.mark.parametrize("competitor", ["ecmp", "seg6"], indirect=True)
def test_a_hash_puts_flows_on_planes(arena: Any, competitor: Competitor) -> None:
    ports = range(21_000, 21_016)
    planes = [collisions.plane_of(arena.name, competitor, port) for port in ports]
    assert len(set(planes)) > 1  # all 16 on one of four planes: one in a billion
    again = [collisions.plane_of(arena.name, competitor, port) for port in ports]
    assert again == planes


@pytest.mark.parametrize("competitor", ["ecmp", "seg6"], indirect=True)
def test_only_seg6_is_ipv6_to_the_switches(arena: Any, competitor: Competitor) -> None:
    switches = [f"p{plane}t1-{t1}" for plane in range(4) for t1 in (1, 2)]
    before = sum(octets6(arena.name, switch) for switch in switches)
    moved, _, _ = sent_over(arena.name, competitor, 4)
    grown = sum(octets6(arena.name, switch) for switch in switches) - before
    assert (grown > moved) == (competitor.key == "seg6"), (grown, moved)


@pytest.mark.parametrize("competitor", ["vxlan"], indirect=True)
def test_vxlan_goes_through_its_device(arena: Any, competitor: Competitor) -> None:
    before = received(arena.name, ("vxlan0",))
    moved, _, _ = sent_over(arena.name, competitor, 4)
    assert received(arena.name, ("vxlan0",))[0] - before[0] > moved


@pytest.mark.parametrize("competitor", ["ecmp", "seg6"], indirect=True)
def test_repair__after_a_link_was_down(arena: Any, competitor: Competitor) -> None:
    arena.fault("h2:p1", "down")
    arena.fault("h2:p1", "clear")
    configuration.repair(arena.name, competitor, plane=1)
    ports = range(22_000, 22_040)  # none of 40 on some plane of four: one in a hundred thousand
    planes = {collisions.plane_of(arena.name, competitor, port) for port in ports}
    assert 1 in planes


@pytest.mark.parametrize("competitor", ["tcp"], indirect=True)
def test_fault__strikes_the_plane_in_use(arena: Any, competitor: Competitor) -> None:
    found = Results()
    shape = Shape(planes=4, t1=2, rate_mbps=100)
    where = Arena(arena.name, shape, 4200, (competitor,), 1, True, 1, found)
    (dying,) = (fault for fault in faults.FAULTS if fault.name == "a plane dies silently")
    seen, died_ns, back_ns = faults.struck(where, competitor, dying)
    assert seen.bps(died_ns - S // 2, died_ns) > 10e6
    assert seen.bps(died_ns + S // 10, back_ns) == 0
    assert lab.status(arena.name).faults == ()


def test_marks__at_last_hops_during_the_block_only(arena: Any) -> None:
    def queues() -> str:
        line = ["tc", "-n", f"{arena.name}-p1t0-2", "qdisc", "show", "dev", "port1"]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    before = queues()
    assert "clsact" not in before
    with marks.at_last_hops(arena.name):
        line = ["tc", "-n", f"{arena.name}-p1t0-2", "filter", "show", "dev", "port1", "egress"]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert "lab_ecn" in done.stdout
    assert queues() == before


def test_backlog__of_every_last_hop(arena: Any) -> None:
    plan = topology.plan(state.read_fabric(arena.name))
    arena.fault("h2:p0", "rate=10")
    try:
        with Watch(Backlogs(backlog.last_hops(plan, "h2")), 0.005) as watch:
            traffic.run(arena.name, BY_KEY["tcp"], [Flow("h1", "h2", 4)], SECONDS)
    finally:
        arena.fault("h2:p0", "clear")
    most = watch.table()[:, 1:].max(axis=0)
    assert len(most) == len(PLANES)
    assert most[0] > 10_000  # plain TCP fills the slow link of plane 0


@pytest.mark.parametrize("key", KEYS_WITH_LINKS)
def test_remove__leaves_the_lab_as_it_was(arena: Any, key: str) -> None:
    nodes = ("h1", "p1t0-1", "p1t1-2")

    def state() -> list[str]:
        return [
            subprocess.run(
                ["ip", "-n", arena.namespace(node), *what.split()],
                capture_output=True, text=True, check=True, timeout=10,
            ).stdout
            for node in nodes
            for what in ("-o link show", "-4 route show", "-6 route show")
        ]  # fmt: skip

    before = [routes_of(text) for text in state()]
    configuration.prepare(arena.name, BY_KEY[key])
    assert [routes_of(text) for text in state()] != before
    configuration.remove(arena.name, BY_KEY[key])
    assert [routes_of(text) for text in state()] == before


def routes_of(text: str) -> list[str]:
    """Return lines that can be compared: links by name only, because their queues may change."""
    return sorted(line.split("<")[0] for line in text.splitlines())


def test_unavailable__says_what_is_missing_and_leaves_nothing(arena: Any) -> None:
    class Broken(routes.Ecmp):
        interface = "ecmp0"

        def lines(self, plan: Any) -> routes.Lines:
            found = super().lines(plan)
            found["h2"].append("ip link add nothing0 type nosuchlink")
            return found

    with pytest.raises(configuration.Unavailable, match="TCP, ECMP cannot be set up here: ip in"):
        configuration.prepare(arena.name, Broken())
    assert "ecmp0" not in arena.run("h1", "ip", "link", "show")
