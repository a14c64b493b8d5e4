# SPDX-License-Identifier: GPL-2.0-only
"""Sockets of the hand-shake.

An Offer travels as data does: IPv6 with the uSID list outside, IPv6 and UDP
inside, so it needs nothing from the fabric that data does not need. It leaves
through a raw socket (the kernel writes the outer header) and arrives at an
ordinary UDP socket, since mrc_receive takes the outer header off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv6Address

_IPPROTO_IPV6 = 41
_IPPROTO_UDP = 17
_IPV6_FREEBIND = 78
_MAX_DATAGRAM = 2048


def udp6(src: IPv6Address, dst: IPv6Address, sport: int, dport: int, payload: bytes) -> bytes:
    """An IPv6 packet with a UDP datagram in it, checksum filled (RFC 8200, section 8.1)."""
    length = 8 + len(payload)
    header = struct.pack("!HHHH", sport, dport, length, 0)
    pseudo = src.packed + dst.packed + struct.pack("!IHBB", length, 0, 0, _IPPROTO_UDP)
    total = pseudo + header + payload
    if len(total) % 2:
        total += b"\0"
    checksum = sum(struct.unpack(f"!{len(total) // 2}H", total))
    while checksum >> 16:
        checksum = (checksum & 0xFFFF) + (checksum >> 16)
    udp = struct.pack("!HHHH", sport, dport, length, (~checksum & 0xFFFF) or 0xFFFF)
    ip = struct.pack("!IHBB", 0x60000000, length, _IPPROTO_UDP, 64) + src.packed + dst.packed
    return ip + udp + payload


class OfferSockets:
    """One pair of sockets for each plane."""

    def __init__(self, port: int, on_datagram: Callable[[bytes, int], None]) -> None:
        self._port = port
        self._on_datagram = on_datagram
        self._out: dict[int, socket.socket] = {}
        self._in: dict[int, socket.socket] = {}
        self._source: dict[int, IPv6Address] = {}

    def open_plane(self, plane: int, interface: str, address: IPv6Address) -> None:
        """Begin to send and listen on a plane. OSError says what failed there."""
        device = os.fsencode(interface)
        out = socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _IPPROTO_IPV6)
        listen = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            for sock in (out, listen):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            # The raw socket only sends; what arrives is the UDP socket's.
            out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            # The address comes and goes with the link; the sockets stay.
            for sock in (out, listen):
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
            out.bind((str(address), 0))
            listen.bind((str(address), self._port))
        except OSError as error:
            out.close()
            listen.close()
            raise OSError(
                error.errno,
                f"cannot open the hand-shake sockets on {interface} "
                f"([{address}]:{self._port}): {error.strerror}",
            ) from error
        self._out[plane], self._in[plane], self._source[plane] = out, listen, address
        asyncio.get_running_loop().add_reader(listen, self._readable, plane)

    def _readable(self, plane: int) -> None:
        while True:
            try:
                datagram = self._in[plane].recv(_MAX_DATAGRAM)
            except OSError:  # empty, or an ICMP error of something we sent
                return
            self._on_datagram(datagram, plane)

    def send(self, plane: int, path: IPv6Address, target: IPv6Address, datagram: bytes) -> None:
        """Send one Offer along `path` (the outer destination); losing it is no error."""
        if plane not in self._out:
            return
        packet = udp6(self._source[plane], target, self._port, self._port, datagram)
        with contextlib.suppress(OSError):
            self._out[plane].sendto(packet, (str(path), 0))

    def close(self) -> None:
        """Close all sockets."""
        loop = asyncio.get_running_loop()
        for sock in self._in.values():
            loop.remove_reader(sock)
        for sock in (*self._in.values(), *self._out.values()):
            sock.close()
        self._in.clear()
        self._out.clear()
