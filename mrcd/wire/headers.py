# SPDX-License-Identifier: GPL-2.0-only
"""MRC's own headers, from the BTH on: encode and decode each one.

This module defines the meaning of the bits within a word. Every byte offset and size comes from
bpf/mrc_wire.h (mrcd/wire/layout.py). Whole packets are in mrcd/wire/packet.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from mrcd.wire.envelope import DecodeError
from mrcd.wire.layout import WIRE

_PSN, _QPN = WIRE.MRC_PSN_MASK, WIRE.MRC_QPN_MASK
_SETH_M = 0x3 << WIRE.MRC_SETH_M_SHIFT
_SETH_DOWN = 0xFF << WIRE.MRC_SETH_DOWN_SHIFT
_HALF = 0xFFFF
_NIBBLE_HI, _NIBBLE_LO = 0xF0, 0x0F
_CC_RESTORE, _CC_BYTES = WIRE.MRC_CC_RESTORE, 0xFFFFFF
_CC_PENALTY = WIRE.MRC_CC_PENALTY << WIRE.MRC_CC_PENALTY_SHIFT


def _get(word: int, mask: int) -> int:
    return (word & mask) >> ((mask & -mask).bit_length() - 1)


def _put(value: int, mask: int) -> int:
    word = value << ((mask & -mask).bit_length() - 1)
    if value < 0 or word & ~mask:
        raise ValueError(f"{value} does not fit into the bits {mask:#x}")
    return word


def _put_head(kind: int, following: int) -> int:
    """Return the sixteen bits that five headers begin with, from their `type` and `nxt`."""
    return _put(kind, WIRE.MRC_HEAD_TYPE) | _put(following, WIRE.MRC_HEAD_NXT)


def _get_head(head: int) -> tuple[int, int]:
    return _get(head, WIRE.MRC_HEAD_TYPE), _get(head, WIRE.MRC_HEAD_NXT)


def _signed(value: int) -> int:
    return value - 0x10000 if value & 0x8000 else value


def _unsigned(value: int) -> int:
    if not -0x8000 <= value <= 0x7FFF:
        raise ValueError(f"{value} is not a signed 16-bit number")
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
    """A base transport header, the first header of every MRC packet."""

    opcode: int
    dqpn: int
    psn: int = 0
    ackreq: bool = False
    rtx: bool = False
    ts: bool = False
    solicited: bool = False
    migration: bool = False
    pkey: int = WIRE.MRC_PKEY_DEFAULT
    phase: int = 0  # of the key of the tag

    def pack(self) -> bytes:
        """Encode the header; raises ValueError for a number that does not fit."""
        psn = _put(self.psn, _PSN)
        flags = WIRE.MRC_BTH_SE * self.solicited | WIRE.MRC_BTH_M * self.migration
        aux = WIRE.MRC_BTH_ACKREQ * self.ackreq | WIRE.MRC_BTH_RTX * self.rtx
        aux |= WIRE.MRC_BTH_TS * self.ts | _put(self.phase, WIRE.MRC_BTH_PHASE)
        return _write(
            "mrc_bth", opcode=self.opcode, flags=flags, pkey=self.pkey, dqpn=_put(self.dqpn, _QPN),
            aux=aux, psn_hi=psn >> 16, psn_lo=psn & _HALF,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`.

        Raises DecodeError for a transport version or padding that mrcd does not support.
        """
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
            bool(flags & WIRE.MRC_BTH_M), raw["pkey"], aux & WIRE.MRC_BTH_PHASE,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A transmit time in units of 128 ns: all of a TSETH, and the end of PETH and ERTH."""

    tx_timestamp: int = 0
    tsr: bool = False
    ftype: int = WIRE.MRC_TS_FTYPE_TX

    def values(self) -> dict[str, int]:
        """Return the two members that every struct with a time stamp has."""
        meta = WIRE.MRC_TS_TSR * self.tsr | _put(self.ftype, WIRE.MRC_TS_FTYPE)
        return {"tx_timestamp": self.tx_timestamp, "meta": meta}

    @classmethod
    def of(cls, raw: Mapping[str, int]) -> Self:
        """Take the time stamp from the unpacked struct around it."""
        meta = raw["meta"]
        return cls(raw["tx_timestamp"], bool(meta & WIRE.MRC_TS_TSR), meta & WIRE.MRC_TS_FTYPE)


@dataclass(frozen=True, slots=True)
class Write:
    """The headers before a write's payload.

    They are METH, TSETH (if the BTH says so), RETH, and immediate data (if the opcode says so).
    """

    msn: int
    length: int
    rqmsn: int = 0
    timestamp: Timestamp | None = None
    va: int | None = field(default=None, compare=False)
    """The address; in the netdev region and of a stub the packet's tag. None is for the encoder."""
    rkey: int = WIRE.MRC_RKEY_NETDEV
    immediate: int | None = None

    @property
    def stub(self) -> bool:
        """Whether the packet is the stub of one that was too old to be sent."""
        return self.rkey == WIRE.MRC_RKEY_STUB

    def pack(self) -> bytes:
        """Encode the headers; an address that is None is 0."""
        va = self.va or 0
        stamp = _write("mrc_tseth", **self.timestamp.values()) if self.timestamp else b""
        reth = _write(
            "mrc_reth", va_hi=va >> 32, va_lo=va & 0xFFFFFFFF, rkey=self.rkey,
            length=self.length,
        )  # fmt: skip
        if self.immediate is not None:
            reth += _write("mrc_immdt", data=self.immediate)
        return _write("mrc_meth", rqmsn=self.rqmsn, msn=self.msn) + stamp + reth

    @classmethod
    def unpack(
        cls, data: bytes, at: int, *, stamped: bool, immediate: bool = False
    ) -> tuple[Self, int]:
        """Decode the headers at offset `at`; also returns the offset of the payload.

        Raises DecodeError if they are truncated.
        """
        meth = _read("mrc_meth", data, at)
        at += WIRE.structs["mrc_meth"].size
        stamp = None
        if stamped:
            stamp = Timestamp.of(_read("mrc_tseth", data, at))
            at += WIRE.structs["mrc_tseth"].size
        reth = _read("mrc_reth", data, at)
        at += WIRE.structs["mrc_reth"].size
        last = None
        if immediate:
            last = _read("mrc_immdt", data, at)["data"]
            at += WIRE.structs["mrc_immdt"].size
        va = reth["va_hi"] << 32 | reth["va_lo"]
        return cls(meth["msn"], reth["length"], meth["rqmsn"], stamp, va, reth["rkey"], last), at


