# SPDX-License-Identifier: GPL-2.0-only
"""A second opinion on the wire: MRC as scapy layers.

It is written from the published byte positions and from neither bpf/mrc_wire.h nor
mrcd/wire/packet.py, so that a mistake would have to be made twice. Where the published readings
differ (the operation of an endpoint response), or mrcd uses a reserved field (the planes that are
down), it follows the choices that docs/protocol.md records.
"""

# ruff: noqa: RUF012 (scapy wants its field lists as plain class attributes)

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    IntField,
    LongField,
    ShortField,
    SignedShortField,
    StrField,
    ThreeBytesField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

_VECTORS = Path(__file__).resolve().parents[1] / "tests" / "vectors"
UDP_PORT = 4971

OPCODES = {
    0xC6: "write first",
    0xC7: "write middle",
    0xC8: "write last",
    0xC9: "write last with immediate",
    0xCA: "write only",
    0xCB: "write only with immediate",
    0xD1: "transport ack",
    0xD8: "endpoint request",
    0xD9: "endpoint response",
    0xDC: "sack",
    0xDD: "nack",
    0xDE: "probe",
}
NACK_REASONS = {
    0x01: "trimmed",
    0x02: "trimmed at the last hop",
    0x06: "no bitmap",
    0x07: "no packet buffer",
    0x0A: "no resource",
    0x0B: "PSN outside the window",
    0x19: "unexpected event",
}


