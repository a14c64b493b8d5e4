# SPDX-License-Identifier: GPL-2.0-only
"""The ground of planes in a network without a fabric: NICs with addresses of their own.

Nothing is added to them. Their addresses, and the next hops to peers, are the kernel's, and are
followed when they change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from mrcd.config.config import Current
from mrcd.fabric import underlay
from mrcd.linux.interfaces import NeighborChanged
from mrcd.linux.planesocket import Address
from mrcd.linux.rtnl import Changed, News
from mrcd.planes.ground import Nics
from mrcd.planes.nexthops import Hop, NextHops
from mrcd.planes.placement import own_addresses
from mrcd.planes.plane import Plane
from mrcd.service.log import get_logger

log = get_logger()

SETTLE_S = 0.02
"""Changes of routes and addresses come in swarms: they are looked at together after this time."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is called with news: next hops and path MTUs to peers, and our own addresses.

    addresses: takes our addresses, by plane, into the configuration; raises OSError if sockets
    cannot be opened at them.
    """

    mac: Callable[[Hop], None]
    mtu: Callable[[Hop], None]
    addresses: Callable[[tuple[Address, ...]], None]


class AnyNetwork:
    """The planes' own addresses, and the next hops that lead from them to peers."""

    def __init__(self, nics: Nics, config: Current, found: Found) -> None:
        self._config = config
        self._nics = nics
        self._found = found
        self.hops = NextHops(nics.nl, nics.tasks, found.mac, found.mtu)
        self._looking: asyncio.TimerHandle | None = None
        self._look = asyncio.Lock()
        self._news = News(self._changed_there)
        self._note_addresses()

    async def configure(self) -> None:
        """Write the planes into the map, and find the next hops to all peers."""
        for plane in self._nics.planes:
            self._nics.write(plane)
        self._nics.changed("addresses known")
        self._note_links()
        self.hops.set_peers(self._config().peers)
        await self.hops.find()

    def configured(self) -> None:
        """Go by the configuration of now: other peers, or peers at other addresses."""
        self.hops.set_peers(self._config().peers)
        self.look_again()

    def follow(self) -> None:
        """Begin to follow addresses and routes, and to verify neighbours and path MTUs."""
        self._nics.tasks.spawn(self.hops.verify())
        self._nics.tasks.spawn(self.hops.measure())
        self._news.start()

    def look_again(self) -> None:
        """Ask soon for the kernel's present addresses and routes."""
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(SETTLE_S, self._look_now)

    def linked(self, plane: Plane) -> None:
        """Take over what a plane's NIC is now, and ask for neighbours that are not known."""
        self._note_links()
        if plane.link.carrier:
            self.hops.ask()

    def greet(self, plane: Plane) -> None:
        """Make the neighbours learn that the NIC has another link-layer address."""
        self._nics.tasks.spawn(self.hops.greet(plane.index))

    async def restore(self, plane: Plane) -> bool:
        """Look how the NIC that came up leads to the peers, since nothing on it is ours.

        Sockets follow its address.
        """
        self._note_links()
        self.look_again()
        return False

    def neighbor(self, event: NeighborChanged) -> None:
        """Take over what the kernel has learned of a neighbour."""
        self.hops.neighbor(event)

    def leads_to(self, peer: str, plane: int) -> bool:
        """Return whether the peer is on the plane, and the next hop's link-layer address known."""
        config = self._config()
        known = config.by_name.get(peer)
        if known is not None and not underlay.of(config.fabric).leads(known.host, plane):
            return False
        return self.hops.leads_to(peer, plane)

    def needs(self, plane: Plane) -> tuple[str | None, str | None]:
        """Return the address that the operator has said the NIC has, and no route."""
        given = self._config().nics[plane.index].address
        return (None if given is None else str(given)), None

    def close(self) -> None:
        """Stop following anything."""
        if self._looking is not None:
            self._looking.cancel()
        self._news.close()

    def _note_links(self) -> None:
        self.hops.set_links([plane.link for plane in self._nics.planes], self._config().fabric.mtu)

    def _note_addresses(self) -> None:
        for plane in self._nics.planes:
            plane.addressed = not self._address(plane).is_unspecified

    def _address(self, plane: Plane) -> Address:
        return underlay.of(self._config().fabric).address(self._config().host, plane.index)

    # ---- reports of the kernel

    def _changed_there(self, change: Changed | None) -> None:
        """Look again after news of our NICs, and of routes that several interfaces share."""
        ours = {0, *(plane.link.index for plane in self._nics.planes)}
        if change is None or change.index in ours:
            self.look_again()

    def _look_now(self) -> None:
        self._looking = None
        self._nics.tasks.spawn(self._look_up())

    async def _look_up(self) -> None:
        """Take over the kernel's present addresses and routes."""
        async with self._look:
            planes = self._nics.planes
            names = [plane.link.name if plane.present else None for plane in planes]
            config = self._config()
            found = await own_addresses(self._nics.nl, config, names)
            if found != self._config().host.endpoints:
                self._take_addresses(found)
            await self.hops.find()

    def _take_addresses(self, found: tuple[Address, ...]) -> None:
        """Send from other addresses than before."""
        before = self._config().host.endpoints
        try:
            self._found.addresses(found)
        except OSError as error:  # the NIC has just gone; when it returns, its sockets are opened
            log.warning("plane.not_restored", error=str(error))
        self._note_addresses()
        for plane in self._nics.planes:
            if self._address(plane) != before[plane.index]:
                if plane.addressed:
                    self._nics.write(plane)
                address = str(self._address(plane))
                log.warning("plane.readdressed", plane=plane.index, address=address)
        self._nics.changed("address")
