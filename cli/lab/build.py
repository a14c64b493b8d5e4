# SPDX-License-Identifier: GPL-2.0-only
"""Create the namespaces of a topology and configure everything in them.

All work happens in this process, through one netlink socket in each namespace, without running
commands. `configure` may be repeated, since a link that went down has lost its IPv6 addresses and
routes.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Container, Iterable
from pathlib import Path

from cli.lab import multiqueue
from cli.lab.marking import Marking
from cli.lab.multiqueue import ONE_QUEUE, HostNics
from cli.lab.queues import Queue, TrimQueue
from cli.lab.topology import ANCHOR, Node, Topology
from mrcd.linux import netns
from mrcd.linux.netlink import Netlink

# `default` applies to interfaces that are created later; only lo exists so far.
_SYSCTLS_ALL = {
    "net/ipv4/conf/{}/rp_filter": "0",
    "net/ipv6/conf/{}/accept_dad": "0",
    "net/ipv6/conf/{}/accept_ra": "0",
    "net/ipv6/conf/{}/router_solicitations": "0",
    "net/ipv6/conf/{}/seg6_enabled": "1",
}
_SYSCTLS_SWITCH = {
    "net/ipv4/conf/{}/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/{}/ignore_routes_with_linkdown": "1",
    "net/ipv4/conf/{}/forwarding": "1",
    "net/ipv4/conf/{}/send_redirects": "0",
    "net/ipv6/conf/{}/forwarding": "1",
}
_FIVE_TUPLE = str(0x01 | 0x02 | 0x04 | 0x10 | 0x20)  # addresses, protocol, ports
_SYSCTLS_ONCE = {
    "net/ipv6/conf/default/addr_gen_mode": "1",  # the kernel adds no link-local address
    # Policy 3 hashes the packet's fields. Policy 1 would use the hash that a packet on a veth keeps
    # from its sender's socket, which no real switch sees and which TCP changes on a timeout.
    "net/ipv4/fib_multipath_hash_policy": "3",
    "net/ipv6/fib_multipath_hash_policy": "3",
    "net/ipv4/fib_multipath_hash_fields": _FIVE_TUPLE,
    "net/ipv6/fib_multipath_hash_fields": _FIVE_TUPLE,
}


def _sysctls(node: Node) -> dict[str, str]:
    both = dict(_SYSCTLS_ALL)
    if node.kind != "host":
        both |= _SYSCTLS_SWITCH
    wanted = {
        key.format(which): value for key, value in both.items() for which in ("all", "default")
    }
    return wanted | _SYSCTLS_ONCE


def create_namespace(name: str, node: Node) -> None:
    """Create an empty namespace with the sysctls of a node; nodes of its kind may share it."""
    netns.create(name)
    with netns.entered(name):
        for key, value in _sysctls(node).items():
            Path("/proc/sys", key).write_text(value)


async def build(topology: Topology, marking: Marking | None, nics: HostNics = ONE_QUEUE) -> None:
    """Create all links and configure all nodes; the namespaces must exist already.

    nics: the kind of the hosts' NICs.
    """
    fabric = topology.fabric
    spaces = topology.namespaces()
    _allow_open_files(4 * len(spaces) + 64)
    async with contextlib.AsyncExitStack() as stack:
        sockets: dict[str, Netlink] = {}
        for space, members in spaces.items():
            nl = await stack.enter_async_context(Netlink(space))
            sockets |= {node.name: nl for node in members}
        for cable in topology.cables:
            await sockets[cable.near.node].create_veth(
                cable.near.ifname,
                cable.far.ifname,
                mtu=fabric.mtu,
                mac=cable.near.mac,
                peer_mac=cable.far.mac,
                peer_netns=topology.namespace(cable.far.node),
                queues=multiqueue.queues(topology, nics, cable),
            )
        for members in spaces.values():
            nl = sockets[members[0].name]
            await nl.set_link("lo", up=True)
            if members[0].kind != "host":
                await nl.create_ifb(ANCHOR)
                await nl.set_link(ANCHOR, up=True)
            for node in members:
                for port in node.ports:
                    await nl.set_link(port, up=True)
                    trims = marking is not None and marking.trims((node.name, port))
                    await set_rate(nl, port, fabric.rate_mbps, fabric.mtu, trims=trims)
                    if node.kind == "host" and nics.qdisc:
                        below = fabric.rate_mbps > 0
                        await nl.replace_qdisc(port, nics.qdisc, below_tbf=below)
                    if marking and fabric.rate_mbps:
                        queue = Queue.of(fabric.rate_mbps, fabric.mtu)
                        await marking.set_queue(nl, (node.name, port), queue)
                if node.table is not None:
                    await _choose_table(nl, node, node.table)
            await configure(nl, members)
            for node in members:
                if node.kind != "host":
                    _pin_to_cpu(topology, node, nics)
        await multiqueue.choose_queues(topology, nics, sockets)
    multiqueue.receive_on_cpus(topology, nics)


async def _choose_table(nl: Netlink, node: Node, table: int) -> None:
    """Route the packets that enter a node's ports, and its own packets, by the node's table."""
    for version in (4, 6):
        for port in node.ports:
            await nl.add_rule(version, table, iif=port)
    for dev, cidr in node.addresses:
        if dev == ANCHOR:
            await nl.add_rule(6 if ":" in cidr else 4, table, src=cidr)


def _pin_to_cpu(topology: Topology, node: Node, nics: HostNics) -> None:
    """Make a switch forward on one CPU, so that a path keeps its packets in order.

    Real switches are separate machines. In a lab any CPU may take any packet, and two busy CPUs
    overtake each other by whole time slices. With rate-limited links, all switches share the last
    CPU. Without limits the CPU is the bottleneck, so each plane's switches get their own CPU as far
    as there are enough. So they do where hosts have NICs with several queues, whose packets come
    from several CPUs.
    """
    cpus = os.cpu_count() or 1
    alone = topology.fabric.rate_mbps and nics.queues == 1
    cpu = cpus - 1 if alone else (node.plane or 0) % cpus
    several = multiqueue.ports(topology, nics)
    to_hosts = [port for port in node.ports if (node.name, port) in several]
    with netns.entered(topology.namespace(node.name)):
        multiqueue.steer(node.ports, [cpu])
        if to_hosts:
            multiqueue.steer(to_hosts, [cpu] * nics.queues)


async def configure(nl: Netlink, nodes: Iterable[Node]) -> None:
    """Give the nodes of one namespace their addresses, neighbours, uSIDs and routes (again)."""
    down = {name for name, link in (await nl.links()).items() if not link.up}
    read_back = True  # checking one uSID is enough: it shows whether the kernel knows the flavour
    for node in nodes:
        await _configure(nl, node, down, read_back=read_back)
        read_back = read_back and node.locator is None


async def _configure(nl: Netlink, node: Node, down: Container[str], *, read_back: bool) -> None:
    for dev, cidr in node.addresses:
        if dev not in down:
            # Routes come from the topology, not from the prefix of an address.
            await nl.add_address(dev, cidr, prefix_route=cidr.startswith("fe80:"))
    for dev, ip, mac in node.neighbors:
        if dev not in down:
            await nl.add_neighbor(dev, ip, mac)
    if node.locator is not None:
        await nl.add_usid_end(node.locator, dev=ANCHOR, table=node.table, read_back=read_back)
    for route in node.routes:
        nexthops = tuple(hop for hop in route.nexthops if hop.dev not in down)
        if route.dev in down or (route.nexthops and not nexthops):
            continue
        await nl.replace_route(
            route.dst,
            dev=route.dev,
            via=route.via,
            src=route.src,
            nexthops=nexthops,
            table=node.table,
        )


async def set_rate(
    nl: Netlink, ifname: str, rate_mbps: int, mtu: int, *, trims: bool = False
) -> None:
    """Limit the rate of `ifname`'s outgoing packets; 0 removes the limit.

    trims: a program decides what is dropped, and there is a queue for what it has trimmed.
    """
    if rate_mbps == 0:
        await nl.delete_root_qdisc(ifname)
        return
    queue = Queue.of(rate_mbps, mtu)
    if trims:
        both = TrimQueue.of(queue)
        await nl.replace_htb(
            ifname,
            rate_bytes_per_s=queue.rate_bytes_per_s,
            burst_bytes=queue.burst_bytes,
            first_bytes=both.first_bytes,
            second_bytes=both.second_bytes,
            frame_bytes=mtu + 14,
        )
        return
    await nl.replace_tbf(
        ifname,
        rate_bytes_per_s=queue.rate_bytes_per_s,
        burst_bytes=queue.burst_bytes,
        limit_bytes=queue.limit_bytes,
    )


def _allow_open_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
