# SPDX-License-Identifier: GPL-2.0-only
"""Sockets of the hand-shake.

An Offer travels as data does, so it needs nothing from the fabric that data does not need. With
uSIDs it leaves through a raw socket (the kernel writes the IPv6 header to the uSID list) and
arrives at an ordinary UDP socket, since mrc_receive takes the outer header off, or puts our address
where the SID was. Without them it is plain UDP, from another port each time: switches hash it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv6Address

from mrcd.envelope import checksum16
from mrcd.fabric.routing import ENCAP_FULL, ENCAP_REDUCED
from mrcd.sockets import Address, PlaneSockets, plane_socket

_IPPROTO_IPV6 = 41
_IPPROTO_UDP = 17
_IP6_LEN = 40
_RAW_PROTOCOL = {ENCAP_FULL: _IPPROTO_IPV6, ENCAP_REDUCED: _IPPROTO_UDP}
_MAX_DATAGRAM = 2048


def udp6(src: IPv6Address, dst: IPv6Address, sport: int, dport: int, payload: bytes) -> bytes:
    """An IPv6 packet with a UDP datagram in it, checksum filled (RFC 8200, section 8.1)."""
    length = 8 + len(payload)
    header = struct.pack("!HHHH", sport, dport, length, 0)
    pseudo = src.packed + dst.packed + struct.pack("!IHBB", length, 0, 0, _IPPROTO_UDP)
    checksum = checksum16(pseudo + header + payload + bytes(len(payload) % 2))
    udp = struct.pack("!HHHH", sport, dport, length, checksum or 0xFFFF)
    ip = struct.pack("!IHBB", 0x60000000, length, _IPPROTO_UDP, 64) + src.packed + dst.packed
    return ip + udp + payload


class OfferSockets(PlaneSockets):
    """One or two sockets for each plane; `encap` is one of MRC_ENCAP_*."""

    def __init__(self, port: int, on_datagram: Callable[[bytes, int], None], encap: int) -> None:
        super().__init__("hand-shake", port, _RAW_PROTOCOL.get(encap))
        self._on_datagram = on_datagram
        self._encap = encap
        self._source: dict[int, tuple[bytes, Address]] = {}

    def open_plane(self, plane: int, interface: str, address: Address) -> None:
        """Begin to send and listen on a plane. OSError says what failed there."""
        super().open_plane(plane, interface, address)
        self._source[plane] = os.fsencode(interface), address

    def _readable(self, plane: int) -> None:
        while True:
            try:
                datagram = self._in[plane].recv(_MAX_DATAGRAM)
            except OSError:  # empty, or an ICMP error of something we sent
                return
            self._on_datagram(datagram, plane)

    def send(self, plane: int, path: bytes | None, target: Address, datagram: bytes) -> None:
        """Send one Offer to `target`; losing it is no error.

        `path`: the uSID list as the bytes of an address, None where there are no uSIDs.
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
            self._raw[plane].sendto(packet, (socket.inet_ntop(socket.AF_INET6, path), 0))
