# SPDX-License-Identifier: GPL-2.0-only
"""The planes of this host in a network without a fabric: NICs with addresses of their own.

Nothing is added to them. Their addresses, and the next hops to peers, are the kernel's, and are
followed when they change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mrcd.config.config import Config
from mrcd.datapath.datapath import Datapath
from mrcd.fabric import underlay
from mrcd.linux.interfaces import LinkChanged, NeighborChanged
from mrcd.linux.netlink import Netlink
from mrcd.linux.rtnl import Changed, News
from mrcd.planes.nexthops import Hop, NextHops
from mrcd.planes.placement import own_addresses
from mrcd.planes.planes import Plane, Planes
from mrcd.rules.drains import Drains
from mrcd.service.log import get_logger

log = get_logger()

SETTLE_S = 0.02
"""Changes of routes and addresses come in swarms: they are looked at together after this time."""


class NetworkPlanes(Planes):
    """Planes without a fabric. `on_address` is called with a configuration that has our addresses.

    `on_mac` and `on_mtu` are those of NextHops.
    """

    def __init__(
        self,
        nl: Netlink,
        config: Config,
        datapath: Datapath,
        planes: list[Plane],
        drains: Drains,
        on_change: Callable[[int], None],
        records: Path,
        on_failure: Callable[[BaseException], None],
        on_bound: Callable[[Plane], Awaitable[None]],
        on_up: Callable[[Plane], None],
        *,
        on_mac: Callable[[Hop], None],
        on_mtu: Callable[[Hop], None],
        on_address: Callable[[Config], None],
    ) -> None:
        super().__init__(
            nl, config, datapath, planes, drains, on_change, records, on_failure, on_bound, on_up
        )
        self._on_address = on_address
        self.hops = NextHops(nl, self._tasks, on_mac, on_mtu)
        self._looking: asyncio.TimerHandle | None = None
        self._look = asyncio.Lock()
        self._news = News(self._changed_there)
        self._note_addresses()

    def _note_links(self) -> None:
        self.hops.set_links([plane.link for plane in self.planes], self._config.fabric.mtu)

    def _note_addresses(self) -> None:
        for plane in self.planes:
            plane.addressed = not self._address(plane).is_unspecified

    def _address(self, plane: Plane) -> Any:
        return underlay.address(self._config.fabric, self._config.host, plane.index)

    def adopt(self) -> None:
        """Take the planes over as they are."""
        self._take_mask()

    async def configure(self) -> None:
        """Write the planes into the map, and find the next hops to all peers."""
        for plane in self.planes:
            self._write(plane)
        self._changed("addresses known")
        self._note_links()
        self.hops.set_peers(self._config.peers)
        await self.hops.find()

    def reconfigure(self, config: Config) -> None:
        """Use this configuration from now on: other peers, or peers at other addresses."""
        super().reconfigure(config)
        self.hops.set_peers(config.peers)
        self._look_soon()

    async def follow(self) -> None:
        """Follow links, neighbours, addresses and routes; runs until cancelled."""
        self._tasks.spawn(self.hops.verify())
        self._tasks.spawn(self.hops.measure())
        self._news.start()
        await super().follow()

    # ---- reports of the kernel

    def _changed_there(self, change: Changed | None) -> None:
        """Look again after news of our NICs, and of routes that several interfaces share."""
        ours = {0, *(plane.link.index for plane in self.planes)}
        if change is None or change.index in ours:
            self._look_soon()

    async def _resync(self) -> None:
        await super()._resync()
        self._look_soon()

    def _look_soon(self) -> None:
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(SETTLE_S, self._look_now)

    def _look_now(self) -> None:
        self._looking = None
        self._tasks.spawn(self._look_again())

    async def _look_again(self) -> None:
        """Take over the kernel's present addresses and routes."""
        async with self._look:
            names = [plane.link.name if plane.present else None for plane in self.planes]
            found = await own_addresses(self._nl, self._config, names)
            if found != self._config.host.endpoints:
                self._take_addresses(self._config.placed(found, self._config.fabric.mtu))
            await self.hops.find()

    def _take_addresses(self, config: Config) -> None:
        before, self._config = self._config.host.endpoints, config
        self._note_addresses()
        for plane in self.planes:
            if self._address(plane) != before[plane.index]:
                if plane.addressed:
                    self._write(plane)
                address = str(self._address(plane))
                log.warning("plane.readdressed", plane=plane.index, address=address)
        try:
            self._on_address(config)
        except OSError as error:  # the NIC has just gone; when it returns, its sockets are opened
            log.warning("plane.not_restored", error=str(error))
        self._changed("address")

    def _link_changed(self, change: LinkChanged) -> None:
        super()._link_changed(change)
        self._note_links()
        if change.link.carrier:
            self.hops.ask()

    async def _restore(self, plane: Plane) -> None:
        """Look how the NIC that came up leads to the peers, since nothing on it is ours."""
        self._note_links()
        self._look_soon()

    async def restore(self, index: int) -> None:
        """Do nothing, since nothing on a NIC is ours."""

    def needs(self, plane: Plane) -> tuple[str | None, str | None]:
        """Return the address that the operator has said the NIC has, and no route."""
        given = self._config.nics[plane.index].address
        return (None if given is None else str(given)), None

    async def _ask_again(self, plane: Plane) -> None:
        """Make the neighbours learn that the NIC has another link-layer address."""
        await self.hops.greet(plane.index)

    def _keep_resolving(self, plane: Plane) -> None:
        """Do nothing, since there is no gateway that all peers share."""

    def _neighbor(self, event: NeighborChanged) -> None:
        self.hops.neighbor(event)

    async def close(self) -> None:
        """Stop following anything."""
        if self._looking is not None:
            self._looking.cancel()
        self._news.close()
        await super().close()
