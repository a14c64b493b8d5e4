# SPDX-License-Identifier: GPL-2.0-only
"""The planes of this host: interface, gateway, and whether packets may be sprayed on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_interface
from pathlib import Path

from mrcd.config.config import Config
from mrcd.datapath import pins
from mrcd.datapath.datapath import Datapath
from mrcd.fabric import underlay, usid
from mrcd.linux.carrier import CarrierWatch
from mrcd.linux.interfaces import Link, LinkChanged, NeighborChanged, Resync
from mrcd.linux.netlink import Netlink
from mrcd.planes.usable import LastPlane, PortState, usable_mask, why_unused
from mrcd.rules import drains
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks
from mrcd.wire.abi import ABI
from mrcd.wire.layout import words

log = get_logger()

_PLANE = ABI.structs["mrc_plane"]
GATEWAY_WAIT_S = 1.0


class PlaneError(Exception):
    """A plane cannot be set up; the message names it and says what to do."""


@dataclass(slots=True)
class Plane:
    """One plane NIC. While it is `usable`, packets are sprayed on it and peers may send to it."""

    index: int
    link: Link
    gateway_mac: bytes | None = None
    drained: bool = False
    sick: str | None = None
    usable: bool = False

    @property
    def port(self) -> PortState:
        """The facts that decide whether the plane is usable."""
        link, known = self.link, self.gateway_mac is not None
        return PortState(link.up, link.carrier, known, self.drained, self.sick)

    def why_unused(self, gateway: str) -> str | None:
        """Return the reason why the plane is not usable, or None if it is."""
        return None if self.usable else why_unused(self.port, self.link.name, gateway)


async def find_planes(nl: Netlink, config: Config) -> list[Plane]:
    """Return the planes with their interfaces, without changing anything.

    Raises PlaneError, which names every missing interface, or every one whose MTU is too small.
    """
    links = await nl.links()
    missing = [name for name in config.interfaces if name not in links]
    if missing:
        raise PlaneError(
            f"no interface {', '.join(missing)} on this host; there is "
            f"{', '.join(sorted(links))}. Name the plane NICs in [planes] interfaces"
        )
    small = [name for name in config.interfaces if links[name].mtu < config.fabric.mtu]
    if small:
        raise PlaneError(
            f"{', '.join(f'{name} has MTU {links[name].mtu}' for name in small)}: less than the "
            f"fabric's {config.fabric.mtu}. Raise it (`ip link set {small[0]} mtu "
            f"{config.fabric.mtu}`) or lower [fabric] mtu"
        )
    return [Plane(i, links[name]) for i, name in enumerate(config.interfaces)]


class Planes:
    """The planes of this host, set up and then followed by netlink.

    `on_change` is called with each new mask of usable planes.
    """

    def __init__(
        self,
        nl: Netlink,
        config: Config,
        datapath: Datapath,
        planes: list[Plane],
        state_dir: Path,
        on_change: Callable[[int], None],
        records: Path,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Read from `state_dir` which planes are drained, and record added addresses in `records`.

        `on_failure` is called with the exception that ended background work. From then on the
        planes are no longer followed completely.
        """
        self._state_dir = state_dir
        self._records = records
        self._carrier = CarrierWatch(self._link_changed, self._links_missed)
        self._nl = nl
        self._config = config
        self._dp = datapath
        self._on_change = on_change
        self._resolving: set[int] = set()
        self._tasks = Tasks(on_failure)
        self.planes = planes
        self.mask = 0  # bit k: plane k is usable
        drained = drains.load(state_dir, len(planes))
        for plane in planes:
            plane.drained = plane.index in drained

    def adopt(self) -> None:
        """Take the gateways' MAC addresses over from the map, which the data path used until now.

        This sets the mask of usable planes, but does not call `on_change`.
        """
        for plane in self.planes:
            there = self._dp.read_raw("planes", plane.index, _PLANE.size)
            mac = bytes(_PLANE.unpack_array(there, "gateway_mac"))
            if _PLANE.unpack(there)["ifindex"] == plane.link.index and any(mac):
                plane.gateway_mac = mac
        self.mask = usable_mask(plane.port for plane in self.planes)
        for plane in self.planes:
            plane.usable = bool(self.mask >> plane.index & 1)

    async def configure(self) -> None:
        """Give every plane its address and its route into the fabric, and resolve the gateways."""
        for plane in self.planes:
            if plane.link.up:
                await self._address_and_route(plane)
            self._write(plane)
        for plane in self.planes:
            if plane.gateway_mac is not None:  # adopted: verify it without delaying the start
                self._tasks.spawn(self._ask_again(plane))
        asked = [plane for plane in self.planes if plane.gateway_mac is None]
        await asyncio.gather(*(self._resolve_once(plane) for plane in asked))

    async def _address_and_route(self, plane: Plane) -> None:
        """Add a missing address or route, and record what was added so that it can be removed."""
        fabric, host, name = self._config.fabric, self._config.host, plane.link.name
        address = underlay.address(fabric, host, plane.index)
        bits = underlay.on_link(fabric, host, plane.index).prefixlen
        there = {ip_interface(text).ip for text in await self._nl.addresses(name)}
        if address not in there:
            await self._nl.add_address(name, f"{address}/{bits}")
            pins.record_given(self._records, "address", name, address, bits)
        prefix = underlay.destinations(fabric, plane.index)
        if str(prefix) not in {route.dst for route in await self._nl.routes(name)}:
            await self._nl.replace_route(str(prefix), dev=name, via=self._gateway(plane))
            pins.record_given(
                self._records, "route", name, prefix.network_address, prefix.prefixlen
            )

    def _gateway(self, plane: Plane) -> str:
        return str(underlay.gateway(self._config.fabric, self._config.host, plane.index))

    async def _resolve_once(self, plane: Plane) -> None:
        if plane.link.up and plane.link.carrier:
            await self._resolve(plane)
        if plane.gateway_mac is None:
            self._keep_resolving(plane)

    async def _resolve(self, plane: Plane) -> None:
        """Ask for a gateway's MAC address once."""
        mac = await self._nl.resolve_neighbor(plane.link.name, self._gateway(plane), GATEWAY_WAIT_S)
        if mac is not None:
            self._set_gateway(plane, mac)

    async def _ask_again(self, plane: Plane) -> None:
        with contextlib.suppress(OSError):
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
                    with contextlib.suppress(OSError):
                        await self._resolve(plane)
            finally:
                self._resolving.discard(plane.index)

        self._resolving.add(plane.index)
        self._tasks.spawn(resolve())

    def _set_gateway(self, plane: Plane, mac: bytes) -> None:
        if mac == plane.gateway_mac:
            return
        plane.gateway_mac = mac
        self._write(plane)
        self._changed("gateway resolved")
        log.info("gateway.resolved", plane=plane.index, mac=mac.hex(":"))

    def _write(self, plane: Plane) -> None:
        """Write the plane into the map of the data path."""
        fabric, host = self._config.fabric, self._config.host
        sid = usid.da_bytes(fabric.block, [usid.usid(plane.index, usid.ROLE_HOST, host.port)])
        self._dp.write(
            "planes",
            plane.index,
            _PLANE,
            ifindex=plane.link.index,
            mac=tuple(plane.link.mac),
            gateway_mac=tuple(plane.gateway_mac or bytes(6)),
            addr=words(underlay.packed(fabric, host, plane.index)),
            sid=words(sid),
            bare=plane.link.kind == "veth",
        )

    def _changed(self, why: str) -> None:
        """Recompute the mask after a change to a plane's state, and announce a new one.

        The log is written last, so that it does not delay the announcement to peers.
        """
        mask = usable_mask(plane.port for plane in self.planes)
        changed = mask ^ self.mask
        if not changed:
            return
        self.mask = mask
        for plane in self.planes:
            plane.usable = bool(mask >> plane.index & 1)
        self._on_change(mask)
        for plane in self.planes:
            if changed >> plane.index & 1:
                event = "plane.up" if plane.usable else "plane.down"
                log.info(event, plane=plane.index, interface=plane.link.name, reason=why)

    # ---- decisions of operators and the survey

    def drain(self, index: int, *, force: bool = False) -> None:
        """Take a plane out of service until undrain().

        Raises LastPlane if no usable plane would be left, unless `force` is set.
        """
        plane = self.planes[index]
        if plane.usable and self.mask == 1 << index and not force:
            raise LastPlane(f"plane {index} is the last usable one")
        self._set_drained(plane, drained=True)

    def undrain(self, index: int) -> None:
        """Put a plane back into service, as far as its link allows."""
        self._set_drained(self.planes[index], drained=False)

    def _set_drained(self, plane: Plane, *, drained: bool) -> None:
        if plane.drained == drained:
            return
        others = {each.index for each in self.planes if each.drained} - {plane.index}
        drains.save(self._state_dir, others | ({plane.index} if drained else set()))
        plane.drained = drained
        self._changed("drained" if drained else "undrained")

    def set_health(self, index: int, healthy: bool, reason: str = "") -> None:
        """Record the health of a plane whose link is up, as probes report it.

        The last usable plane stays in use even if it is sick.
        """
        plane = self.planes[index]
        was, plane.sick = plane.sick, None if healthy else reason
        if (was is None) != healthy:
            self._changed("healthy again" if healthy else reason)

    # ---- reports of the kernel

    async def follow(self) -> None:
        """Follow link and neighbour changes; runs until cancelled."""
        self._carrier.start()
        async with contextlib.aclosing(self._nl.watch(links=False)) as events:
            await self._resync()
            async for event in events:
                if isinstance(event, Resync):
                    await self._resync()
                elif isinstance(event, NeighborChanged):
                    self._neighbor(event)

    def _links_missed(self) -> None:
        self._tasks.spawn(self._resync())

    async def _resync(self) -> None:
        links = await self._nl.links()
        for plane in self.planes:
            link = links.get(plane.link.name)
            if link is not None:
                self._link_changed(LinkChanged(link, gone=False))

    def _link_changed(self, change: LinkChanged) -> None:
        link = change.link
        for plane in self.planes:
            if plane.link.index != link.index:
                continue
            was_up = plane.link.up
            up, carrier = link.up and not change.gone, link.carrier and not change.gone
            plane.link = replace(plane.link, mac=link.mac, mtu=link.mtu, up=up, carrier=carrier)
            self._changed("link")
            if up and not was_up:
                self._tasks.spawn(self._restore(plane))
            if plane.gateway_mac is None:
                self._keep_resolving(plane)

    async def _restore(self, plane: Plane) -> None:
        """Restore the address and route that the kernel removed when the link went down.

        The data path needs neither, but without them peers cannot be asked over this plane.
        """
        try:
            await self._address_and_route(plane)
        except OSError as error:  # perhaps down again; the next time it comes up, this is retried
            log.warning("plane.not_restored", plane=plane.index, error=str(error))

    def _neighbor(self, event: NeighborChanged) -> None:
        if event.mac is None:
            # A gateway that stops answering ND may still forward: its MAC stays valid, and loss
            # exposes paths that carry nothing within a round trip.
            return
        for plane in self.planes:
            if plane.link.index == event.ifindex and event.ip == self._gateway(plane):
                self._set_gateway(plane, event.mac)

    async def close(self) -> None:
        """Stop resolving gateways and following links."""
        self._carrier.close()
        await self._tasks.cancel()
