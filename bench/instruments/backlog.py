# SPDX-License-Identifier: GPL-2.0-only
"""Read how much waits in the queues of ports, by netlink, often enough to know the distribution.

The kernel is asked for the root qdisc of a single port, which takes some 5 us. A list of all of
them, as pyroute2 and tc ask for it, takes a hundred times as long, and CPU time that the hosts of
a lab need.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import MS, Floats, Ints, S
from cli.lab.topology import Topology
from mrcd.linux import netns

Port = tuple[str, str]  # namespace, interface

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, sender
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg: family, interface, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr: length, type
_NEW, _GET = 36, 38  # RTM_NEWQDISC, RTM_GETQDISC
_REQUEST_ECHO = 1 | 8  # NLM_F_REQUEST | NLM_F_ECHO
_ROOT = 0xFFFFFFFF  # TC_H_ROOT
_STATS, _AT = 3, 32  # TCA_STATS; offsetof(struct tc_stats, backlog)
_MOST = 1 << 16
_WITHIN_S = 1.0


class Backlogs:
    """The root queues of ports, with the bytes that wait in each; a port must have one."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._asked: list[tuple[socket.socket, bytes]] = []
        for namespace, interface in ports:
            with netns.entered(namespace):  # the socket stays with its namespace
                asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
                asking.settimeout(_WITHIN_S)
                self._asked.append((asking, request(socket.if_nametoindex(interface))))

    def read(self) -> tuple[int, ...]:
        """Return the bytes that wait now, in the order of the ports."""
        found = []
        for asking, words in self._asked:
            asking.send(words)
            found.append(waiting(asking.recv(_MOST)))
        return tuple(found)

    def close(self) -> None:
        """Release the namespaces."""
        for asking, _ in self._asked:
            asking.close()


def request(index: int) -> bytes:
    """Return the message that asks for the root qdisc of an interface."""
    body = _TC.pack(socket.AF_UNSPEC, index, 0, _ROOT, 0)
    return _HEADER.pack(_HEADER.size + len(body), _GET, _REQUEST_ECHO, 0, 0) + body


def waiting(answer: bytes) -> int:
    """Return the bytes that wait in the qdisc that the kernel has described."""
    if _HEADER.unpack_from(answer)[1] == _NEW:
        for kind, value in _attributes(answer[_HEADER.size + _TC.size :]):
            if kind == _STATS:
                return int(struct.unpack_from("=I", value, _AT)[0])
    raise BenchFailed("the kernel does not tell what waits in a port's queue: has it a rate?")


def _attributes(left: bytes) -> Iterator[tuple[int, bytes]]:
    while len(left) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(left)
        yield kind, left[_ATTRIBUTE.size : length]
        left = left[length + 3 & ~3 :]


def last_hops(plan: Topology, host: str | None = None) -> list[Port]:
    """Return the switch ports that lead to a host, one in each plane; None: to any host."""
    return [
        (plan.namespace(cable.near.node), cable.near.ifname)
        for cable in plan.nic_cables()
        if host in (None, cable.far.node)
    ]


def in_ms(rows: Ints, rate_mbps: int, start_ns: int, end_ns: int) -> Floats:
    """Return the samples between two times as ms that a link of this rate needs for them.

    `rows` are those of `Watch.table`: a time and the bytes of each port. All ports count alike.
    """
    inside = rows[(rows[:, 0] >= start_ns) & (rows[:, 0] < end_ns), 1:]
    return inside.ravel().astype(np.float64) * 8 * S / (rate_mbps * 1_000_000) / MS
