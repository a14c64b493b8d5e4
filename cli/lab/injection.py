# SPDX-License-Identifier: GPL-2.0-only
"""Bring the ports of a running lab into the state that its faults require.

Classifiers and programs are prepared first. The change itself is then made in one go, so that a
whole plane fails within a millisecond or two.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cli.lab import build, delays, impair
from cli.lab.faults import Effect, Impairment, Port, by_distance
from cli.lab.marking import Marking
from cli.lab.queues import Queue
from cli.lab.topology import Topology
from mrcd.linux import ethtool, netns
from mrcd.linux.netlink import Netlink

_PRIO = 1
_DIRECTIONS = ("ingress", "egress")


@dataclass(frozen=True, slots=True)
class Applied:
    """The CLOCK_MONOTONIC times at which a change began and was in full effect."""

    began_ns: int
    effective_ns: int


@dataclass(slots=True)
class _Work:
    """The work on one port: its wanted effect and the programs prepared for it."""

    port: str
    node: str
    space: str
    nl: Netlink
    effect: Effect
    programs: dict[str, int]
    was_up: bool


async def apply(
    topology: Topology,
    ports: Iterable[Port],
    wanted: dict[Port, Effect],
    marking: Marking | None,
    choosing: Collection[Port] = (),
) -> Applied:
    """Give each port its wanted effect; a port without one becomes healthy.

    `choosing`: ports with a program that is no fault's, and stays (multiqueue.py).
    """
    async with contextlib.AsyncExitStack() as stack:
        sockets: dict[str, Netlink] = {}
        up: dict[str, set[str]] = {}
        jobs = []
        for node, port in sorted(ports, key=by_distance):
            space = topology.namespace(node)
            if space not in sockets:
                sockets[space] = await stack.enter_async_context(Netlink(space))
                links = await sockets[space].links()
                up[space] = {name for name, link in links.items() if link.up}
            effect = wanted.get((node, port), Effect())
            programs = await _prepare(sockets[space], space, port, effect, topology.fabric.mtu)
            was_up = port in up[space]
            jobs.append(_Work(port, node, space, sockets[space], effect, programs, was_up))
        _send_whole(topology, ((job.node, job.port, job.effect) for job in jobs))
        try:
            began_ns = time.monotonic_ns()
            for job in jobs:
                await _switch(job)
            effective_ns = time.monotonic_ns()
        finally:
            for job in jobs:
                for handle in job.programs.values():
                    os.close(handle)
        for job in jobs:
            await _set_rate(topology, job, marking)
        raised = {job.node: job.nl for job in jobs if not job.was_up and not job.effect.down}
        for node, nl in raised.items():
            await build.configure(nl, [topology.nodes[node]])
        slow = any(job.effect.egress_mbps for job in jobs)
        if raised or slow:
            effective_ns = time.monotonic_ns()
        for job in jobs:
            await _tidy(topology, job, marking, choosing)
    return Applied(began_ns, effective_ns)


def _send_whole(topology: Topology, effects: Iterable[tuple[str, str, Effect]]) -> None:
    """Have packets that may be corrupted arrive as they would on a wire: cut, with checksums.

    Between namespaces a packet has neither until it leaves the machine, and nobody would notice the
    damage. So the interfaces that send to such a port lose their offloads, until the lab is taken
    down.
    """
    senders: set[Port] = set()
    for node, port, effect in effects:
        arriving = {port} if effect.ingress.corrupt_ppm else set()
        if effect.egress.corrupt_ppm:
            arriving |= {other for other in topology.nodes[node].ports if other != port}
        for cable in topology.cables:
            for end, other in ((cable.near, cable.far), (cable.far, cable.near)):
                if end.node == node and end.ifname in arriving:
                    senders.add((other.node, other.ifname))
    there = set(netns.names())
    for node, port in senders:
        space = topology.namespace(node)
        if space not in there:  # another machine, whose packets come over a wire
            continue
        with netns.entered(space):
            ethtool.set_features(port, tso=False, gso=False, tx_checksum=False)


def _shaper(port: str) -> str:
    """Return the name of the ifb through which a port's incoming packets are shaped."""
    return f"in-{port}"


async def _prepare(nl: Netlink, space: str, port: str, effect: Effect, mtu: int) -> dict[str, int]:
    """Do everything that has no effect on traffic yet; return the programs by direction."""
    programs: dict[str, int] = {}
    divert = {"ingress": 0, "egress": 0}
    if effect.ingress_mbps:
        shaper = _shaper(port)
        await nl.create_ifb(shaper)
        await nl.set_link(shaper, up=True)
        await build.set_rate(nl, shaper, effect.ingress_mbps, mtu)
        divert["ingress"] = nl.index(shaper)
    if effect.egress_delay_us:
        divert["egress"] = await _holder(nl, space, port, effect.egress_delay_us, mtu)
    for direction, impairment in zip(_DIRECTIONS, (effect.ingress, effect.egress), strict=True):
        to = divert[direction]
        if impairment != Impairment() or to:
            once = bool(to) and direction == "egress"
            programs[direction] = impair.load(impairment, to, once=once)
    if programs:
        await nl.replace_qdisc_clsact(port)
    return programs


async def _holder(nl: Netlink, space: str, port: str, delay_us: int, mtu: int) -> int:
    """Make a process hold the port's packets; return the index of the tap that leads to it."""
    tap = delays.tap(port)
    if delay_us not in delays.running(space, port).values():
        delays.stop(list(delays.running(space, port)))
        delays.start(space, port, delay_us)
        await nl.set_link(tap, up=True, mtu=mtu)
    return nl.index(tap)


async def _switch(job: _Work) -> None:
    """Make the change itself."""
    if job.effect.down == job.was_up:
        await job.nl.set_link(job.port, up=not job.effect.down)
    for direction in _DIRECTIONS:
        handle = job.programs.get(direction)
        if handle is not None:
            await job.nl.attach_clsact(
                job.port, handle, prog_name="lab_fault", prio=_PRIO, direction=direction
            )
        else:
            await job.nl.detach_clsact(job.port, prio=_PRIO, direction=direction)


def _rate_mbps(topology: Topology, job: _Work) -> int:
    """Return the port's rate limit in Mb/s, 0 if it has none."""
    rates = (job.effect.egress_mbps, topology.fabric.rate_mbps)
    return min((rate for rate in rates if rate), default=0)


async def _set_rate(topology: Topology, job: _Work, marking: Marking | None) -> None:
    rate, mtu = _rate_mbps(topology, job), topology.fabric.mtu
    trims = marking is not None and marking.trims((job.node, job.port))
    await build.set_rate(job.nl, job.port, rate, mtu, trims=trims)
    if marking:
        queue = Queue.of(rate, mtu) if rate else None
        await marking.set_queue(job.nl, (job.node, job.port), queue)


async def _tidy(
    topology: Topology, job: _Work, marking: Marking | None, choosing: Collection[Port]
) -> None:
    """Remove the objects that a port no longer needs."""
    marks = marking and marking.covers((job.node, job.port)) and _rate_mbps(topology, job)
    if not job.programs and not marks and (job.node, job.port) not in choosing:
        await job.nl.delete_clsact(job.port)
    if not job.effect.egress_delay_us and job.nl.exists(delays.tap(job.port)):
        delays.stop(list(delays.running(job.space, job.port)))
    if not job.effect.ingress_mbps:
        await job.nl.delete_link(_shaper(job.port))
