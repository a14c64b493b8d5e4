# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's own decisions: how it would send to an address, and who its neighbours are."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

from mrcd.linux.interfaces import Way
from mrcd.linux.netlink.connection import NetlinkFailed, family_of, trying
from mrcd.linux.netlink.neighbors import Neighbors

_NUD_PROBE, _NUD_FIXED = 0x10, 0x40 | 0x80  # NOARP, PERMANENT
_NUD_REACHABLE = 0x02
_RTM_F_FIB_MATCH = 0x2000
_NO_WAY = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENODEV, errno.EINVAL}


class Ways(Neighbors):
    """Look routes up, and have neighbours verified."""

    async def way_to(self, dev: str, ip: str) -> Way | None:
        """Return how the kernel sends to `ip` through `dev`, or None if it does not."""
        try:
            with trying(f"look up a route to {ip} on {dev}"):
                messages = await self._ipr.route(
                    "get", dst=ip, oif=self.index(dev), family=family_of(ip)
                )
        except NetlinkFailed as error:
            if error.errno in _NO_WAY:
                return None
            raise
        return _way(messages[0], ip) if messages else None

    async def leads(self, dev: str, ip: str, source: str) -> bool:
        """Return whether the kernel has a route to `ip` by `dev` for what is sent from `source`.

        Without a route it takes any IPv4 address to be on the link, which does not count here.
        """
        try:
            with trying(f"look up a route to {ip} on {dev}"):
                found = await self._ipr.route(
                    "get", dst=ip, src=source, oif=self.index(dev), family=family_of(ip),
                    flags=_RTM_F_FIB_MATCH,
                )  # fmt: skip
        except NetlinkFailed:
            return False
        return bool(found)

    async def verify_neighbor(self, dev: str, ip: str) -> None:
        """Make the kernel ask a neighbour whether it is still where it was.

        If it does not answer, the kernel forgets its address, which is reported as `failed`. What
        the kernel does not know at all is not asked for, nor what the operator has made permanent.
        """
        with (
            contextlib.suppress(NetlinkFailed),  # the interface may have gone
            trying(f"verify neighbour {ip} on {dev}", missing_ok=True),
        ):
            index = self.index(dev)
            for known in await self._ipr.neigh("get", dst=ip, ifindex=index):
                if known["state"] & _NUD_FIXED:
                    return
            await self._ipr.neigh("change", dst=ip, ifindex=index, state=_NUD_PROBE)

    async def place_neighbor(self, dev: str, ip: str, mac: bytes) -> None:
        """Make the kernel take an address to be at a MAC address, until it would verify that.

        What the operator has made permanent stays.
        """
        with (
            contextlib.suppress(NetlinkFailed),  # the interface may have gone
            trying(f"have {ip} be at {mac.hex(':')} on {dev}", missing_ok=True),
        ):
            index = self.index(dev)
            async for known in await self._ipr.neigh("dump", dst=ip, ifindex=index):
                if known["state"] & _NUD_FIXED:
                    return
            await self._ipr.neigh(
                "replace", dst=ip, ifindex=index, lladdr=mac.hex(":"), state=_NUD_REACHABLE
            )


def _way(message: Any, ip: str) -> Way:
    via = message.get_attr("RTA_VIA")
    metrics = message.get_attr("RTA_METRICS")
    mtu = metrics.get_attr("RTAX_MTU") if metrics is not None else None
    return Way(
        hop=message.get_attr("RTA_GATEWAY") or (via["addr"] if via else None) or ip,
        src=message.get_attr("RTA_PREFSRC"),
        mtu=mtu or 0,
    )
