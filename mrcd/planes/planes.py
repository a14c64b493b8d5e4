# SPDX-License-Identifier: GPL-2.0-only
"""The planes of this host: interface, gateway, and whether packets may be sprayed on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from ipaddress import ip_interface
from pathlib import Path

from mrcd.config.config import Config
from mrcd.datapath import pins
from mrcd.datapath.datapath import Datapath, DatapathError
from mrcd.fabric import underlay, usid
from mrcd.linux.carrier import CarrierWatch
from mrcd.linux.interfaces import Link, LinkChanged, NeighborChanged, Resync
from mrcd.linux.netlink import Netlink
from mrcd.planes.usable import LastPlane, PortState, usable_mask, why_unused
from mrcd.rules.drains import Drains
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
    """One plane NIC. While it is `usable`, packets are sprayed on it and peers may send to it.

    Without a fabric it needs no gateway, but an address: whether it is `addressed`.
    """

    index: int
    link: Link
    gateway_mac: bytes | None = None
    drained: bool = False
    sick: str | None = None
    usable: bool = False
    present: bool = True
    mtu: int = 0  # the least that its NIC must have
    configured: str = ""  # the name of its NIC in the configuration
    addressed: bool = False

    def __post_init__(self) -> None:
        """Take the NIC's present name as the configured one."""
        self.configured = self.configured or self.link.name

    @property
    def port(self) -> PortState:
        """The facts that decide whether the plane is usable."""
        link, known = self.link, self.gateway_mac is not None or self.addressed
        return PortState(
            link.up, link.carrier, known, self.drained, self.sick, self.present, self._narrow()
        )

    def _narrow(self) -> str | None:
        name, there = self.link.name, self.link.mtu
        if there >= self.mtu:
            return None
        return (
            f"{name} has MTU {there}, less than the planes' {self.mtu}: "
            f"`ip link set {name} mtu {self.mtu}`"
        )

    def why_unused(self, gateway: str | None) -> str | None:
        """Return the reason why the plane is not usable, or None if it is.

        `gateway` is None without a fabric.
        """
        return None if self.usable else why_unused(self.port, self.link.name, gateway)


async def find_planes(nl: Netlink, config: Config) -> list[Plane]:
    """Return the planes with their interfaces, without changing anything.

    A plane whose interface is missing, or has too small an MTU, is not used, and status says why.
    Raises PlaneError, which names them, if that is so for all planes.
    """
    links, network = await nl.links(), config.fabric.routing.network
    missing = [name for name in config.interfaces if name not in links]
    if len(missing) == len(config.interfaces):
        raise PlaneError(
            f"no interface {', '.join(missing)} on this host; there is "
            f"{', '.join(sorted(links))}. Name the plane NICs in {_where(config)}"
        )
    there = [name for name in config.interfaces if name in links]
    small = [name for name in there if links[name].mtu < config.fabric.mtu]
    if len(small) == len(there):
        whose, where = ("network's", "[[plane]]") if network else ("fabric's", "[fabric]")
        raise PlaneError(
            f"{', '.join(f'{name} has MTU {links[name].mtu}' for name in small)}: less than the "
            f"{whose} {config.fabric.mtu}. Raise it (`ip link set {small[0]} mtu "
            f"{config.fabric.mtu}`) or lower {where} mtu"
        )
    return [
        Plane(i, links.get(name) or _nothing(name), present=name in links, mtu=config.fabric.mtu)
        for i, name in enumerate(config.interfaces)
    ]


def _nothing(name: str) -> Link:
    """Return what stands for an interface that is not there."""
    return Link(0, name, bytes(6), 0, up=False, carrier=False)


