# SPDX-License-Identifier: GPL-2.0-only
"""Links, addresses, routes, neighbours and queues, by pyroute2.

Some requests use attributes that pyroute2 does not know, or drops silently (the uSID flavour of
seg6local). They are built from attributes here instead of pyroute2's keywords. Requests are
idempotent where that has a meaning: adding what is there and deleting what is not there succeed.
"""

from __future__ import annotations

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
from mrcd.linux.netlink.connection import NetlinkFailed
from mrcd.linux.netlink.queues import Queues
from mrcd.linux.netlink.routes import Routes
from mrcd.linux.netlink.watch import Watch
from mrcd.linux.netlink.ways import Ways

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


class Netlink(Routes, Ways, Queues):
    """A conversation with the kernel in one network namespace.

    Use as `async with Netlink() as nl` (the caller's namespace) or
    `Netlink("name")` (one of `ip netns`). All names are interface names there.
    """
