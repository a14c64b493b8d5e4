# SPDX-License-Identifier: GPL-2.0-only
"""Decode the records of a capture into packets in time order, each with its verdict.

The verdict on a packet that mrc_receive passed on comes in a separate record a moment later. The
ICRC word, the packet's last bytes, connects the two; for a cell it is the tag. Packets are
therefore held for a moment.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mrcd.fabric import usid
from mrcd.model import CapturedPacket, CaptureInfo, Direction
from mrcd.wire.abi import ABI, CAPTURE, COUNTERS
from mrcd.wire.cell import Cell, piece_psns, tcp_of
from mrcd.wire.envelope import NEXT_IP4, NEXT_IP6
from mrcd.wire.packet import WIRE, DecodeError, Struct

HOLD_NS = 100_000_000
"""A verdict that has not come after this time is taken for lost."""

_KIND = CAPTURE.structs["mrc_capture"]


def _compiled(kind: Struct) -> struct.Struct:
    """Return a fast codec for a struct that has neither arrays nor gaps."""
    codes = {1: "B", 2: "H", 4: "I", 8: "Q"}
    order = "!" if kind.byteorder == "big" else "="
    made = struct.Struct(order + "".join(codes[field.size] for field in kind.fields.values()))
    assert made.size == kind.size
    return made


_HEAD = _compiled(_KIND)
_TIME, _LENGTH, _KEY, _PEER, _QP, _WHY, _PLANE, _WHAT = (
    list(_KIND.fields).index(name)
    for name in ("time_ns", "length", "key", "peer", "qp", "why", "plane", "kind")
)
_NONE = CAPTURE.MRC_CAPTURE_NONE
_DIRECTIONS: Mapping[int, Direction] = {
    CAPTURE.MRC_CAPTURE_TX: "tx",
    CAPTURE.MRC_CAPTURE_RX: "rx",
}
_NAMES = {index: name for index, name, _help in COUNTERS}
_VERDICTS = _NAMES | {
    ABI.MRC_C_TX_PACKETS: "sent",
    ABI.MRC_C_RX_PACKETS: "in order",
    ABI.MRC_C_RX_HELD: "reordered",
    ABI.MRC_C_RX_DUPLICATE: "duplicate",
    CAPTURE.MRC_CAPTURE_PASSED: "passed",
}
_AGAIN = {index for index, name, _help in COUNTERS if name.startswith("rtx_")}
_OPCODES = {
    WIRE.MRC_OP_WRITE_ONLY: "data",
    WIRE.MRC_OP_SACK: "sack",
    WIRE.MRC_OP_NACK: "nack",
    WIRE.MRC_OP_PROBE: "probe",
    WIRE.MRC_OP_ENDPOINT_REQ: "request",
    WIRE.MRC_OP_ENDPOINT_RSP: "response",
}
_KINDS = {
    ABI.MRC_C_CONTROL_RX: "hand-shake",
    ABI.MRC_C_SURVEY_TX: "survey",
    ABI.MRC_C_SURVEY_RX: "survey",
}
_PORTS = struct.Struct("!HH")
_UDP_AT = {
    WIRE.MRC_ENCAP_FULL: WIRE.MRC_ETH_LEN + 2 * WIRE.MRC_IP6_LEN,
    WIRE.MRC_ENCAP_REDUCED: WIRE.MRC_ETH_LEN + WIRE.MRC_IP6_LEN,
    WIRE.MRC_ENCAP_ECMP6: WIRE.MRC_ETH_LEN + WIRE.MRC_IP6_LEN,
    WIRE.MRC_ENCAP_ECMP4: WIRE.MRC_ETH_LEN + WIRE.MRC_IP4_LEN,
}
_SRV6 = {WIRE.MRC_ENCAP_FULL, WIRE.MRC_ENCAP_REDUCED}
_UDP_LEN, _PAYLOAD_LEN = WIRE.MRC_UDP_LEN, WIRE.MRC_BTH_LEN + WIRE.MRC_WRITE_LEN
_LABEL_BACK = WIRE.MRC_IP6_LEN - 2  # from UDP to the lower half of the flow label
_DATA, _SACK, _NACK = WIRE.MRC_OP_WRITE_ONLY, WIRE.MRC_OP_SACK, WIRE.MRC_OP_NACK
_PROBE = WIRE.MRC_OP_PROBE
_RTX, _PSN, _QPN, _ENDPOINT = (
    WIRE.MRC_BTH_RTX, WIRE.MRC_PSN_MASK, WIRE.MRC_QPN_MASK, WIRE.MRC_QPN_ENDPOINT,
)  # fmt: skip
_VERDICT, _PASSED = CAPTURE.MRC_CAPTURE_OUTCOME, CAPTURE.MRC_CAPTURE_PASSED
_BTH = _compiled(WIRE.structs["mrc_bth"])
_SETH, _NETH, _PETH = (WIRE.structs[name] for name in ("mrc_seth", "mrc_neth", "mrc_peth"))
_LABEL = 0xFFFFF
_IP6_AT, _BEHIND_IP6 = WIRE.MRC_ETH_LEN, WIRE.MRC_ETH_LEN + WIRE.MRC_IP6_LEN
_BEHIND_IP4 = WIRE.MRC_ETH_LEN + WIRE.MRC_IP4_LEN
_NEXT_AT = _IP6_AT + 6
_SOURCE = slice(_IP6_AT + 8, _IP6_AT + 24)
_UDP_PROTOCOL = 17
_WHOSE = {"sack": "up to ", "nack": "about "}
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6"}
_WITH_PORTS = {6, 17}


@dataclass(slots=True)
class _Held:
    """A packet that waits for its verdict or for its turn."""

    head: tuple[int, ...]
    data: bytes
    why: int


class _Read(NamedTuple):
    """The fields read from a packet's headers."""

    kind: str = "other"
    qp: int | None = None  # index of the destination QP
    ev: int | None = None
    t1: int | None = None
    psn: int | None = None
    again: bool = False
    psn_last: int | None = None
    attempt: int | None = None
    inner: int | None = None  # offset of the application's packet