def _where(config: Config) -> str:
    """Return the key that names the plane NICs."""
    return "[[plane]] interface" if config.fabric.routing.network else "[planes] interfaces"


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
        drains: Drains,
        on_change: Callable[[int], None],
        records: Path,
        on_failure: Callable[[BaseException], None],
        on_bound: Callable[[Plane], Awaitable[None]],
        on_up: Callable[[Plane], None],
    ) -> None:
        """Read from `drains` which planes are drained, and record added addresses in `records`.

        `on_failure` is called with the exception that ended background work. From then on the
        planes are no longer followed completely. `on_bound` is awaited when another NIC has taken
        the place of a plane's NIC that was missing; it attaches programs and opens sockets. `on_up`
        is called when a NIC has come up and has its address; it opens sockets that are not open.
        """
        self._drains = drains
        self._records = records
        self._carrier = CarrierWatch(self._link_changed, self._links_missed)
        self._nl = nl
        self._config = config
        self._dp = datapath
        self._on_change = on_change
        self._on_bound = on_bound
        self._on_up = on_up
        self._resolving: set[int] = set()
        self._binding: set[int] = set()
        self._tasks = Tasks(on_failure)
        self.planes = planes
        self.mask = 0  # bit k: plane k is usable
        drained = drains.load(len(planes))
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
        self._take_mask()

    def _take_mask(self) -> None:
        """Take the mask of usable planes for what it is now, without telling anybody."""
        self.mask = usable_mask(plane.port for plane in self.planes)
        for plane in self.planes:
            plane.usable = bool(self.mask >> plane.index & 1)

    def reconfigure(self, config: Config) -> None:
        """Use this configuration from now on: other peers, but the same planes."""
        self._config = config

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
                    try:
                        await self._resolve(plane)
                    except OSError:  # perhaps it has just been removed or renamed
                        await asyncio.sleep(GATEWAY_WAIT_S)
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
        plane.drained = drained
        self._changed("drained" if drained else "undrained")
        self._drains.save(others | ({plane.index} if drained else set()))

    def save_again(self) -> None:
        """Try again to write down which planes are drained, if that failed."""
        self._drains.save_again()

    @property
    def unsaved(self) -> str | None:
        """Why the drained planes would not survive a restart; None if they would."""
        return self._drains.unsaved

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
        there = {link.index for link in links.values()}
        for plane in self.planes:
            if plane.present and plane.link.index not in there:
                self._link_changed(LinkChanged(plane.link, gone=True))
        for link in links.values():
            self._link_changed(LinkChanged(link, gone=False))

    def _link_changed(self, change: LinkChanged) -> None:
        link = change.link
        for plane in self.planes:
            if plane.present and plane.link.index == link.index:
                self._follow_link(plane, change)
            elif not plane.present and not change.gone and link.name == plane.configured:
                self.bind(plane)

    def _follow_link(self, plane: Plane, change: LinkChanged) -> None:
        """Take over the changes of a plane's NIC. It remains the plane's NIC under any name."""
        link, before = change.link, plane.link
        up, carrier = link.up and not change.gone, link.carrier and not change.gone
        plane.present = not change.gone
        if change.gone:
            plane.link = replace(before, up=False, carrier=False)
        else:
            plane.link = replace(link, up=up, carrier=carrier, kind=before.kind)
        self._changed("missing" if change.gone else "link")
        if change.gone:
            return
        if link.mac != before.mac:
            self._readdressed(plane)
        if link.name != before.name:
            log.warning("plane.renamed", plane=plane.index, old=before.name, new=link.name)
        if up and not before.up:
            self._tasks.spawn(self._restore(plane))
        if plane.gateway_mac is None:
            self._keep_resolving(plane)

    def _readdressed(self, plane: Plane) -> None:
        """Send from the NIC's new address, and make the gateway learn it by asking for its own."""
        self._write(plane)
        log.warning("plane.readdressed", plane=plane.index, mac=plane.link.mac.hex(":"))
        self._tasks.spawn(self._ask_again(plane))

    def bind(self, plane: Plane) -> None:
        """Use the NIC that has the name of a plane's missing one, if there is one."""
        if plane.index not in self._binding:
            self._binding.add(plane.index)
            self._tasks.spawn(self._bind(plane))

    async def _bind(self, plane: Plane) -> None:
        try:
            link = (await self._nl.links()).get(plane.configured)
            if link is None:
                return
            before = plane.link
            plane.link, plane.gateway_mac, plane.present = link, None, True
            try:
                await self._on_bound(plane)
            except (OSError, DatapathError) as error:  # gone again, or it is tried again soon
                plane.link, plane.present = replace(before, up=False, carrier=False), False
                log.warning("plane.not_restored", plane=plane.index, error=str(error))
                return
            log.warning("plane.returned", plane=plane.index, interface=link.name)
            self._write(plane)
            if link.up:
                await self._restore(plane)
            self._changed("returned")
            self._keep_resolving(plane)
        finally:
            self._binding.discard(plane.index)
        await self._resync()  # news that came before it was ours again were not for any plane

    async def restore(self, index: int) -> None:
        """Restore the address and route of a plane NIC that is up; raise OSError if that fails."""
        await self._address_and_route(self.planes[index])

    async def _restore(self, plane: Plane) -> None:
        """Restore the address and route that the kernel removed when the link went down.

        The data path needs neither, but without them peers cannot be asked over this plane. Its
        sockets could not be opened if it was down when mrcd started.
        """
        try:
            await self._address_and_route(plane)
            self._on_up(plane)
        except OSError as error:  # perhaps down again; mrcd/repair/ tries again
            log.warning("plane.not_restored", plane=plane.index, error=str(error))

    def needs(self, plane: Plane) -> tuple[str | None, str | None]:
        """Return the address that a plane's NIC needs, and the destinations of its route.

        None: anything will do. Without a route, the address is not ours to add.
        """
        fabric, host = self._config.fabric, self._config.host
        address = underlay.address(fabric, host, plane.index)
        return str(address), str(underlay.destinations(fabric, plane.index))

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
