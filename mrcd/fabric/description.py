# SPDX-License-Identifier: GPL-2.0-only
"""The fabric file: what planes, switches and hosts there are (TOML).

One file serves namespaces, virtual machines and racks. `load` checks all of
it and reports every error at once; the values that come out are consistent.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mrcd.fabric import hosts as of
from mrcd.fabric import routing as routes
from mrcd.fabric.hosts import Host as Host
from mrcd.fabric.hosts import HostRange as HostRange
from mrcd.fabric.hosts import Interface as Interface
from mrcd.fabric.routing import SRV6, Routing

PLANES_MAX = 8
T0_MAX = T1_MAX = PORT_MAX = 2047  # the index of a uSID has 11 bits
# The IPv4 addresses of NICs and switches have a byte for each, 254 being the T0 itself; labs
# are within it. A larger fabric has IPv6 addresses only.
IPV4_SWITCHES_MAX = 254
IPV4_PORT_MAX = 253
_TOO_LARGE_FOR_A_LAB = (
    f"too large for a lab: it has at most {IPV4_SWITCHES_MAX} T0s and T1s in a plane"
    f" and {IPV4_PORT_MAX} hosts on a T0"
)
_OWN_NUMBER = 254  # last number of a T0's own address; past all ports where there are more
_OWN_NUMBER_LARGE = 2048
MTU_MIN = 1408  # 1280 for IPv6 in mrc0, and 128 bytes of headers around it
MTU_MAX = 65535
RATE_MAX_MBPS = 34_000  # tbf's 32-bit rate in bytes per second

_NAME_MAX = 31
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_ELEMENT = re.compile(r"p\d+(t[01]-\d+)?")


class FabricError(Exception):
    """A fabric description is wrong: exit status 2 for whoever was started with it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric of `planes` planes, each with `t0` and `t1` switches."""

    name: str
    block: ipaddress.IPv6Network
    underlay6: ipaddress.IPv6Network
    gateway: ipaddress.IPv6Address
    planes: int
    t0: int
    t1: int
    mtu: int
    rate_mbps: int
    hosts: Sequence[Host]
    routing: Routing = SRV6

    def host(self, name: str) -> Host:
        """The host of that name; KeyError that lists the names there are."""
        found = of.find(self.hosts, name)
        if found is None:
            known = of.listed(self.hosts)
            raise KeyError(f"no host {name!r} in fabric {self.name!r}; there is {known}")
        return found

    @property
    def ipv4(self) -> bool:
        """Whether NICs and switches have IPv4 addresses, too: labs and fabrics of their size."""
        switches = max(self.t0, self.t1)
        return switches <= IPV4_SWITCHES_MAX and of.port_max(self.hosts) <= IPV4_PORT_MAX

    def address4(self, host: Host, plane: int) -> ipaddress.IPv4Address:
        """The IPv4 address of the host's NIC in a plane; ValueError where there is none."""
        if host.t0 > IPV4_SWITCHES_MAX or host.port > IPV4_PORT_MAX:
            raise ValueError(f"{host.name} is past what IPv4 addresses of planes can number")
        return self.underlay4(plane, host.t0, host.port)

    def address6(self, host: Host, plane: int) -> ipaddress.IPv6Address:
        """The IPv6 address of the host's NIC in a plane, the inner one of MRC."""
        return self.underlay(plane, host.t0, host.port)

    def t0_address4(self, plane: int, t0: int) -> ipaddress.IPv4Address:
        """The IPv4 address of a T0 itself, the gateway of its hosts."""
        return self.underlay4(plane, t0, _OWN_NUMBER)

    def t0_address6(self, plane: int, t0: int) -> ipaddress.IPv6Address:
        """The IPv6 address of a T0 itself."""
        return self.underlay(plane, t0, _OWN_NUMBER if self.ipv4 else _OWN_NUMBER_LARGE)

    def t1_address4(self, plane: int, t1: int) -> ipaddress.IPv4Address:
        """The IPv4 address of a T1 itself."""
        return self.underlay4(plane, 0, t1)

    def t1_address6(self, plane: int, t1: int) -> ipaddress.IPv6Address:
        """The IPv6 address of a T1 itself."""
        return self.underlay(plane, 0, t1)

    def underlay4(self, plane: int, t0: int, last: int) -> ipaddress.IPv4Address:
        """10 . 100 + plane . t0 . last"""
        return ipaddress.IPv4Address(f"10.{100 + plane}.{t0}.{last}")

    def underlay(self, plane: int, t0: int, last: int) -> ipaddress.IPv6Address:
        """underlay6 : plane : t0 :: last"""
        return ipaddress.IPv6Address(self.underlay_number(plane, t0, last))

    def underlay_number(self, plane: int, t0: int, last: int) -> int:
        """`underlay` as a number."""
        return int(self.underlay6.network_address) | plane << 80 | t0 << 64 | last

    def plane_prefix4(self, plane: int) -> ipaddress.IPv4Network:
        """All IPv4 addresses of a plane."""
        return ipaddress.IPv4Network((int(self.underlay4(plane, 0, 0)), 16))

    def plane_prefix6(self, plane: int) -> ipaddress.IPv6Network:
        """All IPv6 addresses of a plane."""
        return ipaddress.IPv6Network((int(self.underlay(plane, 0, 0)), 48))


