# SPDX-License-Identifier: GPL-2.0-only
"""The next hops of a network without a fabric: through which neighbour each peer is reached.

The kernel decides: its routes name the neighbour, which is the peer itself or a router, and its
neighbour table has the link-layer address. Both are followed. The data path sends past the kernel,
which therefore does not notice when a neighbour is no longer where it was; so it is asked to verify
each neighbour now and then. An address that has been known stays in use until there is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from mrcd.config.config import Peer
from mrcd.linux.interfaces import Link, NeighborChanged
from mrcd.linux.neighbortable import neighbor_limit
from mrcd.linux.netlink import Netlink, NetlinkFailed
from mrcd.linux.pathmtu import send_probe
from mrcd.linux.privileged.requests import PlaceNeighbor, VerifyNeighbor
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks

log = get_logger()

ASK_S = 1.0
"""The longest time to wait for a neighbour at the start; later ones are waited for beside it."""
ABSENT_S = 3.0
"""As long as the kernel asks for a neighbour that does not answer, it keeps an entry that it cannot
drop (three questions, a second apart)."""
SEEK_S = 2.0
"""Time between two questions for a route that is lacking."""
_TABLE_PART = 4
"""So much of the kernel's table, one part of this many, may be such entries of ours."""
VERIFY_S = 2.0
"""Time between two verifications of a neighbour."""
MEASURE_S = 60.0
"""Time between two looks at the MTU of all paths. The kernel forgets after ten minutes."""
ROUTER_S = 0.5
"""The longest time for a router's answer that a packet is too long."""


@dataclass(slots=True)
class Hop:
    """The way to a peer on a plane.

    `via` is the neighbour's IP address, None without a route; `mac` its link-layer address, None
    until it is known; `mtu` that of the path, 0 if no router has told of a smaller one than ours.
    `handed`: `via` is a host that hands packets on, of which the kernel's routes know nothing.
    """

    peer: str
    plane: int
    address: str
    via: str | None = None
    mac: bytes | None = None
    mtu: int = 0
    handed: bool = False


OnHop = Callable[[Hop], None]


