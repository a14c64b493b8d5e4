# SPDX-License-Identifier: GPL-2.0-only
"""What carries MRC's packets from NIC to NIC, by its kind (pure): see `of`.

A fabric of uSIDs (`Usids`), a fabric whose switches hash (`Hashed`), or any network between NICs
that have addresses of their own (`Plain`). Whatever depends on the kind is asked here, so that
nothing else needs to know which there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import ClassVar

from mrcd.fabric import usid
from mrcd.fabric.description import Fabric, Host
from mrcd.fabric.routing import HOPS_MAX, HOPS_SENT
from mrcd.fabric.way import Way

_MAPPED = bytes(10) + b"\xff\xff"

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Spot = tuple[int, int] | str
"""What tells hosts apart: a T0 and a port on it, or the name where there is no fabric."""


@dataclass(frozen=True, slots=True)
class Underlay(ABC):
    """What carries packets, and what is known of it."""

    fabric: Fabric

    next_hops: ClassVar[bool] = False
    """Whether each peer has a next hop of its own in a plane, in place of a gateway for all."""
    roaming: ClassVar[bool] = False
    """Whether hosts may be elsewhere than the configuration says, and say so themselves."""
    hops_min: ClassVar[int] = HOPS_SENT - HOPS_MAX
    """The hop limit with which a message from another host of this network arrives at least."""

    @property
    def version(self) -> int:
        """Return the IP version of the NICs' addresses."""
        return self.fabric.routing.underlay

    # ---- hosts and their NICs

    @abstractmethod
    def address(self, host: Host, plane: int) -> Address:
        """Return the address of a host's NIC that MRC packets carry."""

    def leads(self, host: Host, plane: int) -> bool:
        """Return whether a plane leads to a host: another one may be on fewer networks than we."""
        return True

    def addresses(self, host: Host) -> list[Address]:
        """Return a host's own address in each plane."""
        return [self.address(host, plane) for plane in range(self.fabric.planes)]

    def packed(self, host: Host, plane: int) -> bytes:
        """Return that address in 16 bytes, IPv4 as ::ffff:a.b.c.d, as the maps hold it."""
        found = self.address(host, plane)
        return _MAPPED + found.packed if found.version == 4 else found.packed

    @abstractmethod
    def place(self, host: Host) -> Spot:
        """Return what `spot` returns for each of a host's addresses."""

    @abstractmethod
    def spot(self, text: str, plane: int) -> Spot | None:
        """Return whose NIC has an address in a plane, or None if it is nobody's."""

    @abstractmethod
    def gateway(self, host: Host, plane: int) -> Address | None:
        """Return the gateway of a NIC, which is its T0; None without a fabric."""

    # ---- paths

    @property
    @abstractmethod
    def evs_per_plane(self) -> int:
        """Return the number of EVs in each plane between two hosts on different T0s."""

    @abstractmethod
    def evs(self, src: Host, dst: Host, plane: int) -> Sequence[int]:
        """Return every EV of one plane between two hosts, in order of its T1, if it names one.

        A plane that does not lead there has some, too, for the time when it does.
        """

    def way(self, src: Host, dst: Host, plane: int) -> Way:
        """Return the way from one host to another in a plane."""
        return Way(self.address(dst, plane), None)

    # ---- what does not work

    @abstractmethod
    def why_no_plain_cells(self) -> str | None:
        """Return why data cannot go in cells of IP in IPv6, or None if it can.

        The source address of a cell differs from cell to cell, so what hashes ignores the EV.
        """

    @abstractmethod
    def why_no_loops(self) -> str | None:
        """Return why no probe comes back to its sender by itself, or None if one does."""


class _InFabric(Underlay):
    """A fabric: hosts are known by their places, and each T0 is the gateway of its hosts."""

    __slots__ = ()

    def address(self, host: Host, plane: int) -> Address:
        return self.fabric.address6(host, plane)

    def place(self, host: Host) -> Spot:
        return host.t0, host.port

    def spot(self, text: str, plane: int) -> Spot | None:
        number = _number(text)
        t0, port = number >> 64 & 0xFFFF, number & 0xFFFF
        return (t0, port) if number == self.fabric.underlay_number(plane, t0, port) else None

    def gateway(self, host: Host, plane: int) -> Address:
        return self.fabric.gateway

    def on_link(self, host: Host, plane: int) -> Network:
        """Return the prefix with which mrcd sets a NIC's address: the hosts of one T0."""
        return IPv6Network((int(self.address(host, plane)), 64), strict=False)

    @abstractmethod
    def destinations(self, plane: int) -> Network:
        """Return the prefix that the route through a plane's NIC covers."""


