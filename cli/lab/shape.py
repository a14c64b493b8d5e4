# SPDX-License-Identifier: GPL-2.0-only
"""The shape of a lab without a fabric: hosts, and the networks that connect their NICs (pure).

A network of two NICs is a cable, and one of more is a switch. Hosts are h1, h2, ...; the n-th
network that names a host is its NIC eth<n>.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from mrcd.config.table import Table
from mrcd.fabric.cabling import RELAYS_MAX
from mrcd.fabric.shape import MTU_MAX, MTU_MIN, NAME, NAME_RULE, PLANES_MAX, RATE_MAX_MBPS
from mrcd.handshake.hello import HOSTS_MAX

MTU = 9000
KNOWN = "ring:5, chain:4, triangle, mesh:4 or a TOML file"
_HOST = re.compile(r"h([1-9]\d{0,2})")
_DRAWN = re.compile(r"(ring|chain|mesh):(\d{1,4})")
_LEAST = 2

Addresses = tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]


class ShapeError(ValueError):
    """A shape is wrong; the message has a line for each problem, with what would be right."""


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC of a host."""

    host: str
    name: str

    def __str__(self) -> str:
        return f"{self.host}:{self.name}"


@dataclass(frozen=True, slots=True)
class Network:
    """NICs that reach each other. `rate_mbps` is 0 where nothing limits them.

    `number` counts networks from 1. `standby`: hosts use it only while no other network works.
    """

    number: int
    nics: tuple[Nic, ...]
    rate_mbps: int = 0
    standby: bool = False

    @property
    def switch(self) -> str | None:
        """The name of the switch; None for a cable."""
        return f"s{self.number}" if len(self.nics) > 2 else None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each NIC."""
        return tuple(nic.host for nic in self.nics)


@dataclass(frozen=True, slots=True)
class Host:
    """A host, with the addresses of its mrc0."""

    name: str
    addresses: Addresses


@dataclass(frozen=True, slots=True)
class Shape:
    """Hosts and networks. A network without a rate of its own has `rate_mbps`."""

    name: str
    mtu: int
    rate_mbps: int
    networks: tuple[Network, ...]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts by number."""
        names = {host for network in self.networks for host in network.hosts}
        return tuple(_host(number) for number in range(1, len(names) + 1))

    @property
    def switches(self) -> tuple[str, ...]:
        """The names of all switches."""
        return tuple(network.switch for network in self.networks if network.switch)

    def nics(self, host: str) -> tuple[tuple[Nic, Network], ...]:
        """Return the NICs of a host in order, each with its network."""
        return tuple(
            (nic, network) for network in self.networks for nic in network.nics if nic.host == host
        )

    def rate(self, network: Network) -> int:
        """Return the rate of a network's links in Mb/s, 0 if nothing limits them."""
        return network.rate_mbps or self.rate_mbps

    def namespace(self, node: str) -> str:
        """Return the name of the namespace of a host or switch."""
        return f"{self.name}-{node}"


def _host(number: int) -> Host:
    four = ipaddress.IPv4Interface(f"10.99.0.{number}/24")
    return Host(f"h{number}", (four, ipaddress.IPv6Interface(f"fd99::{number}/64")))


def is_drawn(text: str) -> bool:
    """Return whether a --shape is in words, and not the path of a file."""
    return text == "triangle" or re.match(r"(ring|chain|mesh)(:|$)", text) is not None


def drawn(text: str, *, name: str, mtu: int = MTU, rate_mbps: int = 0) -> Shape:
    """Return the shape that words describe, as ring:5; raises ShapeError."""
    words = "ring:3" if text == "triangle" else text
    match = _DRAWN.fullmatch(words)
    if match is None:
        raise ShapeError(f"--shape {text}: must be {KNOWN}")
    kind, count = match[1], int(match[2])
    most = {"ring": 2 * RELAYS_MAX + 3, "chain": RELAYS_MAX + 2, "mesh": PLANES_MAX + 1}[kind]
    if not _LEAST <= count <= most:
        raise ShapeError(f"--shape {text}: a {kind} has {_LEAST} to {most} hosts")
    names = [f"h{number}" for number in range(1, count + 1)]
    pairs: Iterable[tuple[str, str]] = pairwise(names)
    if kind == "ring":
        pairs = [*pairs, (names[-1], names[0])]
    elif kind == "mesh":
        pairs = combinations(names, 2)
    found = Shape(name, mtu, rate_mbps, _networks([(pair, 0, False) for pair in pairs]))
    return _checked(found, f"--shape {text}")


