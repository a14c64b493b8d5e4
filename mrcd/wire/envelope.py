# SPDX-License-Identifier: GPL-2.0-only
"""The envelope of an MRC packet: encode and decode the IP and UDP headers around it.

There are four shapes, one for each way to cross a fabric (bpf/envelope.h): IPv6 in IPv6, IPv6 to a
uSID list, IPv6 to the peer's address, and IPv4 to the peer's address. The second and third shape
look the same.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from mrcd.wire.layout import WIRE

_IP6 = struct.Struct("!IHBB16s16s")
_IP4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
NEXT_IP4, NEXT_IP6 = 4, 41
_NEXT_UDP = 17
_IP4_DF, _IP4_FRAGMENT = 0x4000, 0x3FFF
_EV_LABEL = 0xFFFF  # the flow label carries the low half of an EV

_IP_LENGTHS = {
    WIRE.MRC_ENCAP_FULL: 2 * WIRE.MRC_IP6_LEN,
    WIRE.MRC_ENCAP_REDUCED: WIRE.MRC_IP6_LEN,
    WIRE.MRC_ENCAP_ECMP6: WIRE.MRC_IP6_LEN,
    WIRE.MRC_ENCAP_ECMP4: WIRE.MRC_IP4_LEN,
}


class DecodeError(ValueError):
    """The bytes are not a valid MRC packet; `reason` states why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def overhead(encap: int) -> int:
    """Return the bytes that MRC adds to an application's IP packet, Ethernet not counted."""
    ip = _IP_LENGTHS[encap]
    return ip + WIRE.MRC_UDP_LEN + WIRE.MRC_BTH_LEN + WIRE.MRC_WRITE_LEN + WIRE.MRC_ICRC_LEN


def cell_overhead(encap: int, envelope: int) -> int:
    """Return the bytes that a cell adds to each of its packets, Ethernet of the wire not counted.

    encap: one of MRC_ENCAP_*. envelope: MRC_CELL_IP6 or MRC_CELL_UDP.
    """
    if envelope == WIRE.MRC_CELL_IP6:
        return WIRE.MRC_IP6_LEN
    ip = WIRE.MRC_IP4_LEN if encap == WIRE.MRC_ENCAP_ECMP4 else WIRE.MRC_IP6_LEN
    return ip + WIRE.MRC_CELL_TAIL


@dataclass(frozen=True, slots=True)
class Ip6:
    """An IPv6 header without its lengths."""

    src: IPv6Address
    dst: IPv6Address
    flow_label: int = 0
    traffic_class: int = 0
    hop_limit: int = 64


@dataclass(frozen=True, slots=True)
class Ip4:
    """An IPv4 header without options, lengths and checksum."""

    src: IPv4Address
    dst: IPv4Address
    tos: int = 0
    ttl: int = 64
    ident: int = 0
    dont_fragment: bool = True


@dataclass(frozen=True, slots=True)
class Envelope:
    """The headers in front of the BTH. `outer` is None if there is only one IP header."""

    outer: Ip6 | None
    inner: Ip6 | Ip4
    src_port: int
    dst_port: int = WIRE.MRC_UDP_PORT_DEFAULT
    udp_checksum: int = 0

    @property
    def ev(self) -> int:
        """The EV in these headers: the UDP source port, then the flow label's low 16 bits, if any.

        The low half of an EV that mrcd chose is 0. Over IPv6 without uSIDs, mrcd sends the high
        half in both places.
        """
        label = self.inner.flow_label if isinstance(self.inner, Ip6) else 0
        return self.src_port << 16 | label & _EV_LABEL


def put_envelope(around: Envelope, body: bytes) -> bytes:
    """Return the headers followed by `body`, with the lengths and IPv4's checksum filled in.

    Raises ValueError when a number does not fit.
    """
    length = _UDP.size + len(body)
    try:
        data = _UDP.pack(around.src_port, around.dst_port, length, around.udp_checksum) + body
        if isinstance(around.inner, Ip4):
            if around.outer is not None:
                raise ValueError("IPv4 does not fit into an outer header here")
            return _put_ip4(around.inner, len(data)) + data
        data = put_ip6(around.inner, len(data), _NEXT_UDP) + data
        if around.outer is not None:
            data = put_ip6(around.outer, len(data), NEXT_IP6) + data
    except struct.error as error:
        raise ValueError(f"a number does not fit into the IP or UDP header: {error}") from None
    return data


