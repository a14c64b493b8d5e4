# SPDX-License-Identifier: GPL-2.0-only
"""Give the hosts of a lab NICs with several queues, and a queueing discipline of choice.

A NIC with several receive queues chooses one by a hash of the packet's addresses (RSS), and each
queue interrupts a CPU of its own. A veth has no such hash: the transmit queue at one end decides
on the receive queue at the other (`create_veth`). So a program at the egress of a switch's port to
a host computes the hash and chooses the queue. At the host, receive packet steering leads each
queue to one CPU. The kernel's own steering by a hash would not do: it looks through tunnels, so
that all packets of a TCP connection have one hash.

Which transmit queue a host's packet takes is the kernel's decision, as with any NIC: that of the
packet's socket, or one by the hash of its flow.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cli.lab.assembler import (
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R7,
    R10,
    TC_ACT_UNSPEC,
    Jump,
    always,
    call,
    finish,
    insn,
    link,
    load_imm,
    load_u32,
    move,
)
from cli.lab.faults import Port
from cli.lab.state import LabFailed
from cli.lab.topology import Cable, Topology
from mrcd.linux import bpf, ethtool, netns, sysfs
from mrcd.linux.netlink import Netlink, NetlinkFailed

QUEUES_MAX = 16
QDISCS = ("fq", "fq_codel", "pfifo_fast", "mq")
"""Queueing disciplines that distributions give to NICs."""
PRIO = 3  # after the programs that drop packets (faults) and mark them

_SKB_LOAD_BYTES = 26
_SKB_QUEUE_MAPPING = 12  # offsetof(struct __sk_buff, ...)
_SKB_PROTOCOL = 16
_IPV4, _IPV6 = socket.htons(0x0800), socket.htons(0x86DD)  # as skb->protocol has them
_TCP, _UDP = 6, 17
_ETHERNET = 14
_MULTIPLIER = 0x9E3779B1  # a prime near 2^32 divided by the golden ratio
_HEADER = -48  # place of the IP header on the stack
_PORTS = -8

Parts = list[bytes | str | Jump]


@dataclass(frozen=True, slots=True)
class HostNics:
    """The kind of NIC that hosts have in each plane.

    `qdisc` is empty where the kernel's default stays, or that of the rate limit.
    """

    queues: int = 1
    qdisc: str = ""

    def __str__(self) -> str:
        queues = "1 queue" if self.queues == 1 else f"{self.queues} queues"
        return f"NICs with {queues}" + (f" and {self.qdisc}" if self.qdisc else "")

    def check(self, rate_mbps: int) -> None:
        """Raise LabFailed unless NICs of this kind can be made here; nothing is left behind."""
        if not 1 <= self.queues <= QUEUES_MAX:
            raise LabFailed(f"a NIC has 1 to {QUEUES_MAX} queues, not {self.queues}")
        if self.qdisc == "mq" and self.queues == 1:
            raise LabFailed("mq has a queue for each of several of a NIC: give --queues, too")
        if self.qdisc == "mq" and rate_mbps:
            raise LabFailed("mq cannot be below the token bucket that limits the rate of a link")
        if not self.qdisc:
            return
        with netns.nameless():
            asyncio.run(self._try())

    async def _try(self) -> None:
        async with Netlink() as nl:
            await nl.create_veth("a", "b", mtu=1500, queues=self.queues)
            try:
                await nl.replace_qdisc("a", self.qdisc)
            except NetlinkFailed as error:
                if error.errno != errno.ENOENT:
                    raise
                raise LabFailed(
                    f"this kernel has no queueing discipline {self.qdisc}"
                    f" (CONFIG_NET_SCH_{self.qdisc.upper()}): choose another --qdisc"
                ) from None


ONE_QUEUE = HostNics()
"""What hosts have unless something else is asked for: one queue, and the kernel's discipline."""


def _load(place: int, offset: int, size: int) -> bytes:
    """Emit a copy of `size` bytes of the packet, from `offset`, to a place on the stack."""
    return b"".join(
        (
            move(R1, R6),
            load_imm(R2, offset),
            move(R3, R10),
            insn(0x07, R3, imm=place),
            load_imm(R4, size),
            call(_SKB_LOAD_BYTES),
        )
    )


