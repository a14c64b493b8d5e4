# SPDX-License-Identifier: GPL-2.0-only
"""Sockets of the planes, for what mrcd itself sends and receives."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address

_IPV6_FREEBIND = 78
_IP_FREEBIND = 15


class PlaneSockets(ABC):
    """For each plane, a UDP socket that receives and optionally a raw socket that sends."""

    def __init__(self, purpose: str, port: int, raw_protocol: int | None, dscp: int = 0) -> None:
        """Hold no socket yet.

        `purpose` names the sockets in errors. With `raw_protocol` None there are no raw sockets.
        `dscp` is that of what they send.
        """
        self._dscp = dscp
        self._purpose = purpose
        self._port = port
        self._raw_protocol = raw_protocol
        self._in: dict[int, socket.socket] = {}
        self._raw: dict[int, socket.socket] = {}

    def open_plane(self, plane: int, interface: str, address: Address) -> None:
        """Begin to send and listen on a plane; raise OSError, with what failed on it."""
        device = os.fsencode(interface)
        try:
            self._in[plane] = self._socket(socket.SOCK_DGRAM, 0, device, address, self._port)
            if self._raw_protocol is not None:
                raw = self._socket(socket.SOCK_RAW, self._raw_protocol, device, address, 0)
                # The raw socket only sends: the UDP socket receives.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                self._raw[plane] = raw
        except OSError as error:
            if plane in self._in:
                self._in.pop(plane).close()
            raise OSError(
                error.errno,
                f"cannot open the {self._purpose} sockets on {interface} "
                f"([{address}]:{self._port}): {error.strerror}",
            ) from error
        asyncio.get_running_loop().add_reader(self._in[plane], self._readable, plane)

    def _socket(
        self, kind: int, protocol: int, device: bytes, address: Address, port: int
    ) -> socket.socket:
        sock = plane_socket(kind, protocol, device, address, port)
        level, option = (
            (socket.IPPROTO_IP, socket.IP_TOS)
            if address.version == 4
            else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
        )
        sock.setsockopt(level, option, self._dscp << 2)
        return sock

    def _listen(self, awake: bool) -> None:
        """Watch the sockets of all planes for arriving datagrams, or stop watching."""
        loop = asyncio.get_running_loop()
        for plane, sock in self._in.items():
            if awake:
                loop.add_reader(sock, self._readable, plane)
            else:
                loop.remove_reader(sock)

    @abstractmethod
    def _readable(self, plane: int) -> None:
        """Read all datagrams that arrived on a plane."""

    def close(self) -> None:
        """Close all sockets."""
        loop = asyncio.get_running_loop()
        for sock in self._in.values():
            loop.remove_reader(sock)
        for sock in (*self._in.values(), *self._raw.values()):
            sock.close()
        self._in.clear()
        self._raw.clear()


def plane_socket(
    kind: int, protocol: int, device: bytes, address: Address, port: int
) -> socket.socket:
    """Return a socket of one plane.

    It stays bound while the address comes and goes with the link.
    """
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
