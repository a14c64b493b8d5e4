# SPDX-License-Identifier: GPL-2.0-only
"""Read and write the fabric file: the planes, switches and hosts of a fabric (TOML).

One file serves namespaces, virtual machines and racks. `load` checks all of it and reports every
error at once; the resulting values are consistent.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from mrcd.fabric import classes
from mrcd.fabric import hosts as of
from mrcd.fabric import routing as routes
from mrcd.fabric.hosts import Host, HostRange, Interface
from mrcd.fabric.shape import (
    ELEMENT,
    IPV4_PORT_MAX,
    IPV4_SWITCHES_MAX,
    MTU_MAX,
    MTU_MIN,
    MTU_REMEDY,
    NAME,
    NAME_MAX,
    NAME_RULE,
    PLANES_MAX,
    PORT_MAX,
    PUBLIC_KEY,
    RATE_MAX_MBPS,
    T0_MAX,
    T1_MAX,
    Fabric,
    FabricError,
    checked,
    generate,
    sound,
)

__all__ = [
    "IPV4_PORT_MAX",
    "IPV4_SWITCHES_MAX",
    "MTU_MAX",
    "MTU_MIN",
    "PLANES_MAX",
    "PORT_MAX",
    "RATE_MAX_MBPS",
    "T0_MAX",
    "T1_MAX",
    "Fabric",
    "FabricError",
    "Host",
    "HostRange",
    "Interface",
    "checked",
    "dumps",
    "generate",
    "load",
    "parse",
    "sound",
]


def dumps(fabric: Fabric) -> str:
    """Return the fabric as the text of a fabric file; `parse` reads it back unchanged."""
    tables: dict[str, Any] = {
        "fabric": {
            "name": fabric.name,
            "block": str(fabric.block),
            "underlay6": str(fabric.underlay6),
            "gateway": str(fabric.gateway),
            "planes": fabric.planes,
            "t0": fabric.t0,
            "t1": fabric.t1,
            "mtu": fabric.mtu,
            "rate_mbps": fabric.rate_mbps,
            "trim": fabric.trim,
            **routes.keys(fabric.routing),
        },
        "dscp": classes.keys(fabric.classes),
    }
    if isinstance(fabric.hosts, HostRange):
        pattern = fabric.hosts
        tables["hosts"] = {
            "count": pattern.size,
            "per_t0": pattern.per_t0,
            "name": pattern.name,
            "addresses": list(map(str, pattern.networks)),
        }
    else:
        tables["host"] = [
            {
                "name": host.name,
                "t0": host.t0,
                "port": host.port,
                "addresses": list(map(str, host.addresses)),
                **({"routed": list(map(str, host.routed))} if host.routed else {}),
                **({"public_key": host.public_key} if host.public_key else {}),
            }
            for host in fabric.hosts
        ]
    return tomli_w.dumps(tables)


def load(path: Path) -> Fabric:
    """Read and check a fabric file; raises FabricError with every problem found."""
    try:
        text = path.read_text()
    except OSError as error:
        raise FabricError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise FabricError([f"{path}: is not UTF-8 text: {error.reason}"]) from None
    return _parsed(text, str(path))


@lru_cache(maxsize=1)
def _parsed(text: str, source: str) -> Fabric:
    """Parse the text, or return the cached result if it has not changed."""
    return parse(text, source)


def parse(text: str, source: str) -> Fabric:
    """Check the text of a fabric file; `source` is its name in messages.

    Raises FabricError with every problem found.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FabricError([f"{source}: is not TOML: {error}"]) from None
    except ValueError:
        raise FabricError([f"{source}: a number in it has too many digits"]) from None
    except RecursionError:
        raise FabricError([f"{source}: lists or tables in it lie too deep in others"]) from None
    return _Reader(source).fabric(data)


_REQUIRED = object()
_T = TypeVar("_T")


