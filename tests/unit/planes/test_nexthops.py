# SPDX-License-Identifier: GPL-2.0-only
"""Test how next hops follow the kernel's routes and neighbours, without asking the kernel."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, cast

import pytest

from mrcd.config.config import Peer
from mrcd.fabric import network
from mrcd.linux.interfaces import Link, NeighborChanged, Way
from mrcd.linux.netlink import NetlinkFailed
from mrcd.linux.privileged.requests import PlaceNeighbor, VerifyNeighbor
from mrcd.planes import nexthops
from mrcd.planes.nexthops import Hop, NextHops
from mrcd.service.tasks import Tasks

ONE, OTHER = b"\x02\0\0\0\0\1", b"\x02\0\0\0\0\2"
NEAR, FAR, GATEWAY = "192.0.2.2", "198.51.100.2", "192.0.2.1"


class Kernel:
    """Routes and neighbours, as the kernel would tell them."""

    def __init__(self) -> None:
        self.ways: dict[str, Way] = {NEAR: Way(NEAR, "192.0.2.9", 0)}
        self.macs: dict[str, bytes] = {NEAR: ONE}
        self.asked: list[str] = []
        self.verified: list[str] = []
        self.nudged: list[str] = []
        self.placed: list[tuple[str, str]] = []

    async def way_to(self, _dev: str, ip: str) -> Way | None:
        return self.ways.get(ip)

    async def resolve_neighbor(self, _dev: str, ip: str, timeout_s: float) -> bytes | None:
        self.asked.append(ip)
        await asyncio.sleep(0)
        return self.macs.get(ip)

    def nudge_neighbor(self, _dev: str, ip: str) -> None:
        self.nudged.append(ip)

    async def change(self, request: VerifyNeighbor | PlaceNeighbor) -> None:
        if isinstance(request, VerifyNeighbor):
            self.verified.append(request.ip)
        else:
            self.placed.append((request.ip, request.mac))


class Bench:
    """Next hops on one plane, what they have told, and the kernel they ask."""

    def __init__(self, *addresses: str) -> None:
        self.kernel = Kernel()
        self.macs: list[tuple[str, bytes | None]] = []
        self.mtus: list[tuple[str, int]] = []
        self.failures: list[BaseException] = []
        self.hops = NextHops(
            cast(Any, self.kernel),
            Tasks(self.failures.append),
            lambda hop: self.macs.append((hop.peer, hop.mac)),
            lambda hop: self.mtus.append((hop.peer, hop.mtu)),
        )
        self.link(up=True)
        self.follow(*addresses)

    def link(self, *, up: bool) -> None:
        self.hops.set_links([Link(7, "eth1", bytes(6), 1500, up=True, carrier=up)], 1500)

    def follow(self, *addresses: str) -> None:
        """Follow peers p1, p2, ... with these addresses."""
        hosts = (
            network.host(f"p{number}", [ip_address(address)])
            for number, address in enumerate(addresses, 1)
        )
        self.hops.set_peers([Peer(host, ()) for host in hosts])

    def hop(self, peer: str = "p1") -> Hop:
        return next(hop for hop in self.hops.all if hop.peer == peer)

    def event(self, ip: str, mac: bytes | None, *, failed: bool = False, index: int = 7) -> None:
        self.hops.neighbor(NeighborChanged(index, ip, mac, failed))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def test_neighbour_on_the_link_is_resolved() -> None:
    async def work() -> None:
        bench = Bench(NEAR)
        await bench.hops.find()
        assert bench.macs == [("p1", ONE)]
        assert bench.kernel.asked == [NEAR]

    run(work())


def test_peers_behind_one_gateway_ask_once() -> None:
    async def work() -> None:
        bench = Bench(FAR, "203.0.113.2")
        for address in (FAR, "203.0.113.2"):
            bench.kernel.ways[address] = Way(GATEWAY, None, 0)
        bench.kernel.macs[GATEWAY] = OTHER
        await bench.hops.find()
        assert sorted(bench.macs) == [("p1", OTHER), ("p2", OTHER)]
        assert bench.kernel.asked == [GATEWAY]

    run(work())


def test_other_address_of_a_neighbour_is_followed() -> None:
    async def work() -> None:
        bench = Bench(NEAR)
        await bench.hops.find()
        bench.event(NEAR, OTHER)
        bench.event(NEAR, OTHER)
        assert bench.macs == [("p1", ONE), ("p1", OTHER)]

    run(work())


@pytest.mark.parametrize(("ip", "index"), [(GATEWAY, 7), (NEAR, 8)])
def test_other_neighbours_and_interfaces_do_not_matter(ip: str, index: int) -> None:
    async def work() -> None:
        bench = Bench(NEAR)
        await bench.hops.find()
        bench.event(ip, OTHER, index=index)
        assert bench.macs == [("p1", ONE)]

    run(work())


def test_neighbour_that_is_lost_is_asked_for() -> None:
    async def work() -> None:
        bench = Bench(NEAR)
        await bench.hops.find()
        bench.kernel.macs[NEAR] = OTHER
        bench.event(NEAR, None, failed=True)
        while len(bench.macs) < 2:
            await asyncio.sleep(0)
        assert bench.macs[-1] == ("p1", OTHER)
        assert bench.kernel.asked == [NEAR, NEAR]

    run(work())


def test_entry_that_goes_without_a_failure_changes_nothing() -> None:
    """The kernel drops old entries, too; the neighbour is still there."""

    async def work() -> None:
        bench = Bench(NEAR)
        await bench.hops.find()
        bench.event(NEAR, None)
        assert (bench.hop().mac, bench.kernel.asked) == (ONE, [NEAR])

    run(work())


def test_route_to_another_gateway() -> None:
    async def work() -> None:
        bench = Bench(NEAR)
        await bench.hops.find()
        bench.kernel.ways[NEAR] = Way(GATEWAY, None, 0)
        bench.kernel.macs[GATEWAY] = OTHER
        await bench.hops.find()
        assert bench.macs == [("p1", ONE), ("p1", OTHER)]
        assert bench.hop().via == GATEWAY

    run(work())


def test_route_that_goes_leaves_the_neighbour_in_use() -> None:
    async def work() -> None:
        bench = Bench(NEAR)
        await bench.hops.find()
        del bench.kernel.ways[NEAR]
        await bench.hops.find()
        assert (bench.hop().via, bench.hop().mac) == (None, ONE)
        assert bench.macs == [("p1", ONE)]

    run(work())


@pytest.mark.parametrize("fails", [True, False])
def test_route_that_is_lacking_is_looked_for_again(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No news may come: the question has failed, or was asked too early. The peer was silent."""
    monkeypatch.setattr(nexthops, "SEEK_S", 0.01)

    async def work() -> None:
        bench, resolved = Bench(NEAR, FAR), asyncio.Event()
        there, looked = bench.kernel.ways.pop(NEAR), list[str]()

        async def way_to(_dev: str, ip: str) -> Way | None:
            looked.append(ip)
            if looked.count(NEAR) == 3:
                bench.kernel.ways[NEAR] = there
            if fails and ip not in bench.kernel.ways:
                raise NetlinkFailed("look up a route", errno.ENODEV)
            return bench.kernel.ways.get(ip)

        monkeypatch.setattr(bench.kernel, "way_to", way_to)
        monkeypatch.setattr(bench.hops, "_on_mac", lambda _hop: resolved.set())
        await bench.hops.find()
        await bench.hops.find()
        assert looked == [NEAR, FAR, NEAR, FAR]
        await resolved.wait()
        assert (bench.hop().via, bench.hop().mac) == (NEAR, ONE)
        assert bench.hops.leads_to("p1", 0)
        assert not bench.hops.leads_to("p2", 0)
        assert bench.failures == []

    run(work())


