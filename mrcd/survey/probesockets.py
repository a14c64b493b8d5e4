# SPDX-License-Identifier: GPL-2.0-only
"""Sockets for the probes between hosts without a fabric: plain UDP, from several source ports.

They carry no checksum, as MRC's packets carry none: what a switch damages arrives, and is seen to
be damaged. Packets are not fragmented. The kernel notes when each has arrived, so it does not
matter when they are read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from mrcd.linux.boundsocket import Address, force_buffer, plane_socket
from mrcd.survey.arrivals import PORTS

PORT: Final = 4975
"""The UDP port that the probes of mrcd go to."""
READ_MAX: Final = 256
"""Probes that are read from a plane at a time: anyone may send."""
_BUFFER_BYTES: Final = 1 << 20
_SO_NO_CHECK, _SO_TIMESTAMPNS = 11, 35
_UDP_NO_CHECK6_TX, _UDP_NO_CHECK6_RX = 101, 102
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PROBE = 10, 23, 3
_IPV6_DONTFRAG = 62
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_ERROR = struct.Struct("=IBBBBII")  # struct sock_extended_err
_ORIGINS = (2, 3)  # ICMP, ICMPv6
_ERRORS_MAX = 64
_KNOCK = b"MRCk"
_TIMESPEC = struct.Struct("@ll")
_DATAGRAM_MAX: Final = 1 << 14

OnDatagram = Callable[[bytes, int, str, int], None]
"""Is called with a datagram, its plane, its sender's address and when it arrived (ns)."""


class ProbeSockets:
    """For each plane, a socket that receives and one for each source port."""

    def __init__(self, port: int = PORT, dscp: int = 0) -> None:
        """Hold no socket yet."""
        self._port = port
        self._dscp = dscp
        self._in: dict[int, socket.socket] = {}
        self._out: dict[int, list[socket.socket]] = {}
        self._placed: dict[int, tuple[int, Address]] = {}
        self._refused: list[tuple[int, str]] = []

    def place(self, plane: int, index: int, interface: str, address: Address) -> None:
        """Use an address of a NIC for a plane from now on. Raises OSError if that fails.

        Sockets stay bound to a NIC that is gone, so one of another `index` is another.
        """
        if self._placed.get(plane) == (index, address):
            return
        self.close_plane(plane)
        device = os.fsencode(interface)
        opened: list[socket.socket] = []
        try:
            for port in (self._port, *(0 for _ in range(PORTS))):
                opened.append(plane_socket(socket.SOCK_DGRAM, 0, device, address, port))
                self._prepare(opened[-1], address)
        except OSError:
            for sock in opened:
                sock.close()
            raise
        opened[0].setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        with contextlib.suppress(OSError):
            force_buffer(opened[0], _BUFFER_BYTES)
        self._in[plane], self._out[plane] = opened[0], opened[1:]
        self._placed[plane] = index, address

    def _prepare(self, sock: socket.socket, address: Address) -> None:
        if address.version == 4:
            sock.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE)
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._dscp << 2)
        else:
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_TX, 1)
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PROBE)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_DONTFRAG, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, self._dscp << 2)

    def send(self, plane: int, port: int, address: str, datagram: bytes) -> bool:
        """Send a datagram by a source port; return whether it left this host's stack."""
        sockets = self._out.get(plane)
        if sockets is None:
            return False
        for _ in range(2):
            try:
                sockets[port].sendto(datagram, (address, self._port))
            except OSError:  # no route, no room, or an error about an earlier one
                if not self._read_errors(plane, sockets[port]):
                    return False
            else:
                return True
        return False

    def knock(self, plane: int, address: str) -> None:
        """Send what is no probe, with a checksum: without one, a kernel refuses nothing."""
        for sock in self._out.get(plane, ())[:1]:
            six = sock.family == socket.AF_INET6
            level, name = (
                (socket.IPPROTO_UDP, _UDP_NO_CHECK6_TX)
                if six
                else (socket.SOL_SOCKET, _SO_NO_CHECK)
            )
            self._read_errors(plane, sock)
            sock.setsockopt(level, name, 0)
            with contextlib.suppress(OSError):
                sock.sendto(_KNOCK, (address, self._port))
            sock.setsockopt(level, name, 1)

    def _read_errors(self, plane: int, sock: socket.socket) -> int:
        """Read what the kernel has been told of earlier probes; return how many errors."""
        for found in range(_ERRORS_MAX):
            try:
                _data, extra, _flags, target = sock.recvmsg(64, 256, socket.MSG_ERRQUEUE)
            except OSError:
                return found
            for _level, kind, value in extra:
                if kind not in (_IP_RECVERR, _IPV6_RECVERR) or len(value) < _ERROR.size:
                    continue
                number, origin, *_rest = _ERROR.unpack_from(value)
                if number == errno.ECONNREFUSED and origin in _ORIGINS and target:
                    self._refused.append((plane, target[0].partition("%")[0]))
        return _ERRORS_MAX

    def take_refused(self) -> list[tuple[int, str]]:
        """Return the planes and addresses whose hosts have refused probes since the last call."""
        taken, self._refused = self._refused, []
        return taken

    def read(self, on_datagram: OnDatagram) -> int:
        """Read all that has arrived; return how many datagrams."""
        return sum(self._read(plane, on_datagram) for plane in tuple(self._in))

    def _read(self, plane: int, on_datagram: OnDatagram) -> int:
        sock = self._in[plane]
        for found in range(READ_MAX):
            try:
                data, extra, _flags, source = sock.recvmsg(_DATAGRAM_MAX, 64)
            except OSError:
                return found
            at_ns = time.time_ns()
            for _level, kind, value in extra:
                if kind == _SO_TIMESTAMPNS:
                    seconds, nanoseconds = _TIMESPEC.unpack(value)
                    at_ns = seconds * 1_000_000_000 + nanoseconds
            on_datagram(data, plane, source[0].partition("%")[0], at_ns)
        return READ_MAX

    def close_plane(self, plane: int) -> None:
        """Close the sockets of a plane."""
        self._placed.pop(plane, None)
        for sock in (*self._out.pop(plane, ()), *filter(None, (self._in.pop(plane, None),))):
            sock.close()

    def close(self) -> None:
        """Close all sockets."""
        for plane in tuple(self._in):
            self.close_plane(plane)
