# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel knows of a NIC and its cable: carrier, how often that was lost, errors.

One request of rtnetlink for one interface, in the caller's network namespace, which needs no
rights.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass

from mrcd.linux.rtnl import attributes, messages

_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_NEWLINK, _GETLINK, _REQUEST = 16, 18, 0x1
_IFLA_IFNAME, _IFLA_MTU, _IFLA_STATS64, _IFLA_CARRIER, _IFLA_DOWNS = 3, 4, 23, 33, 48
_STATS = struct.Struct("=10Q")
_RX_ERRORS, _TX_ERRORS = 4, 5
_IFF_UP = 0x1


@dataclass(frozen=True, slots=True)
class NicFacts:
    """Whether a NIC is up and has a carrier, how often it has lost it, and errors of packets."""

    up: bool
    downs: int
    errors: int
    mtu: int


ABSENT = NicFacts(up=False, downs=0, errors=0, mtu=0)


def nic_facts(name: str) -> NicFacts:
    """Return what the kernel knows of a NIC; ABSENT if there is none of this name."""
    text = os.fsencode(name) + b"\0"
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(text), _IFLA_IFNAME) + text
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute.ljust((len(attribute) + 3) & ~3)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.send(_HEADER.pack(_HEADER.size + len(body), _GETLINK, _REQUEST, 1, 0) + body)
        for kind, _flags, _sequence, data in messages(sock.recv(1 << 16)):
            if kind == _NEWLINK:
                return _facts(data)
    return ABSENT


def _facts(data: bytes) -> NicFacts:
    _family, _type, _index, flags, _change = _LINK.unpack_from(data)
    given = attributes(data[_LINK.size :])
    stats = given.get(_IFLA_STATS64, b"").ljust(_STATS.size, b"\0")
    counts = _STATS.unpack_from(stats)
    carrier = given.get(_IFLA_CARRIER, b"\1") != b"\0"
    return NicFacts(
        up=bool(flags & _IFF_UP) and carrier,
        downs=int.from_bytes(given.get(_IFLA_DOWNS, b""), sys.byteorder),
        errors=counts[_RX_ERRORS] + counts[_TX_ERRORS],
        mtu=int.from_bytes(given.get(_IFLA_MTU, b""), sys.byteorder),
    )