@dataclass(frozen=True, slots=True)
class Auth:
    """The end of every SACK, NACK, probe and endpoint packet.

    `count` is that of its sender for a QP and a plane; a tag that is None is for the encoder.
    """

    count: int = 0
    tag: int | None = field(default=None, compare=False)

    def pack(self) -> bytes:
        """Encode the header; a tag that is None is 0."""
        tag = self.tag or 0
        return _write("mrc_auth", count=self.count, tag_hi=tag >> 32, tag_lo=tag & 0xFFFFFFFF)

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_auth", data, at)
        return cls(raw["count"], raw["tag_hi"] << 32 | raw["tag_lo"])


@dataclass(frozen=True, slots=True)
class Aeth:
    """The body of a Transport ACK: its kind and credits in one byte, and the message it is of."""

    msn: int
    syndrome: int = WIRE.MRC_AETH_CREDITS

    def pack(self) -> bytes:
        """Encode the header; raises ValueError for a number that does not fit."""
        return _write(
            "mrc_aeth", syndrome=self.syndrome, msn_hi=self.msn >> 16, msn_lo=self.msn & _HALF
        )

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_aeth", data, at)
        return cls(raw["msn_hi"] << 16 | raw["msn_lo"], raw["syndrome"])


@dataclass(frozen=True, slots=True)
class Seth:
    """The reliability part of a SACK.

    `ack_psn_offset` is signed and relative to `cack`. With `probe_reply` set, its 16 bits hold the
    probe's id instead. Bit i of `bitmap` means that PSN cack + sack_offset + i has arrived. Bit k
    of `down` means that plane k is out of service at the sender of the SACK.
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
        """Encode the header; raises ValueError for a number that does not fit."""
        low = self.probe_id if self.probe_reply else _unsigned(self.ack_psn_offset)
        head = _put_head(self.type, self.nxt) << 16
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
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_seth", data, at)
        head, reply = raw["head"], bool(raw["head"] & WIRE.MRC_SETH_PR)
        return cls(
            raw["cack"] & _PSN, raw["entropy"], 0 if reply else _signed(head & _HALF),
            head & _HALF if reply else 0, reply, _get(head, _SETH_M), _signed(raw["sack_offset"]),
            raw["bitmap_hi"] << 32 | raw["bitmap_lo"], raw["mpr"], _get(raw["cc"], _NIBBLE_HI),
            _get(raw["cc"], _NIBBLE_LO), raw["spdcid"], raw["dpdcid"], *_get_head(head >> 16),
            _get(raw["cack"], _SETH_DOWN),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CcState:
    """The congestion part of a SACK; `received` is nominal sizes in units of MRC_CC_BYTES_UNIT."""

    tx_timestamp: int = 0
    ooo: int = 0
    restore_cwnd: bool = False
    penalty: int = 0
    received: int = 0

    def pack(self) -> bytes:
        """Encode the header; raises ValueError for a number that does not fit."""
        word = _CC_RESTORE * self.restore_cwnd | _put(self.penalty, _CC_PENALTY)
        return _write(
            "mrc_cc_state", tx_timestamp=self.tx_timestamp, ooo=_put(self.ooo, WIRE.MRC_CC_OOO),
            bytes=word | _put(self.received, _CC_BYTES),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_cc_state", data, at)
        word = raw["bytes"]
        return cls(
            raw["tx_timestamp"], raw["ooo"] & WIRE.MRC_CC_OOO, bool(word & _CC_RESTORE),
            _get(word, _CC_PENALTY), word & _CC_BYTES,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Neth:
    """The body of a NACK."""

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
        """Encode the header; raises ValueError for a number that does not fit."""
        return _write(
            "mrc_neth", head=_put_head(self.type, self.nxt),
            reason=self.reason, vendor=self.vendor, entropy=self.entropy, spdcid=self.spdcid,
            dpdcid=self.dpdcid, psn=_put(self.psn, _PSN),
            cc=_put(self.cc_type, _NIBBLE_HI) | _put(self.cc_flags, _NIBBLE_LO),
            tx_timestamp=self.tx_timestamp,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_neth", data, at)
        return cls(
            raw["reason"], raw["psn"] & _PSN, raw["entropy"], raw["vendor"],
            _get(raw["cc"], _NIBBLE_HI), _get(raw["cc"], _NIBBLE_LO), raw["tx_timestamp"],
            raw["spdcid"], raw["dpdcid"], *_get_head(raw["head"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peth:
    """The body of a reliability probe; the EV under test is that of the envelope."""

    probe_id: int
    timestamp: Timestamp = Timestamp()
    vendor: int = 0
    spdcid: int = 0
    dpdcid: int = 0
    type: int = 0
    nxt: int = 0

    def pack(self) -> bytes:
        """Encode the header; raises ValueError for a number that does not fit."""
        return _write(
            "mrc_peth", head=_put_head(self.type, self.nxt), vendor=self.vendor,
            probe_id=self.probe_id, spdcid=self.spdcid, dpdcid=self.dpdcid,
            **self.timestamp.values(),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_peth", data, at)
        return cls(
            raw["probe_id"], Timestamp.of(raw), raw["vendor"], raw["spdcid"], raw["dpdcid"],
            *_get_head(raw["head"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Erth:
    """The body of an endpoint request; bit k of `port_status_mask` means that plane k is usable.

    The EV of an EV probe is that of the envelope.
    """

    op: int
    port_status_mask: int
    timestamp: Timestamp = Timestamp()
    vendor: int = 0
    type: int = 0
    nxt: int = 0

    def pack(self) -> bytes:
        """Encode the header; raises ValueError for a number that does not fit."""
        head = _put_head(self.type, self.nxt) | _put(self.op, WIRE.MRC_ERTH_OP)
        return _write(
            "mrc_erth", head=head, vendor=self.vendor, port_status_mask=self.port_status_mask,
            **self.timestamp.values(),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_erth", data, at)
        head = raw["head"]
        return cls(
            _get(head, WIRE.MRC_ERTH_OP), raw["port_status_mask"], Timestamp.of(raw),
            raw["vendor"], *_get_head(head),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Eeth:
    """The body of an endpoint response; `tx_timestamp` is that of the request."""

    op: int
    tx_timestamp: int = 0
    type: int = 0
    nxt: int = 0

    def pack(self) -> bytes:
        """Encode the header; raises ValueError for a number that does not fit."""
        head = _put_head(self.type, self.nxt) | _put(self.op, WIRE.MRC_EETH_OP)
        return _write("mrc_eeth", head=head, tx_timestamp=self.tx_timestamp)

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Self:
        """Decode the header at offset `at`; raises DecodeError if it is truncated."""
        raw = _read("mrc_eeth", data, at)
        head = raw["head"]
        return cls(_get(head, WIRE.MRC_EETH_OP), raw["tx_timestamp"], *_get_head(head))
