# SPDX-License-Identifier: GPL-2.0-only
"""Trim packets at switch ports that have a rate, instead of dropping them.

The program at the egress of a port simulates the queue behind it, as in marking.py, and decides
what becomes of each packet. A packet for which there is no room is dropped, unless its DSCP says
that it may be trimmed. Then it is cut to TRIM_BYTES, gets the DSCP of trimmed packets, and leaves
anew by the same port. Trimmed and control packets take the first of two queues, which is served
first (htb, by skb->priority). The qdisc itself is longer
than the simulated queue and should never drop anything.

Outer lengths are corrected, because the next switch is a Linux host, too, and drops packets that
are shorter than they say. A large packet that the kernel has still to cut cannot be trimmed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mrcd.fabric.classes import Classes
from mrcd.lab.assembler import (
    PRANDOM_U32,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    TC_ACT_SHOT,
    TC_ACT_UNSPEC,
    Jump,
    add,
    always,
    call,
    finish,
    insn,
    link,
    load_imm,
    load_map,
    load_u32,
    load_u64,
    move,
    store_u64,
    subtract,
)
from mrcd.lab.queues import CONTROL_PART, TRIM_BYTES, Queue, Thresholds, TrimQueue
from mrcd.linux import bpf
from mrcd.linux.netlink.queues import FIRST_QUEUE

_PROGRAM = "lab_trim"

_MAP_LOOKUP_ELEM = 1
_KTIME_GET_NS = 5
_SKB_STORE_BYTES = 9
_L3_CSUM_REPLACE = 10
_REDIRECT = 23
_SKB_LOAD_BYTES = 26
_SKB_CHANGE_TAIL = 38
_SKB_PULL_DATA = 39
_SKB_ECN_SET_CE = 97

# in struct __sk_buff
_SKB_LEN, _SKB_PROTOCOL, _SKB_PRIORITY, _SKB_IFINDEX, _SKB_TC_CLASSID = 0, 16, 32, 40, 72
_SKB_WIRE_LEN, _SKB_GSO_SIZE = 160, 176

_FIELDS = (
    "busy_until", "ps_per_byte", "some", "all", "full", "marked",
    "first_until", "first_full", "cut_as", "trimmed", "dropped",
)  # fmt: skip
VALUE_SIZE = 8 * len(_FIELDS)
_AT = {name: 8 * place for place, name in enumerate(_FIELDS)}
_NEVER = (1 << 63) - 1

# Places on the stack
_KEY, _TIME, _WORD, _BUSY, _NOW, _OLD = -4, -16, -24, -32, -40, -48

_JEQ, _JNE, _JGT, _JGE, _JLE = 0x15, 0x55, 0x25, 0x35, 0xB5  # with a constant
_REGISTER = 0x08  # added to a comparison: with a register

_ETH, _LENGTH_OFF_4, _CHECK_OFF_4, _LENGTH_OFF_6 = 14, 16, 24, 18
_IP6_LEN = 40


@dataclass(frozen=True, slots=True)
class Counts:
    """What a port has done since its rate was set, in packets."""

    marked: int
    trimmed: int
    dropped: int


def _count(field: str) -> bytes:
    return load_imm(R1, 1) + insn(0xDB, R7, R1, _AT[field])  # lock *(u64 *)(r7 + field) += r1


def _on_stack(register: int, place: int) -> bytes:
    """Emit register = the address of a place on the stack."""
    return move(register, R10) + insn(0x07, register, imm=place)


def _time() -> bytes:
    """Put the time that the packet takes on the link, in ns, on the stack."""
    return b"".join(
        (
            load_u32(R1, R6, _SKB_WIRE_LEN),
            load_u64(R2, R7, _AT["ps_per_byte"]),
            insn(0x2F, R1, R2),  # r1 *= r2
            insn(0x37, R1, imm=1000),  # r1 /= 1000
            store_u64(R10, _TIME, R1),
        )
    )


def _find(map_fd: int) -> list[bytes | str | Jump]:
    """Find the queue of the port (r7), and how long it is in time (r8)."""
    return [
        move(R6, R1),
        load_u32(R2, R6, _SKB_TC_CLASSID),
        insn(0x63, R10, R2, _KEY),  # *(u32 *)(r10 + key) = r2
        load_map(R1, map_fd),
        _on_stack(R2, _KEY),
        call(_MAP_LOOKUP_ELEM),
        Jump("out", _JEQ, R0, imm=0),
        move(R7, R0),
        load_u64(R8, R7, _AT["ps_per_byte"]),
        Jump("out", _JEQ, R8, imm=0),  # no rate
        call(_KTIME_GET_NS),
        move(R9, R0),
        store_u64(R10, _NOW, R9),
        _time(),
        load_u64(R2, R7, _AT["busy_until"]),
        insn(_JGE | _REGISTER, R2, R9, 1),
        move(R2, R9),
        store_u64(R10, _BUSY, R2),
        move(R8, R2),
        subtract(R8, R9),
    ]


def _classify(classes: Classes, ipv4: bool) -> list[bytes | str | Jump]:
    """Go on at "first" for control packets; else put into r9 whether the packet may be trimmed."""
    first = (classes.control, classes.trimmed, classes.trimmed_lasthop)
    proto = b"\x08\x00" if ipv4 else b"\x86\xdd"
    return [
        load_imm(R9, 0),
        load_u32(R1, R6, _SKB_PROTOCOL),
        Jump("second", _JNE, R1, imm=int.from_bytes(proto, "little")),
        move(R1, R6),
        load_imm(R2, _ETH),
        _on_stack(R3, _WORD),
        load_imm(R4, 2),
        call(_SKB_LOAD_BYTES),
        Jump("second", _JNE, R0, imm=0),
        insn(0x69, R1, R10, _WORD),  # r1 = *(u16 *)(r10 + word)
        insn(0xDC, R1, imm=16),  # to host order
        insn(0x77, R1, imm=2 if ipv4 else 6),  # r1 >>= where the DSCP is
        insn(0x57, R1, imm=63),
        *(Jump("first", _JEQ, R1, imm=dscp) for dscp in first),
        Jump("may be trimmed", _JEQ, R1, imm=classes.trimmable),
        Jump("second", _JNE, R1, imm=classes.retransmit),
        "may be trimmed",
        load_imm(R9, 1),
        "second",
    ]


def _admit() -> list[bytes | str | Jump]:
    """Take the packet into the second queue if there is room, and mark it by the thresholds."""
    return [
        load_u64(R1, R10, _TIME),
        move(R2, R8),
        add(R2, R1),
        load_u64(R3, R7, _AT["full"]),
        Jump("full", _JGT | _REGISTER, R2, R3),
        load_u64(R2, R10, _BUSY),
        add(R2, R1),
        store_u64(R7, _AT["busy_until"], R2),
        load_u64(R1, R7, _AT["some"]),
        Jump("out", _JLE | _REGISTER, R8, R1),
        load_u64(R2, R7, _AT["all"]),
        Jump("mark", _JGE | _REGISTER, R8, R2),
        subtract(R8, R1),
        subtract(R2, R1),
        insn(0x67, R8, imm=32),  # r8 <<= 32
        insn(0x3F, R8, R2),  # r8 /= r2: the chance in 2^-32
        call(PRANDOM_U32),
        Jump("out", _JGE | _REGISTER, R0, R8),
        "mark",
        move(R1, R6),
        load_imm(R2, 0),
        call(_SKB_PULL_DATA),
        move(R1, R6),
        call(_SKB_ECN_SET_CE),
        Jump("out", _JEQ, R0, imm=0),  # not ECT
        _count("marked"),
        always("out"),
    ]


def _store(at: int, place: int) -> bytes:
    """Write two bytes of the stack into the packet."""
    return b"".join(
        (
            move(R1, R6),
            load_imm(R2, at),
            _on_stack(R3, place),
            load_imm(R4, 2),
            load_imm(R5, 0),
            call(_SKB_STORE_BYTES),
        )
    )


def _mend_checksum() -> bytes:
    """Correct IPv4's checksum for a word that was _OLD and is _WORD now."""
    return b"".join(
        (
            move(R1, R6),
            load_imm(R2, _CHECK_OFF_4),
            insn(0x69, R3, R10, _OLD),
            insn(0x69, R4, R10, _WORD),
            load_imm(R5, 2),
            call(_L3_CSUM_REPLACE),
        )
    )


