# SPDX-License-Identifier: GPL-2.0-only
"""Choose what crosses the cables of a lab: TCP's large segments, or packets.

A veth pair passes a large segment on whole, as if the NIC had cut it and the other one had put it
together again at no cost. Without segmentation offload at an end, the kernel cuts what leaves by
it, and then GRO at the other end has something to merge. A real switch forwards packet by packet at
no cost to the hosts; one that merges comes closer to that where both share their CPUs.
"""

from __future__ import annotations

import enum
import errno
import socket

from cli.lab import state, topology
from mrcd.linux import ethtool, netns

_NICS = ("plane", "plain")
_PORTS = ("port", "t0-", "t1-")


class Wire(enum.Enum):
    """What crosses the cables, and where it is merged."""

    WHOLE = "large segments cross every cable whole"
    CUT = "packets cross every cable; hosts' NICs merge them"
    MERGED = "packets cross every cable; hosts' NICs and switches' ports merge them"
    SINGLE = "packets from end to end: neither cut nor merged at any NIC"


def lay(name: str, wire: Wire) -> None:
    """Set the offloads of all NICs and switch ports of a lab."""
    for space, members in topology.plan(state.read_fabric(name)).namespaces().items():
        host = members[0].kind == "host"
        lay_in(space, _NICS if host else _PORTS, wire, host=host)


def lay_in(space: str, prefixes: tuple[str, ...], wire: Wire, *, host: bool) -> None:
    """Set the offloads of the interfaces of a namespace whose names begin like this."""
    large = wire is not Wire.SINGLE
    merged = large if host else wire is Wire.MERGED
    with netns.entered(space):
        for _, interface in socket.if_nameindex():
            if interface.startswith(prefixes):
                _set_tso(interface, wire is Wire.WHOLE)
                ethtool.set_features(interface, gso=large if host else None, gro=merged)


def _set_tso(interface: str, on: bool) -> None:
    try:
        ethtool.set_features(interface, tso=on)
    except OSError as refused:
        # A program in the driver at the other end of a veth pair takes TSO away: it stays off.
        if refused.errno != errno.EOPNOTSUPP:
            raise
