# SPDX-License-Identifier: GPL-2.0-only
"""A network that is no fabric: planes between NICs that have addresses of their own (pure).

It may be a cable, a switch, or routers. Nothing is known about what is inside, so a plane is one
path, or as many as its routers tell apart by the UDP source port. It is held as a Fabric without
switches, so that the rest of the daemon deals with one kind of thing. Packets have the form that
they have in a fabric with routing = "ecmp"; only the addresses and the next hops come from
elsewhere: the peers' from the configuration, this host's and the next hops from the kernel.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from mrcd.fabric.hosts import Address, Host, Interface, Network
from mrcd.fabric.routing import Routing
from mrcd.fabric.shape import MTU_MAX, Fabric

NAME: Final = "network"
CELL_BLOCK: Final = ipaddress.IPv6Network("fdcb::/32")
"""The first 32 bits of the source address of cells: all hosts of a network use the same."""
_NO_BLOCK: Final = ipaddress.IPv6Network("::/32")
_NO_GATEWAY: Final = ipaddress.IPv6Address("fe80::")
_NOWHERE: dict[int, Address] = {
    4: ipaddress.IPv4Address("0.0.0.0"),
    6: ipaddress.IPv6Address("::"),
}


def host(name: str, endpoints: Sequence[Address], public_key: str = "") -> Host:
    """Return a host of a network, with its NICs' addresses by plane."""
    return Host(name, 1, 1, (), public_key, tuple(endpoints))


def found(
    name: str, endpoints: Sequence[Address], inner: Sequence[str], networks: Sequence[Network]
) -> Host:
    """Return a host as it tells of itself: `inner` are its addresses of mrc0, without a length.

    Each has that of the first of `networks` that it is in, or stands alone.
    """

    def placed(ip: Address) -> Interface:
        lengths = (network.prefixlen for network in networks if ip in network)
        return ipaddress.ip_interface((ip, next(lengths, ip.max_prefixlen)))

    addresses = tuple(placed(ipaddress.ip_address(each)) for each in inner)
    return replace(host(name, endpoints), addresses=addresses)


def nowhere(version: int) -> Address:
    """Return what stands for an address that is not known yet."""
    return _NOWHERE[version]


def of_version(host: Host, version: int) -> Host:
    """Return a host with what stands for an address that is not known in one IP version."""
    known = host.endpoints
    ends = (nowhere(version) if address.is_unspecified else address for address in known)
    return replace(host, endpoints=tuple(ends))


def describe(
    planes: int,
    version: Literal[4, 6],
    paths: int,
    mtu: int,
    hosts: Sequence[Host],
    rate_mbps: int = 0,
) -> Fabric:
    """Return a network between these hosts.

    `mtu` 0: that of the NICs, filled in by `with_mtu`. `rate_mbps` 0: what the NICs say.
    """
    return Fabric(
        name=NAME,
        block=_NO_BLOCK,
        underlay6=CELL_BLOCK,
        gateway=_NO_GATEWAY,
        planes=planes,
        t0=0,
        t1=0,
        mtu=mtu,
        rate_mbps=rate_mbps,
        hosts=tuple(hosts),
        routing=Routing("ecmp", underlay=version, paths=paths),
    )


def with_mtu(fabric: Fabric, mtu: int) -> Fabric:
    """Return the network with the MTU that its NICs have, unless it was configured.

    NICs may have a larger MTU than mrcd can use, as loopback and virtual ones do.
    """
    return fabric if fabric.mtu else replace(fabric, mtu=min(mtu, MTU_MAX))