class _Reader:
    """A reader that collects problems, so that one run reports them all."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[str] = []

    def complain(self, key: str, value: object, wanted: str) -> None:
        self.problems.append(f"{self.source}: {key} = {_shown(value)}: must be {wanted}")

    def fabric(self, data: Mapping[str, Any]) -> Fabric:
        self.only(data, "", ("fabric", "dscp", "host", "hosts"))
        table = data.get("fabric")
        if not isinstance(table, dict):
            self.problems.append(f"{self.source}: [fabric]: must be present, as a table")
            table = {}
        known = ("name", "block", "underlay6", "gateway", "planes", "t0", "t1", "mtu", "rate_mbps")
        self.only(table, "fabric.", (*known, "trim", *routes.KEYS))
        number = self.number
        name = self.name(table, "fabric.", "name", "lab")
        block = self.block(table, "block", "fcbb:bb00::/32")
        underlay6 = self.block(table, "underlay6", "fdcb::/32")
        gateway = self.gateway(table)
        planes = number(table, "fabric.", "planes", 1, PLANES_MAX, _REQUIRED)
        t0 = number(table, "fabric.", "t0", 1, T0_MAX, _REQUIRED)
        t1 = number(table, "fabric.", "t1", 1, T1_MAX, _REQUIRED)
        mtu = self.mtu(table)
        rate = number(table, "fabric.", "rate_mbps", 0, RATE_MAX_MBPS, 0)
        trim = self.flag(table, "fabric.", "trim")
        routing = routes.read(table, lambda key, *rest: self.complain(f"fabric.{key}", *rest))
        of_packets = classes.read(data.get("dscp", {}), self.complain)
        hosts = self.members(data, t0)
        if self.problems:
            raise FabricError(self.problems)
        made = Fabric(
            name, block, underlay6, gateway, planes, t0, t1, mtu, rate, hosts, routing,
            trim, of_packets,
        )  # fmt: skip
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
                f"{self.source}: {where}{key}: is not a key here; known: {', '.join(known)}"
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

    def mtu(self, table: Mapping[str, Any]) -> int:
        value = table.get("mtu")
        if isinstance(value, int) and value > MTU_MAX:
            self.problems.append(f"{self.source}: fabric.mtu = {_shown(value)}: {MTU_REMEDY}")
            return MTU_MAX
        return self.number(table, "fabric.", "mtu", MTU_MIN, MTU_MAX, 9000)

    def flag(self, table: Mapping[str, Any], where: str, key: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            self.complain(where + key, value, "true or false")
        return value is True

    def name(self, table: Mapping[str, Any], where: str, key: str, default: object) -> str:
        value = table.get(key, default)
        if value is _REQUIRED:
            self.problems.append(f"{self.source}: {where}{key}: is missing: {NAME_RULE}")
        elif not isinstance(value, str) or not NAME.fullmatch(value):
            self.complain(where + key, value, NAME_RULE)
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
        """Read section [hosts]."""
        if not isinstance(table, dict):
            self.complain("hosts", table, "a table: [hosts]")
            return ()
        before = len(self.problems)
        self.only(table, "hosts.", ("count", "per_t0", "name", "addresses"))
        per_t0 = self.number(table, "hosts.", "per_t0", 1, PORT_MAX, _REQUIRED)
        count = self.number(table, "hosts.", "count", 1, t0 * per_t0, _REQUIRED)
        name = self.name(table, "hosts.", "name", "h")
        if ELEMENT.fullmatch(f"{name}1") or len(f"{name}{count}") > NAME_MAX:
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
            self.problems.append(f"{self.source}: [[host]]: must be present, once for each host")
            return ()
        hosts = []
        taken: dict[object, str] = {}
        for i, table in enumerate(tables, 1):
            where = f"host[{i}]."
            if not isinstance(table, dict):
                self.complain(where[:-1], table, "a [[host]] table")
                continue
            before = len(self.problems)
            self.only(table, where, ("name", "t0", "port", "addresses", "routed", "public_key"))
            host = Host(
                self.name(table, where, "name", _REQUIRED),
                self.number(table, where, "t0", 1, t0, _REQUIRED),
                self.number(table, where, "port", 1, PORT_MAX, _REQUIRED),
                self.addresses(table, where),
                self.public_key(table, where),
                routed=self.routed(table, where),
            )
            if ELEMENT.fullmatch(host.name):
                self.complain(f"{where}name", host.name, "unlike the names of planes and switches")
            self.unique(taken, f"{where}name", host.name, host.name)
            if len(self.problems) == before:  # otherwise the numbers are placeholders
                place = f"{host.port} of T0 {host.t0}"
                self.unique(taken, f"{where}port", (host.t0, host.port), place)
            for address in host.addresses:
                self.unique(taken, f"{where}addresses", address.ip, str(address.ip))
            key = host.public_key and f"key {host.public_key}"
            self.unique(taken, f"{where}public_key", key, "this key")
            hosts.append(host)
        return tuple(hosts)

    def addresses(self, table: Mapping[str, Any], where: str) -> tuple[Interface, ...]:
        wanted = 'a list of addresses with prefix length, like ["10.99.0.1/24", "fd99::1/64"]'
        return self.members_of(table, where, "addresses", _interface, wanted, least=1)

    def routed(self, table: Mapping[str, Any], where: str) -> tuple[of.Network, ...]:
        wanted = 'a list of prefixes behind the host, like ["10.98.1.0/24"]'
        return self.members_of(table, where, "routed", ipaddress.ip_network, wanted, least=0)

    def members_of(
        self,
        table: Mapping[str, Any],
        where: str,
        key: str,
        kind: Callable[[Any], _T],
        wanted: str,
        *,
        least: int,
    ) -> tuple[_T, ...]:
        """Return the members of a list as `kind` makes them of text."""
        values = table.get(key, [])
        if not isinstance(values, list) or len(values) < least:
            self.complain(f"{where}{key}", values, wanted)
            return ()
        found = []
        for value in values:
            member = _or_none(kind, value)
            if member is None:
                self.complain(f"{where}{key}", value, wanted)
            else:
                found.append(member)
        return tuple(found)

    def public_key(self, table: Mapping[str, Any], where: str) -> str:
        value = table.get("public_key", "")
        if isinstance(value, str) and (not value or PUBLIC_KEY.fullmatch(value)):
            return value
        self.problems.append(  # the value is not shown, because it may be another kind of key
            f"{self.source}: {where}public_key: must be 44 characters of base64, as "
            "`mrcctl key public` prints them on that host"
        )
        return ""

    def unique(self, taken: dict[object, str], where: str, key: object, shown: str) -> None:
        if key in taken and key:
            self.problems.append(
                f"{self.source}: {where}: {shown} is taken by {taken[key]}; must be unique"
            )
        taken.setdefault(key, where)


def _interface(text: str) -> Interface:
    """Return an address with the length of its prefix; raises ValueError without that."""
    if "/" not in text:
        raise ValueError(f"{text} has no prefix length")
    return ipaddress.ip_interface(text)


def _or_none(kind: Callable[[Any], _T], value: object) -> _T | None:
    """Return `kind` of a string, or None if it raises ValueError or the value is no string."""
    if not isinstance(value, str):
        return None
    try:
        return kind(value)
    except ValueError:
        return None


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