def generate(
    *,
    name: str = "lab",
    hosts: int = 2,
    planes: int = 4,
    t1: int = 2,
    hosts_per_t0: int = 1,
    mtu: int = 9000,
    rate_mbps: int = 0,
    routing: Routing = SRV6,
) -> Fabric:
    """The fabric of `lab up`: hosts h1, h2, ... fill the T0s in order.

    Checked like a file; FabricError names the option.
    """
    problems = _out_of_range(
        ("--hosts", hosts, 1, 254),
        ("--planes", planes, 1, PLANES_MAX),
        ("--t1", t1, 1, IPV4_SWITCHES_MAX),
        ("--hosts-per-t0", hosts_per_t0, 1, IPV4_PORT_MAX),
    )
    if problems:
        raise FabricError(problems)
    members = tuple(
        Host(
            name=f"h{i}",
            t0=(i - 1) // hosts_per_t0 + 1,
            port=(i - 1) % hosts_per_t0 + 1,
            addresses=(
                ipaddress.ip_interface(f"10.99.0.{i}/24"),
                ipaddress.ip_interface(f"fd99::{i:x}/64"),
            ),
        )
        for i in range(1, hosts + 1)
    )
    fabric = Fabric(
        name=name,
        block=ipaddress.IPv6Network("fcbb:bb00::/32"),
        underlay6=ipaddress.IPv6Network("fdcb::/32"),
        gateway=ipaddress.IPv6Address("fe80::1"),
        planes=planes,
        t0=members[-1].t0,
        t1=t1,
        mtu=mtu,
        rate_mbps=rate_mbps,
        hosts=members,
        routing=routing,
    )
    return checked(fabric)


def checked(fabric: Fabric) -> Fabric:
    """The fabric, if it is sound and a lab can be made of it; else FabricError."""
    problems = [] if fabric.ipv4 else [_TOO_LARGE_FOR_A_LAB]
    return sound(fabric, problems)


def sound(fabric: Fabric, problems: Sequence[str] = ()) -> Fabric:
    """The fabric, if what options let a user override is sound; else FabricError."""
    found = [
        *problems,
        *_out_of_range(
            ("--mtu", fabric.mtu, MTU_MIN, MTU_MAX),
            ("--rate", fabric.rate_mbps, 0, RATE_MAX_MBPS),
        ),
        *(f"--{key} {value}: must be {wanted}" for key, value, wanted in fabric.routing.problems()),
    ]
    if not _NAME.fullmatch(fabric.name):
        found.append(f"--name {fabric.name}: must be {_NAME_RULE}")
    if found:
        raise FabricError(found)
    return fabric


def _out_of_range(*limits: tuple[str, int, int, int]) -> list[str]:
    return [
        f"{option} {value}: must be {low} to {high}"
        for option, value, low, high in limits
        if not low <= value <= high
    ]


def dumps(fabric: Fabric) -> str:
    """The fabric as the text of a fabric file; `parse` reads it back unchanged."""
    lines = [
        "[fabric]",
        f'name = "{fabric.name}"',
        f'block = "{fabric.block}"',
        f'underlay6 = "{fabric.underlay6}"',
        f'gateway = "{fabric.gateway}"',
        f"planes = {fabric.planes}",
        f"t0 = {fabric.t0}",
        f"t1 = {fabric.t1}",
        f"mtu = {fabric.mtu}",
        f"rate_mbps = {fabric.rate_mbps}",
        *routes.lines(fabric.routing),
    ]
    if isinstance(fabric.hosts, HostRange):
        pattern = fabric.hosts
        networks = ", ".join(f'"{network}"' for network in pattern.networks)
        lines += [
            "",
            "[hosts]",
            f"count = {pattern.size}",
            f"per_t0 = {pattern.per_t0}",
            f'name = "{pattern.name}"',
            f"addresses = [{networks}]",
        ]
        return "\n".join(lines) + "\n"
    for host in fabric.hosts:
        addresses = ", ".join(f'"{address}"' for address in host.addresses)
        lines += [
            "",
            "[[host]]",
            f'name = "{host.name}"',
            f"t0 = {host.t0}",
            f"port = {host.port}",
            f"addresses = [{addresses}]",
        ]
    return "\n".join(lines) + "\n"


