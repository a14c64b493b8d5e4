# SPDX-License-Identifier: GPL-2.0-only
"""The bytes on the wire, read from bpf/mrc_wire.h and never mirrored.

Two halves. The first turns a C header of the project (mrc_wire.h here, mrc_abi.h elsewhere) into
constants and struct layouts through cffi's ABI mode. The second encodes and decodes whole packets,
from the outer IPv6 header to the ICRC word, out of those layouts: this file knows which bits of a
word mean what, but every byte offset and size comes from the header.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Literal, Self

import cffi  # type: ignore[import-untyped]

from mrcd.paths import bpf_dir

# ---- C headers -----------------------------------------------------------------------------

_DEFINE = re.compile(r"^#define[ \t]+(\w+)[ \t]+(0[xX][0-9a-fA-F]+|\d+)[uUlL]*[ \t]*$", re.M)
_COMMENTED = re.compile(r"^#define[ \t]+(\w+)[ \t]+\w+[ \t]+/\*((?:[^*]|\*(?!/))*)\*/", re.M)
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_TYPEDEFS = """
typedef uint8_t __u8; typedef uint16_t __u16; typedef uint32_t __u32; typedef uint64_t __u64;
typedef int8_t __s8; typedef int16_t __s16; typedef int32_t __s32; typedef int64_t __s64;
struct bpf_spin_lock { __u32 val; };
"""


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a C struct; `count` is 1 unless it is an array of `item_size`-byte items."""

    name: str
    offset: int
    item_size: int
    count: int

    @property
    def size(self) -> int:
        """Bytes of the whole member."""
        return self.item_size * self.count


@dataclass(frozen=True, slots=True)
class Struct:
    """The layout of one C struct and a codec for it; integers are unsigned."""

    name: str
    size: int
    fields: Mapping[str, Field]
    byteorder: Literal["big", "little"]

    def pack(self, **values: int | tuple[int, ...]) -> bytes:
        """Bytes of the struct; members not given and padding are zero.

        ValueError for a number that does not fit, KeyError for a member there is not.
        """
        data = bytearray(self.size)
        for name, value in values.items():
            field = self.fields[name]
            items = value if isinstance(value, tuple) else (value,)
            if len(items) != field.count:
                raise ValueError(f"{self.name}.{name}: {len(items)} items, not {field.count}")
            try:
                raw = b"".join(item.to_bytes(field.item_size, self.byteorder) for item in items)
            except OverflowError:
                raise ValueError(f"{value} does not fit into {self.name}.{name}") from None
            data[field.offset : field.offset + field.size] = raw
        return bytes(data)

    def unpack(self, data: bytes, at: int = 0) -> dict[str, int]:
        """Members that are plain integers, by name; ValueError when `data` is too short."""
        if len(data) - at < self.size:
            raise ValueError(f"{len(data) - at} bytes are too short for {self.name}")
        return {
            field.name: self._item(data, at + field.offset, field.item_size)
            for field in self.fields.values()
            if field.count == 1
        }

    def unpack_array(self, data: bytes, name: str, at: int = 0) -> tuple[int, ...]:
        """Items of the array member `name`."""
        field = self.fields[name]
        start = at + field.offset
        steps = range(start, start + field.size, field.item_size)
        return tuple(self._item(data, step, field.item_size) for step in steps)

    def _item(self, data: bytes, at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], self.byteorder)


@dataclass(frozen=True, slots=True)
class Header:
    """What one C header defines: integer constants, the comments beside them, structs."""

    path: Path
    constants: Mapping[str, int]
    comments: Mapping[str, str]
    structs: Mapping[str, Struct]

    def __getattr__(self, name: str) -> int:
        try:
            return self.constants[name]
        except KeyError:
            raise AttributeError(f"{self.path} defines no {name}") from None


def read_header(path: Path, byteorder: Literal["big", "little"] = sys.byteorder) -> Header:
    """Read a header of "#define NAME integer" lines and structs of fixed-width integers.

    Include guards and includes are skipped. `byteorder` is that of the struct codecs.
    """
    text = path.read_text(encoding="utf-8")
    bare = _COMMENT.sub("", text)
    constants = {name: int(value, 0) for name, value in _DEFINE.findall(bare)}
    comments = {
        name: " ".join(re.sub(r"\n\s*\*", " ", comment).split())
        for name, comment in _COMMENTED.findall(text)
    }
    declarations = re.sub(r"^[ \t]*#.*$", "", bare, flags=re.M)
    declarations = re.sub(
        r"\[(\w+)\]", lambda found: f"[{constants.get(found[1], found[1])}]", declarations
    )
    ffi = cffi.FFI()
    ffi.cdef(_TYPEDEFS + declarations)
    names = re.findall(r"^struct (\w+) \{", declarations, re.M)
    return Header(path, constants, comments, {n: _layout(ffi, n, byteorder) for n in names})


