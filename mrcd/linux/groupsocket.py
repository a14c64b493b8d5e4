# SPDX-License-Identifier: GPL-2.0-only
"""Sockets for a multicast group of the link, by which hosts of a network find each other."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Final

GROUP: Final = "ff02::4d52:4371"
PORT: Final = 4973
DATAGRAM_MAX: Final = 1 << 16
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40
_IFREQ = struct.Struct("=16sh22x")


def open_on(nic: str, port: int = PORT) -> socket.socket:
    """Return a socket that sends to the group, and hears it, on one NIC. Raises OSError."""
    index = socket.if_nametoindex(nic)
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(nic))
        membership = socket.inet_pton(socket.AF_INET6, GROUP) + struct.pack("=I", index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        sock.bind(("::", port))
    except OSError:
        sock.close()
        raise
    return sock


def has_carrier(sock: socket.socket, nic: str) -> bool:
    """Return whether a NIC is running; True for one that has just gone, which others say."""
    try:
        found = fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFREQ.pack(nic.encode(), 0))
    except OSError:
        return True
    return bool(_IFREQ.unpack_from(found)[1] & _IFF_RUNNING)
