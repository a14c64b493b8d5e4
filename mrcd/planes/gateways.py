# SPDX-License-Identifier: GPL-2.0-only
"""The ground of planes in a fabric: an address, a route into the fabric and a gateway for each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from ipaddress import ip_interface
from pathlib import Path

from mrcd.config.config import Current
from mrcd.datapath import pins
from mrcd.fabric import underlay
from mrcd.linux.interfaces import NeighborChanged
from mrcd.linux.privileged.requests import AddAddress, ReplaceRoute, VerifyNeighbor
from mrcd.planes.ground import Nics
from mrcd.planes.plane import Plane
from mrcd.service.log import get_logger

log = get_logger()

GATEWAY_WAIT_S = 1.0
_AWAY = (errno.ENETDOWN, errno.ENODEV)


class Gateways:
    """The planes' addresses, routes and gateways. Records what it added in the folder `records`."""

    def __init__(self, nics: Nics, config: Current, records: Path) -> None:
        self._config = config
        self._nics = nics
        self._records = records
        self._resolving: set[int] = set()

    async def configure(self) -> None:
        """Give every plane its address and its route into the fabric, and resolve the gateways."""
        planes = self._nics.planes
        for plane in planes:
            if plane.link.up:
                await self._first(plane)
            self._nics.write(plane)
        for plane in planes:
            if plane.gateway_mac is not None:  # adopted: verify it without delaying the start
                self.greet(plane)
        asked = [plane for plane in planes if plane.gateway_mac is None]
        await asyncio.gather(*(self._resolve_once(plane) for plane in asked))

    def configured(self) -> None:
        """Change nothing: planes and their gateways are the same as before."""

    def follow(self) -> None:
        """Begin nothing: a gateway is resolved when its link changes."""

    def look_again(self) -> None:
        """Ask nothing: whatever was missed of a link is told by `linked`."""

    def linked(self, plane: Plane) -> None:
        """Ask for the gateway if it is not known."""
        if plane.gateway_mac is None:
            self._keep_resolving(plane)

    def greet(self, plane: Plane) -> None:
        """Make the gateway learn the NIC's address, by asking whether it is where it was."""
        self._nics.tasks.spawn(self._ask_again(plane))

    async def restore(self, plane: Plane) -> bool:
        """Restore the address and route that the kernel removed when the link went down.

        The data path needs neither, but without them peers cannot be asked over this plane. Raises
        OSError if the kernel refuses them.
        """
        await self._address_and_route(plane)
        return True

    def neighbor(self, event: NeighborChanged) -> None:
        """Take over a gateway's other link-layer address."""
        if event.mac is None:
            # A gateway that stops answering ND may still forward: its MAC stays valid, and loss
            # exposes paths that carry nothing within a round trip.
            return
        for plane in self._nics.planes:
            if plane.link.index == event.ifindex and event.ip == self._gateway(plane):
                self._set_gateway(plane, event.mac)

    def leads_to(self, peer: str, plane: int) -> bool:
        """Return True: all peers of a plane are behind its gateway."""
        return True

    def needs(self, plane: Plane) -> tuple[str | None, str | None]:
        """Return the address of a plane's NIC, and the destinations of its route."""
        across = self._across
        address = across.address(self._config().host, plane.index)
        return str(address), str(across.destinations(plane.index))

    def close(self) -> None:
        """End nothing: its tasks are those of the planes."""

    async def _first(self, plane: Plane) -> None:
        """Give a NIC its address and route, unless it has just been set down or taken away."""
        try:
            await self._address_and_route(plane)
        except OSError as error:
            if error.errno not in _AWAY:
                raise
            log.warning("plane.not_restored", plane=plane.index, error=str(error))

    async def _address_and_route(self, plane: Plane) -> None:
        """Add a missing address or route, and record what was added so that it can be removed."""
        nl, across, host = self._nics.nl, self._across, self._config().host
        name = plane.link.name
        address = across.address(host, plane.index)
        bits = across.on_link(host, plane.index).prefixlen
        there = {ip_interface(text).ip for text in await nl.addresses(name)}
        if address not in there:
            await nl.change(AddAddress(name, f"{address}/{bits}"))
            pins.record_given(self._records, "address", name, address, bits)
        prefix = across.destinations(plane.index)
        if str(prefix) not in {route.dst for route in await nl.routes(name)}:
            await nl.change(ReplaceRoute(str(prefix), name, self._gateway(plane)))
            pins.record_given(
                self._records, "route", name, prefix.network_address, prefix.prefixlen
            )

    def _gateway(self, plane: Plane) -> str:
        return str(self._across.gateway(self._config().host, plane.index))

    @property
    def _across(self) -> underlay.Usids | underlay.Hashed:
        return underlay.in_fabric(self._config().fabric)

    async def _resolve_once(self, plane: Plane) -> None:
        if plane.link.up and plane.link.carrier:
            await self._resolve(plane)
        if plane.gateway_mac is None:
            self._keep_resolving(plane)

    async def _resolve(self, plane: Plane) -> None:
        """Ask for a gateway's MAC address once."""
        name, gateway = plane.link.name, self._gateway(plane)
        mac = await self._nics.nl.resolve_neighbor(name, gateway, GATEWAY_WAIT_S)
        if mac is not None:
            self._set_gateway(plane, mac)

    async def _ask_again(self, plane: Plane) -> None:
        with contextlib.suppress(OSError):
            # For what the kernel knows it would not ask the network by itself.
            await self._nics.nl.change(VerifyNeighbor(plane.link.name, self._gateway(plane)))
            await self._resolve(plane)

    def _keep_resolving(self, plane: Plane) -> None:
        """Keep asking for a gateway's MAC address until the gateway answers."""
        if plane.index in self._resolving:
            return

        async def resolve() -> None:
            try:
                while plane.gateway_mac is None:
                    if not (plane.link.up and plane.link.carrier):
                        return  # the link's next change asks again
                    try:
                        await self._resolve(plane)
                    except OSError:  # perhaps it has just been removed or renamed
                        await asyncio.sleep(GATEWAY_WAIT_S)
            finally:
                self._resolving.discard(plane.index)

        self._resolving.add(plane.index)
        self._nics.tasks.spawn(resolve())

    def _set_gateway(self, plane: Plane, mac: bytes) -> None:
        if mac == plane.gateway_mac:
            return
        plane.gateway_mac = mac
        self._nics.write(plane)
        self._nics.changed("gateway resolved")
        log.info("gateway.resolved", plane=plane.index, mac=mac.hex(":"))
