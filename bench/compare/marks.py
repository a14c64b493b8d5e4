# SPDX-License-Identifier: GPL-2.0-only
"""Have the ports that lead to hosts mark packets in long queues, which a lab leaves to the others.

A lab's last hops never mark: a mark there would blame a path for the queue of the receiver's own
link. DCTCP needs marks wherever a queue grows, and in an incast that is the last hop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Iterator, Sequence

from bench.instruments import backlog
from bench.instruments.backlog import Port
from cli.lab import marking, portprograms, state, topology
from cli.lab.queues import Queue
from mrcd.linux import bpf
from mrcd.linux.netlink import Netlink

_PROGRAM = "lab_ecn"


@contextlib.contextmanager
def at_last_hops(name: str) -> Iterator[None]:
    """Mark at the last hops, too, during the block, with the thresholds of the other ports.

    The lab must have a rate and must not trim.
    """
    plan = topology.plan(state.read_fabric(name))
    ports = backlog.last_hops(plan)
    queues = portprograms.create_ports(len(ports))
    program = marking.load(queues)
    try:
        queue = Queue.of(plan.fabric.rate_mbps, plan.fabric.mtu)
        for number in range(len(ports)):
            bpf.update(queues, struct.pack("=I", number), marking.value(queue))
        asyncio.run(_attach(ports, program))
        try:
            yield
        finally:
            asyncio.run(_detach(ports))
    finally:
        os.close(program)
        os.close(queues)


async def _attach(ports: Sequence[Port], program: int) -> None:
    for number, (namespace, port) in enumerate(ports):
        async with Netlink(namespace) as nl:
            await nl.replace_qdisc_clsact(port)
            await nl.attach_clsact(
                port, program, prog_name=_PROGRAM, prio=marking.PRIO, direction="egress",
                classid=number,
            )  # fmt: skip


async def _detach(ports: Sequence[Port]) -> None:
    for namespace, port in ports:
        async with Netlink(namespace) as nl:
            await nl.delete_clsact(port)
