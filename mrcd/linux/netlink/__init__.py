# SPDX-License-Identifier: GPL-2.0-only
"""Links, addresses, routes, neighbours and queues, by pyroute2.

Some requests use attributes that pyroute2 does not know, or drops silently (the uSID flavour of
seg6local). They are built from attributes here instead of pyroute2's keywords. Requests are
idempotent where that has a meaning: adding what is there and deleting what is not there succeed.
"""

from __future__ import annotations

from collections.abc import Sequence

from mrcd.linux.interfaces import (
    Event,
    FibRoute,
    FibRule,
    Link,
    LinkChanged,
    NeighborChanged,
    Nexthop,
    Resync,
    Route,
    Way,
)
from mrcd.linux.netlink import changes
from mrcd.linux.netlink.changes import Changing
from mrcd.linux.netlink.connection import NetlinkFailed
from mrcd.linux.netlink.watch import Watch
from mrcd.linux.privileged import client
from mrcd.linux.privileged.requests import Request

__all__ = [
    "Event",
    "FibRoute",
    "FibRule",
    "Link",
    "LinkChanged",
    "NeighborChanged",
    "Netlink",
    "NetlinkFailed",
    "Nexthop",
    "Resync",
    "Route",
    "Watch",
    "Way",
]


class Netlink(Changing):
    """A conversation with the kernel in one network namespace.

    Use as `async with Netlink() as nl` (the caller's namespace) or
    `Netlink("name")` (one of `ip netns`). All names are interface names there. Reading needs no
    capability.
    """

    async def change(self, request: Request, fds: Sequence[int] = ()) -> None:
        """Have a request carried out, by the privileged process where there is one.

        `fds` are descriptors that go with it. Raises NetlinkFailed if the kernel refuses.
        """
        channel = client.current() if self.netns is None else None
        if channel is None:
            await changes.carry_out(self, request, fds)
            return
        try:
            channel.ask(request, fds)
        except OSError as error:
            raise NetlinkFailed(error.errno, error.strerror) from None