_NOTHING = _Read()


@dataclass(frozen=True, slots=True)
class Packet:
    """The first bytes of a packet, and all that is known about it."""

    about: CapturedPacket
    data: bytes
    inner: int | None = None  # offset of the application's packet, if there is one


class Packets:
    """A decoder that takes records as they come and returns packets."""

    def __init__(self, info: CaptureInfo, ahead_ns: int) -> None:
        """Start without packets; `ahead_ns` is CLOCK_REALTIME minus CLOCK_MONOTONIC."""
        self._info = info
        self._ahead_ns = ahead_ns
        self._peers = {peer.index: peer.name for peer in info.peers}
        self._udp = _UDP_AT[info.encap]
        self._held: list[_Held] = []
        self._passed: dict[int, deque[_Held]] = {}

    def add(self, records: Iterable[bytes]) -> None:
        """Take records, oldest first."""
        for record in records:
            head = _HEAD.unpack_from(record)
            if head[_WHAT] == _VERDICT:
                self._judge(head[_KEY], head[_WHY])
                continue
            held = _Held(head, record[_HEAD.size :], head[_WHY])
            self._held.append(held)
            if held.why == _PASSED:
                self._passed.setdefault(head[_KEY], deque()).append(held)

    def _judge(self, key: int, why: int) -> None:
        waiting = self._passed.get(key)
        if waiting:
            waiting.popleft().why = why
            if not waiting:
                del self._passed[key]

    def release(self, before_ns: int | None = None) -> Iterator[Packet]:
        """Yield the packets from before a time of CLOCK_MONOTONIC, or all, in time order."""
        self._held.sort(key=lambda held: held.head[_TIME])
        count = len(self._held)
        if before_ns is not None:
            count = sum(held.head[_TIME] < before_ns for held in self._held)
        due, self._held = self._held[:count], self._held[count:]
        for held in due:
            if held.why == _PASSED:
                self._give_up(held)
            read = _read(held.data, self._udp, self._info)
            yield Packet(self._about(held, read), held.data, read.inner)

    def _give_up(self, held: _Held) -> None:
        waiting = self._passed.get(held.head[_KEY])
        if waiting and waiting[0] is held:
            self._judge(held.head[_KEY], held.why)

    # ---- packet headers

    def _about(self, held: _Held, read: _Read) -> CapturedPacket:
        head, why = held.head, held.why
        direction = _DIRECTIONS[head[_WHAT]]
        plane = head[_PLANE]
        qp = None if head[_QP] == _NONE else head[_QP]
        if direction == "rx" and read.qp is not None:
            qp = read.qp
        if qp is not None and qp // self._info.qps_per_peer != head[_PEER]:
            qp = None  # a damaged packet, or one for a QP that does not exist
        interfaces = self._info.interfaces
        return CapturedPacket(
            time_ns=head[_TIME] + self._ahead_ns,
            direction=direction,
            plane=plane,
            interface=interfaces[plane] if plane < len(interfaces) else "",
            length=head[_LENGTH],
            kind=_KINDS.get(why, read.kind),
            peer=self._peers.get(head[_PEER]),
            qp=None if qp is None else qp % self._info.qps_per_peer,
            ev=read.ev,
            t1=read.t1,
            psn=read.psn,
            retransmit=why in _AGAIN or read.again,
            verdict=_VERDICTS.get(why, str(why)),
            psn_last=read.psn_last,
            attempt=read.attempt,
        )