def open_envelope(data: bytes, port: int) -> tuple[Envelope, bytes]:
    """Split `data` into its IP and UDP headers and their payload.

    Raises DecodeError if the packet is not MRC on UDP port `port`, if a length differs from what
    the headers say, or if IPv4's checksum is wrong.
    """
    outer = None
    inner: Ip6 | Ip4
    if data and data[0] >> 4 == 4:
        inner, following, rest = _get_ip4(data)
    else:
        inner, following, rest = get_ip6(data)
        if following == NEXT_IP6:
            outer = inner
            inner, following, rest = get_ip6(rest)
    if following != _NEXT_UDP:
        raise DecodeError(f"next header {following}, not UDP")
    if len(rest) < _UDP.size:
        raise DecodeError(f"truncated: {len(rest)} of {_UDP.size} bytes of UDP")
    src_port, dst_port, length, checksum = _UDP.unpack_from(rest)
    if dst_port != port:
        raise DecodeError(f"UDP port {dst_port}, not {port}")
    if length != len(rest):
        raise DecodeError(f"UDP says {length} bytes, {len(rest)} follow")
    return Envelope(outer, inner, src_port, dst_port, checksum), rest[_UDP.size :]


def checksum16(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of an even number of bytes."""
    # A one's complement sum is the number modulo 0xFFFF; it is 0 only if all bytes are 0.
    number = int.from_bytes(data, "big")
    return ~(number % 0xFFFF or 0xFFFF * (number > 0)) & 0xFFFF


def put_ip6(header: Ip6, length: int, following: int) -> bytes:
    """Return an IPv6 header; `length` is that of what follows, `following` its next header number.

    Raises ValueError or struct.error when a number does not fit.
    """
    if not 0 <= header.traffic_class <= 0xFF or not 0 <= header.flow_label <= 0xFFFFF:
        raise ValueError(f"traffic class or flow label does not fit: {header}")
    word = 6 << 28 | header.traffic_class << 20 | header.flow_label
    return _IP6.pack(
        word, length, following, header.hop_limit, header.src.packed, header.dst.packed
    )


def _put_ip4(header: Ip4, length: int) -> bytes:
    flags = _IP4_DF * header.dont_fragment
    ends = header.src.packed, header.dst.packed
    start = 0x45, header.tos, _IP4.size + length, header.ident, flags, header.ttl, _NEXT_UDP
    return _IP4.pack(*start, checksum16(_IP4.pack(*start, 0, *ends)), *ends)


def get_ip6(data: bytes) -> tuple[Ip6, int, bytes]:
    """Return an IPv6 header, its next header number and the bytes after it.

    Raises DecodeError if the header is not IPv6, or if its length is not that of `data`.
    """
    if len(data) < _IP6.size:
        raise DecodeError(f"truncated: {len(data)} of {_IP6.size} bytes of IPv6")
    word, length, following, hops, src, dst = _IP6.unpack_from(data)
    if word >> 28 != 6:
        raise DecodeError(f"IP version {word >> 28}, not 6")
    rest = data[_IP6.size :]
    if length != len(rest):
        raise DecodeError(f"IPv6 says {length} bytes, {len(rest)} follow")
    header = Ip6(IPv6Address(src), IPv6Address(dst), word & 0xFFFFF, word >> 20 & 0xFF, hops)
    return header, following, rest


def _get_ip4(data: bytes) -> tuple[Ip4, int, bytes]:
    """Return an IPv4 header, its protocol number and the bytes after it."""
    if len(data) < _IP4.size:
        raise DecodeError(f"truncated: {len(data)} of {_IP4.size} bytes of IPv4")
    start, tos, length, ident, frag, ttl, following, _sum, src, dst = _IP4.unpack_from(data)
    if start != 0x45:
        raise DecodeError(f"IPv4 header of {4 * (start & 15)} bytes, not 20")
    if checksum16(data[: _IP4.size]):
        raise DecodeError("IPv4 header checksum")
    if frag & _IP4_FRAGMENT:
        raise DecodeError("a fragment")
    if length != len(data):
        raise DecodeError(f"IPv4 says {length} bytes, there are {len(data)}")
    header = Ip4(IPv4Address(src), IPv4Address(dst), tos, ttl, ident, bool(frag & _IP4_DF))
    return header, following, data[_IP4.size :]
