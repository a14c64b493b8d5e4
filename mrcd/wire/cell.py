# SPDX-License-Identifier: GPL-2.0-only
"""Cells: encode and decode packets whose outer headers hold the transport's state.

A cell is an IP packet of an application, or a large TCP segment that is cut into packets on its way
and put together again. All its packets have the same state (struct mrc_cell in bpf/mrc_wire.h), in
one of two envelopes: MRC_CELL_IP6, where it is the source address of an IPv6 header, and
MRC_CELL_UDP, where it lies in the inner Ethernet header of VXLAN (RFC 7348). `piece_psns` tells
which PSNs a piece of a cell has.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from typing import Self

from mrcd.wire.envelope import (
    NEXT_IP4,
    NEXT_IP6,
    DecodeError,
    Envelope,
    Ip4,
    Ip6,
    get_ip6,
    open_envelope,
    put_envelope,
    put_ip6,
)
from mrcd.wire.layout import WIRE
from mrcd.wire.tag import NO_KEY, cell_tag

_STATE = WIRE.structs["mrc_cell"]
_COVERED = slice(_STATE.fields["mss"].offset, _STATE.fields["tag"].offset)
_BLOCK_LEN = _COVERED.start
_VXLAN = struct.Struct("!II12sH")  # with the inner Ethernet header, whose addresses are the state
_LABEL = 0xFFFFF
_VNI_FREE = 0xFFFFFFFF ^ _LABEL << WIRE.MRC_CELL_VNI_SHIFT
_LENGTH = struct.Struct("!H")
_SEQUENCE = struct.Struct("!I")
_EV_MASK = (1 << 16) - 1
_ATTEMPT_MAX = 3
_NEXT_TCP = 6
_VERSIONS = {NEXT_IP4: 4, NEXT_IP6: 6}
_FOLLOWING = {version: following for following, version in _VERSIONS.items()}
_ETHERTYPES = {4: 0x0800, 6: 0x86DD}
_VERSION_OF = {ethertype: version for version, ethertype in _ETHERTYPES.items()}
_TCP_LEN = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """What all packets of a cell share.

    `qpn` is the receiver's, generation included. `psn` is that of the cell's first packet. A cell
    of one packet has seq 0 and mss 0, or MRC_CELL_STUB if the packet is a stub. `mss` is otherwise
    the TCP payload of each packet but the last, and `seq` holds bits 15 to 8 of the first TCP
    sequence number. The low half of `ev` is 0.
    """

    block: int  # first 32 bits of NIC addresses; 0 in MRC_CELL_UDP, which has none
    qpn: int
    psn: int
    ev: int
    mss: int = 0
    seq: int = 0
    attempt: int = 0  # 0: the first sending; 3: the third repetition or a later one
    ackreq: bool = False
    phase: int = 0  # of the key of the tag

    @property
    def stub(self) -> bool:
        """Whether the one packet is the stub of one that was too old to be sent."""
        return self.mss == WIRE.MRC_CELL_STUB

    @property
    def single(self) -> bool:
        """Whether the cell has one packet, whatever is in it."""
        return not self.mss or self.stub

    @property
    def label(self) -> int:
        """The label, 20 bits; raises ValueError for a number that does not fit."""
        if self.ev & _EV_MASK or not 0 <= self.ev >> 16 <= _EV_MASK:
            raise ValueError(f"EV {self.ev:#x} does not fit: 16 bits above 16 zero bits")
        if not 0 <= self.attempt <= _ATTEMPT_MAX:
            raise ValueError(f"attempt {self.attempt} does not fit: 0 to {_ATTEMPT_MAX}")
        flags = self.attempt << WIRE.MRC_CELL_ATTEMPT_SHIFT | WIRE.MRC_CELL_ACKREQ * self.ackreq
        flags |= WIRE.MRC_CELL_PHASE * self.phase
        return flags | self.ev >> 16

    def source(self, key: bytes = NO_KEY, psn_high: int = 0) -> IPv6Address:
        """Return the state with its tag, as the source address in MRC_CELL_IP6.

        `key` is that of the tag, 16 bytes, and `psn_high` are the upper eight bits of the PSN as it
        counts in 32. Raises ValueError for a number that does not fit.
        """
        return IPv6Address(self._state(key, psn_high))

    def vxlan(self, version: int, key: bytes = NO_KEY, psn_high: int = 0) -> bytes:
        """Return the VXLAN and the inner Ethernet header of MRC_CELL_UDP, 22 bytes.

        `version` is that of the IP packet inside, the others are those of `source`. Raises
        ValueError for a number that does not fit.
        """
        if self.block:
            raise ValueError(f"block {self.block:#x} does not fit: only MRC_CELL_IP6 has one")
        vni = self.label << WIRE.MRC_CELL_VNI_SHIFT
        state = self._state(key, psn_high)[_BLOCK_LEN:]
        return _VXLAN.pack(WIRE.MRC_CELL_VXLAN, vni, state, _ETHERTYPES[version])

    def _state(self, key: bytes, psn_high: int) -> bytes:
        for name, value, mask in (
            ("QPN", self.qpn, WIRE.MRC_QPN_MASK),
            ("PSN", self.psn, WIRE.MRC_PSN_MASK),
            ("mss", self.mss, WIRE.MRC_CELL_MSS),
        ):
            if value & ~mask:
                raise ValueError(f"{name} {value:#x} does not fit into {mask:#x}")
        state = _STATE.pack(
            block=self.block, mss=WIRE.MRC_CELL_MARK | self.mss, psn_hi=self.psn >> 8,
            psn_lo=self.psn & 0xFF, seq=self.seq, qp=self.qpn & 0xFFFF,
        )  # fmt: skip
        psn = psn_high << 24 | self.psn
        tag = cell_tag(key, state[_COVERED], self.label, psn, self.qpn)
        return state[: _COVERED.stop] + tag.to_bytes(4, "big")

    @classmethod
    def unpack(cls, source: bytes, label: int, generation: int = 0) -> Self:
        """Read a cell from the source address and flow label of its outer header (MRC_CELL_IP6).

        The upper eight bits of the QPN, its generation, are in the tag only. Raises DecodeError if
        the address is none of a cell. The tag is not looked at.
        """
        raw = _STATE.unpack(source)
        if raw["mss"] & WIRE.MRC_CELL_MARK != WIRE.MRC_CELL_MARK:
            raise DecodeError(f"mss {raw['mss']:#06x} without the mark of a cell")
        return cls(
            raw["block"], generation << 16 | raw["qp"], raw["psn_hi"] << 8 | raw["psn_lo"],
            (label & _EV_MASK) << 16, raw["mss"] & WIRE.MRC_CELL_MSS, raw["seq"],
            label >> WIRE.MRC_CELL_ATTEMPT_SHIFT, bool(label & WIRE.MRC_CELL_ACKREQ),
            int(bool(label & WIRE.MRC_CELL_PHASE)),
        )  # fmt: skip

    @classmethod
    def unpack_vxlan(cls, head: bytes, generation: int = 0) -> tuple[Self, int]:
        """Read a cell from the bytes behind its UDP header (MRC_CELL_UDP).

        Returns it and the version of the IP packet inside. Raises DecodeError, which names the
        field, if the headers are none of a cell. The tag is not looked at.
        """
        if len(head) < _VXLAN.size:
            raise DecodeError(
                f"truncated: {len(head)} of {_VXLAN.size} bytes of VXLAN and inner Ethernet"
            )
        flags, vni, state, ethertype = _VXLAN.unpack_from(head)
        if flags != WIRE.MRC_CELL_VXLAN:
            raise DecodeError(f"VXLAN flags {flags:#010x}, not {WIRE.MRC_CELL_VXLAN:#010x}")
        if vni & _VNI_FREE:
            raise DecodeError(f"VNI and reserved byte {vni:#010x}: more than a label of 20 bits")
        if ethertype not in _VERSION_OF:
            raise DecodeError(f"inner EtherType {ethertype:#06x}, neither IPv4 nor IPv6")
        label = vni >> WIRE.MRC_CELL_VNI_SHIFT
        return cls.unpack(bytes(_BLOCK_LEN) + state, label, generation), _VERSION_OF[ethertype]


@dataclass(frozen=True, slots=True)
class CellPacket:
    """A packet on the wire in MRC_CELL_IP6, or a piece that GRO made of several packets of a cell.

    `payload` is the IP packet inside, `dst` the rest of the uSID list or the peer's address.
    """

    cell: Cell
    dst: IPv6Address
    payload: bytes
    traffic_class: int = WIRE.MRC_ECN_ECT0
    hop_limit: int = 64


@dataclass(frozen=True, slots=True)
class CellInUdp:
    """The same in MRC_CELL_UDP.

    `around` are the IP header, without another around it, and the UDP header. `udp_around` makes
    them as a sender does.
    """

    cell: Cell
    around: Envelope
    payload: bytes


def udp_around(
    ip: Ip4 | Ip6, ev: int, port: int = WIRE.MRC_CELL_PORT_DEFAULT, *, first: int = 0
) -> Envelope:
    """Return the headers of MRC_CELL_UDP as the sender of a cell on path `ev` makes them.

    Over IPv6 the flow label is set to the upper half of `ev`, over IPv4 the identification to
    `first`, the number of the packet in its cell.
    """
    high = ev >> 16
    if isinstance(ip, Ip6):
        ip = replace(ip, flow_label=high)
    else:
        ip = replace(ip, ident=first, dont_fragment=True)
    return Envelope(None, ip, WIRE.MRC_CELL_SPORT | high, port)


def encode_cell(packet: CellPacket | CellInUdp, key: bytes = NO_KEY, psn_high: int = 0) -> bytes:
    """Encode a packet from its outer IP header on; lengths and tag (Cell.source) are filled in.

    Raises ValueError for a number that does not fit, or a payload that is no IP packet.
    """
    version = packet.payload[0] >> 4 if packet.payload else 0
    if version not in _FOLLOWING:
        raise ValueError("the payload does not fit: no IP packet")
    if isinstance(packet, CellInUdp):
        if packet.around.outer is not None:
            raise ValueError("a second IP header does not fit around a cell")
        head = packet.cell.vxlan(version, key, psn_high)
        return put_envelope(packet.around, head + packet.payload)
    outer = Ip6(
        packet.cell.source(key, psn_high), packet.dst, packet.cell.label, packet.traffic_class,
        packet.hop_limit,
    )  # fmt: skip
    try:
        return put_ip6(outer, len(packet.payload), _FOLLOWING[version]) + packet.payload
    except struct.error as error:
        raise ValueError(f"a number does not fit into the IP header: {error}") from None


def decode_cell(
    data: bytes, block: int, qpn: int, key: bytes = NO_KEY, psn_high: int = 0
) -> CellPacket:
    """Decode a packet in MRC_CELL_IP6 from its IP header on, as the QP `qpn` receives it.

    `key` and `psn_high` are those of Cell.source. Raises DecodeError, which names the field that is
    wrong.
    """
    outer, following, payload = get_ip6(data)
    if following not in _VERSIONS:
        raise DecodeError(f"next header {following}, neither IPv4 nor IPv6")
    source = outer.src.packed
    cell = Cell.unpack(source, outer.flow_label, qpn >> 16)
    if cell.block != block:
        raise DecodeError(f"block {cell.block:#010x}, not {block:#010x}")
    _check_tag(cell, source[_BLOCK_LEN:], qpn, key, psn_high)
    _check_inner(cell, _VERSIONS[following], payload)
    return CellPacket(cell, outer.dst, payload, outer.traffic_class, outer.hop_limit)


def decode_cell_in_udp(
    data: bytes,
    qpn: int,
    key: bytes = NO_KEY,
    psn_high: int = 0,
    port: int = WIRE.MRC_CELL_PORT_DEFAULT,
) -> CellInUdp:
    """Decode a packet in MRC_CELL_UDP from its IP header on, as the QP `qpn` receives it.

    `port` is the host's UDP port for cells, the others are those of Cell.source. Neither the UDP
    source port nor the flow label is compared with the EV: they only steer switches, and routers
    may replace them. Raises DecodeError, which names the field that is wrong.
    """
    around, body = open_envelope(data, port)
    if around.outer is not None:
        raise DecodeError("two IP headers around UDP")
    cell, version = Cell.unpack_vxlan(body, qpn >> 16)
    _check_tag(cell, _VXLAN.unpack_from(body)[2], qpn, key, psn_high)
    payload = body[_VXLAN.size :]
    _check_inner(cell, version, payload)
    return CellInUdp(cell, around, payload)


def _check_tag(cell: Cell, state: bytes, qpn: int, key: bytes, psn_high: int) -> None:
    """Raise DecodeError unless a state, from .mss on, is for the QP `qpn` and has its tag."""
    if cell.qpn != qpn:
        raise DecodeError(f"QP {cell.qpn & 0xFFFF:#06x}, not {qpn & 0xFFFF:#06x}")
    covered, tag = state[: _COVERED.stop - _BLOCK_LEN], state[_COVERED.stop - _BLOCK_LEN :]
    found, right = (
        int.from_bytes(tag),
        cell_tag(key, covered, cell.label, psn_high << 24 | cell.psn, qpn),
    )
    if found != right:
        raise DecodeError(
            f"tag {found:#010x}, not {right:#010x}: damaged state or label, another key, "
            "or for another generation of the QP"
        )


def _check_inner(cell: Cell, version: int, payload: bytes) -> None:
    """Raise DecodeError if the packet inside is not what the state and the header before it say."""
    if not payload or payload[0] >> 4 != version:
        raise DecodeError(f"inner IP version {payload[:1].hex()[:1] or 'missing'}, not {version}")
    if len(payload) < (WIRE.MRC_IP4_LEN if version == 4 else WIRE.MRC_IP6_LEN):
        raise DecodeError(f"truncated: {len(payload)} bytes of inner IP")
    if version == 4:
        length = _LENGTH.unpack_from(payload, 2)[0]
    else:
        length = _LENGTH.unpack_from(payload, 4)[0] + WIRE.MRC_IP6_LEN
    if length != len(payload):
        raise DecodeError(f"inner IP says {length} bytes, there are {len(payload)}")
    if not cell.single:
        piece_psns(cell, *tcp_of(payload))
    elif cell.seq:
        raise DecodeError(f"seq {cell.seq:#04x} in a cell of one packet, not 0")


def piece_psns(cell: Cell, sequence: int, length: int) -> tuple[int, int]:
    """Return the first PSN of a piece and the number of its packets.

    `sequence` is the piece's TCP sequence number and `length` that of its TCP payload in bytes;
    both are ignored for a cell of one packet. Raises DecodeError if the piece has no place in a
    cell.
    """
    if cell.single:
        return cell.psn, 1
    if cell.mss < WIRE.MRC_CELL_MSS_MIN:
        raise DecodeError(f"mss {cell.mss}, below {WIRE.MRC_CELL_MSS_MIN}")
    if not length:
        raise DecodeError("no TCP payload in a cell of several packets")
    # The lower eight bits of the first sequence number are not known: the distance is wrong by
    # less than 256 either way. With 255 more it is never too small, and too large by 510 at most.
    distance = (sequence - (cell.seq << 8)) & 0xFFFF
    index = ((distance & 0xFF00) + 255) // cell.mss
    count = -(-length // cell.mss)
    if not 0 <= distance - index * cell.mss <= 0xFF:
        raise DecodeError(f"TCP sequence number {sequence:#010x}: at no packet's beginning")
    if index + count > WIRE.MRC_CELL_PACKETS:
        raise DecodeError(
            f"TCP sequence number {sequence:#010x}: packets {index} to "
            f"{index + count - 1} of a cell of at most {WIRE.MRC_CELL_PACKETS}"
        )
    return cell.psn + index & WIRE.MRC_PSN_MASK, count


def tcp_of(packet: bytes) -> tuple[int, int]:
    """Return TCP's sequence number and the length of its payload, as an IP packet's headers say.

    The packet may be cut short behind its headers. Raises DecodeError if it is not TCP, or if its
    headers are not whole.
    """
    if packet[:1] and packet[0] >> 4 == 4:
        at, length_at, protocol_at, counted = 4 * (packet[0] & 15), 2, 9, 0
    else:
        at, length_at, protocol_at, counted = WIRE.MRC_IP6_LEN, 4, 6, WIRE.MRC_IP6_LEN
    if len(packet) < at + _TCP_LEN:
        raise DecodeError(f"truncated: {len(packet)} of {at + _TCP_LEN} bytes of inner IP and TCP")
    if packet[protocol_at] != _NEXT_TCP:
        raise DecodeError(f"inner protocol {packet[protocol_at]}, not TCP")
    header = at + 4 * (packet[at + 12] >> 4)
    length = _LENGTH.unpack_from(packet, length_at)[0] + counted - header
    if length < 0 or header < at + _TCP_LEN:
        raise DecodeError(f"TCP header of {header - at} bytes")
    return _SEQUENCE.unpack_from(packet, at + 4)[0], length
