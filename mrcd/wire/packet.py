# SPDX-License-Identifier: GPL-2.0-only
"""Encode and decode whole MRC packets, from the first IP header to the ICRC word.

mrcd/wire/envelope.py handles IP and UDP, mrcd/wire/headers.py MRC's own headers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mrcd.wire.envelope import (
    DecodeError,
    Envelope,
    Ip4,
    Ip6,
    open_envelope,
    overhead,
    put_envelope,
)
from mrcd.wire.headers import (
    Aeth,
    Auth,
    Bth,
    CcState,
    Eeth,
    Erth,
    Neth,
    Peth,
    Seth,
    Timestamp,
    Write,
)
from mrcd.wire.layout import WIRE, Field, Header, Struct, read_header
from mrcd.wire.tag import NO_KEY, control_tag, data_tag

__all__ = [
    "IMMEDIATES",
    "WIRE",
    "WRITES",
    "Aeth",
    "Auth",
    "Bth",
    "CcState",
    "Control",
    "Data",
    "DecodeError",
    "Eeth",
    "Envelope",
    "Erth",
    "Field",
    "Header",
    "Ip4",
    "Ip6",
    "Neth",
    "Packet",
    "Peth",
    "Sack",
    "Seth",
    "Struct",
    "Timestamp",
    "Write",
    "check_word",
    "decode",
    "decode_frame",
    "encode",
    "encode_frame",
    "overhead",
    "read_header",
]

_ETHERNET = struct.Struct("!6s6sH")
_ETHERTYPE = {4: 0x0800, 6: 0x86DD}
_ICRC = struct.Struct("!I")
_PORTS = struct.Struct("!HH")
_UDP = struct.Struct("!HHHH")
_TAG_BYTES = 8
_HALF, _MASK32, _MASK64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
IMMEDIATES = frozenset((WIRE.MRC_OP_WRITE_LAST_IMM, WIRE.MRC_OP_WRITE_ONLY_IMM))
"""The opcodes of writes with immediate data."""
WRITES = IMMEDIATES | {
    WIRE.constants[f"MRC_OP_WRITE_{which}"] for which in ("FIRST", "MIDDLE", "LAST", "ONLY")
}
"""The opcodes of all writes."""
_WHOLE = (WIRE.MRC_OP_WRITE_ONLY, WIRE.MRC_OP_WRITE_ONLY_IMM)


@dataclass(frozen=True, slots=True)
class Data:
    """One packet of a write; a Write Only holds one IP packet of an application."""

    envelope: Envelope
    bth: Bth
    body: Write
    payload: bytes


_UNCOUNTED = Auth()


@dataclass(frozen=True, slots=True)
class Sack:
    """A reliability SACK."""

    envelope: Envelope
    bth: Bth
    body: Seth
    cc_state: CcState
    auth: Auth = _UNCOUNTED


@dataclass(frozen=True, slots=True)
class Control:
    """A packet with one header after the BTH: ACK, NACK, probe, endpoint request or response.

    All but the ACK end with an Auth.
    """

    envelope: Envelope
    bth: Bth
    body: Aeth | Neth | Peth | Erth | Eeth
    auth: Auth = _UNCOUNTED


Packet = Data | Sack | Control

_CONTROL: Mapping[int, type[Aeth | Neth | Peth | Erth | Eeth]] = {
    WIRE.MRC_OP_TRANSPORT_ACK: Aeth,
    WIRE.MRC_OP_NACK: Neth,
    WIRE.MRC_OP_PROBE: Peth,
    WIRE.MRC_OP_ENDPOINT_REQ: Erth,
    WIRE.MRC_OP_ENDPOINT_RSP: Eeth,
}
_LAYOUTS = {
    Aeth: "mrc_aeth",
    Neth: "mrc_neth",
    Peth: "mrc_peth",
    Erth: "mrc_erth",
    Eeth: "mrc_eeth",
}


def encode(packet: Packet, key: bytes = NO_KEY, psn_high: int = 0) -> bytes:
    """Encode a packet from its first IP header to the ICRC word.

    Lengths, the ICRC word, and a tag that is None are filled in. `key` is that of the tag, 16
    bytes, and `psn_high` are the upper eight bits of the PSN as it counts in 32. Raises ValueError
    when the packet's parts contradict each other or a number does not fit.
    """
    packet = _with_tag(packet, key, psn_high)
    headers, payload = packet.bth.pack() + packet.body.pack(), b""
    if isinstance(packet, Data):
        if packet.bth.ts != (packet.body.timestamp is not None):
            raise ValueError("BTH.ts and the presence of a TSETH disagree")
        if (packet.bth.opcode in IMMEDIATES) != (packet.body.immediate is not None):
            raise ValueError("the opcode and the presence of immediate data disagree")
        payload = packet.payload
    elif isinstance(packet, Sack):
        headers += packet.cc_state.pack() + packet.auth.pack()
    elif not isinstance(packet.body, Aeth):
        headers += packet.auth.pack()
    word = _ICRC.pack(header_check(packet.envelope, headers))
    return put_envelope(packet.envelope, headers + payload + word)


def _with_tag(packet: Packet, key: bytes, psn_high: int) -> Packet:
    """Return the packet with its tag, unless it has one or needs none."""
    around, headers = packet.envelope, packet.bth.pack() + packet.body.pack()
    if isinstance(packet, Data):
        if not _has_tag(packet.bth, packet.body) or packet.body.va is not None:
            return packet
        length = len(headers) + len(packet.payload)
        tag = data_tag(key, _udp(around, length), headers, psn_high << 24 | packet.bth.psn)
        return replace(packet, body=replace(packet.body, va=tag))
    if packet.auth.tag is not None or isinstance(packet.body, Aeth):
        return packet
    if isinstance(packet, Sack):
        headers += packet.cc_state.pack()
    udp = _udp(around, len(headers) + WIRE.MRC_AUTH_LEN)
    tag = control_tag(key, udp, headers + packet.auth.pack()[:-_TAG_BYTES])
    return replace(packet, auth=replace(packet.auth, tag=tag))


def _has_tag(bth: Bth, write: Write) -> bool:
    """Return whether a write goes to the netdev region or is a stub: its address is then a tag."""
    return (
        bth.opcode == WIRE.MRC_OP_WRITE_ONLY
        and bth.ts
        and write.timestamp is not None
        and write.rkey in (WIRE.MRC_RKEY_NETDEV, WIRE.MRC_RKEY_STUB)
    )


def _udp(around: Envelope, length: int) -> bytes:
    """Return the UDP header around `length` bytes and the ICRC word."""
    total = WIRE.MRC_UDP_LEN + length + _ICRC.size
    ports = around.src_port & _HALF, around.dst_port & _HALF
    return _UDP.pack(*ports, total & _HALF, around.udp_checksum & _HALF)


def header_check(around: Envelope, headers: bytes) -> int:
    """Return the ICRC word (bpf/mrc_wire.h) over the UDP ports and `headers`.

    `headers` are the bytes from the BTH up to the payload, if any. Ports that do not fit are taken
    modulo 2^16.
    """
    return check_word(_PORTS.pack(around.src_port & _HALF, around.dst_port & _HALF) + headers)


def check_word(covered: bytes) -> int:
    """Return the check of these bytes (MRC_ICRC_LEN in bpf/mrc_wire.h)."""
    total = 0
    for at in range(0, len(covered), 8):
        group = int.from_bytes(covered[at : at + 8].ljust(8, b"\0"), "big")
        total = (total ^ group) * WIRE.MRC_CHECK_FACTOR & _MASK64
        total ^= total >> 32
    return total & _MASK32


def decode(data: bytes, port: int = WIRE.MRC_UDP_PORT_DEFAULT) -> Packet:
    """Decode an MRC packet that begins with an IP header; raises DecodeError if it is invalid."""
    envelope, body = open_envelope(data, port)
    bth = Bth.unpack(body, 0)
    end = len(body) - _ICRC.size
    if end < WIRE.structs["mrc_bth"].size:
        raise DecodeError("truncated: no ICRC word")
    packet, at = _open_body(envelope, bth, body[:end])
    (found,) = _ICRC.unpack_from(body, end)
    if found != (right := header_check(envelope, body[:at])):
        raise DecodeError(f"ICRC word {found:#010x}, not {right:#010x}: damaged headers")
    return packet


def _open_body(envelope: Envelope, bth: Bth, body: bytes) -> tuple[Packet, int]:
    """Decode the packet whose BTH begins `body`; also return the offset where its headers end."""
    at = WIRE.structs["mrc_bth"].size
    if bth.opcode in WRITES:
        write, at = Write.unpack(body, at, stamped=bth.ts, immediate=bth.opcode in IMMEDIATES)
        payload = body[at:]
        if bth.opcode in _WHOLE and write.length != len(payload):
            raise DecodeError(f"RETH says {write.length} bytes, {len(payload)} follow")
        return Data(envelope, bth, write, payload), at
    if bth.opcode == WIRE.MRC_OP_SACK:
        seth = Seth.unpack(body, at)
        at += WIRE.structs["mrc_seth"].size
        state = CcState.unpack(body, at)
        at += WIRE.structs["mrc_cc_state"].size
        auth = Auth.unpack(body, at)
        at += WIRE.MRC_AUTH_LEN
        _expect_end(body, at)
        return Sack(envelope, bth, seth, state, auth), at
    if kind := _CONTROL.get(bth.opcode):
        control = kind.unpack(body, at)
        at += WIRE.structs[_LAYOUTS[kind]].size
        auth = Auth()
        if kind is not Aeth:
            auth = Auth.unpack(body, at)
            at += WIRE.MRC_AUTH_LEN
        _expect_end(body, at)
        return Control(envelope, bth, control, auth), at
    raise DecodeError(f"opcode {bth.opcode:#04x} is not supported")


def encode_frame(
    packet: Packet, dst_mac: bytes, src_mac: bytes, key: bytes = NO_KEY, psn_high: int = 0
) -> bytes:
    """Encode the packet with an Ethernet header in front."""
    version = 4 if isinstance(packet.envelope.inner, Ip4) else 6
    link = _ETHERNET.pack(dst_mac, src_mac, _ETHERTYPE[version])
    return link + encode(packet, key, psn_high)


def decode_frame(frame: bytes, port: int = WIRE.MRC_UDP_PORT_DEFAULT) -> Packet:
    """Decode the MRC packet in an Ethernet frame; raises DecodeError if it holds none."""
    if len(frame) < _ETHERNET.size:
        raise DecodeError("truncated: no Ethernet header")
    *_, ethertype = _ETHERNET.unpack_from(frame)
    data = frame[_ETHERNET.size :]
    if ethertype not in _ETHERTYPE.values():
        raise DecodeError(f"Ethernet type {ethertype:#06x} is not IP")
    if data and _ETHERTYPE.get(data[0] >> 4) != ethertype:
        raise DecodeError(f"IP version {data[0] >> 4} in Ethernet type {ethertype:#06x}")
    return decode(data, port)


def _expect_end(body: bytes, at: int) -> None:
    if at != len(body):
        raise DecodeError(f"{len(body) - at} bytes too many before the ICRC word")