def _write_length(ipv4: bool) -> bytes:
    """Write the outer length of a packet that was cut; the stack's _WORD is overwritten."""
    length = TRIM_BYTES - _ETH - (0 if ipv4 else _IP6_LEN)
    at = _LENGTH_OFF_4 if ipv4 else _LENGTH_OFF_6
    word = int.from_bytes(length.to_bytes(2, "big"), "little")
    code = b""
    if ipv4:
        code += b"".join(
            (
                move(R1, R6),
                load_imm(R2, at),
                _on_stack(R3, _OLD),
                load_imm(R4, 2),
                call(_SKB_LOAD_BYTES),
            )
        )
    code += insn(0x6A, R10, offset=_WORD, imm=word)  # *(u16 *)(r10 + word) = length
    return code + (_mend_checksum() if ipv4 else b"") + _store(at, _WORD)


def _write_class(ipv4: bool) -> bytes:
    """Write the DSCP of the port's trimmed packets into the outer header."""
    shift, keep = (2, 0xFF03) if ipv4 else (6, 0xF03F)
    return b"".join(
        (
            move(R1, R6),
            load_imm(R2, _ETH),
            _on_stack(R3, _OLD),
            load_imm(R4, 2),
            call(_SKB_LOAD_BYTES),
            insn(0x69, R1, R10, _OLD),
            insn(0xDC, R1, imm=16),
            insn(0x57, R1, imm=keep),
            load_u64(R2, R7, _AT["cut_as"]),
            insn(0x67, R2, imm=shift),
            insn(0x4F, R1, R2),  # r1 |= r2
            insn(0xDC, R1, imm=16),
            insn(0x6B, R10, R1, _WORD),  # *(u16 *)(r10 + word) = r1
            _mend_checksum() if ipv4 else b"",
            _store(_ETH, _WORD),
        )
    )


