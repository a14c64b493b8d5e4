# SPDX-License-Identifier: GPL-2.0-only
"""Compare what kernels hold with the plan, for hosts, Linux switches and whole labs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cli.lab import intent, state, topology
from cli.lab.intent import TABLE_MAIN, Finding, Present, Wanted
from cli.lab.topology import ANCHOR, Node, Topology
from mrcd.config import config
from mrcd.fabric import description, naming, underlay
from mrcd.fabric.description import Fabric
from mrcd.linux.interfaces import FibRoute, FibRule
from mrcd.linux.netlink import Netlink

BadConfig = config.ConfigError
Peers = Iterable[tuple[Collection[str], int]]
"""The prefixes and the MTU of each peer that is set up."""


async def present(nl: Netlink) -> Present:
    """Read the routes, addresses, links and rules of a namespace."""
    links = await nl.links()
    return Present(
        routes=tuple(await nl.fib()),
        addresses={name: await nl.addresses(name) for name in links},
        up={name for name, link in links.items() if link.up},
        rules=tuple(await nl.rules()),
    )


def of_node(node: Node) -> Wanted:
    """Return what a host or switch should have according to the plan of a lab."""
    table = TABLE_MAIN if node.table is None else node.table
    routes = []
    if node.locator is not None:
        routes.append(FibRoute(node.locator, table, ANCHOR, encap=intent.UN))
    for route in node.routes:
        dev, via, hops = route.dev, route.via, route.nexthops
        if len(hops) == 1:  # the kernel stores a single nexthop as a plain route
            (hop,), hops = hops, ()
            dev, via = hop.dev, hop.via
        routes.append(FibRoute(route.dst, table, dev, via, route.src, hops))
    rules = (
        ()
        if node.table is None
        else tuple(FibRule(version, port, table) for port in node.ports for version in (4, 6))
    )
    return Wanted(node.name, tuple(routes), tuple(node.addresses), rules=rules)


def of_host(settings: config.Config, peers: Peers) -> Wanted:
    """Return what mrcd gives a host: addresses, a route for each plane, routes to set-up peers.

    The route of a plane may come from elsewhere, as long as it leads to the plane's gateway, so any
    source address is accepted.
    """
    fabric, host = settings.fabric, settings.host
    planes, across = list(enumerate(settings.interfaces)), underlay.in_fabric(fabric)
    routes = [
        FibRoute(
            str(across.destinations(plane)),
            TABLE_MAIN,
            dev,
            str(across.gateway(host, plane)),
        )
        for plane, dev in planes
    ]
    routes += intent.of_peers(peers, dev=settings.mrc0.name)
    addresses = []
    for plane, dev in planes:
        bits = across.on_link(host, plane).prefixlen
        addresses.append((dev, f"{across.address(host, plane)}/{bits}"))
    addresses += [(settings.mrc0.name, str(address)) for address in settings.mrc0.addresses]
    return Wanted(host.name, tuple(routes), tuple(addresses), own_src=False)


def host(file: Path, peers: Peers) -> list[Finding]:
    """Check this host by its configuration; raises config.ConfigError if that has errors."""
    settings = config.load(file)
    if not settings.fabric.described:
        why = "without a fabric there are no uSID routes to verify; see `ip route`"
        raise config.ConfigError([f"{file}: [[plane]]: {why}"])

    async def look() -> list[Finding]:
        async with Netlink() as nl:
            there = await present(nl)
        return intent.compare(of_host(settings, peers), there, block=settings.fabric.block)

    return asyncio.run(look())


def switch(fabric: Fabric, name: str) -> list[Finding]:
    """Check this machine as a Linux switch whose name and interfaces are as in a lab.

    Raises state.NoSuchElement when the fabric has no such switch, and FabricError when the fabric
    is too large to be made of Linux switches.
    """
    plan = topology.plan(description.checked(fabric))
    node = plan.nodes.get(name)
    if node is None or node.kind == "host":
        raise state.NoSuchElement(
            f"no switch {name!r} in fabric {fabric.name}; known:"
            f" {naming.every_switch(fabric.planes, fabric.t0, fabric.t1)}"
        )
    own = of_node(node)

    async def look() -> list[Finding]:
        async with Netlink() as nl:
            return intent.compare(own, await present(nl), block=fabric.block)

    return asyncio.run(look())


def lab(name: str, peers_of: Callable[[str], Peers]) -> tuple[int, list[Finding]]:
    """Check every host and switch of a lab; return how many there are, and the findings.

    peers_of: asks the mrcd at a control socket for the peers it has set up. It is called only if
    the lab runs daemons. Routes and addresses that a `down` fault removed are reported as missing
    (see `down`).
    """
    state.require_root()
    record = state.read(name)
    plan = topology.plan(state.read_fabric(name)).within(record.namespaces)
    wanted = {node.name: of_node(node) for node in plan.nodes.values()}
    if record.daemons:
        for member in plan.fabric.hosts:
            spot = state.places(name, member.name)
            own = of_host(config.load(spot.config), peers_of(str(spot.socket)))
            planned = wanted[member.name]
            wanted[member.name] = replace(
                planned,
                routes=(*planned.routes, *(r for r in own.routes if r.mtu)),
                addresses=tuple(dict.fromkeys((*planned.addresses, *own.addresses))),
            )
    return len(wanted), asyncio.run(_lab(plan, wanted))


async def _lab(plan: Topology, wanted: Mapping[str, Wanted]) -> list[Finding]:
    found: list[Finding] = []
    for space, nodes in plan.namespaces().items():
        async with Netlink(space) as nl:
            there = await present(nl)
        for node in nodes:
            found += intent.compare(wanted[node.name], there, block=plan.fabric.block, netns=space)
    return found


def down(name: str) -> list[str]:
    """Return the elements of a lab that a fault keeps down."""
    return [fault.element for fault in state.read(name).faults if fault.kind == "down"]
