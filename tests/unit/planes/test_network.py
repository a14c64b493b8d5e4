# SPDX-License-Identifier: GPL-2.0-only
"""Test planes without a fabric: addresses and next hops, with a double of the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import pytest

from mrcd.config import config
from mrcd.config.config import Config
from mrcd.fabric.hosts import Address
from mrcd.linux.interfaces import Link, NeighborChanged
from mrcd.linux.netlink import Netlink
from mrcd.linux.privileged.requests import VerifyNeighbor
from mrcd.planes import network
from mrcd.planes.ground import Nics
from mrcd.planes.network import AnyNetwork, Found
from mrcd.planes.nexthops import Hop
from mrcd.planes.plane import Plane
from mrcd.service.tasks import Tasks

MAC, OTHER = b"\x02" * 6, b"\x04" * 6
TEXT = """
[host]
name = "a"
[mrc0]
addresses = ["10.99.0.1/24"]
[[plane]]
interface = "eth1"
[[plane]]
interface = "eth2"
[[peer]]
name = "b"
allowed = ["10.99.0.2/32"]
endpoints = ["192.0.2.2", "198.51.100.2"]
"""
OURS = ("192.0.2.1", "198.51.100.1")
pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SETTLE_S", 0.0)


class Kernel:
    """A double of netlink: our addresses, routes and neighbours, by interface."""

    def __init__(self) -> None:
        self.ours = dict(zip(("eth1", "eth2"), OURS, strict=True))
        self.macs = {"192.0.2.2": MAC, "198.51.100.2": MAC}
        self.via: dict[str, str] = {}
        self.nudged: list[str] = []

    async def way_to(self, _name: str, address: str) -> Any:
        hop = self.via.get(address, address)
        return type("Way", (), {"hop": hop, "mtu": 0})()

    async def resolve_neighbor(self, _name: str, ip: str, _wait_s: float) -> bytes | None:
        await asyncio.sleep(0)
        return self.macs.get(ip)

    def nudge_neighbor(self, _name: str, ip: str) -> None:
        self.nudged.append(ip)

    async def change(self, _request: VerifyNeighbor) -> None:
        await asyncio.sleep(0)


class Stand:
    """Two planes of host a, whose peer is b."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernel = Kernel()
        found = config.loads(TEXT, folder / "mrcd.toml")
        self.config = found.placed(tuple(map(ip_address, OURS)), 1500)
        self.failures: list[BaseException] = []
        self.tasks = Tasks(self.failures.append)
        self.written: list[int] = []
        self.news: list[str] = []
        self.hops: list[tuple[str, int, bytes | None]] = []
        self.moved: list[tuple[Address, ...]] = []
        self.planes = [
            Plane(k, Link(10 + k, f"eth{k + 1}", bytes(6), 1500, up=True, carrier=True))
            for k in range(2)
        ]
        nl = cast(Netlink, self.kernel)
        nics = Nics(nl, self.tasks, self.planes, self._write, self.news.append)
        heard = Found(self._hop, lambda _hop: None, self._move)
        monkeypatch.setattr(network, "own_addresses", self._own)
        self.ground = AnyNetwork(nics, lambda: self.config, heard)

    async def _own(self, _nl: object, _config: Config, names: list[str | None]) -> Any:
        await asyncio.sleep(0)
        none = ip_address("0.0.0.0")
        return tuple(ip_address(self.kernel.ours[n]) if n in self.kernel.ours else none
                     for n in names)  # fmt: skip

    def _move(self, addresses: tuple[Address, ...]) -> None:
        self.config = self.config.placed(addresses, 1500)
        self.moved.append(addresses)

    def _write(self, plane: Plane) -> None:
        self.written.append(plane.index)

    def _hop(self, hop: Hop) -> None:
        self.hops.append((hop.peer, hop.plane, hop.mac))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)