def _cut(ipv4: bool) -> list[bytes | str | Jump]:
    """Trim a packet for which there is no room, if it may be, and send it out of the port anew.

    The kernel notes the length of a packet for its queues before this program sees it.
    """
    return [
        "full",
        Jump("drop", _JEQ, R9, imm=0),
        load_u32(R1, R6, _SKB_GSO_SIZE),
        Jump("drop", _JNE, R1, imm=0),
        load_u32(R1, R6, _SKB_LEN),
        Jump("short", _JLE, R1, imm=TRIM_BYTES),
        move(R1, R6),
        load_imm(R2, TRIM_BYTES),
        load_imm(R3, 0),
        call(_SKB_CHANGE_TAIL),
        Jump("drop", _JNE, R0, imm=0),
        insn(0x7A, R10, offset=_OLD),  # *(u64 *)(r10 + old) = 0
        _write_length(ipv4),
        "short",
        insn(0x7A, R10, offset=_OLD),
        _write_class(ipv4),
        _count("trimmed"),
        load_u32(R1, R6, _SKB_IFINDEX),
        load_imm(R2, 0),
        call(_REDIRECT),
        insn(0x95),  # return r0
    ]


def _go_first() -> list[bytes | str | Jump]:
    """Take the packet into the first queue if there is room."""
    return [
        "first",
        load_u64(R1, R10, _TIME),
        load_u64(R3, R10, _NOW),
        load_u64(R2, R7, _AT["first_until"]),
        insn(_JGE | _REGISTER, R2, R3, 1),
        move(R2, R3),
        move(R4, R1),
        insn(0x27, R4, imm=CONTROL_PART),  # r4 *= 2
        add(R2, R4),
        move(R4, R2),
        subtract(R4, R3),
        load_u64(R5, R7, _AT["first_full"]),
        Jump("drop", _JGT | _REGISTER, R4, R5),
        store_u64(R7, _AT["first_until"], R2),
        load_u64(R2, R10, _BUSY),
        add(R2, R1),
        store_u64(R7, _AT["busy_until"], R2),
        load_imm(R1, FIRST_QUEUE),
        insn(0x63, R6, R1, _SKB_PRIORITY),
        always("out"),
    ]


def assemble(map_fd: int, classes: Classes, *, ipv4: bool = False) -> bytes:
    """Assemble the program; `map_fd` is an array of queues, `ipv4` what the planes speak."""
    return link(
        [
            *_find(map_fd),
            *_classify(classes, ipv4),
            *_admit(),
            *_cut(ipv4),
            *_go_first(),
            "drop",
            _count("dropped"),
            finish(TC_ACT_SHOT),
            "out",
            finish(TC_ACT_UNSPEC),
        ]
    )


def load(map_fd: int, classes: Classes, *, ipv4: bool = False) -> int:
    """Load the program for this map and return its file descriptor."""
    code = assemble(map_fd, classes, ipv4=ipv4)
    return bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, code, name=_PROGRAM, log_size=1 << 16)[0]


def create_queues(ports: int) -> int:
    """Create a map with a queue for each port and return its file descriptor."""
    return bpf.create_array(VALUE_SIZE, ports, name=_PROGRAM)


def value(queue: Queue | None, cut_as: int, *, marks: bool) -> bytes:
    """Return the map value of a port; `cut_as` is the DSCP of what it trims.

    marks: whether it marks packets. None is a port without a rate.
    """
    if queue is None:
        return bytes(VALUE_SIZE)
    thresholds, both = Thresholds.of(queue), TrimQueue.of(queue)
    held = {
        "ps_per_byte": thresholds.ps_per_byte,
        "some": thresholds.some_ns if marks else _NEVER,
        "all": thresholds.all_ns if marks else _NEVER,
        "full": both.full_ns,
        "first_full": both.first_ns,
        "cut_as": cut_as,
    }
    return struct.pack(f"={len(_FIELDS)}Q", *(held.get(name, 0) for name in _FIELDS))


def counts(held: bytes) -> Counts:
    """Read the counters of a port's map value."""
    numbers = dict(zip(_FIELDS, struct.unpack(f"={len(_FIELDS)}Q", held), strict=True))
    return Counts(numbers["marked"], numbers["trimmed"], numbers["dropped"])
