# SPDX-License-Identifier: GPL-2.0-only
"""Mark packets with ECN when they leave through a long queue, on switch ports that have a rate.

One program serves all ports of a lab (lab_mark in bpf/lab_port.c). The filter at each port passes
the port's number as classid, which selects the port's queue in a map pinned in the lab's bpffs. A
fault that changes the rate changes the map.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.lab import portprograms, trimming
from cli.lab.faults import Port
from cli.lab.queues import Queue, Thresholds
from cli.lab.topology import Topology
from mrcd.linux import bpf
from mrcd.linux.netlink import Netlink

PRIO = 2  # after the programs of faults, which drop packets first
_PROGRAM = "lab_mark"
_QUEUES = "lab_ecn_queues"


def load(ports: int) -> int:
    """Load the program for this map of ports and return its file descriptor."""
    return portprograms.load(_PROGRAM, ports)


def value(queue: Queue | None, busy_until_ns: int = 0) -> bytes:
    """Return the map value of a port with this queue, or None for a port without a rate."""
    marks = Thresholds.of(queue) if queue else Thresholds(0, 0, 0, 0)
    return portprograms.entry(
        busy_until=busy_until_ns,
        ps_per_byte=marks.ps_per_byte,
        some=marks.some_ns,
        all=marks.all_ns,
        full=marks.full_ns,
    )


def ports(topology: Topology) -> dict[Port, int]:
    """Return and number the ports with a program.

    Only those between switches mark: the last hop to a host never does. All of them trim.
    """
    ends = [
        (end.node, end.ifname)
        for cable in topology.cables
        for end in (cable.near, cable.far)
        if topology.nodes[end.node].kind != "host"
        and (topology.fabric.trim or topology.nodes[cable.far.node].kind != "host")
    ]
    return {port: number for number, port in enumerate(ends, 1)}


def _last_hops(topology: Topology) -> frozenset[Port]:
    """Return the ports that lead to hosts."""
    return frozenset(
        (cable.near.node, cable.near.ifname)
        for cable in topology.cables
        if topology.nodes[cable.far.node].kind == "host"
    )


class Marking:
    """The programs at the ports of one lab; a context manager that they outlive.

    They mark packets, and trim them if the fabric says so (trimming.py).
    """

    def __init__(self, topology: Topology, folder: Path, *, ecn: bool = True) -> None:
        """Open the map and program pinned in the lab's bpffs, or create and pin them.

        ecn: whether packets are marked.
        """
        self._fabric = topology.fabric
        self._ecn = ecn
        self._ports = ports(topology)
        self._last_hops = _last_hops(topology)
        try:
            self._queues = bpf.get(folder / _QUEUES)
            self._program = bpf.get(folder / _PROGRAM)
        except bpf.BpfError as error:
            if error.errno != errno.ENOENT:
                raise
            self._queues, self._program = self._load()
            bpf.pin(self._queues, folder / _QUEUES)
            bpf.pin(self._program, folder / _PROGRAM)

    def _load(self) -> tuple[int, int]:
        queues = portprograms.create_ports(len(self._ports) + 1)
        if not self._fabric.trim:
            return queues, load(queues)
        ipv4 = self._fabric.routing.underlay == 4
        return queues, trimming.load(queues, self._fabric.classes, ipv4=ipv4)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._queues)
        os.close(self._program)

    def covers(self, port: Port) -> bool:
        """Return whether this port has a program when it has a rate."""
        return port in self._ports

    def trims(self, port: Port) -> bool:
        """Return whether this port trims when it has a rate."""
        return self._fabric.trim and port in self._ports

    def _held(self, port: Port) -> bytes:
        key, size = struct.pack("=I", self._ports[port]), portprograms.ENTRY.size
        return bpf.lookup(self._queues, key, size) or bytes(size)

    def marked(self, port: Port) -> int:
        """Return how many packets the port has marked since its rate was set."""
        return portprograms.read(self._held(port))["marked"]

    def counts(self) -> dict[Port, trimming.Counts]:
        """Return what each port of a fabric that trims has done since its rate was set."""
        if not self._fabric.trim:
            return {}
        return {port: trimming.counts(self._held(port)) for port in self._ports}

    def _value(self, port: Port, queue: Queue | None) -> bytes:
        if not self._fabric.trim:
            return value(queue)
        last = port in self._last_hops
        classes = self._fabric.classes
        cut_as = classes.trimmed_lasthop if last else classes.trimmed
        return trimming.value(queue, cut_as, marks=self._ecn and not last)

    async def set_queue(self, nl: Netlink, port: Port, queue: Queue | None) -> None:
        """Mark and trim by this queue from now on, or stop that if it is None."""
        number = self._ports.get(port)
        if number is None:
            return
        bpf.update(self._queues, struct.pack("=I", number), self._value(port, queue))
        if queue is None:
            await nl.detach_clsact(port[1], prio=PRIO, direction="egress")
            return
        await nl.replace_qdisc_clsact(port[1])
        await nl.attach_clsact(
            port[1],
            self._program,
            prog_name=_PROGRAM,
            prio=PRIO,
            direction="egress",
            classid=number,
        )
