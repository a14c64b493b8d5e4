# SPDX-License-Identifier: GPL-2.0-only
"""Sockets of the hand-shake.

An Offer travels like data, so it asks nothing more of the fabric than data does. With uSIDs it
leaves through a raw socket, and the kernel writes the IPv6 header with the uSID list. It arrives at
an ordinary UDP socket, because mrc_receive removes the outer header, or replaces the SID with our
address. Without uSIDs an Offer is plain UDP from a new source port each time, because switches hash
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv6Address

from mrcd.fabric.routing import ENCAP_FULL, ENCAP_REDUCED, HOPS_SENT
from mrcd.linux.boundsocket import force_buffer
from mrcd.linux.planesocket import Address, PlaneSockets, send_hops
from mrcd.wire.abi import ABI
from mrcd.wire.envelope import checksum16

_IPPROTO_IPV6 = 41
_IPPROTO_UDP = 17
_IP6_LEN = 40
_IP6 = struct.Struct("!IHBB")  # the IPv6 header up to the addresses
_UDP = struct.Struct("!HHHH")
_PSEUDO = struct.Struct("!IHBBHHHH")  # the pseudo-header after the addresses, and the UDP header
_RAW_PROTOCOL = {ENCAP_FULL: _IPPROTO_IPV6, ENCAP_REDUCED: _IPPROTO_UDP}
_MAX_DATAGRAM = 2048
_WAITING_BYTES = 1 << 20
READ_MAX = 64
"""Datagrams read from a plane before the event loop's other tasks get a turn: anyone may send."""


def udp6(src: IPv6Address, dst: IPv6Address, sport: int, dport: int, payload: bytes) -> bytes:
    """Return an IPv6 packet with a UDP datagram and its checksum (RFC 8200, section 8.1)."""
    length = 8 + len(payload)
    ends = src.packed + dst.packed
    pseudo = _PSEUDO.pack(length, 0, 0, _IPPROTO_UDP, sport, dport, length, 0)
    checksum = checksum16(ends + pseudo + payload + bytes(len(payload) % 2))
    ip = _IP6.pack(0x60000000, length, _IPPROTO_UDP, 64)
    return ip + ends + _UDP.pack(sport, dport, length, checksum or 0xFFFF) + payload


class OfferSockets(PlaneSockets):
    """One or two sockets for each plane; `encap` is one of MRC_ENCAP_*."""

    def __init__(
        self,
        port: int,
        on_datagram: Callable[[bytes, int, str], None],
        encap: int,
        rest_s: Callable[[], float] = lambda: 0.0,
        dscp: int = 0,
        admitted: int | None = ABI.MRC_ADMITTED_MARK,
    ) -> None:
        """Call `on_datagram` with each datagram, its plane and the address of its sender.

        Pause reading for `rest_s` seconds each time everything that arrived has been read.

        Keepalives of thousands of peers arrive one by one, and waking up costs more than reading.
        """
        super().__init__("hand-shake", port, _RAW_PROTOCOL.get(encap), dscp, admitted)
        self._on_datagram = on_datagram
        self._encap = encap
        self._rest_s = rest_s
        self.read = 0  # datagrams, so far
        self._resting: asyncio.TimerHandle | None = None
        self._source: dict[int, tuple[bytes, Address]] = {}

    def open_plane(self, plane: int, interface: str, address: Address) -> None:
        """Begin to send and listen on a plane. Raises OSError if a socket cannot be set up."""
        super().open_plane(plane, interface, address)
        if plane in self._raw:
            send_hops(self._raw[plane], HOPS_SENT)
        self._source[plane] = os.fsencode(interface), address
        with contextlib.suppress(OSError):  # datagrams that arrive during a pause wait here
            force_buffer(self._in[plane], _WAITING_BYTES)

    def close(self) -> None:
        """Close all sockets."""
        if self._resting is not None:
            self._resting.cancel()
        super().close()

    def _readable(self, plane: int) -> None:
        self._read(plane)
        rest_s = self._rest_s()
        if rest_s > 0:
            self._listen(False)
            self._rest(rest_s)

    def _rest(self, seconds: float) -> None:
        self._resting = asyncio.get_running_loop().call_later(seconds, self._rested)

    def _rested(self) -> None:
        """Read what arrived during the pause, and pause again unless nothing did."""
        self._resting = None
        found = sum(self._read(plane) for plane in tuple(self._in))
        rest_s = self._rest_s()
        if found and rest_s > 0:
            self._rest(rest_s)
        else:
            self._listen(True)

    def _read(self, plane: int) -> int:
        """Read what has arrived on a plane, at most READ_MAX datagrams, and return their number."""
        for found in range(READ_MAX):
            try:
                datagram, source = self._in[plane].recvfrom(_MAX_DATAGRAM)
            except OSError:  # empty, or an ICMP error about a packet we sent, or the NIC is gone
                return found
            self.read += 1
            self._on_datagram(datagram, plane, source[0])
        return READ_MAX

    def send(self, plane: int, path: bytes | None, target: Address, datagram: bytes) -> None:
        """Send one Offer to `target`; losing it is no error.

        `path` is the uSID list as the bytes of an address, or None where there are no uSIDs.
        """
        if plane not in self._in:
            return
        device, source = self._source[plane]
        try:
            if path is None:
                with self._socket(socket.SOCK_DGRAM, 0, device, source, 0) as out:
                    send_hops(out, HOPS_SENT)
                    out.sendto(datagram, (str(target), self._port))
                return
            assert isinstance(source, IPv6Address) and isinstance(target, IPv6Address)  # noqa: PT018
            packet = udp6(source, target, self._port, self._port, datagram)
            if self._encap == ENCAP_REDUCED:
                packet = packet[_IP6_LEN:]
            self._raw[plane].sendto(packet, (socket.inet_ntop(socket.AF_INET6, path), 0))
        except OSError:
            return
