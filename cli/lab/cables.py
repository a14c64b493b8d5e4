# SPDX-License-Identifier: GPL-2.0-only
"""Build the namespaces, cables and switches of a lab without a fabric, and break them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from cli.lab import build, cablefaults, impair, multiqueue
from cli.lab.faults import Effect, Impairment, Port
from cli.lab.injection import Applied
from cli.lab.shape import Shape
from cli.lab.state import LabFailed
from mrcd.linux import netns
from mrcd.linux.netlink import Netlink

_BRIDGE = "br0"
_PRIO = 1
# As in labs of a fabric, but NICs have link-local addresses of the kernel, as on real hosts.
_SYSCTLS = {
    "net/ipv4/conf/{}/rp_filter": "0",
    "net/ipv6/conf/{}/accept_dad": "0",
    "net/ipv6/conf/{}/accept_ra": "0",
    "net/ipv6/conf/{}/router_solicitations": "0",
}
_SYSCTLS_SWITCH = {"net/ipv6/conf/{}/disable_ipv6": "1"}


def namespaces(shape: Shape) -> tuple[str, ...]:
    """Return the names of all namespaces."""
    nodes = [*(host.name for host in shape.hosts), *shape.switches]
    return tuple(map(shape.namespace, nodes))


def create_namespaces(shape: Shape) -> None:
    """Create the empty namespaces of all hosts and switches."""
    for nodes, more in (
        ([host.name for host in shape.hosts], {}),
        (shape.switches, _SYSCTLS_SWITCH),
    ):
        for node in nodes:
            netns.create(shape.namespace(node))
            with netns.entered(shape.namespace(node)):
                for key, value in (_SYSCTLS | more).items():
                    for which in ("all", "default"):
                        Path("/proc/sys", key.format(which)).write_text(value)


async def build_links(shape: Shape) -> None:
    """Lay all cables and set everything up; the namespaces must exist already."""
    async with contextlib.AsyncExitStack() as stack:
        sockets = await _sockets(stack, shape, [*(h.name for h in shape.hosts), *shape.switches])
        for node, nl in sockets.items():
            await nl.set_link("lo", up=True)
            if node in shape.switches:
                await nl.create_bridge(_BRIDGE, mtu=shape.mtu)
                await nl.set_link(_BRIDGE, up=True)
        rates = cablefaults.rates(shape)
        for link in cablefaults.links(shape):
            (node, nic), (other, port) = link.ends
            await sockets[node].create_veth(
                nic, port, mtu=shape.mtu, peer_netns=shape.namespace(other)
            )
            if link.network.switch is not None:
                bridge = sockets[other].index(_BRIDGE)
                await sockets[other].set_link(port, master=bridge)
            for end, name in link.ends:
                await sockets[end].set_link(name, up=True)
                await build.set_rate(sockets[end], name, rates[end, name], shape.mtu)
    _pin_switches(shape)


async def _sockets(
    stack: contextlib.AsyncExitStack, shape: Shape, nodes: Iterable[str]
) -> dict[str, Netlink]:
    """Return a netlink socket in each node's namespace."""
    return {node: await stack.enter_async_context(Netlink(shape.namespace(node))) for node in nodes}


def _pin_switches(shape: Shape) -> None:
    """Make each switch forward on one CPU, so that it keeps packets in order."""
    for network in shape.networks:
        if network.switch is not None:
            ports = [cablefaults.port_of((nic.host, nic.name)) for nic in network.nics]
            with netns.entered(shape.namespace(network.switch)):
                multiqueue.steer(ports, [network.number])


async def apply(shape: Shape, ports: Collection[Port], wanted: Mapping[Port, Effect]) -> Applied:
    """Give each of these ends of links its wanted effect; one without becomes healthy.

    A host's mrcd may have a clsact of its own on a NIC, so it stays.
    """
    rates = cablefaults.rates(shape)
    programs: dict[Port, int] = {}
    async with contextlib.AsyncExitStack() as stack:
        sockets = await _sockets(stack, shape, sorted({node for node, _ in ports}))
        try:
            up = {node: await nl.links() for node, nl in sockets.items()}
            if gone := [f"{node} has no {name}" for node, name in ports if name not in up[node]]:
                raise LabFailed(f"{', '.join(gone)} any more: it was renamed or removed")
            for node, name in ports:
                effect = wanted.get((node, name), Effect())
                if effect.egress != Impairment():
                    programs[node, name] = impair.load(effect.egress)
                    await sockets[node].replace_qdisc_clsact(name)
            began_ns = time.monotonic_ns()
            for node, name in ports:
                effect = wanted.get((node, name), Effect())
                if effect.down == up[node][name].up:
                    await sockets[node].set_link(name, up=not effect.down)
                await _attach(sockets[node], name, programs.get((node, name)))
                limits = [rate for rate in (effect.egress_mbps, rates[node, name]) if rate]
                await build.set_rate(sockets[node], name, min(limits, default=0), shape.mtu)
        finally:
            for handle in programs.values():
                os.close(handle)
    return Applied(began_ns, time.monotonic_ns())


async def _attach(nl: Netlink, name: str, program: int | None) -> None:
    """Have a program see what leaves one end of a link, or none."""
    if program is None:
        await nl.detach_clsact(name, prio=_PRIO, direction="egress")
    else:
        await nl.attach_clsact(name, program, prog_name="lab_fault", prio=_PRIO, direction="egress")
