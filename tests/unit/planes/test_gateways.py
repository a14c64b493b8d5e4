# SPDX-License-Identifier: GPL-2.0-only
"""Test addresses, routes and gateways of planes in a fabric, with a double of the kernel."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.config import config
from mrcd.fabric import description, underlay
from mrcd.linux.interfaces import Link, NeighborChanged
from mrcd.linux.privileged.requests import AddAddress, ReplaceRoute, VerifyNeighbor
from mrcd.planes import gateways
from mrcd.planes.gateways import Gateways
from mrcd.planes.ground import Nics
from mrcd.planes.plane import Plane
from mrcd.service.tasks import Tasks

MAC, OTHER = b"\x02" * 6, b"\x04" * 6
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "GATEWAY_WAIT_S", 0.001)


class Kernel:
    """A double of netlink: addresses and routes by interface, and the gateways that answer."""

    def __init__(self) -> None:
        self.given: dict[str, list[str]] = {}
        self.routed: dict[str, list[str]] = {}
        self.macs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.verified: list[VerifyNeighbor] = []
        self.failing: list[Exception] = []
        self.down: dict[str, OSError] = {}

    async def addresses(self, name: str) -> list[str]:
        return self.given.get(name, [])

    async def change(self, request: AddAddress | ReplaceRoute | VerifyNeighbor) -> None:
        if isinstance(request, VerifyNeighbor):
            self.verified.append(request)
            return
        if isinstance(request, AddAddress):
            self.given.setdefault(request.name, []).append(request.cidr)
            return
        if request.dev in self.down:
            raise self.down[request.dev]
        self.routed.setdefault(request.dev, []).append(request.dst)

    async def routes(self, name: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(dst=dst) for dst in self.routed.get(name, [])]

    async def resolve_neighbor(self, name: str, _ip: str, _wait_s: float) -> bytes | None:
        self.asked.append(name)
        await asyncio.sleep(0)
        if self.failing:
            raise self.failing.pop()
        return self.macs.get(name)


class Stand:
    """Two planes of h1 on gateways."""

    def __init__(self, folder: Path) -> None:
        fabric = description.generate(hosts=2, planes=2)
        (folder / "fabric.toml").write_text(description.dumps(fabric))
        text = '[host]\nname = "h1"\nfabric = "fabric.toml"\n'
        self.config = config.loads(text, folder / "mrcd.toml")
        self.folder = folder
        self.kernel = Kernel()
        self.failures: list[BaseException] = []
        self.tasks = Tasks(self.failures.append)
        self.written: list[tuple[int, bytes | None]] = []
        self.news: list[str] = []
        self.planes = [
            Plane(k, Link(10 + k, f"plane{k}", bytes(6), 9000, up=True, carrier=True))
            for k in range(2)
        ]
        nics = Nics(cast(Any, self.kernel), self.tasks, self.planes, self._write, self.news.append)
        self.ground = Gateways(nics, lambda: self.config, folder)

    def _write(self, plane: Plane) -> None:
        self.written.append((plane.index, plane.gateway_mac))

    def gateway(self, plane: int) -> str:
        return str(underlay.of(self.config.fabric).gateway(self.config.host, plane))

    async def idle(self) -> None:
        """Wait until nothing goes on in the background."""
        async with asyncio.timeout(10):
            while len(self.tasks):
                await asyncio.sleep(0)


def run(folder: Path, work: Callable[[Stand], Awaitable[None]]) -> Stand:
    async def main() -> Stand:
        stand = Stand(folder)
        await work(stand)
        await stand.tasks.cancel()
        return stand

    return asyncio.run(main())


def test_planes_get_addresses_routes_and_gateways(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.kernel.macs = {"plane0": MAC, "plane1": OTHER}
        await stand.ground.configure()
        assert [plane.gateway_mac for plane in stand.planes] == [MAC, OTHER]
        assert stand.written == [(0, None), (1, None), (0, MAC), (1, OTHER)]
        assert stand.news == ["gateway resolved"] * 2
        for plane in stand.planes:
            address, destinations = stand.ground.needs(plane)
            (given,) = stand.kernel.given[plane.link.name]
            assert given.partition("/")[0] == address
            assert stand.kernel.routed[plane.link.name] == [destinations]
        await stand.ground.restore(stand.planes[0])
        assert len(stand.kernel.given["plane0"]) == len(stand.kernel.routed["plane0"]) == 1

    run(tmp_path, work)


def test_nic_that_is_set_down_during_the_start_ends_nothing(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.kernel.macs = {"plane0": MAC}
        stand.kernel.down["plane1"] = OSError(errno.ENETDOWN, "Nexthop device is not up")
        await stand.ground.configure()
        assert [plane for plane, _ in stand.written] == [0, 1, 0]
        stand.kernel.down["plane0"] = OSError(errno.EPERM, "not permitted")
        stand.kernel.routed.clear()
        with pytest.raises(OSError, match="not permitted"):
            await stand.ground.configure()

    run(tmp_path, work)


def test_gateway_is_asked_until_it_answers(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.kernel.macs = {"plane0": MAC}
        await stand.ground.configure()
        for _ in range(5):
            await asyncio.sleep(0)
        assert stand.kernel.asked.count("plane1") > 1
        stand.kernel.failing = [OSError("the NIC is being renamed")]
        stand.kernel.macs["plane1"] = OTHER
        await stand.idle()
        assert stand.planes[1].gateway_mac == OTHER

    assert run(tmp_path, work).failures == []


def test_gateway_behind_a_link_without_carrier_is_not_asked(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        for plane in stand.planes:
            plane.link = Link(10, plane.link.name, bytes(6), 9000, up=True, carrier=False)
        await stand.ground.configure()
        await stand.idle()
        assert stand.kernel.asked == []
        stand.kernel.macs = {"plane0": MAC}
        stand.planes[0].link = Link(10, "plane0", bytes(6), 9000, up=True, carrier=True)
        stand.ground.linked(stand.planes[0])
        await stand.idle()
        assert stand.planes[0].gateway_mac == MAC

    run(tmp_path, work)


def test_what_fails_while_a_gateway_is_resolved_is_heard(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.kernel.failing = [RuntimeError("no socket")]
        stand.ground.linked(stand.planes[0])
        await stand.idle()

    assert [*map(str, run(tmp_path, work).failures)] == ["no socket"]


def test_gateway_that_has_another_address_is_followed(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.kernel.macs = {"plane0": MAC, "plane1": MAC}
        await stand.ground.configure()
        stand.written.clear()
        for mac in (None, OTHER, OTHER):  # None: it does not answer, and may forward all the same
            event = NeighborChanged(10, stand.gateway(0), mac, failed=mac is None)
            stand.ground.neighbor(event)
        stand.ground.neighbor(NeighborChanged(11, "fd00::99", OTHER, failed=False))
        assert stand.written == [(0, OTHER)]

    run(tmp_path, work)


def test_adopted_gateway_is_verified_meanwhile(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.planes[0].gateway_mac = MAC
        stand.kernel.macs = {"plane0": OTHER, "plane1": OTHER}
        await stand.ground.configure()
        assert stand.written[0] == (0, MAC)
        await stand.idle()
        assert stand.kernel.verified == [VerifyNeighbor("plane0", stand.gateway(0))]
        assert stand.planes[0].gateway_mac == OTHER


def test_gateway_is_asked_for_when_the_address_of_a_nic_changes(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.kernel.macs = {"plane0": MAC, "plane1": MAC}
        await stand.ground.configure()
        stand.ground.greet(stand.planes[1])
        await stand.idle()
        assert stand.kernel.verified == [VerifyNeighbor("plane1", stand.gateway(1))]

    run(tmp_path, work)

    run(tmp_path, work)