class Usids(_InFabric):
    """Destinations name each switch on the way: an EV is a T1."""

    __slots__ = ()

    def destinations(self, plane: int) -> Network:
        return usid.plane_prefix(self.fabric.block, plane)

    @property
    def evs_per_plane(self) -> int:
        return self.fabric.t1

    def evs(self, src: Host, dst: Host, plane: int) -> Sequence[int]:
        if src.t0 == dst.t0:
            return [usid.ev(plane, 0)]
        return [usid.ev(plane, t1) for t1 in range(1, self.fabric.t1 + 1)]

    def way(self, src: Host, dst: Host, plane: int) -> Way:
        template = usid.template_da(self.fabric.block, src, dst, plane)
        return Way(self.address(dst, plane), template)

    def why_no_plain_cells(self) -> str | None:
        return None

    def why_no_loops(self) -> str | None:
        return None


class Hashed(_InFabric):
    """Switches choose the T1 by a hash of the EV, which only they can resolve."""

    __slots__ = ()

    def destinations(self, plane: int) -> Network:
        return self.fabric.plane_prefix6(plane)

    @property
    def evs_per_plane(self) -> int:
        return usid.ECMP_EVS

    def evs(self, src: Host, dst: Host, plane: int) -> Sequence[int]:
        count = 1 if src.t0 == dst.t0 else self.evs_per_plane
        return [usid.ev(plane, entropy) for entropy in range(1, count + 1)]

    def why_no_plain_cells(self) -> str | None:
        if self.fabric.t0 > 1:
            return 'cells need routing = "srv6", or one T0 in each plane, in the fabric file'
        return None

    def why_no_loops(self) -> str | None:
        return 'routing = "ecmp": only a source route leads back to its sender'


class Hashed4(Hashed):
    """The same over IPv4."""

    __slots__ = ()

    def address(self, host: Host, plane: int) -> Address:
        return self.fabric.address4(host, plane)

    def spot(self, text: str, plane: int) -> Spot | None:
        number = _number(text)
        t0, port = number >> 8 & 0xFF, number & 0xFF
        return (t0, port) if number == int(self.fabric.underlay4(plane, t0, port)) else None

    def gateway(self, host: Host, plane: int) -> Address:
        return self.fabric.t0_address4(plane, host.t0)

    def on_link(self, host: Host, plane: int) -> Network:
        return IPv4Network((int(self.address(host, plane)), 24), strict=False)

    def destinations(self, plane: int) -> Network:
        return self.fabric.plane_prefix4(plane)

    def why_no_plain_cells(self) -> str | None:
        return 'cells need IPv6: routing = "srv6", or underlay = 6, in the fabric file'


class Plain(Underlay):
    """Any network: addresses are those that the configuration and the kernel name."""

    __slots__ = ()
    next_hops = True
    roaming = True
    hops_min = 0  # nobody says how many routers there are

    def address(self, host: Host, plane: int) -> Address:
        return host.endpoints[plane]

    def leads(self, host: Host, plane: int) -> bool:
        return not host.endpoints[plane].is_unspecified

    def place(self, host: Host) -> Spot:
        return host.name

    def spot(self, text: str, plane: int) -> Spot | None:
        hosts = tuple(self.fabric.hosts)
        return _by_endpoint(hosts).get((plane, ip_address(text.partition("%")[0])))

    def gateway(self, host: Host, plane: int) -> None:
        return None

    @property
    def evs_per_plane(self) -> int:
        return self.fabric.routing.paths

    def evs(self, src: Host, dst: Host, plane: int) -> Sequence[int]:
        return [usid.ev(plane, entropy) for entropy in range(1, self.evs_per_plane + 1)]

    def why_no_plain_cells(self) -> str | None:
        if self.version == 4:
            return "cells need endpoints with IPv6 addresses"
        if self.evs_per_plane > 1:
            return "cells need paths = 1, because routers that hash would ignore the EV"
        return None

    def why_no_loops(self) -> str | None:
        return "there is no fabric: what the links between the NICs do is unknown"


def of(fabric: Fabric) -> Usids | Hashed | Plain:
    """Return what carries packets in a fabric, or between its hosts where it is none."""
    if not fabric.described:
        return Plain(fabric)
    if fabric.routing.mode == "srv6":
        return Usids(fabric)
    return Hashed4(fabric) if fabric.routing.underlay == 4 else Hashed(fabric)


def in_fabric(fabric: Fabric) -> Usids | Hashed:
    """Return what carries packets in a fabric that a file describes."""
    found = of(fabric)
    assert not isinstance(found, Plain), "there is no fabric file"
    return found


def _number(text: str) -> int:
    return int(ip_address(text.partition("%")[0]))


@lru_cache(maxsize=4)
def _by_endpoint(hosts: tuple[Host, ...]) -> dict[tuple[int, Address], str]:
    """Return the hosts' names by plane and address."""
    return {(plane, address): host.name for host in hosts for plane, address in host.places}