Run = Callable[[Callable[[Stand], Awaitable[None]]], Stand]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def start(work: Callable[[Stand], Awaitable[None]]) -> Stand:
        async def main() -> Stand:
            stand = Stand(tmp_path, monkeypatch)
            await work(stand)
            stand.ground.close()
            await stand.tasks.cancel()
            assert stand.failures == []
            return stand

        return asyncio.run(main())

    return start


def test_planes_are_written_and_hops_found(run: Run) -> None:
    async def work(stand: Stand) -> None:
        await stand.ground.configure()
        assert stand.written == [0, 1]
        assert sorted(stand.hops) == [("b", 0, MAC), ("b", 1, MAC)]
        assert all(plane.addressed for plane in stand.planes)
        assert stand.ground.needs(stand.planes[0]) == (None, None)

    run(work)


def test_address_that_changes_moves_a_plane(run: Run) -> None:
    async def work(stand: Stand) -> None:
        await stand.ground.configure()
        stand.written.clear()
        stand.kernel.ours["eth2"] = "198.51.100.77"
        stand.ground.look_again()
        await stand.until(lambda: bool(stand.moved))
        assert stand.written == [1]
        (found,) = stand.moved
        assert [*map(str, found)] == ["192.0.2.1", "198.51.100.77"]

    run(work)


def test_plane_without_an_address_leads_nowhere_until_it_has_one(run: Run) -> None:
    async def work(stand: Stand) -> None:
        await stand.ground.configure()
        stand.written.clear()
        gone = stand.kernel.ours.pop("eth1")
        stand.ground.look_again()
        await stand.until(lambda: not stand.planes[0].addressed)
        assert stand.written == []
        assert stand.news[-1] == "address"
        stand.kernel.ours["eth1"] = gone
        stand.ground.look_again()
        await stand.until(lambda: stand.planes[0].addressed)
        assert stand.written == [0]

    run(work)


def test_news_in_a_swarm_are_looked_at_once(run: Run) -> None:
    async def work(stand: Stand) -> None:
        await stand.ground.configure()
        stand.kernel.ours["eth1"] = "192.0.2.55"
        for _ in range(20):
            stand.ground.look_again()
        await stand.until(lambda: not len(stand.tasks) and bool(stand.moved))
        assert len(stand.moved) == 1

    run(work)


def test_nic_that_came_up_is_looked_at_and_opens_no_socket(run: Run) -> None:
    async def work(stand: Stand) -> None:
        await stand.ground.configure()
        stand.kernel.via["192.0.2.2"] = "192.0.2.254"
        stand.kernel.macs["192.0.2.254"] = OTHER
        assert not await stand.ground.restore(stand.planes[0])
        await stand.until(lambda: ("b", 0, OTHER) in stand.hops)

    run(work)


def test_neighbours_are_asked_when_a_link_is_back(run: Run) -> None:
    async def work(stand: Stand) -> None:
        stand.planes[1].link = replace(stand.planes[1].link, carrier=False)
        await stand.ground.configure()
        assert stand.hops == [("b", 0, MAC)]
        stand.planes[1].link = replace(stand.planes[1].link, carrier=True)
        stand.ground.linked(stand.planes[1])
        await stand.until(lambda: ("b", 1, MAC) in stand.hops)
        stand.ground.neighbor(NeighborChanged(10, "192.0.2.2", OTHER, failed=False))
        assert stand.hops[-1] == ("b", 0, OTHER)

    run(work)


def test_other_link_layer_address_is_told_to_neighbours(run: Run) -> None:
    async def work(stand: Stand) -> None:
        await stand.ground.configure()
        stand.ground.greet(stand.planes[1])
        await stand.until(lambda: stand.kernel.nudged == ["198.51.100.2"])

    run(work)


def test_reload_follows_other_peers(run: Run) -> None:
    async def work(stand: Stand) -> None:
        await stand.ground.configure()
        stand.config = replace(stand.config, peers=())
        stand.ground.configured()
        assert [*stand.ground.hops.all] == []

    run(work)
