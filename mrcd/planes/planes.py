# SPDX-License-Identifier: GPL-2.0-only
"""The planes of this host: their NICs, and whether packets may be sprayed on them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from mrcd.config.config import Current
from mrcd.datapath.datapath import Datapath, DatapathError
from mrcd.fabric import underlay, usid
from mrcd.linux.carrier import CarrierWatch
from mrcd.linux.interfaces import LinkChanged, NeighborChanged, Resync
from mrcd.linux.netlink import Netlink
from mrcd.planes.ground import Ground, Nics
from mrcd.planes.plane import Plane
from mrcd.planes.usable import LastPlane, usable_mask
from mrcd.rules.drains import Drains
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks
from mrcd.wire.abi import ABI
from mrcd.wire.layout import words

log = get_logger()

_PLANE = ABI.structs["mrc_plane"]


@dataclass(frozen=True, slots=True)
class Heard:
    """What is called with news of the planes.

    mask: with each new mask of usable planes. bound: when another NIC has taken the place of a
    plane's NIC that was missing; it attaches programs and opens sockets. up: when a NIC has come up
    and has its address; it opens sockets that are not open. failed: with the exception that ended
    background work; from then on the planes are no longer followed completely.
    """

    mask: Callable[[int], None]
    bound: Callable[[Plane], Awaitable[None]]
    up: Callable[[Plane], None]
    failed: Callable[[BaseException], None]


class Planes:
    """The planes of this host, set up and then followed by netlink.

    `ground` is what they stand on, by the kind of network.
    """

    def __init__(
        self,
        nl: Netlink,
        datapath: Datapath,
        config: Current,
        planes: list[Plane],
        drains: Drains,
        heard: Heard,
        ground: Callable[[Nics], Ground],
    ) -> None:
        """Read from `drains` which planes are drained; `ground` makes what they stand on."""
        self._drains = drains
        self._carrier = CarrierWatch(self._link_changed, self._links_missed)
        self._nl = nl
        self._dp = datapath
        self._config = config
        self._heard = heard
        self._binding: set[int] = set()
        self._changes = 0  # of links, so far
        self._tasks = Tasks(heard.failed)
        self.planes = planes
        self.mask = 0  # bit k: plane k is usable
        drained = drains.load(len(planes))
        for plane in planes:
            plane.drained = plane.index in drained
        self.ground = ground(Nics(nl, self._tasks, planes, self._write, self._changed))

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

    def configured(self) -> None:
        """Go by the configuration of now: it has other peers, but the same planes."""
        self.ground.configured()

    async def configure(self) -> None:
        """Set all planes up, and write them into the map."""
        await self.ground.configure()

    def _write(self, plane: Plane) -> None:
        """Write the plane into the map of the data path."""
        fabric, host = self._config().fabric, self._config().host
        sid = usid.da_bytes(fabric.block, [usid.usid(plane.index, usid.ROLE_HOST, host.port)])
        self._dp.write(
            "planes",
            plane.index,
            _PLANE,
            ifindex=plane.link.index,
            mac=tuple(plane.link.mac),
            gateway_mac=tuple(plane.gateway_mac or bytes(6)),
            addr=words(underlay.of(fabric).packed(host, plane.index)),
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
        self._heard.mask(mask)
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
        """Follow changes of links and of what planes stand on; runs until cancelled."""
        self.ground.follow()
        self._carrier.start()
        async with contextlib.aclosing(self._nl.watch(links=False)) as events:
            await self._resync()
            async for event in events:
                if isinstance(event, Resync):
                    await self._resync()
                elif isinstance(event, NeighborChanged):
                    self.ground.neighbor(event)

    def _links_missed(self) -> None:
        self._tasks.spawn(self._resync())

    async def _resync(self) -> None:
        """Take over what all links are now.

        Links that change while they are read were perhaps read before that, and no further news
        would put right what is written here: they are read once more.
        """
        changes = -1
        while changes != self._changes:
            changes = self._changes
            links = await self._nl.links()
        there = {link.index for link in links.values()}
        for plane in self.planes:
            if plane.present and plane.link.index not in there:
                self._link_changed(LinkChanged(plane.link, gone=True))
        for link in links.values():
            self._link_changed(LinkChanged(link, gone=False))
        self.ground.look_again()

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
        if change.gone or replace(link, kind=before.kind) != before:
            self._changes += 1
        up, carrier = link.up and not change.gone, link.carrier and not change.gone
        plane.present = not change.gone
        if change.gone:
            plane.link = replace(before, up=False, carrier=False)
        else:
            plane.link = replace(link, up=up, carrier=carrier, kind=before.kind)
        self._changed("missing" if change.gone else "link")
        if change.gone:
            self.ground.linked(plane)
            return
        if link.mac != before.mac:
            self._readdressed(plane)
        if link.name != before.name:
            log.warning("plane.renamed", plane=plane.index, old=before.name, new=link.name)
        if up and not before.up:
            self._tasks.spawn(self._restore(plane))
        self.ground.linked(plane)

    def _readdressed(self, plane: Plane) -> None:
        """Send from the NIC's new link-layer address."""
        self._write(plane)
        log.warning("plane.readdressed", plane=plane.index, mac=plane.link.mac.hex(":"))
        self.ground.greet(plane)

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
                await self._heard.bound(plane)
            except (OSError, DatapathError) as error:  # gone again, or it is tried again soon
                plane.link, plane.present = replace(before, up=False, carrier=False), False
                log.warning("plane.not_restored", plane=plane.index, error=str(error))
                return
            log.warning("plane.returned", plane=plane.index, interface=link.name)
            self._write(plane)
            if link.up:
                await self._restore(plane)
            self._changed("returned")
            self.ground.linked(plane)
        finally:
            self._binding.discard(plane.index)
        await self._resync()  # news that came before it was ours again were not for any plane

    async def restore(self, index: int) -> None:
        """Give a plane's NIC that is up what it lacks; raise OSError if that fails."""
        await self.ground.restore(self.planes[index])

    async def _restore(self, plane: Plane) -> None:
        """Give a NIC that came up what it lacks.

        Its sockets could not be opened if it was down when mrcd started.
        """
        try:
            if await self.ground.restore(plane):
                self._heard.up(plane)
        except OSError as error:  # perhaps down again; mrcd/repair/ tries again
            log.warning("plane.not_restored", plane=plane.index, error=str(error))

    async def close(self) -> None:
        """Stop following anything."""
        self.ground.close()
        self._carrier.close()
        await self._tasks.cancel()
