# SPDX-License-Identifier: GPL-2.0-only
"""Neighbours: permanent ones, and those that the kernel resolves."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket

from mrcd.linux import netns as namespaces
from mrcd.linux.interfaces import NeighborChanged, Resync
from mrcd.linux.netlink.connection import Connection, family_of, trying
from mrcd.linux.netlink.messages import mac_text, neighbor_of
from mrcd.linux.netlink.watch import Watch

_GROUP_LINK, _GROUP_NEIGH = 0x1, 0x4
_NUD_PERMANENT = 0x80
_DISCARD_PORT = 9


class Neighbors(Connection):
    """Neighbours, and events about them and about links."""

    async def add_neighbor(self, dev: str, ip: str, mac: bytes) -> None:
        """Make `ip` a permanent neighbour behind `dev`."""
        with trying(f"add neighbour {ip} on {dev}"):
            await self._ipr.neigh(
                "replace",
                dst=ip,
                lladdr=mac_text(mac),
                ifindex=self.index(dev),
                state=_NUD_PERMANENT,
            )

    async def neighbor(self, dev: str, ip: str) -> bytes | None:
        """Return the MAC address of `ip` behind `dev`, or None while it is not known."""
        index = self.index(dev)
        async for message in self._dump(
            self._ipr.get_neighbours, family=family_of(ip), ifindex=index
        ):
            change = neighbor_of(message)
            if change.ifindex == index and change.ip == ip and change.mac is not None:
                return change.mac
        return None

    async def resolve_neighbor(self, dev: str, ip: str, timeout_s: float) -> bytes | None:
        """Resolve the MAC address of `ip` and return it, or None after `timeout_s` seconds.

        One datagram to the discard port makes the kernel ask the network. The result arrives as a
        netlink event.
        """
        index = self.index(dev)
        events = self.watch()
        try:
            known = await self.neighbor(dev, ip)
            if known is not None:
                return known
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    self._nudge(dev, ip, index)
                    async for event in events:
                        if isinstance(event, Resync):
                            known = await self.neighbor(dev, ip)
                            if known is not None:
                                return known
                        elif isinstance(event, NeighborChanged) and (event.ifindex, event.ip) == (
                            index,
                            ip,
                        ):
                            if event.mac is not None:
                                return event.mac
                            if event.failed:
                                self._nudge(dev, ip, index)
            return None
        finally:
            await events.aclose()

    def nudge_neighbor(self, dev: str, ip: str) -> None:
        """Make the kernel ask for a neighbour that it does not know, without waiting."""
        self._nudge(dev, ip, self.index(dev))

    def _nudge(self, dev: str, ip: str, index: int) -> None:
        with namespaces.entered(self.netns):
            sock = socket.socket(family_of(ip), socket.SOCK_DGRAM)
        with sock:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(dev))
            scoped = ":" in ip and ipaddress.ip_address(ip).is_link_local
            where = (ip, _DISCARD_PORT, 0, index) if scoped else (ip, _DISCARD_PORT)
            # If the network is unreachable the caller times out; that is no error.
            with contextlib.suppress(OSError):
                sock.sendto(b"", where)

    def watch(self, *, links: bool = True) -> Watch:
        """Watch links and neighbours, or neighbours alone, from now on.

        The watch is subscribed when this returns, so a dump made afterwards misses no change.
        Close it with aclose() (or contextlib.aclosing).
        """
        with namespaces.entered(self.netns):
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        sock.setblocking(False)
        sock.bind((0, (_GROUP_LINK if links else 0) | _GROUP_NEIGH))
        return Watch(sock)
