# SPDX-License-Identifier: GPL-2.0-only
"""Compare what the kernel of a host or switch should hold with what it holds (pure).

A kernel that accepted a uSID route may still not forward by it: it drops a flavour that it does not
know without an error. Routes also vanish with their interface, and operators mistype them. The
comparison therefore uses what the kernel reports.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mrcd.linux.interfaces import FibRoute, FibRule

Problem = Literal["missing", "wrong", "extra"]

TABLE_MAIN = 254
RULE_PRIORITY = 1000
UN = "End next-csid 32/16"  # the SRv6 behaviour of a switch's own uSID


@dataclass(frozen=True, slots=True)
class Wanted:
    """The planned state of one node. Addresses are (interface, address/length).

    own_src: whether routes must have their planned source address.
    """

    node: str
    routes: tuple[FibRoute, ...]
    addresses: tuple[tuple[str, str], ...]
    own_src: bool = True
    rules: tuple[FibRule, ...] = ()  # only of a switch that shares its namespace


@dataclass(frozen=True, slots=True)
class Present:
    """The state of a namespace in the kernel; `up` names the interfaces that are up."""

    routes: tuple[FibRoute, ...]
    addresses: Mapping[str, Collection[str]]
    up: Collection[str]
    rules: tuple[FibRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference in one node, and the command that repairs it."""

    node: str
    problem: Problem
    what: str
    detail: str
    fix: str


def compare(
    wanted: Wanted, present: Present, *, block: ipaddress.IPv6Network, netns: str | None = None
) -> list[Finding]:
    """Return every difference: missing and wrong items in the order of the plan, then extra ones.

    An extra route is an unplanned one within the uSID block, in a table that the node uses. It
    takes packets elsewhere. netns: the namespace that the commands name.
    """
    ip = f"ip -n {netns}" if netns else "ip"
    found = [
        *_addresses(wanted, present, ip),
        *_routes(wanted, present, ip),
        *_rules(wanted, present, ip),
    ]
    planned = {(_network(route.dst), route.table) for route in wanted.routes}
    tables = {route.table for route in wanted.routes} or {TABLE_MAIN}
    for route in present.routes:
        network = _network(route.dst)
        if (
            route.table in tables
            and (network, route.table) not in planned
            and network.version == 6
            and network.subnet_of(block)
        ):
            fix = f"{ip} -6 route del {route.dst}{_ways(route)}{_table(route)}"
            found.append(Finding(wanted.node, "extra", f"route {route.dst}", shown(route), fix))
    return found


def _addresses(wanted: Wanted, present: Present, ip: str) -> Iterator[Finding]:
    for dev, cidr in wanted.addresses:
        own = ipaddress.ip_interface(cidr).ip
        holders = [
            name
            for name, there in present.addresses.items()
            if own in {ipaddress.ip_interface(text).ip for text in there}
        ]
        flags = "" if own.is_link_local else " noprefixroute"
        flags += " nodad" if own.version == 6 else ""
        fix = f"{_up(dev, present, ip)}{ip} addr add {cidr} dev {dev}{flags}"
        if dev in holders:
            continue
        # A link-local address belongs to its link, so other links may have the same one.
        if holders and not own.is_link_local:
            fix = f"{ip} addr del {cidr} dev {holders[0]}; {fix}"
            detail = f"is on {', '.join(holders)}"
            yield Finding(wanted.node, "wrong", f"address {cidr} on {dev}", detail, fix)
        else:
            detail = _why(dev, present)
            yield Finding(wanted.node, "missing", f"address {cidr} on {dev}", detail, fix)


def _routes(wanted: Wanted, present: Present, ip: str) -> Iterator[Finding]:
    there: dict[tuple[object, int], list[FibRoute]] = {}
    for route in present.routes:
        there.setdefault((_network(route.dst), route.table), []).append(route)
    for route in wanted.routes:
        same = there.get((_network(route.dst), route.table), [])
        if any(_alike(route, other, own_src=wanted.own_src) for other in same):
            continue
        family = 6 if ":" in route.dst else 4
        fix = f"{_up(route.dev or '', present, ip)}{ip} -{family} route replace {command(route)}"
        if same:
            detail = f"is {' and '.join(map(shown, same))}, should be {shown(route)}"
            yield Finding(wanted.node, "wrong", f"route {route.dst}", detail, fix)
        else:
            detail = f"should be {shown(route)}"
            if why := _why(route.dev or "", present):
                detail += f"; {why}"
            yield Finding(wanted.node, "missing", f"route {route.dst}", detail, fix)