class NextHops:
    """The next hops to all peers on all planes. Call `find` first and `close` last."""

    def __init__(self, nl: Netlink, tasks: Tasks, on_mac: OnHop, on_mtu: OnHop) -> None:
        """Call `on_mac` with each hop whose neighbour is known or another one from now on.

        `on_mtu` is called with each hop whose path MTU has changed.
        """
        self._nl = nl
        self._tasks = tasks
        self._on_mac = on_mac
        self._on_mtu = on_mtu
        self._hops: dict[tuple[str, int], Hop] = {}
        self._links: dict[int, Link] = {}
        self._asked: set[tuple[int, str]] = set()
        self._turns = asyncio.Semaphore(max(1, neighbor_limit() // _TABLE_PART))
        self._mtu = 0
        self._measured = asyncio.Event()
        self._seeking = False

    @property
    def all(self) -> Iterable[Hop]:
        """All hops, of each peer on each plane."""
        return self._hops.values()

    # ---- what is followed

    def set_links(self, links: Sequence[Link], mtu: int) -> None:
        """Note the planes' interfaces as they are now, in the order of the planes.

        `mtu` is the length of the longest packets that are sent.
        """
        self._mtu = mtu
        self._links = dict(enumerate(links))

    def set_peers(self, peers: Iterable[Peer]) -> None:
        """Follow these peers from now on, and no others; `find` looks the new ones up."""
        wanted = {
            (peer.name, plane): (str(address), peer.host.via(plane))
            for peer in peers
            for plane, address in peer.host.places
        }
        for key, hop in list(self._hops.items()):
            known = (hop.address, ip_address(hop.via or "::") if hop.handed else None)
            if wanted.get(key) != known:
                del self._hops[key]
        for (peer, plane), (address, via) in wanted.items():
            through = None if via is None else str(via)
            self._hops.setdefault(
                (peer, plane), Hop(peer, plane, address, through, handed=via is not None)
            )

    async def find(self) -> None:
        """Look all routes up, and wait a moment for neighbours that are not known yet."""
        for hop in list(self._hops.values()):
            await self._look_up(hop)
        self._measured.set()
        if self._lacking and not self._seeking:
            self._seeking = True
            self._tasks.spawn(self._seek())
        asked = self.ask()
        if asked:
            await asyncio.wait(asked, timeout=ASK_S)

    @property
    def _lacking(self) -> list[Hop]:
        """The hops to peers to which no route is known, nor where one has led."""
        return [hop for hop in self._hops.values() if hop.via is None and hop.mac is None]

    async def _seek(self) -> None:
        """Look again for routes that are lacking: one that was asked for too early has no news."""
        try:
            while self._lacking:
                await asyncio.sleep(SEEK_S)
                for hop in self._lacking:
                    await self._look_up(hop)
                self.ask()
        finally:
            self._seeking = False

    async def _look_up(self, hop: Hop) -> None:
        link = self._links[hop.plane]
        if hop.handed:
            if hop.mac is None and hop.via and (known := self._mac_of(hop.plane, hop.via)):
                self._set_mac(hop, known)
            return
        try:
            way = await self._nl.way_to(link.name, hop.address)
        except NetlinkFailed:  # the interface has gone; what is known of it may return with it
            return
        if way is None:
            hop.via = None
            return
        if way.hop != hop.via:
            known = self._mac_of(hop.plane, way.hop)
            hop.via = way.hop
            if known is not None:
                self._set_mac(hop, known)
            else:
                hop.mac = None  # what the map holds stays in use until the answer

    def _mac_of(self, plane: int, via: str) -> bytes | None:
        same = (hop for hop in self._hops.values() if (hop.plane, hop.via) == (plane, via))
        return next((hop.mac for hop in same if hop.mac is not None), None)

    # ---- path MTUs

    async def measure(self) -> None:
        """Find the MTU of each path, now and then and after changes; runs until cancelled.

        Where there is no router, only the kernel's routes can set one.
        """
        while True:
            self._measured.clear()
            hops = [h for h in self._hops.values() if h.via is not None and not h.handed]
            routed = (hop for hop in hops if hop.via != hop.address)
            sockets = [sock for hop in routed if (sock := self._probe(hop)) is not None]
            try:
                await asyncio.sleep(ROUTER_S)
            finally:
                for sock in sockets:
                    sock.close()
            for hop in hops:
                await self._read_mtu(hop)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MEASURE_S):
                    await self._measured.wait()

    def _probe(self, hop: Hop) -> socket.socket | None:
        link = self._links[hop.plane]
        try:
            return send_probe(link.name, link.index, hop.address, self._mtu)
        except OSError:  # the link or the route has gone; their change is another occasion
            return None

    async def _read_mtu(self, hop: Hop) -> None:
        """Take over what the kernel knows of a path after the probe."""
        with contextlib.suppress(NetlinkFailed):
            way = await self._nl.way_to(self._links[hop.plane].name, hop.address)
            if way is not None and way.mtu != hop.mtu:
                hop.mtu = way.mtu
                self._on_mtu(hop)
                log.info("path.measured", peer=hop.peer, plane=hop.plane, mtu=hop.mtu or self._mtu)

    # ---- neighbours

    def ask(self) -> list[asyncio.Task[None]]:
        """Ask for each neighbour that is not known, until it answers; return the new tasks."""
        unknown = {
            (hop.plane, hop.via)
            for hop in self._hops.values()
            if hop.mac is None and hop.via is not None
        }
        started = []
        for plane, via in unknown - self._asked:
            assert via is not None
            self._asked.add((plane, via))
            started.append(self._tasks.spawn(self._ask(plane, via)))
        return started

    async def _ask(self, plane: int, via: str) -> None:
        try:
            while self._wants(plane, via):
                link = self._links[plane]
                if not (link.up and link.carrier):
                    return  # the link's next change asks again
                async with self._turns:
                    await self._ask_once(plane, link.name, via)
        finally:
            self._asked.discard((plane, via))

    async def _ask_once(self, plane: int, name: str, via: str) -> None:
        try:
            mac = await self._nl.resolve_neighbor(name, via, ASK_S)
        except OSError:  # the interface goes; perhaps it returns
            await asyncio.sleep(ASK_S)
            return
        if mac is not None:
            self._learn(plane, via, mac)
        elif self._wants(plane, via):
            await asyncio.sleep(ABSENT_S - ASK_S)

    def leads_to(self, peer: str, plane: int) -> bool:
        """Return whether packets to a peer can leave by a plane, as far as the kernel knows.

        The kernel would ask for the neighbour of each other packet, and keep an entry meanwhile:
        hundreds of peers that are not there would fill its table, which the whole machine shares.
        """
        hop = self._hops.get((peer, plane))
        return hop is None or hop.mac is not None

    def _wants(self, plane: int, via: str) -> bool:
        return any(
            hop.mac is None and (hop.plane, hop.via) == (plane, via) for hop in self._hops.values()
        )

    def neighbor(self, event: NeighborChanged) -> None:
        """Take over what the kernel has learned of a neighbour."""
        for plane, link in self._links.items():
            if link.index != event.ifindex:
                continue
            if event.mac is not None:
                self._learn(plane, event.ip, event.mac)
            elif event.failed:
                self._lost(plane, event.ip)

    def _learn(self, plane: int, via: str, mac: bytes) -> None:
        for hop in self._hops.values():
            if (hop.plane, hop.via) == (plane, via):
                self._set_mac(hop, mac)

    def _set_mac(self, hop: Hop, mac: bytes) -> None:
        if hop.mac == mac:
            return
        hop.mac = mac
        self._on_mac(hop)
        if hop.handed:
            self._tasks.spawn(self._place(hop))
        log.info("hop.resolved", peer=hop.peer, plane=hop.plane, via=hop.via, mac=mac.hex(":"))

    async def _place(self, hop: Hop) -> None:
        """Have the kernel send what is for a peer to the host that hands it on.

        It would ask for the peer itself, which is not on the link. It forgets in some seconds.
        """
        link = self._links[hop.plane]
        if hop.mac is not None and link.up:
            with contextlib.suppress(OSError):  # the link may go; its next change asks again
                await self._nl.change(PlaceNeighbor(link.name, hop.address, hop.mac.hex(":")))

    def _lost(self, plane: int, via: str) -> None:
        """Ask for a neighbour that did not answer; it may have another address by now."""
        for hop in self._hops.values():
            if (hop.plane, hop.via) == (plane, via):
                hop.mac = None
        self.ask()

    async def greet(self, plane: int) -> None:
        """Make the neighbours on a plane learn our link-layer address, which has changed.

        The kernel forgets its neighbours then, and what it asks them tells them who asks.
        """
        link = self._links[plane]
        for via in {hop.via for hop in self._hops.values() if hop.plane == plane and hop.via}:
            with contextlib.suppress(OSError):  # the link may be down; they verify us, too
                self._nl.nudge_neighbor(link.name, via)
                await self._nl.change(VerifyNeighbor(link.name, via))

    async def verify(self) -> None:
        """Have all neighbours verified now and then; runs until cancelled."""
        while True:
            await asyncio.sleep(VERIFY_S)
            known = {(hop.plane, hop.via) for hop in self._hops.values() if hop.mac and hop.via}
            for plane, via in known:
                link = self._links[plane]
                if link.up and link.carrier and via is not None:
                    await self._nl.change(VerifyNeighbor(link.name, via))
            for hop in [hop for hop in self._hops.values() if hop.handed]:
                await self._place(hop)