def _layout(ffi: cffi.FFI, name: str, byteorder: Literal["big", "little"]) -> Struct:
    kind = ffi.typeof(f"struct {name}")
    fields = {}
    for member, info in kind.fields:
        is_array = info.type.kind == "array"
        item = info.type.item if is_array else info.type
        count = info.type.length if is_array else 1
        fields[member] = Field(member, info.offset, ffi.sizeof(item), count)
    return Struct(name, ffi.sizeof(kind), fields, byteorder)


WIRE = read_header(bpf_dir() / "mrc_wire.h", "big")


# ---- headers -------------------------------------------------------------------------------

_PSN, _QPN = WIRE.MRC_PSN_MASK, WIRE.MRC_QPN_MASK
_SETH_TYPE = 0xF << WIRE.MRC_SETH_TYPE_SHIFT
_SETH_M = 0x3 << WIRE.MRC_SETH_M_SHIFT
_SETH_NXT = 0x1F << (WIRE.MRC_SETH_M_SHIFT + 2)  # between type and m
_SETH_DOWN = 0xFF << WIRE.MRC_SETH_DOWN_SHIFT
_HALF = 0xFFFF
_NIBBLE_HI, _NIBBLE_LO = 0xF0, 0x0F
_CC_RESTORE, _CC_PENALTY, _CC_BYTES = 1 << 31, 0x7F << 24, 0xFFFFFF
_ENDPOINT_OP = 0x3 << WIRE.MRC_ENDPOINT_OP_SHIFT
_ERTH_VENDOR = 0xFF << 8