def _mix(place: int, size: int) -> bytes:
    """Emit the addition of a number of bytes on the stack to the hash in r7."""
    word = (
        insn(0xAC, R7, R1)  # w7 ^= w1
        + insn(0x24, R7, imm=_MULTIPLIER)  # w7 *= multiplier
        + insn(0xBC, R2, R7)  # w2 = w7
        + insn(0x74, R2, imm=15)  # w2 >>= 15
        + insn(0xAC, R7, R2)  # w7 ^= w2
    )
    return b"".join(load_u32(R1, R10, place + at) + word for at in range(0, size, 4))


def _addresses(
    version: int, *, header: int, protocol_at: int, addresses_at: int, addresses: int
) -> Parts:
    """Emit the hash of a packet's addresses and, of TCP and UDP, its ports; else go to "out"."""
    ports = f"ports of {version}"
    return [
        _load(_HEADER, _ETHERNET, header),
        Jump("out", 0x55, R0, imm=0),
        _mix(_HEADER + addresses_at, addresses),
        insn(0x71, R1, R10, _HEADER + protocol_at),  # r1 = the protocol behind the IP header
        Jump(ports, 0x15, R1, imm=_TCP),
        Jump("choose", 0x55, R1, imm=_UDP),
        ports,
        _load(_PORTS, _ETHERNET + header, 4),
        Jump("choose", 0x55, R0, imm=0),
        _mix(_PORTS, 4),
    ]


def assemble(queues: int) -> bytes:
    """Assemble the program, which chooses one of `queues` by a hash of a packet's outer addresses.

    As usual with NICs, the ports of TCP and UDP count, too. The kernel gives a packet without a
    socket to the transmit queue that the program records as that of its arrival.
    """
    return link(
        [
            move(R6, R1),
            load_imm(R7, 0),
            load_u32(R1, R6, _SKB_PROTOCOL),
            Jump("IPv4", 0x15, R1, imm=_IPV4),
            Jump("out", 0x55, R1, imm=_IPV6),
            *_addresses(6, header=40, protocol_at=6, addresses_at=8, addresses=32),
            always("choose"),
            "IPv4",
            *_addresses(4, header=20, protocol_at=9, addresses_at=12, addresses=8),
            "choose",
            insn(0x27, R7, imm=queues),  # r7 *= queues
            insn(0x77, R7, imm=32),  # r7 >>= 32
            insn(0x07, R7, imm=2),  # 1 for the transmit queue, 1 since 0 means none here, too
            insn(0x63, R6, R7, _SKB_QUEUE_MAPPING),  # skb->queue_mapping = w7
            "out",
            finish(TC_ACT_UNSPEC),
        ]
    )


def ports(topology: Topology, nics: HostNics) -> frozenset[Port]:
    """Return the ports of switches that choose a host's receive queue."""
    if nics.queues == 1:
        return frozenset()
    return frozenset((cable.near.node, cable.near.ifname) for cable in topology.nic_cables())


def queues(topology: Topology, nics: HostNics, cable: Cable) -> int:
    """Return how many queues both ends of a cable have."""
    return nics.queues if topology.nodes[cable.far.node].kind == "host" else 1


async def choose_queues(topology: Topology, nics: HostNics, sockets: Mapping[str, Netlink]) -> None:
    """Attach the program to all ports that choose; `sockets` are those of the nodes."""
    chosen = ports(topology, nics)
    if not chosen:
        return
    handle, _ = bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, assemble(nics.queues), name="lab_rss")
    try:
        for node, port in sorted(chosen):
            await sockets[node].replace_qdisc_clsact(port)
            await sockets[node].attach_clsact(
                port, handle, prog_name="lab_rss", prio=PRIO, direction="egress"
            )
    finally:
        os.close(handle)


def receive_on_cpus(topology: Topology, nics: HostNics) -> None:
    """Have each receive queue of the hosts' NICs served by a CPU, queue q by CPU q.

    GRO is on, as drivers have it.
    """
    if nics.queues == 1:
        return
    for node in topology.nodes.values():
        if node.kind == "host":
            with netns.entered(topology.namespace(node.name)):
                for name in node.ports:
                    ethtool.set_features(name, gro=True)
                steer(node.ports, range(nics.queues))


def steer(names: Sequence[str], cpus: Iterable[int]) -> None:
    """Have each receive queue of these interfaces of this namespace served by one CPU.

    `cpus` has a number for each queue; it counts round where there are fewer CPUs.
    """
    count = os.cpu_count() or 1
    for queue, cpu in enumerate(cpus):
        mask = sysfs.cpu_mask(1 << cpu % count)
        sysfs.write_interfaces(names, f"queues/rx-{queue}/rps_cpus", mask)
