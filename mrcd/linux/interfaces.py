# SPDX-License-Identifier: GPL-2.0-only
"""What mrcd knows about interfaces, routes and neighbours: plain values.

mrcd.linux.netlink fills them from the kernel; everything else only looks at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Link:
    """An interface. `up` is what the administrator asked for, `carrier` the cable."""

    index: int
    name: str
    mac: bytes
    mtu: int
    up: bool
    carrier: bool


@dataclass(frozen=True, slots=True)
class XdpProgram:
    """The XDP program of an interface: the kernel's number of it, and the mode it runs in."""

    ident: int
    mode: str  # native, generic, offload or several


@dataclass(frozen=True, slots=True)
class Nexthop:
    """One way of a multipath route."""

    dev: str
    via: str


@dataclass(frozen=True, slots=True)
class Route:
    """A unicast route of the main table, read back from the kernel."""

    dst: str
    dev: str | None
    via: str | None
    src: str | None
    mtu: int | None


@dataclass(frozen=True, slots=True)
class FibRoute:
    """A unicast route with all that decides where a packet goes.

    One way is `dev` and `via`, several are `nexthops`, sorted. `encap` is empty, or what
    seg6local does: "End", "End next-csid 32/16". `mtu` is 0 and `ecn` False where not set.
    """

    dst: str
    table: int
    dev: str | None = None
    via: str | None = None
    src: str | None = None
    nexthops: tuple[Nexthop, ...] = ()
    encap: str = ""
    mtu: int = 0
    ecn: bool = False


@dataclass(frozen=True, slots=True)
class FibRule:
    """What enters through `iif` is looked up in `table`, IPv4 or IPv6."""

    version: int
    iif: str
    table: int


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """An interface appeared, changed or (gone) disappeared."""

    link: Link
    gone: bool


@dataclass(frozen=True, slots=True)
class NeighborChanged:
    """A neighbour's entry changed; `mac` is None while it is not known,
    `failed` when the kernel has given up asking."""

    ifindex: int
    ip: str
    mac: bytes | None
    failed: bool


@dataclass(frozen=True, slots=True)
class Resync:
    """The kernel dropped events: read everything of interest again."""


Event = LinkChanged | NeighborChanged | Resync


@dataclass(frozen=True, slots=True)
class Traffic:
    """What passed an interface since it was made."""

    rx_packets: int = 0
    rx_bytes: int = 0
    tx_packets: int = 0
    tx_bytes: int = 0


def traffic() -> dict[str, Traffic]:
    """The counters of every interface of this network namespace, by name.

    From /proc/net/dev, one read: /sys would show the namespace that mounted it.
    """
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        columns = [int(word) for word in rest.split()]
        found[name.strip()] = Traffic(columns[1], columns[0], columns[9], columns[8])
    return found