class DecodeError(ValueError):
    """These bytes are no packet of ours; `reason` says what is wrong with them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _get(word: int, mask: int) -> int:
    return (word & mask) >> ((mask & -mask).bit_length() - 1)


def _put(value: int, mask: int) -> int:
    word = value << ((mask & -mask).bit_length() - 1)
    if value < 0 or word & ~mask:
        raise ValueError(f"{value} does not fit into the bits {mask:#x}")
    return word


def _signed(value: int) -> int:
    return value - 0x10000 if value & 0x8000 else value


def _unsigned(value: int) -> int:
    if not -0x8000 <= value <= 0x7FFF:
        raise ValueError(f"{value} is no signed 16-bit number")
    return value & _HALF


def _read(name: str, data: bytes, at: int) -> dict[str, int]:
    layout = WIRE.structs[name]
    if len(data) - at < layout.size:
        raise DecodeError(f"truncated: {len(data) - at} of {layout.size} bytes of {name}")
    return layout.unpack(data, at)


def _write(name: str, **values: int) -> bytes:
    return WIRE.structs[name].pack(**values)


@dataclass(frozen=True, slots=True)
class Bth:
    """Base transport header, in every packet."""

    opcode: int
    dqpn: int
    psn: int = 0
    ackreq: bool = False
    rtx: bool = False
    ts: bool = False
    solicited: bool = False
    migration: bool = False
    pkey: int = WIRE.MRC_PKEY_DEFAULT

    def pack(self) -> bytes:
        """Its bytes; ValueError for a number that does not fit."""
        psn = _put(self.psn, _PSN)
        flags = WIRE.MRC_BTH_SE * self.solicited | WIRE.MRC_BTH_M * self.migration
        aux = WIRE.MRC_BTH_ACKREQ * self.ackreq | WIRE.MRC_BTH_RTX * self.rtx
        return _write(
            "mrc_bth", opcode=self.opcode, flags=flags, pkey=self.pkey, dqpn=_put(self.dqpn, _QPN),
            aux=aux | WIRE.MRC_BTH_TS * self.ts, psn_hi=psn >> 16, psn_lo=psn & _HALF,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Read it; DecodeError for a transport version or padding we do not speak."""
        raw = _read("mrc_bth", data, at)
        flags, aux = raw["flags"], raw["aux"]
        if flags & WIRE.MRC_BTH_TVER:
            raise DecodeError(f"transport version {flags & WIRE.MRC_BTH_TVER}, not 0")
        if flags & WIRE.MRC_BTH_PAD:
            raise DecodeError(f"pad count {_get(flags, WIRE.MRC_BTH_PAD)}, not 0")
        return cls(
            raw["opcode"], raw["dqpn"] & _QPN, raw["psn_hi"] << 16 | raw["psn_lo"],
            bool(aux & WIRE.MRC_BTH_ACKREQ), bool(aux & WIRE.MRC_BTH_RTX),
            bool(aux & WIRE.MRC_BTH_TS), bool(flags & WIRE.MRC_BTH_SE),
            bool(flags & WIRE.MRC_BTH_M), raw["pkey"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A transmit time in units of 128 ns; in TSETH, and at the end of PETH, ERTH and EETH."""

    tx_timestamp: int = 0
    tsr: bool = False
    ftype: int = 0

    def values(self) -> dict[str, int]:
        """The two members every struct with a time stamp has."""
        meta = WIRE.MRC_TS_TSR * self.tsr | _put(self.ftype, WIRE.MRC_TS_FTYPE)
        return {"tx_timestamp": self.tx_timestamp, "meta": meta}

    @classmethod
    def of(cls, raw: Mapping[str, int]) -> Self:
        """From the unpacked struct around it."""
        meta = raw["meta"]
        return cls(raw["tx_timestamp"], bool(meta & WIRE.MRC_TS_TSR), meta & WIRE.MRC_TS_FTYPE)


@dataclass(frozen=True, slots=True)
class Write:
    """METH, TSETH (if the BTH says so) and RETH: what stands before the payload of a write."""

    msn: int
    length: int
    rqmsn: int = 0
    timestamp: Timestamp | None = None
    va: int = 0
    rkey: int = WIRE.MRC_RKEY_NETDEV

    def pack(self) -> bytes:
        """Their bytes."""
        stamp = _write("mrc_tseth", **self.timestamp.values()) if self.timestamp else b""
        reth = _write(
            "mrc_reth", va_hi=self.va >> 32, va_lo=self.va & 0xFFFFFFFF, rkey=self.rkey,
            length=self.length,
        )  # fmt: skip
        return _write("mrc_meth", rqmsn=self.rqmsn, msn=self.msn) + stamp + reth

    @classmethod
    def unpack(cls, data: bytes, at: int, *, stamped: bool) -> tuple[Self, int]:
        """Read them; also returns where the payload begins."""
        meth = _read("mrc_meth", data, at)
        at += WIRE.structs["mrc_meth"].size
        stamp = None
        if stamped:
            stamp = Timestamp.of(_read("mrc_tseth", data, at))
            at += WIRE.structs["mrc_tseth"].size
        reth = _read("mrc_reth", data, at)
        va = reth["va_hi"] << 32 | reth["va_lo"]
        write = cls(meth["msn"], reth["length"], meth["rqmsn"], stamp, va, reth["rkey"])
        return write, at + WIRE.structs["mrc_reth"].size


@dataclass(frozen=True, slots=True)
class Seth:
    """What a SACK says about reliability.

    `ack_psn_offset` is signed, relative to `cack`; with `probe_reply` set its 16 bits are the
    probe's id instead. Bit i of `bitmap`: PSN cack + sack_offset + i has arrived. Bit k of
    `down`: plane k is out of service at the sender of the SACK.
    """

    cack: int
    entropy: int
    ack_psn_offset: int = 0
    probe_id: int = 0
    probe_reply: bool = False
    verdict: int = WIRE.MRC_SETH_M_NONE
    sack_offset: int = 1
    bitmap: int = 0
    mpr: int = 0
    cc_type: int = 0
    cc_flags: int = 0
    spdcid: int = 0
    dpdcid: int = 0
    type: int = 0
    nxt: int = 0
    down: int = 0

    def pack(self) -> bytes:
        """Its bytes; ValueError for a number that does not fit."""
        low = self.probe_id if self.probe_reply else _unsigned(self.ack_psn_offset)
        head = _put(self.type, _SETH_TYPE) | _put(self.nxt, _SETH_NXT)
        head |= _put(self.verdict, _SETH_M) | WIRE.MRC_SETH_PR * self.probe_reply
        return _write(
            "mrc_seth", head=head | _put(low, _HALF), entropy=self.entropy, spdcid=self.spdcid,
            dpdcid=self.dpdcid, cack=_put(self.down, _SETH_DOWN) | _put(self.cack, _PSN),
            cc=_put(self.cc_type, _NIBBLE_HI) | _put(self.cc_flags, _NIBBLE_LO), mpr=self.mpr,
            sack_offset=_unsigned(self.sack_offset), bitmap_hi=self.bitmap >> 32,
            bitmap_lo=self.bitmap & 0xFFFFFFFF,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Read it."""
        raw = _read("mrc_seth", data, at)
        head, reply = raw["head"], bool(raw["head"] & WIRE.MRC_SETH_PR)
        return cls(
            raw["cack"] & _PSN, raw["entropy"], 0 if reply else _signed(head & _HALF),
            head & _HALF if reply else 0, reply, _get(head, _SETH_M), _signed(raw["sack_offset"]),
            raw["bitmap_hi"] << 32 | raw["bitmap_lo"], raw["mpr"], _get(raw["cc"], _NIBBLE_HI),
            _get(raw["cc"], _NIBBLE_LO), raw["spdcid"], raw["dpdcid"], _get(head, _SETH_TYPE),
            _get(head, _SETH_NXT), _get(raw["cack"], _SETH_DOWN),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CcState:
    """What a SACK says about congestion; `received` counts units of MRC_CC_BYTES_UNIT bytes."""

    tx_timestamp: int = 0
    ooo: int = 0
    restore_cwnd: bool = False
    penalty: int = 0
    received: int = 0

    def pack(self) -> bytes:
        """Its bytes; ValueError for a number that does not fit."""
        word = _CC_RESTORE * self.restore_cwnd | _put(self.penalty, _CC_PENALTY)
        return _write(
            "mrc_cc_state", tx_timestamp=self.tx_timestamp, ooo=_put(self.ooo, WIRE.MRC_CC_OOO),
            bytes=word | _put(self.received, _CC_BYTES),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Read it."""
        raw = _read("mrc_cc_state", data, at)
        word = raw["bytes"]
        return cls(
            raw["tx_timestamp"], raw["ooo"] & WIRE.MRC_CC_OOO, bool(word & _CC_RESTORE),
            _get(word, _CC_PENALTY), word & _CC_BYTES,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Neth:
    """What a NACK says."""

    reason: int
    psn: int
    entropy: int
    vendor: int = 0
    cc_type: int = 2
    cc_flags: int = 0
    tx_timestamp: int = 0
    spdcid: int = 0
    dpdcid: int = 0
    type: int = 0
    nxt: int = 0

    def pack(self) -> bytes:
        """Its bytes; ValueError for a number that does not fit."""
        return _write(
            "mrc_neth", head=_put(self.type, _NIBBLE_HI) | _put(self.nxt, _NIBBLE_LO),
            reason=self.reason, vendor=self.vendor, entropy=self.entropy, spdcid=self.spdcid,
            dpdcid=self.dpdcid, psn=_put(self.psn, _PSN),
            cc=_put(self.cc_type, _NIBBLE_HI) | _put(self.cc_flags, _NIBBLE_LO),
            tx_timestamp=self.tx_timestamp,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Read it."""
        raw = _read("mrc_neth", data, at)
        return cls(
            raw["reason"], raw["psn"] & _PSN, raw["entropy"], raw["vendor"],
            _get(raw["cc"], _NIBBLE_HI), _get(raw["cc"], _NIBBLE_LO), raw["tx_timestamp"],
            raw["spdcid"], raw["dpdcid"], _get(raw["head"], _NIBBLE_HI),
            _get(raw["head"], _NIBBLE_LO),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peth:
    """A reliability probe: `entropy` is the EV under test."""

    probe_id: int
    entropy: int
    timestamp: Timestamp = Timestamp()
    vendor: int = 0
    spdcid: int = 0
    dpdcid: int = 0

    def pack(self) -> bytes:
        """Its bytes."""
        return _write(
            "mrc_peth", vendor=self.vendor, probe_id=self.probe_id, spdcid=self.spdcid,
            dpdcid=self.dpdcid, entropy=self.entropy, **self.timestamp.values(),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Read it."""
        raw = _read("mrc_peth", data, at)
        stamp = Timestamp.of(raw)
        return cls(
            raw["probe_id"], raw["entropy"], stamp, raw["vendor"], raw["spdcid"], raw["dpdcid"]
        )


@dataclass(frozen=True, slots=True)
class Erth:
    """An endpoint request; bit k of `port_status_mask`: plane k is usable."""

    op: int
    port_status_mask: int
    entropy: int = 0
    timestamp: Timestamp = Timestamp()
    vendor: int = 0

    def pack(self) -> bytes:
        """Its bytes; ValueError for a number that does not fit."""
        return _write(
            "mrc_erth", head=_put(self.op, _ENDPOINT_OP) | _put(self.vendor, _ERTH_VENDOR),
            port_status_mask=self.port_status_mask, entropy=self.entropy, **self.timestamp.values(),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Read it."""
        raw = _read("mrc_erth", data, at)
        head, mask = raw["head"], raw["port_status_mask"]
        vendor = _get(head, _ERTH_VENDOR)
        return cls(_get(head, _ENDPOINT_OP), mask, raw["entropy"], Timestamp.of(raw), vendor)


@dataclass(frozen=True, slots=True)
class Eeth:
    """An endpoint response."""

    op: int
    port_status_mask: int
    entropy: int = 0
    timestamp: Timestamp = Timestamp()
    service_time_ns: int = 0

    def pack(self) -> bytes:
        """Its bytes; ValueError for a number that does not fit."""
        return _write(
            "mrc_eeth", head=_put(self.op, _ENDPOINT_OP), port_status_mask=self.port_status_mask,
            entropy=self.entropy, service_time_ns=self.service_time_ns, **self.timestamp.values(),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Read it."""
        raw = _read("mrc_eeth", data, at)
        op, mask = _get(raw["head"], _ENDPOINT_OP), raw["port_status_mask"]
        return cls(op, mask, raw["entropy"], Timestamp.of(raw), raw["service_time_ns"])


# ---- packets -------------------------------------------------------------------------------

_IP6 = struct.Struct("!IHBB16s16s")
_UDP = struct.Struct("!HHHH")
_ETHERNET = struct.Struct("!6s6sH")
_ICRC = struct.Struct("!I")
_NEXT_IP6, _NEXT_UDP, _ETHERTYPE_IP6 = 41, 17, 0x86DD
_EV_LABEL = 0xFFFF  # the low half of an EV, in the flow label

WRITES = frozenset(
    WIRE.constants[f"MRC_OP_WRITE_{which}"] for which in ("FIRST", "MIDDLE", "LAST", "ONLY")
)


@dataclass(frozen=True, slots=True)
class Ip6:
    """An IPv6 header without its lengths."""

    src: IPv6Address
    dst: IPv6Address
    flow_label: int = 0
    traffic_class: int = 0
    hop_limit: int = 64


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is around the BTH. `outer` is None where the fabric routes without SRv6."""

    outer: Ip6 | None
    inner: Ip6
    src_port: int
    dst_port: int = WIRE.MRC_UDP_PORT_DEFAULT
    udp_checksum: int = 0

    @property
    def ev(self) -> int:
        """The EV it carries: UDP source port, then the low half of the inner flow label."""
        return self.src_port << 16 | self.inner.flow_label & _EV_LABEL


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a write; a Write Only holds one IP packet of an application."""

    envelope: Envelope
    bth: Bth
    body: Write
    payload: bytes
    icrc: int = 0


@dataclass(frozen=True, slots=True)
class Sack:
    """A reliability SACK."""

    envelope: Envelope
    bth: Bth
    body: Seth
    cc_state: CcState
    icrc: int = 0


@dataclass(frozen=True, slots=True)
class Control:
    """A packet with one header behind the BTH: NACK, probe, endpoint request or response."""

    envelope: Envelope
    bth: Bth
    body: Neth | Peth | Erth | Eeth
    icrc: int = 0


Packet = Data | Sack | Control

_CONTROL: Mapping[int, type[Neth | Peth | Erth | Eeth]] = {
    WIRE.MRC_OP_NACK: Neth,
    WIRE.MRC_OP_PROBE: Peth,
    WIRE.MRC_OP_ENDPOINT_REQ: Erth,
    WIRE.MRC_OP_ENDPOINT_RSP: Eeth,
}
_LAYOUTS = {Neth: "mrc_neth", Peth: "mrc_peth", Erth: "mrc_erth", Eeth: "mrc_eeth"}


def encode(packet: Packet) -> bytes:
    """A packet from its first IPv6 header to the ICRC word; lengths are filled in.

    ValueError when its parts contradict each other or a number does not fit.
    """
    rest = b""
    if isinstance(packet, Data):
        if packet.bth.ts != (packet.body.timestamp is not None):
            raise ValueError("BTH.ts and the presence of a TSETH disagree")
        rest = packet.payload
    elif isinstance(packet, Sack):
        rest = packet.cc_state.pack()
    body = packet.bth.pack() + packet.body.pack() + rest + _ICRC.pack(packet.icrc)
    around = packet.envelope
    length = _UDP.size + len(body)
    try:
        udp = _UDP.pack(around.src_port, around.dst_port, length, around.udp_checksum)
        data = _put_ip6(around.inner, length, _NEXT_UDP) + udp + body
        if around.outer is not None:
            data = _put_ip6(around.outer, len(data), _NEXT_IP6) + data
    except struct.error as error:
        raise ValueError(f"a number does not fit into the IPv6 or UDP header: {error}") from None
    return data


def decode(data: bytes, port: int = WIRE.MRC_UDP_PORT_DEFAULT) -> Packet:
    """The MRC packet that begins with an IPv6 header in `data`; DecodeError if it is none."""
    envelope, body = _open(data, port)
    bth = Bth.unpack(body, 0)
    at, end = WIRE.structs["mrc_bth"].size, len(body) - _ICRC.size
    if end < at:
        raise DecodeError("truncated: no ICRC word")
    (icrc,) = _ICRC.unpack_from(body, end)
    body = body[:end]
    if bth.opcode in WRITES:
        write, at = Write.unpack(body, at, stamped=bth.ts)
        payload = body[at:]
        if bth.opcode == WIRE.MRC_OP_WRITE_ONLY and write.length != len(payload):
            raise DecodeError(f"RETH says {write.length} bytes, {len(payload)} follow")
        return Data(envelope, bth, write, payload, icrc)
    if bth.opcode == WIRE.MRC_OP_SACK:
        seth = Seth.unpack(body, at)
        at += WIRE.structs["mrc_seth"].size
        state = CcState.unpack(body, at)
        _expect_end(body, at + WIRE.structs["mrc_cc_state"].size)
        return Sack(envelope, bth, seth, state, icrc)
    if kind := _CONTROL.get(bth.opcode):
        control = kind.unpack(body, at)
        _expect_end(body, at + WIRE.structs[_LAYOUTS[kind]].size)
        return Control(envelope, bth, control, icrc)
    raise DecodeError(f"opcode {bth.opcode:#04x} is not spoken here")


def encode_frame(packet: Packet, dst_mac: bytes, src_mac: bytes) -> bytes:
    """The packet behind an Ethernet header."""
    return _ETHERNET.pack(dst_mac, src_mac, _ETHERTYPE_IP6) + encode(packet)


def decode_frame(frame: bytes, port: int = WIRE.MRC_UDP_PORT_DEFAULT) -> Packet:
    """The MRC packet in an Ethernet frame; DecodeError if it holds none."""
    if len(frame) < _ETHERNET.size:
        raise DecodeError("truncated: no Ethernet header")
    *_, ethertype = _ETHERNET.unpack_from(frame)
    if ethertype != _ETHERTYPE_IP6:
        raise DecodeError(f"Ethernet type {ethertype:#06x} is not IPv6")
    return decode(frame[_ETHERNET.size :], port)


def _put_ip6(header: Ip6, length: int, following: int) -> bytes:
    word = 6 << 28 | _put(header.traffic_class, 0xFF << 20) | _put(header.flow_label, 0xFFFFF)
    return _IP6.pack(
        word, length, following, header.hop_limit, header.src.packed, header.dst.packed
    )


def _get_ip6(data: bytes) -> tuple[Ip6, int, bytes]:
    """An IPv6 header, what follows it by number, and by bytes."""
    if len(data) < _IP6.size:
        raise DecodeError(f"truncated: {len(data)} of {_IP6.size} bytes of IPv6")
    word, length, following, hops, src, dst = _IP6.unpack_from(data)
    if word >> 28 != 6:
        raise DecodeError(f"IP version {word >> 28}, not 6")
    rest = data[_IP6.size :]
    if length != len(rest):
        raise DecodeError(f"IPv6 says {length} bytes, {len(rest)} follow")
    traffic_class = _get(word, 0xFF << 20)
    header = Ip6(IPv6Address(src), IPv6Address(dst), word & 0xFFFFF, traffic_class, hops)
    return header, following, rest


def _open(data: bytes, port: int) -> tuple[Envelope, bytes]:
    outer = None
    inner, following, rest = _get_ip6(data)
    if following == _NEXT_IP6:
        outer = inner
        inner, following, rest = _get_ip6(rest)
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


def _expect_end(body: bytes, at: int) -> None:
    if at != len(body):
        raise DecodeError(f"{len(body) - at} bytes too many before the ICRC word")
