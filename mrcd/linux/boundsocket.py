# SPDX-License-Identifier: GPL-2.0-only
"""One socket that is bound to an interface and an address of it."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

from mrcd.linux.privileged import client
from mrcd.linux.privileged.requests import ForceBuffer, RawSocket

Address = IPv4Address | IPv6Address

_IPV6_FREEBIND = 78
_IP_FREEBIND = 15
_SO_RCVBUFFORCE = 33
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
_RET = 0x06  # an instruction of classic BPF


def plane_socket(
    kind: int, protocol: int, device: bytes, address: Address, port: int
) -> socket.socket:
    """Return a socket of one plane.

    It stays bound while the address comes and goes with the link.
    """
    channel = client.current()
    if channel is not None and kind == socket.SOCK_RAW:
        asked = RawSocket(os.fsdecode(device), protocol, str(address))
        return socket.socket(fileno=channel.ask_fd(asked))
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        if address.version == 4:
            sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        sock.bind((str(address), port))
    except OSError:
        sock.close()
        raise
    return sock


def receive_nothing(sock: socket.socket) -> None:
    """Have a socket drop all that arrives, for good: raw sockets of planes only send."""
    steps = ctypes.create_string_buffer(struct.pack("=HBBI", _RET, 0, 0, 0), 8)
    program = struct.pack("@HP", 1, ctypes.addressof(steps))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    sock.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def force_buffer(sock: socket.socket, size: int) -> None:
    """Set the receive buffer of a socket, beyond net.core.rmem_max."""
    channel = client.current()
    if channel is not None:
        channel.ask(ForceBuffer(size), [sock.fileno()])
    else:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
