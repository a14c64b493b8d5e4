# SPDX-License-Identifier: GPL-2.0-only
"""Mark packets with ECN when they leave through a long queue, on switch ports that have a rate.

A program at a port's egress cannot see the tbf behind it. It therefore simulates the bucket, in
time instead of bytes: `busy_until` is when the link will have sent everything it was given. The
difference to now is the length of the queue. Each packet adds its transmission time at the link's
rate, and like the real queue the simulated one never grows beyond its limit. Between two thresholds
(queues.py) the chance of a mark rises from 0 to 1. Only ECT packets become CE; the kernel's helper
for this also corrects the IPv4 header checksum.

One program serves all ports of a lab. The filter at each port passes the port's number as classid,
which selects the port's queue in a map pinned in the lab's bpffs. A fault that changes the rate
changes the map. When two CPUs send through one port at the same time, a packet may be missing from
the sum.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from mrcd.lab import trimming
from mrcd.lab.assembler import (
    PRANDOM_U32,
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R7,
    R8,
    R9,
    R10,
    TC_ACT_UNSPEC,
    add,
    call,
    finish,
    insn,
    load_imm,
    load_map,
    load_u32,
    load_u64,
    move,
    store_u64,
    subtract,
)
from mrcd.lab.faults import Port
from mrcd.lab.queues import Queue, Thresholds
from mrcd.lab.topology import Topology
from mrcd.linux import bpf
from mrcd.linux.netlink import Netlink

PRIO = 2  # after the programs of faults, which drop packets first
_PROGRAM = "lab_ecn"
_QUEUES = "lab_ecn_queues"

_MAP_LOOKUP_ELEM = 1
_KTIME_GET_NS = 5
_SKB_PULL_DATA = 39
_SKB_ECN_SET_CE = 97

_SKB_TC_CLASSID = 72  # offsetof(struct __sk_buff, ...)
_SKB_WIRE_LEN = 160  # with the link header, of each segment

# The value of a queue: busy_until, ps_per_byte, some, all, full (ns), packets marked.
VALUE_SIZE = 48
_BUSY_UNTIL, _PS_PER_BYTE, _SOME, _ALL, _FULL, _MARKED = range(0, VALUE_SIZE, 8)

_JEQ, _JGE, _JLE = 0x15, 0x35, 0xB5  # compare with a constant; adding 0x08 compares with a register


def assemble(map_fd: int) -> bytes:
    """Assemble the program; `map_fd` is an array of queues."""
    mark = b"".join(
        (
            move(R1, R6),
            load_imm(R2, 0),
            call(_SKB_PULL_DATA),  # the header may belong to a clone
            move(R1, R6),
            call(_SKB_ECN_SET_CE),
            insn(_JEQ, R0, offset=2, imm=0),  # not ECT
            load_imm(R1, 1),
            insn(0xDB, R7, R1, _MARKED),  # lock *(u64 *)(r7 + marked) += r1
        )
    )
    by_chance = b"".join(
        (
            load_u64(R1, R7, _SOME),
            subtract(R8, R1),
            subtract(R2, R1),
            insn(0x67, R8, imm=32),  # r8 <<= 32
            insn(0x3F, R8, R2),  # r8 /= r2: the chance in 2^-32
            call(PRANDOM_U32),
            insn(_JGE | 0x08, R0, R8, len(mark) // 8),  # out
        )
    )
    thresholds = b"".join(
        (
            load_u64(R1, R7, _SOME),
            insn(_JLE | 0x08, R8, R1, 2 + (len(by_chance) + len(mark)) // 8),  # out
            load_u64(R2, R7, _ALL),
            insn(_JGE | 0x08, R8, R2, len(by_chance) // 8),  # mark
        )
    )
    account = b"".join(
        (
            call(_KTIME_GET_NS),
            move(R9, R0),
            load_u32(R1, R6, _SKB_WIRE_LEN),
            load_u64(R2, R7, _PS_PER_BYTE),
            insn(0x2F, R1, R2),  # r1 *= r2
            insn(0x37, R1, imm=1000),  # r1 /= 1000: ns to transmit the packet
            load_u64(R2, R7, _BUSY_UNTIL),
            insn(_JGE | 0x08, R2, R9, 1),
            move(R2, R9),
            move(R8, R2),
            subtract(R8, R9),  # r8: the queue ahead of this packet, ns
            move(R3, R8),
            add(R3, R1),
            load_u64(R4, R7, _FULL),
            insn(0x2D, R3, R4, 2),  # if r3 > r4: the queue drops it
            add(R2, R1),
            store_u64(R7, _BUSY_UNTIL, R2),
        )
    )
    body = account + thresholds + by_chance + mark
    find = b"".join(
        (
            move(R6, R1),
            load_u32(R2, R6, _SKB_TC_CLASSID),
            insn(0x63, R10, R2, -4),  # *(u32 *)(r10 - 4) = r2
            load_map(R1, map_fd),
            move(R2, R10),
            insn(0x07, R2, imm=-4),  # r2 += -4
            call(_MAP_LOOKUP_ELEM),
            insn(_JEQ, R0, offset=3 + len(body) // 8, imm=0),
            move(R7, R0),
            load_u64(R8, R7, _PS_PER_BYTE),
            insn(_JEQ, R8, offset=len(body) // 8, imm=0),  # no rate
        )
    )
    return find + body + finish(TC_ACT_UNSPEC)


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
        return int(struct.unpack_from("=Q", self._held(port, size), _MARKED)[0])

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
