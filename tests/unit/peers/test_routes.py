# SPDX-License-Identifier: GPL-2.0-only
"""Test that routes to peers are installed in the background, renewed and deleted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest

from mrcd.config.config import Peer
from mrcd.fabric.description import Host
from mrcd.linux import sysfs
from mrcd.linux.privileged.requests import DeleteRoute, ReplaceRoute
from mrcd.peers.routes import PeerRoutes
from mrcd.service.tasks import Tasks


@dataclass
class Kernel:
    """The installed routes: prefix to MTU. A change yields to other tasks first, as in netlink."""

    routes: dict[str, int] = field(default_factory=dict)
    log: list[tuple[str, int]] = field(default_factory=list)

    async def change(self, request: ReplaceRoute | DeleteRoute) -> None:
        """Replace or delete a route, as Netlink does."""
        await asyncio.sleep(0)
        assert request.dev == "mrc0"
        if isinstance(request, DeleteRoute):
            del self.routes[request.dst]
            return
        assert request.ecn
        assert request.mtu is not None
        self.routes[request.dst] = request.mtu
        self.log.append((request.dst, request.mtu))


def peer(number: int, *more: str) -> Peer:
    """Return peer p<number> with 10.0.<number>.0/24 and more prefixes."""
    prefixes = (f"10.0.{number}.0/24", *more)
    host = Host(f"p{number}", 1, number, ())
    return Peer(host, tuple(ip_network(prefix) for prefix in prefixes))


class Scene:
    """The routes of a fake kernel; `settle` waits until nothing is in progress."""

    def __init__(self) -> None:
        self.failed: list[BaseException] = []
        self.kernel = Kernel()
        self.tasks = Tasks(self.failed.append)
        self.routes = PeerRoutes(self.kernel, "mrc0", self.tasks)  # type: ignore[arg-type]

    async def end(self) -> None:
        """Run the waiting tasks, whether they fail or not."""
        while len(self.tasks):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Run the waiting tasks; none may fail."""
        await self.end()
        assert not self.failed


def test_want__installs_every_prefix_of_every_peer() -> None:
    async def scene() -> None:
        at = Scene()
        for number in range(50):
            at.routes.want(peer(number, f"fd00:{number:x}::/64"), 1400)
        await at.settle()
        assert len(at.kernel.routes) == 100
        assert set(at.kernel.routes.values()) == {1400}

    asyncio.run(scene())


def test_want__the_same_again_does_nothing() -> None:
    async def scene() -> None:
        at = Scene()
        for _ in range(3):
            at.routes.want(peer(1), 1400)
            await at.settle()
        assert at.kernel.log == [("10.0.1.0/24", 1400)]

    asyncio.run(scene())


@pytest.mark.parametrize("steps", range(4))
def test_want__another_mtu_meanwhile_wins(steps: int) -> None:
    async def scene() -> None:
        at = Scene()
        at.routes.want(peer(1, "10.9.0.0/24"), 1400)
        for _ in range(steps):
            await asyncio.sleep(0)
        at.routes.want(peer(1, "10.9.0.0/24"), 1300)
        await at.settle()
        assert at.kernel.routes == {"10.0.1.0/24": 1300, "10.9.0.0/24": 1300}

    asyncio.run(scene())


def test_forget__before_its_turn_leaves_no_route() -> None:
    async def scene() -> None:
        at = Scene()
        at.routes.want(peer(1), 1400)
        at.routes.want(peer(2), 1400)
        at.routes.forget("p2")
        await at.settle()
        assert set(at.kernel.routes) == {"10.0.1.0/24"}

    asyncio.run(scene())


def test_renew__only_peers_that_have_routes() -> None:
    async def scene() -> None:
        at = Scene()
        at.routes.want(peer(1), 1400)
        await at.settle()
        await at.routes.renew([peer(1, "10.9.0.0/24"), peer(2)])
        assert at.kernel.routes == {"10.0.1.0/24": 1400, "10.9.0.0/24": 1400}
        await at.routes.delete(["10.9.0.0/24"])
        assert at.kernel.routes == {"10.0.1.0/24": 1400}

    asyncio.run(scene())


def test_want__what_was_refused_is_still_wanted() -> None:
    async def scene() -> None:
        at = Scene()

        async def refuse(dst: str, **_: object) -> None:
            raise OSError(f"no {dst}")

        at.kernel.change = refuse  # type: ignore[method-assign]
        at.routes.want(peer(1), 1400)
        await at.settle()
        assert at.kernel.routes == {}
        assert at.routes.installed == {"p1": 1400}  # for mrcd/repair/ to compare with

    asyncio.run(scene())


def test_refresh__replaces_ipv6_routes_and_flushes_those_of_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed: list[int] = []

    def flush() -> None:
        flushed.append(len(flushed))

    monkeypatch.setattr(sysfs, "forget_ipv4_routes", flush)

    async def scene() -> None:
        at = Scene()
        one, other, absent = (peer(number, f"fd00:{number}::/64") for number in (1, 2, 3))
        at.routes.want(one, 1400)
        at.routes.want(other, 1460)
        await at.settle()
        at.kernel.log.clear()
        await at.routes.refresh([one, other, absent])  # the last one has no session
        assert at.kernel.log == [("fd00:1::/64", 1400), ("fd00:2::/64", 1460)]

    asyncio.run(scene())
    assert flushed == [0]
