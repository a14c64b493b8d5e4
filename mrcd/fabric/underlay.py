# SPDX-License-Identifier: GPL-2.0-only
"""The planes' own addresses and routes, as a fabric's routing requires them (pure).

MRC packets travel from NIC to NIC by uSIDs with IPv6 addresses inside, or by the addresses
themselves, which are IPv6 or IPv4. Without a fabric they are those that the configuration and the
kernel name.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from mrcd.fabric import usid
from mrcd.fabric.description import Fabric, Host

_MAPPED = bytes(10) + b"\xff\xff"

Spot = tuple[int, int] | str
"""What tells hosts apart: a T0 and a port on it, or the name where there is no fabric."""


def address(fabric: Fabric, host: Host, plane: int) -> IPv4Address | IPv6Address:
    """Return the address of a host's NIC that MRC packets carry."""
    if fabric.routing.network:
        return host.endpoints[plane]
    if fabric.routing.underlay == 4:
        return fabric.address4(host, plane)
    return fabric.address6(host, plane)


def addresses(fabric: Fabric, host: Host) -> list[IPv4Address | IPv6Address]:
    """Return a host's own address in each plane."""
    return [address(fabric, host, plane) for plane in range(fabric.planes)]


def packed(fabric: Fabric, host: Host, plane: int) -> bytes:
    """Return that address in 16 bytes, IPv4 as ::ffff:a.b.c.d, as the maps hold it."""
    found = address(fabric, host, plane)
    return _MAPPED + found.packed if found.version == 4 else found.packed


def place(fabric: Fabric, host: Host) -> Spot:
    """Return what `spot` returns for each of a host's addresses."""
    return host.name if fabric.routing.network else (host.t0, host.port)


def spot(fabric: Fabric, text: str, plane: int) -> Spot | None:
    """Return whose NIC has an address in a plane, or None if it is nobody's."""
    found = ip_address(text.partition("%")[0])
    number = int(found)
    if fabric.routing.network:
        return _by_endpoint(tuple(fabric.hosts)).get((plane, found))
    if fabric.routing.underlay == 4:
        t0, port = number >> 8 & 0xFF, number & 0xFF
        return (t0, port) if number == int(fabric.underlay4(plane, t0, port)) else None
    t0, port = number >> 64 & 0xFFFF, number & 0xFFFF
    return (t0, port) if number == fabric.underlay_number(plane, t0, port) else None


@lru_cache(maxsize=4)
def _by_endpoint(
    hosts: tuple[Host, ...],
) -> dict[tuple[int, IPv4Address | IPv6Address], str]:
    """Return the hosts' names by plane and address."""
    return {
        (plane, address): host.name
        for host in hosts
        for plane, address in enumerate(host.endpoints)
    }


def on_link(fabric: Fabric, host: Host, plane: int) -> IPv4Network | IPv6Network:
    """Return the prefix with which mrcd sets a NIC's address: the hosts of one T0."""
    bits = 24 if fabric.routing.underlay == 4 else 64
    found = address(fabric, host, plane)
    return (
        IPv4Network((int(found), bits), strict=False)
        if found.version == 4
        else IPv6Network((int(found), bits), strict=False)
    )


def gateway(fabric: Fabric, host: Host, plane: int) -> IPv4Address | IPv6Address:
    """Return the gateway of a NIC, which is its T0."""
    if fabric.routing.underlay == 4:
        return fabric.t0_address4(plane, host.t0)
    return fabric.gateway


def destinations(fabric: Fabric, plane: int) -> IPv4Network | IPv6Network:
    """Return the prefix that the route through a plane's NIC covers."""
    if fabric.routing.mode == "srv6":
        return usid.plane_prefix(fabric.block, plane)
    return (
        fabric.plane_prefix4(plane) if fabric.routing.underlay == 4 else fabric.plane_prefix6(plane)
    )
