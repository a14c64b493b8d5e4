# SPDX-License-Identifier: GPL-2.0-only
"""Install routes over mrc0 to a peer's prefixes, with the MTU negotiated with that peer."""

from __future__ import annotations

from collections.abc import Container, Iterable

from mrcd.config.config import Peer
from mrcd.linux import sysfs
from mrcd.linux.netlink import Netlink
from mrcd.linux.privileged.requests import DeleteRoute, ReplaceRoute
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks

log = get_logger()


class PeerRoutes:
    """Installs requested routes one after another in the background.

    `dev` is mrc0's name. With thousands of peers, QPs are set up faster than the kernel installs
    routes.
    """

    def __init__(self, nl: Netlink, dev: str, tasks: Tasks) -> None:
        self._nl = nl
        self._dev = dev
        self._tasks = tasks
        self._mtus: dict[str, int] = {}  # by the peer's name
        self._waiting: dict[str, Peer] = {}

    def want(self, peer: Peer, mtu: int) -> None:
        """Request routes for a peer's prefixes over mrc0, for packets of at most `mtu` bytes."""
        if self._mtus.get(peer.name) == mtu:
            return
        self._mtus[peer.name] = mtu
        if not self._waiting:
            self._tasks.spawn(self._install_waiting())
        self._waiting[peer.name] = peer

    def forget(self, name: str) -> None:
        """Forget a peer that was removed; `delete` deletes the routes to its prefixes."""
        self._mtus.pop(name, None)

    async def renew(self, peers: Iterable[Peer]) -> None:
        """Install the routes again for those of these peers that have any.

        Their prefixes may have changed.
        """
        for peer in peers:
            mtu = self._mtus.get(peer.name)
            if mtu is not None:
                await self._install(peer, mtu)

    @property
    def installed(self) -> dict[str, int]:
        """The MTU of each peer with routes, by name; without those that are yet to be installed."""
        waiting = self._waiting
        return {name: mtu for name, mtu in self._mtus.items() if name not in waiting}

    async def refresh(self, peers: Iterable[Peer]) -> None:
        """Make connections to these peers look their routes up again, and mrc0's GSO with them.

        An IPv6 route that is replaced by its like does that. With IPv4 the kernel sees that nothing
        has changed (fib_table_insert), so all routes are forgotten.
        """
        if (error := sysfs.forget_ipv4_routes()) is not None:
            log.warning("interface.untuned", interface=self._dev, error=error)
        for peer in peers:
            mtu = self._mtus.get(peer.name)
            if mtu is not None:
                await self._install(peer, mtu, versions=(6,))

    async def delete(self, prefixes: Iterable[str]) -> None:
        """Delete the routes to these prefixes, which no peer uses any more."""
        for prefix in prefixes:
            await self._nl.change(DeleteRoute(prefix, self._dev))

    async def _install_waiting(self) -> None:
        """Install the waiting routes, including those requested meanwhile."""
        while self._waiting:
            peer = self._waiting[next(iter(self._waiting))]
            mtu = self._mtus.get(peer.name)
            if mtu is not None:
                try:
                    await self._install(peer, mtu)
                except OSError as error:  # mrc0 may be missing or down; mrcd/repair/ tries again
                    log.warning("route.not_installed", peer=peer.name, error=str(error))
            if self._waiting.get(peer.name) is peer and self._mtus.get(peer.name) == mtu:
                del self._waiting[peer.name]

    async def _install(self, peer: Peer, mtu: int, versions: Container[int] = (4, 6)) -> None:
        for prefix in peer.allowed:
            if prefix.version not in versions:
                continue
            await self._nl.change(ReplaceRoute(str(prefix), self._dev, mtu=mtu, ecn=True))
