# SPDX-License-Identifier: GPL-2.0-only
"""Sockets of the planes, for what mrcd itself sends and receives."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence

from mrcd.linux.boundsocket import Address as Address
from mrcd.linux.boundsocket import plane_socket

_ABSENT = (errno.ENODEV, errno.EADDRNOTAVAIL)
_SO_ATTACH_FILTER = 26
_LD_W_ABS, _JEQ, _RET = 0x20, 0x15, 0x06  # instructions of classic BPF
_SKF_AD_MARK = 0xFFFFF000 + 20  # the place at which they read an skb's mark


class PlaneSockets(ABC):
    """For each plane, a UDP socket that receives and optionally a raw socket that sends."""

    def __init__(
        self,
        purpose: str,
        port: int,
        raw_protocol: int | None,
        dscp: int = 0,
        admitted: int | None = None,
    ) -> None:
        """Hold no socket yet.

        `purpose` names the sockets in errors. With `raw_protocol` None there are no raw sockets.
        `dscp` is that of what they send. Only packets that the data path has marked with `admitted`
        are received: who sends to the port past the data path is not heard. None takes all.
        """
        self._dscp = dscp
        self._purpose = purpose
        self._admitted = admitted
        self._port = port
        self._raw_protocol = raw_protocol
        self._in: dict[int, socket.socket] = {}
        self._raw: dict[int, socket.socket] = {}

    def open_plane(self, plane: int, interface: str, address: Address) -> None:
        """Begin to send and listen on a plane; raise OSError, with what failed on it."""
        device = os.fsencode(interface)
        try:
            self._in[plane] = self._socket(socket.SOCK_DGRAM, 0, device, address, self._port)
            if self._admitted is not None:
                take_marked(self._in[plane], self._admitted)
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

    def open_planes(self, interfaces: Sequence[str], addresses: Sequence[Address]) -> list[str]:
        """Open the sockets of all planes; return what failed on those that are missing or down.

        Raises OSError if that is so for all planes, or if anything else fails.
        """
        failed: list[OSError] = []
        for plane, (interface, address) in enumerate(zip(interfaces, addresses, strict=True)):
            try:
                self.open_plane(plane, interface, address)
            except OSError as error:
                failed.append(error)
                if error.errno not in _ABSENT or len(failed) == len(interfaces):
                    raise
        return [str(error) for error in failed]

    def open_closed(self, plane: int, interface: str, address: Address) -> None:
        """Open the sockets of a plane that could not be opened before; others stay as they are."""
        if plane not in self._in:
            self.open_plane(plane, interface, address)

    def reopen_plane(self, plane: int, interface: str, address: Address) -> None:
        """Move to another NIC, because sockets stay bound to one that no longer exists."""
        if plane in self._in:
            asyncio.get_running_loop().remove_reader(self._in[plane])
        for sockets in (self._in, self._raw):
            if plane in sockets:
                sockets.pop(plane).close()
        self.open_plane(plane, interface, address)

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


def send_hops(sock: socket.socket, hops: int) -> None:
    """Have what a socket sends start with this hop limit."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)


def take_marked(sock: socket.socket, mark: int) -> None:
    """Have a socket receive only packets with this mark, and forget what it has received."""
    code = b"".join(
        struct.pack("=HBBI", *step)
        for step in (
            (_LD_W_ABS, 0, 0, _SKF_AD_MARK),
            (_JEQ, 0, 1, mark),
            (_RET, 0, 0, 0xFFFFFFFF),
            (_RET, 0, 0, 0),
        )
    )
    steps = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.recv(1)