class _AllButIcrc(StrField):
    """The bytes that remain before the last four."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, bytes]:
        return s[-4:], s[:-4]


class _Layer(Packet):
    """A header followed by the layer that `follows` returns."""

    follows: type[Packet] | None = None

    def guess_payload_class(self, payload: bytes) -> Any:
        return self.follows or super().guess_payload_class(payload)


class Icrc(Packet):
    name = "ICRC"
    fields_desc = [XIntField("icrc", 0)]


class Written(Packet):
    name = "payload and ICRC"
    fields_desc = [_AllButIcrc("data", b""), XIntField("icrc", 0)]


class Immdt(_Layer):
    name = "ImmDt"
    follows = Written
    fields_desc = [XIntField("immediate", 0)]


class Reth(Packet):
    name = "RETH"
    fields_desc = [LongField("va", 0), XIntField("rkey", 0), IntField("dma_length", 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        above = self.underlayer
        while above is not None and not isinstance(above, Bth):
            above = above.underlayer
        return Immdt if above is not None and above.opcode in (0xC9, 0xCB) else Written


class Tseth(_Layer):
    name = "TSETH"
    follows = Reth
    fields_desc = [
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("reserved", 0, 11),
        BitField("ftype", 1, 4),
    ]


class Meth(_Layer):
    name = "METH"
    fields_desc = [ShortField("rqmsn", 0), ShortField("msn", 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        bth = self.underlayer
        return Tseth if bth is not None and bth.ts else Reth


class Aeth(_Layer):
    name = "AETH"
    follows = Icrc
    fields_desc = [
        BitField("reserved", 0, 1),
        BitEnumField("kind", 0, 2, {0: "ACK", 1: "RNR NAK", 3: "NAK"}),
        BitField("credits", 0x1F, 5),
        ThreeBytesField("msn", 0),
    ]


class Auth(_Layer):
    name = "Auth"
    follows = Icrc
    fields_desc = [IntField("count", 0), XLongField("tag", 0)]


class CcState(_Layer):
    name = "CC_STATE"
    follows = Auth
    fields_desc = [
        ShortField("tx_timestamp", 0),
        BitField("reserved", 0, 1),
        BitField("ooo_count", 0, 15),
        BitField("restore_cwnd", 0, 1),
        BitField("rcv_cwnd_pen", 0, 7),
        BitField("rcvd_bytes", 0, 24),
    ]


class Seth(_Layer):
    name = "SETH"
    follows = CcState
    fields_desc = [
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitEnumField("m", 0, 2, {0: "none", 1: "skip once", 2: "always skip"}),
        BitField("reserved", 0, 3),
        BitField("pr", 0, 1),
        BitField("reserved2", 0, 1),
        ConditionalField(SignedShortField("ack_psn_offset", 0), lambda seth: not seth.pr),
        ConditionalField(ShortField("probe_id", 0), lambda seth: bool(seth.pr)),
        XIntField("entropy", 0),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
        ByteField("down", 0),
        ThreeBytesField("cack_psn", 0),
        BitField("cc_type", 0, 4),
        BitField("cc_flags", 0, 4),
        ByteField("mpr", 0),
        SignedShortField("sack_offset", 0),
        XLongField("sack_bitmap", 0),
    ]


class Neth(_Layer):
    name = "NETH"
    follows = Auth
    fields_desc = [
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved", 0, 7),
        ByteEnumField("nack_reason", 0, NACK_REASONS),
        ByteField("vendor_info", 0),
        XIntField("entropy", 0),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
        ByteField("reserved2", 0),
        ThreeBytesField("nack_psn", 0),
        BitField("cc_type", 2, 4),
        BitField("cc_flags", 0, 4),
        ByteField("reserved3", 0),
        ShortField("tx_timestamp", 0),
    ]


class Peth(_Layer):
    name = "PETH"
    follows = Auth
    fields_desc = [
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved", 0, 7),
        ByteField("reserved2", 0),
        ByteField("vendor_info", 0),
        ShortField("probe_id", 0),
        ShortField("reserved3", 0),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("reserved4", 0, 11),
        BitField("ftype", 1, 4),
    ]


class Erth(_Layer):
    name = "ERTH"
    follows = Auth
    fields_desc = [
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved", 0, 5),
        BitEnumField("op", 0, 2, {0: "port status update", 1: "EV probe"}),
        ByteField("reserved2", 0),
        ByteField("vendor_info", 0),
        XIntField("port_status_mask", 0),
        XIntField("reserved3", 0),
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("reserved4", 0, 11),
        BitField("ftype", 1, 4),
    ]


class Eeth(_Layer):
    name = "EETH"
    follows = Auth
    fields_desc = [
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved", 0, 1),
        BitEnumField("op", 0, 2, {0: "port status update", 1: "EV probe"}),
        BitField("reserved2", 0, 4),
        ShortField("reserved3", 0),
        *(IntField(f"reserved_word{number}", 0) for number in range(6)),
        ShortField("tx_timestamp", 0),
        ShortField("reserved4", 0),
        IntField("reserved5", 0),
    ]


class Bth(_Layer):
    name = "BTH"
    fields_desc = [
        ByteEnumField("opcode", 0xCA, OPCODES),
        BitField("se", 0, 1),
        BitField("m", 0, 1),
        BitField("pad", 0, 2),
        BitField("tver", 0, 4),
        XShortField("pkey", 0xFFFF),
        ByteField("reserved", 0),
        ThreeBytesField("dqpn", 0),
        BitField("ackreq", 0, 1),
        BitField("r", 0, 1),
        BitField("rtx", 0, 1),
        BitField("ts", 0, 1),
        BitField("reserved2", 0, 3),
        BitField("phase", 0, 1),
        ThreeBytesField("psn", 0),
    ]

    _after = {0xD1: Aeth, 0xDC: Seth, 0xDD: Neth, 0xDE: Peth, 0xD8: Erth, 0xD9: Eeth}

    def guess_payload_class(self, payload: bytes) -> Any:
        if 0xC6 <= self.opcode <= 0xCB:
            return Meth
        return self._after.get(self.opcode) or super().guess_payload_class(payload)


class CellState(Packet):
    """The source address of a cell's outer header."""

    name = "cell"
    fields_desc = [
        XIntField("block", 0xFDCB0000),
        BitField("mark", 3, 2),
        BitField("mss", 0, 14),
        ThreeBytesField("psn", 0),
        ByteField("seq", 0),
        XShortField("qp", 0),
        XIntField("tag", 0),
    ]


class CellLabel(Packet):
    """The flow label of a cell, behind the bits that fill it up to a word."""

    name = "flow label of a cell"
    fields_desc = [
        BitField("zero", 0, 12),
        BitField("attempt", 0, 2),
        BitField("ackreq", 0, 1),
        BitField("phase", 0, 1),
        XShortField("ev_hi", 0),
    ]


class CellVxlan(Packet):
    """A VXLAN header and the Ethernet header in it, of a cell in UDP."""

    name = "VXLAN with a cell"
    fields_desc = [
        XByteField("flags", 0x08),
        BitField("reserved", 0, 24),
        BitField("zero", 0, 4),
        BitField("attempt", 0, 2),
        BitField("ackreq", 0, 1),
        BitField("phase", 0, 1),
        XShortField("ev_hi", 0),
        ByteField("reserved2", 0),
        BitField("mark", 3, 2),
        BitField("mss", 0, 14),
        ThreeBytesField("psn", 0),
        ByteField("seq", 0),
        XShortField("qp", 0),
        XIntField("tag", 0),
        XShortField("ethertype", 0x0800),
    ]

    def guess_payload_class(self, payload: bytes) -> Any:
        return {0x0800: IP, 0x86DD: IPv6}[self.ethertype]


