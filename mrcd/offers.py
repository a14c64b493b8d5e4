# SPDX-License-Identifier: GPL-2.0-only
"""Sockets of the hand-shake.

An Offer travels as data does, so it needs nothing from the fabric that data does not need. With
uSIDs it leaves through a raw socket (the kernel writes the IPv6 header to the uSID list) and
arrives at an ordinary UDP socket, since mrc_receive takes the outer header off, or puts our address
where the SID was. Without them it is plain UDP, from another port each time: switches hash it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

from mrcd.fabric.routing import ENCAP_FULL, ENCAP_REDUCED

Address = IPv4Address | IPv6Address

_IPPROTO_IPV6 = 41
_IPPROTO_UDP = 17
_IPV6_FREEBIND = 78
_IP_FREEBIND = 15
_IP6_LEN = 40
_RAW_PROTOCOL = {ENCAP_FULL: _IPPROTO_IPV6, ENCAP_REDUCED: _IPPROTO_UDP}
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
    """One or two sockets for each plane; `encap` is one of MRC_ENCAP_*."""

    def __init__(self, port: int, on_datagram: Callable[[bytes, int], None], encap: int) -> None:
        self._port = port
        self._on_datagram = on_datagram
        self._encap = encap
        self._raw: dict[int, socket.socket] = {}
        self._in: dict[int, socket.socket] = {}
        self._source: dict[int, tuple[bytes, Address]] = {}

    def open_plane(self, plane: int, interface: str, address: Address) -> None:
        """Begin to send and listen on a plane. OSError says what failed there."""
        device = os.fsencode(interface)
        try:
            self._in[plane] = plane_socket(socket.SOCK_DGRAM, 0, device, address, self._port)
            if self._encap in _RAW_PROTOCOL:
                raw = plane_socket(socket.SOCK_RAW, _RAW_PROTOCOL[self._encap], device, address, 0)
                # It only sends; what arrives is the UDP socket's.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                self._raw[plane] = raw
        except OSError as error:
            if plane in self._in:
                self._in.pop(plane).close()
            raise OSError(
                error.errno,
                f"cannot open the hand-shake sockets on {interface} "
                f"([{address}]:{self._port}): {error.strerror}",
            ) from error
        self._source[plane] = device, address
        asyncio.get_running_loop().add_reader(self._in[plane], self._readable, plane)

    def _readable(self, plane: int) -> None:
        while True:
            try:
                datagram = self._in[plane].recv(_MAX_DATAGRAM)
            except OSError:  # empty, or an ICMP error of something we sent
                return
            self._on_datagram(datagram, plane)

    def send(self, plane: int, path: IPv6Address | None, target: Address, datagram: bytes) -> None:
        """Send one Offer to `target`; losing it is no error.

        `path`: the uSID list as an address, None where there are no uSIDs.
        """
        if plane not in self._in:
            return
        device, source = self._source[plane]
        with contextlib.suppress(OSError):
            if path is None:
                with plane_socket(socket.SOCK_DGRAM, 0, device, source, 0) as out:
                    out.sendto(datagram, (str(target), self._port))
                return
            assert isinstance(source, IPv6Address) and isinstance(target, IPv6Address)  # noqa: PT018
            packet = udp6(source, target, self._port, self._port, datagram)
            if self._encap == ENCAP_REDUCED:
                packet = packet[_IP6_LEN:]
            self._raw[plane].sendto(packet, (str(path), 0))

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
    """A socket of one plane. The address comes and goes with the link; the socket stays."""
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
