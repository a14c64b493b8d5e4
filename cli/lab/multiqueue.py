# SPDX-License-Identifier: GPL-2.0-only
"""Give the hosts of a lab NICs with several queues, and a queueing discipline of choice.

A NIC with several receive queues chooses one by a hash of the packet's addresses (RSS), and each
queue interrupts a CPU of its own. A veth has no such hash: the transmit queue at one end decides
on the receive queue at the other (`create_veth`). So a program at the egress of a switch's port to
a host (lab_spread in bpf/lab_port.c) computes the hash and chooses the queue. At the host, receive
packet steering leads each queue to one CPU. The kernel's own steering by a hash would not do: it
looks through tunnels, so that all packets of a TCP connection have one hash.

Which transmit queue a host's packet takes is the kernel's decision, as with any NIC: that of the
packet's socket, or one by the hash of its flow.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cli.lab import portprograms
from cli.lab.faults import Port
from cli.lab.state import LabFailed
from cli.lab.topology import Cable, Topology
from mrcd.linux import ethtool, netns, sysfs
from mrcd.linux.netlink import Netlink, NetlinkFailed

QUEUES_MAX = 16
QDISCS = ("fq", "fq_codel", "pfifo_fast", "mq")
"""Queueing disciplines that distributions give to NICs."""
PRIO = 3  # after the programs that drop packets (faults) and mark them


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
    handle = portprograms.load("lab_spread", queues=nics.queues)
    try:
        for node, port in sorted(chosen):
            await sockets[node].replace_qdisc_clsact(port)
            await sockets[node].attach_clsact(
                port, handle, prog_name="lab_spread", prio=PRIO, direction="egress"
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
