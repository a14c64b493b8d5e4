# SPDX-License-Identifier: GPL-2.0-only
"""Make the kernel learn the MTU of a path: one datagram as long as an interface allows.

A router for which it is too long says so, and the kernel notes that in its routes (RFC 1191, RFC
8201). It believes this only of datagrams of an open socket, and the data path has none.
"""

from __future__ import annotations

import os
import socket

_DISCARD_PORT = 9
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER = 10, 23
_PROBE = 3  # do not fragment, and do not mind what is known so far
_HEADERS = {4: 28, 6: 48}  # IP and UDP


def send_whole(sock: socket.socket, version: int) -> None:
    """Have a socket of an IP version send packets of any length, which nobody may cut."""
    if version == 6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PROBE)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE)


def send_probe(interface: str, ifindex: int, target: str, mtu: int) -> socket.socket:
    """Send an IP packet of `mtu` bytes to an address, and return the socket it came from.

    Close it when the answer of a router must have arrived. Raises OSError if it cannot be sent.
    """
    version = 6 if ":" in target else 4
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(interface))
        send_whole(sock, version)
        if version == 6:
            sock.connect((target, _DISCARD_PORT, 0, ifindex if target.startswith("fe80") else 0))
        else:
            sock.connect((target, _DISCARD_PORT))
        sock.send(bytes(mtu - _HEADERS[version]))
    except OSError:
        sock.close()
        raise
    return sock