def test_nobody_is_asked_without_a_carrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nexthops, "ASK_S", 0.05)

    async def work() -> None:
        bench = Bench(NEAR)
        bench.link(up=False)
        await bench.hops.find()
        assert bench.kernel.asked == []
        bench.link(up=True)
        await asyncio.wait(bench.hops.ask())
        assert bench.macs == [("p1", ONE)]

    run(work())


def test_peer_with_another_address_begins_anew() -> None:
    async def work() -> None:
        bench = Bench(NEAR, FAR)
        await bench.hops.find()
        bench.follow("192.0.2.3", FAR)
        assert bench.hop("p1").mac is None
        bench.kernel.ways["192.0.2.3"] = Way("192.0.2.3", None, 0)
        bench.kernel.macs["192.0.2.3"] = OTHER
        await bench.hops.find()
        assert bench.macs == [("p1", ONE), ("p1", OTHER)]
        bench.follow()
        assert list(bench.hops.all) == []

    run(work())


def test_known_neighbours_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nexthops, "VERIFY_S", 0.0)

    async def work() -> None:
        bench = Bench(NEAR, FAR)
        await bench.hops.find()
        task = asyncio.ensure_future(bench.hops.verify())
        while len(bench.kernel.verified) < 3:
            await asyncio.sleep(0)
        task.cancel()
        assert set(bench.kernel.verified) == {NEAR}, "nobody leads to the other one"

    run(work())


def test_neighbours_learn_that_our_own_address_has_changed() -> None:
    async def work() -> None:
        bench = Bench(NEAR, FAR)
        await bench.hops.find()
        await bench.hops.greet(0)
        assert bench.kernel.nudged == bench.kernel.verified == [NEAR]

    run(work())