def parse(
    text: str, file: Path, *, name: str, mtu: int | None = None, rate_mbps: int | None = None
) -> Shape:
    """Return the shape that a TOML text describes; raises ShapeError with every problem.

    `mtu` and `rate_mbps` count more than the values of the text.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ShapeError(f"{file}: not TOML: {error}") from None
    problems: list[str] = []
    top = Table(file, "", data, problems)
    own_mtu = top.integer("mtu", MTU, MTU_MIN, MTU_MAX)
    own_rate = top.integer("rate", 0, 0, RATE_MAX_MBPS)
    tables = top.tables("network")
    if not tables and not problems:
        problems.append(
            f'{file}: network: is missing; write [[network]] with hosts = ["h1", "h2"] for a cable'
        )
    read = [_read(table) for table in tables]
    top.finish()
    if problems:
        raise ShapeError("\n".join(problems))
    mtu = own_mtu if mtu is None else mtu
    rate_mbps = own_rate if rate_mbps is None else rate_mbps
    return _checked(Shape(name, mtu, rate_mbps, _networks(read)), str(file))


def _read(table: Table) -> tuple[Sequence[str], int, bool]:
    """Return the hosts, rate and standby of a [[network]]."""
    hosts = table.strings("hosts")
    raw = table.raw("hosts", None)
    if raw is None:
        table.problem("hosts", [], 'is missing; write hosts = ["h1", "h2"]')
    for host in hosts or ():
        number = _HOST.fullmatch(host)
        if number is None or int(number[1]) > HOSTS_MAX:
            table.problem("hosts", host, f"must be h1, h2, ... up to h{HOSTS_MAX}")
    if hosts is not None and len(set(hosts)) < _LEAST:
        table.problem("hosts", hosts, "must name two or more hosts")
    rate = table.integer("rate", 0, 0, RATE_MAX_MBPS)
    standby = table.flag("standby", False)
    table.finish()
    return hosts or (), rate, standby


def _networks(read: Iterable[tuple[Sequence[str], int, bool]]) -> tuple[Network, ...]:
    """Give each place of a host in a network a NIC."""
    count: Counter[str] = Counter()
    found = []
    for number, (hosts, rate, standby) in enumerate(read, 1):
        nics = []
        for host in hosts:
            count[host] += 1
            nics.append(Nic(host, f"eth{count[host]}"))
        found.append(Network(number, tuple(nics), rate, standby))
    return tuple(found)


def _checked(shape: Shape, source: str) -> Shape:
    """Return the shape if it can be a lab whose hosts all reach each other."""
    problems = [*_wrong_values(shape), *_wrong_hosts(shape)] or _too_far(shape)
    if problems:
        raise ShapeError("\n".join(f"{source}: {problem}" for problem in problems))
    return shape


def _wrong_values(shape: Shape) -> list[str]:
    problems = []
    if NAME.fullmatch(shape.name) is None:
        problems.append(f'name: "{shape.name}": must be {NAME_RULE}')
    if not MTU_MIN <= shape.mtu <= MTU_MAX:
        problems.append(f"mtu: {shape.mtu}: must be {MTU_MIN} to {MTU_MAX}")
    if not 0 <= shape.rate_mbps <= RATE_MAX_MBPS:
        problems.append(f"rate: {shape.rate_mbps}: must be 0 to {RATE_MAX_MBPS} Mb/s")
    return problems


def _wrong_hosts(shape: Shape) -> list[str]:
    problems = []
    named = {host for network in shape.networks for host in network.hosts}
    for host in shape.hosts:
        if host.name not in named:
            last = max(named, key=lambda each: int(each[1:]))
            problems.append(
                f"network: {host.name} is in none, but {last} is: number the hosts h1 to"
                f" h{len(named)}"
            )
            break
        nics = len(shape.nics(host.name))
        if nics > PLANES_MAX:
            problems.append(
                f"network: {host.name} is named {nics} times: a host has at most {PLANES_MAX} NICs"
            )
        if nics and all(network.standby for _nic, network in shape.nics(host.name)):
            problems.append(
                f"network: standby: true: is so for every network of {host.name}; leave it out"
                " where data is to go"
            )
    return problems


def _too_far(shape: Shape) -> list[str]:
    """Return the first pair of hosts with no way between them, or one that is too long."""
    for host in shape.hosts:
        steps = _steps_from(shape, host.name)
        for other in shape.hosts:
            if other.name not in steps:
                return [
                    f"network: no way leads from {host.name} to {other.name}: add a [[network]]"
                    " that connects them"
                ]
            if (between := steps[other.name] - 1) > RELAYS_MAX:
                return [
                    f"network: {between} hosts are between {host.name} and {other.name}:"
                    f" at most {RELAYS_MAX} hand packets on; connect hosts that are nearer"
                ]
    return []


def _steps_from(shape: Shape, start: str) -> dict[str, int]:
    """Return the number of networks on the shortest way to each host that can be reached."""
    steps = {start: 0}
    queue = [start]
    for host in queue:
        for _nic, network in shape.nics(host):
            for other in network.hosts:
                if other not in steps:
                    steps[other] = steps[host] + 1
                    queue.append(other)
    return steps


def tables(shape: Shape) -> dict[str, object]:
    """Return the content of a file that `parse` reads as this shape."""
    return {
        "mtu": shape.mtu,
        "rate": shape.rate_mbps,
        "network": [
            {
                "hosts": [*network.hosts],
                **({"rate": network.rate_mbps} if network.rate_mbps else {}),
                **({"standby": True} if network.standby else {}),
            }
            for network in shape.networks
        ],
    }


def configuration(shape: Shape, host: Host, secret_file: str) -> dict[str, object]:
    """Return the content of a host's mrcd.toml, which is as `mrcctl quick up` writes it."""
    return {
        "host": {"name": host.name},
        "mrc0": {"addresses": [str(address) for address in host.addresses]},
        "keys": {"secret_file": secret_file, "discover": True, "forward": True},
        "service": {"on_stop": "detach"},
        "plane": [_plane(shape, nic, network) for nic, network in shape.nics(host.name)],
    }


def _plane(shape: Shape, nic: Nic, network: Network) -> dict[str, object]:
    """Return a [[plane]]. A veth says that it has 10 Gb/s, whatever its rate is."""
    rate = shape.rate(network)
    return {
        "interface": nic.name,
        **({"rate_mbps": rate} if rate else {}),
        **({"standby": True} if network.standby else {}),
    }
