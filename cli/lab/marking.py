# SPDX-License-Identifier: GPL-2.0-only
"""Mark packets with ECN when they leave through a long queue, on switch ports that have a rate.

One program serves all ports of a lab. It simulates the queue behind a port (bucket.py). The filter
at each port passes the port's number as classid, which selects the port's queue in a map pinned in
the lab's bpffs. A fault that changes the rate changes the map. When two CPUs send through one port
at the same time, a packet may be missing from the sum.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.lab import bucket, trimming
from cli.lab.assembler import TC_ACT_UNSPEC, finish, link
from cli.lab.faults import Port
from cli.lab.queues import Queue, Thresholds
from cli.lab.topology import Topology
from mrcd.linux import bpf
from mrcd.linux.netlink import Netlink

PRIO = 2  # after the programs of faults, which drop packets first
_PROGRAM = "lab_ecn"
_QUEUES = "lab_ecn_queues"

VALUE_SIZE = 8 * len(bucket.FIELDS)


def assemble(map_fd: int) -> bytes:
    """Assemble the program; `map_fd` is an array of queues."""
    return link(
        [
            *bucket.find(map_fd),
            *bucket.admit(full="overflows"),
            "overflows",  # the queue drops the packet
            *bucket.mark(),
            "out",
            finish(TC_ACT_UNSPEC),
        ]
    )


def load(map_fd: int) -> int:
    """Load the program for this map and return its file descriptor."""
    handle, _ = bpf.load_program(
        bpf.PROG_TYPE_SCHED_CLS, assemble(map_fd), name=_PROGRAM, log_size=1 << 16
    )
    return handle


def create_queues(ports: int) -> int:
    """Create a map with a queue for each port and return its file descriptor."""
    return bpf.create_array(VALUE_SIZE, ports, name="lab_ecn")


def value(queue: Queue | None, busy_until_ns: int = 0) -> bytes:
    """Return the map value of a port with this queue, or None for a port without a rate."""
    marks = Thresholds.of(queue) if queue else Thresholds(0, 0, 0, 0)
    parts = (busy_until_ns, marks.ps_per_byte, marks.some_ns, marks.all_ns, marks.full_ns, 0)
    return struct.pack("=6Q", *parts)


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
        count = len(self._ports) + 1
        if not self._fabric.trim:
            queues = create_queues(count)
            return queues, load(queues)
        queues = trimming.create_queues(count)
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

    def _held(self, port: Port, size: int) -> bytes:
        key = struct.pack("=I", self._ports[port])
        return bpf.lookup(self._queues, key, size) or bytes(size)

    def marked(self, port: Port) -> int:
        """Return how many packets the port has marked since its rate was set."""
        size = trimming.VALUE_SIZE if self._fabric.trim else VALUE_SIZE
        return int(struct.unpack_from("=Q", self._held(port, size), bucket.AT["marked"])[0])

    def counts(self) -> dict[Port, trimming.Counts]:
        """Return what each port of a fabric that trims has done since its rate was set."""
        if not self._fabric.trim:
            return {}
        return {
            port: trimming.counts(self._held(port, trimming.VALUE_SIZE)) for port in self._ports
        }

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