CELL_PORT = 4974

bind_layers(UDP, Bth, dport=UDP_PORT)
bind_layers(UDP, CellVxlan, dport=CELL_PORT)


def dissect(data: bytes) -> Packet:
    """Return the layers of a packet that begins with an IP header."""
    return IP(data) if data[:1] and data[0] >> 4 == 4 else IPv6(data)


def dissect_frame(frame: bytes) -> Packet:
    """Return the layers of an Ethernet frame."""
    return Ether(frame)


def vector(name: str) -> bytes:
    """Return the golden frame of that name, from its Ethernet header on."""
    path = _VECTORS / f"{name}.hex"
    lines = path.read_text(encoding="ascii").splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


# Bytes of headers behind the BTH; four more where a write has a TSETH.
_BEHIND_BTH = {0xD1: 4, 0xDC: 48, 0xDD: 32, 0xDE: 28, 0xD8: 28, 0xD9: 48}
_WRITES = {0xC6: 20, 0xC7: 20, 0xC8: 20, 0xC9: 24, 0xCA: 20, 0xCB: 24}


def header_check(covered: bytes) -> int:
    """Return the ICRC word over the UDP ports and all headers from the BTH (docs/protocol.md).

    It computes with unbounded integers, and takes the remainder only where it is needed.
    """
    covered += bytes(-len(covered) % 8)
    total = 0
    for (group,) in struct.iter_unpack("!Q", covered):
        product = (total ^ group) * 0x9E3779B97F4A7C15 % 2**64
        total = product ^ product // 2**32
    return total % 2**32


_ZERO_KEY = bytes(16)


def siphash(key: bytes, text: bytes) -> bytes:
    """Return SipHash-2-4 as eight bytes, from the paper's description (section 2)."""
    lanes = [int.from_bytes(part.encode(), "big") for part in ("somepseu", "dorandom", "lygenera",
                                                               "tedbytes")]  # fmt: skip
    halves = struct.unpack("<2Q", key) * 2
    lanes = [lane ^ half for lane, half in zip(lanes, halves, strict=True)]

    def turn(number: int, left: int) -> int:
        return (number << left | number >> (64 - left)) % 2**64

    def mix(times: int) -> None:
        for _ in range(times):
            for a, b, by in ((0, 1, 13), (2, 3, 16)):
                lanes[a] = (lanes[a] + lanes[b]) % 2**64
                lanes[b] = turn(lanes[b], by) ^ lanes[a]
            lanes[0] = turn(lanes[0], 32)
            for a, b, by in ((2, 1, 17), (0, 3, 21)):
                lanes[a] = (lanes[a] + lanes[b]) % 2**64
                lanes[b] = turn(lanes[b], by) ^ lanes[a]
            lanes[2] = turn(lanes[2], 32)

    ended = text + bytes(7 - len(text) % 8) + bytes([len(text) % 256])
    for (block,) in struct.iter_unpack("<Q", ended):
        lanes[3] ^= block
        mix(2)
        lanes[0] ^= block
    lanes[2] ^= 0xFF
    mix(4)
    return struct.pack("<Q", lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3])


def official_siphash() -> list[bytes]:
    """Return the test vectors of the reference code (vectors.h, github.com/veorq/SipHash).

    Number n is the hash of the n bytes 00, 01, ..., under the key 00, 01, ..., 0f.
    """
    path = _VECTORS / "siphash-2-4.txt"
    lines = path.read_text(encoding="ascii").splitlines()
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


def _eights(text: bytes) -> bytes:
    return text + bytes(-len(text) % 8)


def _tag_at(data: bytes, udp: int) -> int:
    """Return where the tag of a packet is; 0 if its kind has none."""
    bth = udp + 8
    if data[bth] == 0xCA:
        return bth + 12 + 8 if data[bth + 8] & 0x10 else 0
    if data[bth] == 0xD1 or data[bth] not in _BEHIND_BTH:
        return 0
    return bth + 12 + _BEHIND_BTH[data[bth]] - 8