def _read(data: bytes, udp: int, info: CaptureInfo) -> _Read:
    """Read the headers in the first bytes of a packet whose UDP header is at offset `udp`."""
    if cell := _cell(data, info):
        return cell
    bth_at = udp + _UDP_LEN
    body = bth_at + _BTH.size
    if len(data) < body:
        return _NOTHING
    source, target = _PORTS.unpack_from(data, udp)
    if target != info.udp_port:
        return _NOTHING
    opcode, _flags, _pkey, dqpn, aux, psn_hi, psn_lo = _BTH.unpack_from(data, bth_at)
    ev, t1, psn, again, inner = source << 16, 0, None, False, None
    if info.encap in _SRV6:
        label_at = udp - _LABEL_BACK
        ev |= int.from_bytes(data[label_at : label_at + 2], "big")
        t1 = usid.ev_t1(ev)
    if opcode == _DATA:
        psn, again, inner = psn_hi << 16 | psn_lo, bool(aux & _RTX), bth_at + _PAYLOAD_LEN
    elif opcode == _SACK and len(data) >= body + _SETH.size:
        psn = _SETH.unpack(data, body)["cack"] & _PSN
    elif opcode == _NACK and len(data) >= body + _NETH.size:
        psn = _NETH.unpack(data, body)["psn"] & _PSN
    kind = _OPCODES.get(opcode, "other")
    if opcode == _PROBE and len(data) >= body + _PETH.size:
        kind = "solicit" if _PETH.unpack(data, body)["vendor"] == WIRE.MRC_PETH_SOLICIT else kind
    qpn = dqpn & _QPN
    qp = None if qpn == _ENDPOINT else qpn & 0xFFFF
    return _Read(kind, qp, ev, t1, psn, again, inner=inner)


def _cell(data: bytes, info: CaptureInfo) -> _Read | None:
    """Return what is known of a packet of a cell, None for other packets.

    Only the programs know the QPN for its tag.
    """
    if info.cell_port is not None:
        return _cell_in_udp(data, info)
    if info.encap == WIRE.MRC_ENCAP_ECMP4:
        return None
    if len(data) < _BEHIND_IP6 or data[_NEXT_AT] not in (NEXT_IP4, NEXT_IP6):
        return None
    with contextlib.suppress(DecodeError):  # MRC's own packets may be IPv6 in IPv6, too
        label = int.from_bytes(data[_IP6_AT : _IP6_AT + 4]) & _LABEL
        return _read_cell(Cell.unpack(data[_SOURCE], label), data, _BEHIND_IP6, info)
    return None


