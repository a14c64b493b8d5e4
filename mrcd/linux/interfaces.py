# SPDX-License-Identifier: GPL-2.0-only
"""Interfaces, routes and neighbours as plain values.

mrcd.linux.netlink fills them from the kernel; all other modules only read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Link:
    """An interface. `up` is its administrative state, `carrier` the state of the cable.

    `kind` is the type of a virtual one, such as veth; empty if it is a NIC or not known.
    """

    index: int
    name: str
    mac: bytes
    mtu: int
    up: bool
    carrier: bool
    kind: str = ""


@dataclass(frozen=True, slots=True)
class LinkState:
    """An interface with everything that mrcd sets or depends on.

    `lower` and `master` are indices or 0. `xdp` tells whether it has an XDP program.
    """

    index: int
    name: str
    mac: bytes = b""
    mtu: int = 0
    up: bool = True
    arp: bool = False
    kind: str = ""
    lower: int = 0
    master: int = 0
    qdisc: str = "noqueue"
    gso: tuple[int, int] = (0, 0)  # bytes and packets
    xdp: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket (tbf): bytes a second, and what it lets out at once and holds, in bytes."""

    rate: int
    burst: int
    limit: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """Programs of others that see an interface's packets before one of ours.

    movable: whether ours can be put first.
    """

    names: tuple[str, ...]
    movable: bool


@dataclass(frozen=True, slots=True)
class XdpProgram:
    """The XDP program of an interface: the kernel's id of it, and the mode it runs in."""

    ident: int
    mode: str  # native, generic, offload or several


@dataclass(frozen=True, slots=True)
class Nexthop:
    """One next hop of a multipath route."""

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
class Way:
    """How the kernel sends to an address: the next hop, the source address, and the path MTU.

    The hop is the address itself where it is on the link. `mtu` is 0 unless a route sets one, or a
    router has told the kernel of a smaller one than the interface's.
    """

    hop: str
    src: str | None
    mtu: int


@dataclass(frozen=True, slots=True)
class FibRoute:
    """A unicast route with all that decides where a packet goes.

    A single next hop is in `dev` and `via`, several are in `nexthops`, sorted. `encap` is empty or
    names the action of seg6local: "End", "End next-csid 32/16". `mtu` is 0 and `ecn` False when
    the route does not set them.
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
    """A rule: packets that enter through `iif` are looked up in `table`, for IPv4 or IPv6."""

    version: int
    iif: str
    table: int


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The event that an interface appeared, changed or, with `gone`, disappeared."""

    link: Link
    gone: bool


@dataclass(frozen=True, slots=True)
class NeighborChanged:
    """The event that a neighbour's entry changed.

    `mac` is None while the address is not known. `failed` is set when the kernel has given up
    asking for it.
    """

    ifindex: int
    ip: str
    mac: bytes | None
    failed: bool


@dataclass(frozen=True, slots=True)
class Resync:
    """The event that the kernel dropped events: read everything of interest again."""


Event = LinkChanged | NeighborChanged | Resync


@dataclass(frozen=True, slots=True)
class Traffic:
    """The packets and bytes that passed an interface since it was created."""

    rx_packets: int = 0
    rx_bytes: int = 0
    tx_packets: int = 0
    tx_bytes: int = 0


def traffic() -> dict[str, Traffic]:
    """Return the counters of every interface of this network namespace, by name.

    They come from one read of /proc/net/dev. /sys would show the namespace that mounted it.
    """
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        columns = [int(word) for word in rest.split()]
        found[name.strip()] = Traffic(columns[1], columns[0], columns[9], columns[8])
    return found


def real() -> dict[str, str]:
    """Return the interface below each VLAN of this network namespace, by the VLAN's name.

    The kernel has no list where its driver of VLANs is not loaded.
    """
    try:
        lines = Path("/proc/thread-self/net/vlan/config").read_text().splitlines()[2:]
    except OSError:
        return {}
    columns = ([word.strip() for word in line.split("|")] for line in lines)
    return {name: below for name, _number, below in columns}
