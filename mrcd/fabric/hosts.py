# SPDX-License-Identifier: GPL-2.0-only
"""The hosts of a fabric: a list of them, or a pattern that generates them on demand."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

from mrcd.fabric.ranking import Rank

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Host:
    """A host with its T0, the same in every plane, and its port on that T0 (both from 1).

    `public_key` is text, 44 characters of base64, or empty. `endpoints` are the addresses of its
    NICs by plane, where there is no fabric that they follow from (mrcd/fabric/network.py). `routed`
    are prefixes behind the host: pods, containers, a network that it is the gateway of. `vias` are
    the addresses of hosts that hand packets on to it, by plane, unspecified where none is needed.
    `spare` is the mask of planes that are taken only while no other leads there, and `ranks` is by
    plane what hosts say of the way there (ranking.py).
    """

    name: str
    t0: int
    port: int
    addresses: tuple[Interface, ...]
    public_key: str = ""
    endpoints: tuple[Address, ...] = ()
    routed: tuple[Network, ...] = ()
    vias: tuple[Address, ...] = ()
    spare: int = 0
    ranks: tuple[Rank, ...] = ()

    @property
    def places(self) -> tuple[tuple[int, Address], ...]:
        """The planes that it is on, where they do not follow from a fabric, with its addresses."""
        both = enumerate(self.endpoints)
        return tuple((plane, address) for plane, address in both if not address.is_unspecified)

    def via(self, plane: int) -> Address | None:
        """Return the address of the host that hands packets on to it in a plane, if one does."""
        if plane >= len(self.vias) or self.vias[plane].is_unspecified:
            return None
        return self.vias[plane]

    def rank(self, plane: int) -> Rank:
        """Return what counts of the way to it in a plane."""
        if plane < len(self.ranks):
            return self.ranks[plane]
        return Rank(int(self.via(plane) is not None))

    @property
    def prefixes(self) -> tuple[Network, ...]:
        """The inner destinations that lead to this host."""
        return (*map(route, self.addresses), *self.routed)


@dataclass(frozen=True, slots=True)
class HostRange(Sequence[Host]):
    """A pattern of `size` hosts that fill the T0s in order, `per_t0` on each: section [hosts].

    Host i, counted from 1, is called `name` followed by i, and has the i-th address of each
    network. No host takes memory: a fabric of 131,072 hosts is read as fast as one of two.
    """

    size: int
    per_t0: int
    name: str
    networks: tuple[Network, ...]

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Host: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Host, ...]: ...

    def __getitem__(self, index: int | slice) -> Host | tuple[Host, ...]:
        if isinstance(index, slice):
            return tuple(self._host(i) for i in range(*index.indices(self.size)))
        if not -self.size <= index < self.size:
            raise IndexError(f"host {index} of {self.size}")
        return self._host(index % self.size)

    def __iter__(self) -> Iterator[Host]:
        return map(self._host, range(self.size))

    def _host(self, index: int) -> Host:
        t0, port = divmod(index, self.per_t0)
        addresses = tuple(nth(network, index + 1) for network in self.networks)
        return Host(f"{self.name}{index + 1}", t0 + 1, port + 1, addresses)

    def find(self, name: str) -> Host | None:
        """Return the host of that name, or None if there is none."""
        number = name.removeprefix(self.name)
        if number == name or not re.fullmatch(r"[1-9][0-9]{0,9}", number):
            return None
        return self._host(int(number) - 1) if int(number) <= self.size else None


@lru_cache(maxsize=1 << 16)  # shared objects make configurations compare quickly
def route(address: Interface) -> Network:
    """Return the prefix that covers an address alone."""
    return ipaddress.ip_network(address.ip)


def nth(network: Network, number: int) -> Interface:
    """Return the address with a number in a network, counted from its first one."""
    if isinstance(network, ipaddress.IPv4Network):
        return ipaddress.IPv4Interface((int(network.network_address) + number, network.prefixlen))
    return ipaddress.IPv6Interface((int(network.network_address) + number, network.prefixlen))


def room(network: Network) -> int:
    """Return how many hosts a network has addresses for, its reserved addresses excluded."""
    return network.num_addresses - (2 if network.version == 4 else 1)


def find(hosts: Sequence[Host], name: str) -> Host | None:
    """Return the host of that name, or None if there is none."""
    if isinstance(hosts, HostRange):
        return hosts.find(name)
    return next((host for host in hosts if host.name == name), None)


def finder(hosts: Sequence[Host]) -> Callable[[str], Host | None]:
    """Return a `find` for many names that reads the hosts only once."""
    if isinstance(hosts, HostRange):
        return hosts.find
    return {host.name: host for host in hosts}.get


def listed(hosts: Sequence[Host]) -> str:
    """Return the hosts' names for a message."""
    if isinstance(hosts, HostRange) and len(hosts) > 3:
        return f"{hosts[0].name} to {hosts[-1].name}"
    return ", ".join(host.name for host in hosts)


def claims(hosts: Sequence[Host]) -> Iterator[tuple[str, str, Network]]:
    """Yield the addresses of the hosts' mrc0s and what is behind: owner, text, prefix."""
    if isinstance(hosts, HostRange):
        for network in hosts.networks:
            yield f"hosts {listed(hosts)}", str(network), network
        return
    for host in hosts:
        for address in host.addresses:
            yield f"host {host.name}", str(address), route(address)
        for prefix in host.routed:
            yield f"host {host.name}", str(prefix), prefix


def port_max(hosts: Sequence[Host]) -> int:
    """Return the highest port of any host."""
    if isinstance(hosts, HostRange):
        return min(hosts.size, hosts.per_t0)
    return max((host.port for host in hosts), default=0)