def tag_of(data: bytes, udp: int, key: bytes = _ZERO_KEY, psn_high: int = 0) -> int:
    """Return the tag that a packet should have, as the number that its field holds; 0 for none.

    `psn_high` are the bits of the PSN above the 24 on the wire.
    """
    bth, at = udp + 8, _tag_at(data, udp)
    if not at:
        return 0
    covered = data[udp:at]
    if data[bth] == 0xCA:
        covered += bytes([psn_high]) + data[bth + 9 : bth + 12] + data[at + 8 : at + 16]
    return int.from_bytes(siphash(key, _eights(covered)), "big")


def tagged(data: bytes, udp: int, key: bytes = _ZERO_KEY, psn_high: int = 0) -> bytes:
    """Return a packet with its tag, if its kind has one: data to mrc0, or SACKs and such."""
    at = _tag_at(data, udp)
    if not at:
        return data
    tag = tag_of(data, udp, key, psn_high)
    return data[:at] + tag.to_bytes(8, "big") + data[at + 8 :]


def icrc_of(data: bytes, udp: int) -> int:
    """Return the ICRC word that a packet should have."""
    bth = udp + 8
    behind = _BEHIND_BTH.get(data[bth], 0)
    if data[bth] in _WRITES:
        behind = _WRITES[data[bth]] + (4 if data[bth + 8] & 0x10 else 0)
    return header_check(data[udp : udp + 4] + data[bth : bth + 12 + behind])


def sealed(data: bytes, udp: int, key: bytes = _ZERO_KEY, psn_high: int = 0) -> bytes:
    """Return a packet with the tag and the ICRC word of its headers; UDP is at offset `udp`.

    A packet that is cut short or of an unknown kind is returned unchanged, data that was trimmed
    to its headers with its tag only.
    """
    bth = udp + 8
    if len(data) < bth + 12:
        return data
    behind = _BEHIND_BTH.get(data[bth], 0)
    if data[bth] in _WRITES:
        behind = _WRITES[data[bth]] + (4 if data[bth + 8] & 0x10 else 0)
    if not behind or len(data) < bth + 12 + behind + (0 if data[bth] == 0xCA else 4):
        return data
    data = tagged(data, udp, key, psn_high)
    if len(data) < bth + 12 + behind + 4:
        return data
    return data[:-4] + struct.pack("!I", icrc_of(data, udp))


def checked(
    state: CellState, label: CellLabel, qpn: int, key: bytes = _ZERO_KEY, psn_high: int = 0
) -> CellState:
    """Return the state of a cell with its tag, for the receiver's QPN with generation."""
    last = struct.pack("!I", psn_high << 24 | qpn)
    state.tag = int.from_bytes(siphash(key, bytes(state)[4:12] + bytes(label) + last)[:4], "big")
    return state


def cell(state: CellState, label: CellLabel, inner: Packet, **outer: Any) -> Packet:
    """Return the packet of a cell; `outer` are fields of its outer IPv6 header."""
    around = IPv6(
        src=socket.inet_ntop(socket.AF_INET6, bytes(state)),
        fl=int.from_bytes(bytes(label), "big"),
        nh=4 if isinstance(inner, IP) else 41,
        **outer,
    )
    return around / inner


def cell_in_udp(head: CellVxlan, qpn: int, key: bytes = _ZERO_KEY, psn_high: int = 0) -> CellVxlan:
    """Return the headers of a cell in UDP with their tag, for the receiver's QPN."""
    whole = bytes(head)
    covered = whole[8:16] + b"\0" + whole[4:7] + struct.pack("!I", psn_high << 24 | qpn)
    head.tag = int.from_bytes(siphash(key, covered)[:4], "big")
    return head


def cut(large: Packet, mss: int) -> list[Packet]:
    """Return the packets into which a NIC cuts a large TCP segment, first to last."""
    whole, segment = bytes(large[TCP].payload), large.copy()
    segment[TCP].remove_payload()
    made = []
    for at in range(0, len(whole), mss):
        each = segment.copy() / whole[at : at + mss]
        each[TCP].seq = (segment[TCP].seq + at) % 2**32
        del each[TCP].chksum
        if isinstance(each, IP):
            each.id = (segment.id + at // mss) % 2**16
            del each.chksum, each.len
        else:
            del each.plen
        if at + mss < len(whole):  # FIN and PSH belong to the last one
            each[TCP].flags = each[TCP].flags & ~0x09
        made.append(type(large)(bytes(each)))
    return made