def load(path: Path) -> Fabric:
    """Read and check a fabric file; FabricError lists all that is wrong with it."""
    try:
        text = path.read_text()
    except OSError as error:
        raise FabricError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise FabricError([f"{path}: is not UTF-8 text: {error.reason}"]) from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Fabric:
    """Check the text of a fabric file; `source` is its name in messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FabricError([f"{source}: is not TOML: {error}"]) from None
    return _Reader(source).fabric(data)


_NAME_RULE = "a small letter, then up to 30 small letters, digits or '-'"
_REQUIRED = object()
_T = TypeVar("_T")


class _Reader:
    """Collects problems while it reads, so that one run reports them all."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[str] = []

    def complain(self, key: str, value: object, wanted: str) -> None:
        self.problems.append(f"{self.source}: {key} = {_shown(value)}: must be {wanted}")

    def fabric(self, data: Mapping[str, Any]) -> Fabric:
        self.only(data, "", ("fabric", "host", "hosts"))
        table = data.get("fabric")
        if not isinstance(table, dict):
            self.problems.append(f"{self.source}: [fabric]: must be there, a table")
            table = {}
        known = ("name", "block", "underlay6", "gateway", "planes", "t0", "t1", "mtu", "rate_mbps")
        self.only(table, "fabric.", known + routes.KEYS)
        number = self.number
        name = self.name(table, "fabric.", "name", "lab")
        block = self.block(table, "block", "fcbb:bb00::/32")
        underlay6 = self.block(table, "underlay6", "fdcb::/32")
        gateway = self.gateway(table)
        planes = number(table, "fabric.", "planes", 1, PLANES_MAX, _REQUIRED)
        t0 = number(table, "fabric.", "t0", 1, T0_MAX, _REQUIRED)
        t1 = number(table, "fabric.", "t1", 1, T1_MAX, _REQUIRED)
        mtu = number(table, "fabric.", "mtu", MTU_MIN, MTU_MAX, 9000)
        rate = number(table, "fabric.", "rate_mbps", 0, RATE_MAX_MBPS, 0)
        routing = routes.read(table, lambda key, *rest: self.complain(f"fabric.{key}", *rest))
        hosts = self.members(data, t0)
        if self.problems:
            raise FabricError(self.problems)
        made = Fabric(name, block, underlay6, gateway, planes, t0, t1, mtu, rate, hosts, routing)
        if routing.underlay == 4 and not made.ipv4:
            wanted = (
                f"6 with more than {IPV4_SWITCHES_MAX} T0s or T1s, or a port past {IPV4_PORT_MAX}"
            )
            self.complain("fabric.underlay", 4, wanted)
            raise FabricError(self.problems)
        return made

    def only(self, table: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
        for key in table.keys() - set(known):
            self.problems.append(
                f"{self.source}: {where}{key}: is not a key here; there is {', '.join(known)}"
            )

    def number(
        self, table: Mapping[str, Any], where: str, key: str, low: int, high: int, default: object
    ) -> int:
        value = table.get(key, default)
        if value is _REQUIRED:
            self.problems.append(f"{self.source}: {where}{key}: is missing: {low} to {high}")
            return high
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.complain(where + key, value, f"a whole number, {low} to {high}")
            return high
        return value

    def name(self, table: Mapping[str, Any], where: str, key: str, default: object) -> str:
        value = table.get(key, default)
        if value is _REQUIRED:
            self.problems.append(f"{self.source}: {where}{key}: is missing: {_NAME_RULE}")
        elif not isinstance(value, str) or not _NAME.fullmatch(value):
            self.complain(where + key, value, _NAME_RULE)
        else:
            return value
        return ""

    def block(self, table: Mapping[str, Any], key: str, default: str) -> ipaddress.IPv6Network:
        value = table.get(key, default)
        network = _or_none(ipaddress.IPv6Network, value)
        if network is None or network.prefixlen != 32:
            self.complain(f"fabric.{key}", value, f'an IPv6 /32 like "{default}"')
            return ipaddress.IPv6Network(default)
        return network

    def gateway(self, table: Mapping[str, Any]) -> ipaddress.IPv6Address:
        value = table.get("gateway", "fe80::1")
        address = _or_none(ipaddress.IPv6Address, value)
        if address is None or not address.is_link_local or address.scope_id:
            self.complain("fabric.gateway", value, 'a link-local IPv6 address like "fe80::1"')
            return ipaddress.IPv6Address("fe80::1")
        return address

    def members(self, data: Mapping[str, Any], t0: int) -> Sequence[Host]:
        if "hosts" not in data:
            return self.hosts(data.get("host", []), t0)
        if "host" in data:
            self.problems.append(f"{self.source}: [hosts] and [[host]]: must be one of the two")
        return self.pattern(data["hosts"], t0)

    def pattern(self, table: object, t0: int) -> Sequence[Host]:
        """Section [hosts]."""
        if not isinstance(table, dict):
            self.complain("hosts", table, "a table: [hosts]")
            return ()
        before = len(self.problems)
        self.only(table, "hosts.", ("count", "per_t0", "name", "addresses"))
        per_t0 = self.number(table, "hosts.", "per_t0", 1, PORT_MAX, _REQUIRED)
        count = self.number(table, "hosts.", "count", 1, t0 * per_t0, _REQUIRED)
        name = self.name(table, "hosts.", "name", "h")
        if _ELEMENT.fullmatch(f"{name}1") or len(f"{name}{count}") > _NAME_MAX:
            self.complain("hosts.name", name, "short, and unlike the names of planes and switches")
        networks = self.networks(table, count)
        if len(self.problems) > before:
            return ()
        return HostRange(count, per_t0, name, networks)

    def networks(self, table: Mapping[str, Any], count: int) -> tuple[of.Network, ...]:
        wanted = f'a list of networks for {count} hosts, like ["10.128.0.0/9", "fd99::/64"]'
        values = table.get("addresses", [])
        if not isinstance(values, list) or not values:
            self.complain("hosts.addresses", values, wanted)
            return ()
        found: list[of.Network] = []
        for value in values:
            network: of.Network | None = _or_none(ipaddress.ip_network, value)
            if network is None or of.room(network) < count:
                self.complain("hosts.addresses", value, wanted)
            elif any(
                network.version == other.version and network.overlaps(other) for other in found
            ):
                self.complain("hosts.addresses", value, "apart from the others")
            else:
                found.append(network)
        return tuple(found)

    def hosts(self, tables: object, t0: int) -> tuple[Host, ...]:
        if not isinstance(tables, list) or not tables:
            self.problems.append(f"{self.source}: [[host]]: must be there, once for each host")
            return ()
        hosts = []
        taken: dict[object, str] = {}
        for i, table in enumerate(tables, 1):
            where = f"host[{i}]."
            if not isinstance(table, dict):
                self.complain(where[:-1], table, "a [[host]] table")
                continue
            before = len(self.problems)
            self.only(table, where, ("name", "t0", "port", "addresses"))
            host = Host(
                self.name(table, where, "name", _REQUIRED),
                self.number(table, where, "t0", 1, t0, _REQUIRED),
                self.number(table, where, "port", 1, PORT_MAX, _REQUIRED),
                self.addresses(table, where),
            )
            if _ELEMENT.fullmatch(host.name):
                self.complain(f"{where}name", host.name, "unlike the names of planes and switches")
            self.unique(taken, f"{where}name", host.name, host.name)
            if len(self.problems) == before:  # else the numbers are stand-ins
                place = f"{host.port} of T0 {host.t0}"
                self.unique(taken, f"{where}port", (host.t0, host.port), place)
            for address in host.addresses:
                self.unique(taken, f"{where}addresses", address.ip, str(address.ip))
            hosts.append(host)
        return tuple(hosts)

    def addresses(self, table: Mapping[str, Any], where: str) -> tuple[Interface, ...]:
        values = table.get("addresses", [])
        wanted = 'a list of addresses with prefix length, like ["10.99.0.1/24", "fd99::1/64"]'
        if not isinstance(values, list) or not values:
            self.complain(f"{where}addresses", values, wanted)
            return ()
        found = []
        for value in values:
            interface = _or_none(ipaddress.ip_interface, value)
            if interface is None or "/" not in value:
                self.complain(f"{where}addresses", value, wanted)
            else:
                found.append(interface)
        return tuple(found)

    def unique(self, taken: dict[object, str], where: str, key: object, shown: str) -> None:
        if key in taken and key:
            self.problems.append(
                f"{self.source}: {where}: {shown} is taken by {taken[key]}; must be unique"
            )
        taken.setdefault(key, where)


def _or_none(kind: Callable[[Any], _T], value: object) -> _T | None:
    """What `kind` makes of a string, None when it refuses."""
    if not isinstance(value, str):
        return None
    try:
        return kind(value)
    except ValueError:
        return None


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