def test_path_mtu_is_read_after_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is asked after its routers had time to answer, and again when routes change."""
    sent: list[tuple[str, int]] = []

    class Sent:
        def close(self) -> None:
            sent.append(("closed", 0))

    def probe(_interface: str, _index: int, target: str, mtu: int) -> Sent:
        sent.append((target, mtu))
        return Sent()

    monkeypatch.setattr(nexthops, "send_probe", probe)
    monkeypatch.setattr(nexthops, "ROUTER_S", 0.0)

    async def work() -> None:
        bench = Bench(FAR, NEAR)
        bench.kernel.macs[GATEWAY] = OTHER
        bench.kernel.ways[FAR] = Way(GATEWAY, None, 1400)
        await bench.hops.find()
        task = asyncio.ensure_future(bench.hops.measure())
        while not bench.mtus:
            await asyncio.sleep(0)
        assert bench.mtus == [("p1", 1400)]
        assert sent == [(FAR, 1500), ("closed", 0)], "nobody is between us and the other"
        bench.kernel.ways[FAR] = Way(GATEWAY, None, 0)
        await bench.hops.find()
        while len(bench.mtus) < 2:
            await asyncio.sleep(0)
        task.cancel()
        assert bench.mtus[-1] == ("p1", 0)

    run(work())


def test_neighbours_that_are_absent_are_asked_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel keeps an entry for each while it asks, in a table that all of a machine share."""
    monkeypatch.setattr(nexthops, "ASK_S", 0.01)
    monkeypatch.setattr(nexthops, "ABSENT_S", 0.02)
    monkeypatch.setattr(nexthops, "neighbor_limit", lambda: 12)
    absent = [f"192.0.2.{number}" for number in range(10, 30)]

    async def work() -> None:
        bench = Bench()
        kernel = Slow()
        bench.kernel, bench.hops._nl = kernel, cast(Any, kernel)
        for address in (*absent, NEAR):
            kernel.ways[address] = Way(address, None, 0)
        bench.follow(*absent, NEAR)
        await bench.hops.find()
        while bench.macs != [("p21", ONE)] or len(set(kernel.asked)) < 21:
            await asyncio.sleep(0)
        assert kernel.most == 3

    run(work())


class Slow(Kernel):
    """A kernel that waits for answers, and counts how many it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = self.most = 0

    async def resolve_neighbor(self, _dev: str, ip: str, timeout_s: float) -> bytes | None:
        self.asked.append(ip)
        self.waits += 1
        self.most = max(self.most, self.waits)
        await asyncio.sleep(timeout_s)
        self.waits -= 1
        return self.macs.get(ip)


def test_plane_leads_to_a_peer_when_its_next_hop_is_known() -> None:
    async def work() -> None:
        bench = Bench(NEAR)
        assert not bench.hops.leads_to("p1", 0)
        await bench.hops.find()
        assert bench.hops.leads_to("p1", 0)
        bench.kernel.macs.clear()
        bench.event(NEAR, None, failed=True)
        assert not bench.hops.leads_to("p1", 0)
        assert bench.hops.leads_to("somebody", 0), "nothing is known of a host that asks first"

    run(work())


def handed(via: str) -> Peer:
    """Return a peer that is reached through another host."""
    host = network.host("p9", [ip_address("192.0.2.77")])
    return Peer(replace(host, vias=(ip_address(via),)), ())


def test_peer_behind_another_host_is_sent_there() -> None:
    """The kernel's routes know nothing of it, and are told to send there, too."""

    async def work() -> None:
        bench = Bench()
        bench.hops.set_peers([handed(NEAR)])
        await bench.hops.find()
        assert bench.macs == [("p9", ONE)]
        assert bench.kernel.asked == [NEAR]
        await asyncio.sleep(0)
        assert bench.kernel.placed == [("192.0.2.77", ONE.hex(":"))]
        assert bench.hops.leads_to("p9", 0)

    run(work())


def test_way_through_another_host_begins_anew() -> None:
    async def work() -> None:
        bench = Bench()
        bench.kernel.macs[GATEWAY] = OTHER
        bench.hops.set_peers([handed(NEAR)])
        await bench.hops.find()
        bench.hops.set_peers([handed(GATEWAY)])
        await bench.hops.find()
        assert bench.macs == [("p9", ONE), ("p9", OTHER)]

    run(work())


def test_plane_that_a_peer_is_not_on_is_not_looked_for() -> None:
    async def work() -> None:
        bench = Bench("0.0.0.0")
        await bench.hops.find()
        assert (list(bench.hops.all), bench.kernel.asked) == ([], [])

    run(work())