def _rules(wanted: Wanted, present: Present, ip: str) -> Iterator[Finding]:
    """Compare the rules that direct packets from a port to its switch's table.

    Only the first rule for a port counts, since an earlier rule would divert the packets.
    """
    first: dict[tuple[int, str], int] = {}
    for rule in present.rules:
        first.setdefault((rule.version, rule.iif), rule.table)
    for rule in wanted.rules:
        table = first.get((rule.version, rule.iif))
        if table == rule.table:
            continue
        words = f"-{rule.version} rule"
        fix = f"{ip} {words} add iif {rule.iif} lookup {rule.table} pref {RULE_PRIORITY}"
        what = f"rule for what enters {rule.iif}, IPv{rule.version}"
        if table is None:
            yield Finding(wanted.node, "missing", what, f"should be lookup {rule.table}", fix)
        else:
            fix = f"{ip} {words} del iif {rule.iif} lookup {table}; {fix}"
            detail = f"is lookup {table}, should be lookup {rule.table}"
            yield Finding(wanted.node, "wrong", what, detail, fix)


def _why(dev: str, present: Present) -> str:
    if not dev or dev in present.up:
        return ""
    return f"{dev} is down" if dev in present.addresses else f"there is no {dev}"


def _up(dev: str, present: Present, ip: str) -> str:
    """Return the command that must run first if an interface is down."""
    return f"{ip} link set {dev} up; " if _why(dev, present).endswith("is down") else ""


def _alike(wanted: FibRoute, other: FibRoute, *, own_src: bool) -> bool:
    return (
        (wanted.dev, wanted.via, wanted.encap) == (other.dev, other.via, other.encap)
        and set(wanted.nexthops) == set(other.nexthops)
        and (wanted.mtu, wanted.ecn) == (other.mtu, other.ecn)
        and (not own_src or wanted.src == other.src)
    )


def _network(dst: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(dst)


def shown(route: FibRoute) -> str:
    """Return a readable description of where a route leads."""
    parts = [f"seg6local {route.encap}"] if route.encap else []
    parts.append(_ways(route).strip())
    if route.src:
        parts.append(f"src {route.src}")
    if route.mtu:
        parts.append(f"mtu {route.mtu}")
    if route.ecn:
        parts.append("ecn")
    return " ".join(part for part in parts if part)


def command(route: FibRoute) -> str:
    """Return the arguments of `ip route` that create a route."""
    encap = ""
    if route.encap == UN:
        encap = " encap seg6local action End flavors next-csid lblen 32 nflen 16"
    source = f" src {route.src}" if route.src else ""
    mtu = f" mtu {route.mtu}" if route.mtu else ""
    ecn = " features ecn" if route.ecn else ""
    return f"{route.dst}{encap}{_ways(route)}{source}{mtu}{ecn}{_table(route)}"


def _ways(route: FibRoute) -> str:
    if route.nexthops:
        return "".join(
            f" nexthop via {_via(route, hop.via)} dev {hop.dev}" for hop in route.nexthops
        )
    via = f" via {_via(route, route.via)}" if route.via else ""
    return via + (f" dev {route.dev}" if route.dev else "")


def _via(route: FibRoute, via: str) -> str:
    """Return a nexthop for `ip`, which needs the family if it is not the route's."""
    return f"inet6 {via}" if ":" in via and ":" not in route.dst else via


def _table(route: FibRoute) -> str:
    return "" if route.table == TABLE_MAIN else f" table {route.table}"


def of_peers(peers: Iterable[tuple[Collection[str], int]], *, dev: str) -> tuple[FibRoute, ...]:
    """Return the routes of mrc0: one for each prefix of a set-up peer, with the peer's MTU."""
    return tuple(
        FibRoute(prefix, TABLE_MAIN, dev, mtu=mtu, ecn=True)
        for prefixes, mtu in peers
        for prefix in prefixes
    )