def _cell_in_udp(data: bytes, info: CaptureInfo) -> _Read | None:
    """Do the same where cells go in UDP. Damaged ones are known by their port."""
    v4 = info.encap == WIRE.MRC_ENCAP_ECMP4
    udp, protocol = (_BEHIND_IP4, _IP6_AT + 9) if v4 else (_BEHIND_IP6, _NEXT_AT)
    if len(data) < udp + _PORTS.size or data[protocol] != _UDP_PROTOCOL:
        return None
    if _PORTS.unpack_from(data, udp)[1] != info.cell_port:
        return None
    with contextlib.suppress(DecodeError):
        cell, _version = Cell.unpack_vxlan(data[udp + _UDP_LEN :])
        return _read_cell(cell, data, udp + WIRE.MRC_CELL_TAIL, info)
    return _Read("cell")


def _read_cell(cell: Cell, data: bytes, at: int, info: CaptureInfo) -> _Read:
    """Return what is known of a piece of a cell, in which the packet inside begins at `at`."""
    psn = last = None
    with contextlib.suppress(DecodeError):  # damaged, or too few bytes
        psn, count = piece_psns(cell, *((0, 0) if cell.single else tcp_of(data[at:])))
        last = psn + count - 1 & _PSN
    t1 = usid.ev_t1(cell.ev) if info.encap in _SRV6 else 0
    return _Read("cell", cell.qpn, cell.ev, t1, psn, cell.attempt > 0, last, cell.attempt, at)


# ---- text output


def comment(about: CapturedPacket) -> str:
    """Return the comment on a packet in a pcapng file."""
    words = [f"path plane {about.plane}", *_path(about)]
    if about.peer is not None:
        words.append(f"peer {about.peer}")
    if about.qp is not None:
        words.append(f"qp {about.qp}")
    return " ".join([*words, *_psn(about), *_fate(about)])


def line(packet: Packet) -> str:
    """Return a packet as one line of text."""
    about = packet.about
    seconds, rest = divmod(about.time_ns, 1_000_000_000)
    clock = time.strftime("%H:%M:%S", time.localtime(seconds))
    words = [f"{clock}.{rest // 1000:06d} {about.interface} {about.direction}"]
    words += [about.peer] if about.peer is not None else []
    if about.qp is not None:
        words.append(f"qp {about.qp}")
    words.append(about.kind)
    words += [*_psn(about), *_path(about), f"length {about.length}"]
    if packet.inner is not None and (inner := _inner(packet.data, packet.inner)):
        words.append(inner)
    return " ".join([*words, *_fate(about)])


def _path(about: CapturedPacket) -> list[str]:
    words = [f"t1 {about.t1}"] if about.t1 else []
    return words if about.ev is None else [*words, f"ev 0x{about.ev:08x}"]


def _psn(about: CapturedPacket) -> list[str]:
    if about.psn is None:
        return []
    to = f"-{about.psn_last}" if about.psn_last not in (None, about.psn) else ""
    return [f"{_WHOSE.get(about.kind, '')}psn {about.psn}{to}"]


def _fate(about: CapturedPacket) -> list[str]:
    words = ["retransmit"] if about.retransmit else []
    words += [f"attempt {about.attempt}"] if about.attempt else []
    if about.direction == "rx":
        words.append(f"verdict {about.verdict}")
    elif about.retransmit:
        words.append(f"by {about.verdict}")
    return words


def _inner(data: bytes, at: int) -> str:
    """Return the addresses, ports and protocol of the application's packet at offset `at`."""
    if len(data) <= at:
        return ""
    if data[at] >> 4 == 4:
        family, ends, size, protocol, ports = socket.AF_INET, at + 12, 4, at + 9, at + 20
    else:
        family, ends, size, protocol, ports = socket.AF_INET6, at + 8, 16, at + 6, at + 40
    if len(data) < ports + _PORTS.size:
        return ""
    texts = [socket.inet_ntop(family, data[i : i + size]) for i in (ends, ends + size)]
    number = data[protocol]
    if number in _WITH_PORTS:
        pair = _PORTS.unpack_from(data, ports)
        texts = [f"{text}.{port}" for text, port in zip(texts, pair, strict=True)]
    return f"{texts[0]} > {texts[1]} {_PROTOCOLS.get(number, f'proto {number}')}"
