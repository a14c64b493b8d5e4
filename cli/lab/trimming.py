# SPDX-License-Identifier: GPL-2.0-only
"""Trim packets at switch ports that have a rate, instead of dropping them.

The program at the egress of a port simulates the queue behind it (bucket.py), and decides
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

from cli.lab import bucket
from cli.lab.assembler import (
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
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
    load_u32,
    load_u64,
    move,
    store_u64,
    subtract,
)
from cli.lab.bucket import (
    BUSY,
    JEQ,
    JGE,
    JGT,
    JLE,
    JNE,
    NOW,
    REGISTER,
    TIME,
    Parts,
    count,
    on_stack,
)
from cli.lab.queues import CONTROL_PART, TRIM_BYTES, Queue, Thresholds, TrimQueue
from mrcd.fabric.classes import Classes
from mrcd.linux import bpf
from mrcd.linux.netlink.queues import FIRST_QUEUE

_PROGRAM = "lab_trim"

_SKB_STORE_BYTES = 9
_L3_CSUM_REPLACE = 10
_REDIRECT = 23
_SKB_LOAD_BYTES = 26
_SKB_CHANGE_TAIL = 38

# in struct __sk_buff
_SKB_LEN, _SKB_PROTOCOL, _SKB_PRIORITY, _SKB_IFINDEX, _SKB_GSO_SIZE = 0, 16, 32, 40, 176

_FIELDS = (*bucket.FIELDS, "first_until", "first_full", "cut_as", "trimmed", "dropped")
VALUE_SIZE = 8 * len(_FIELDS)
_AT = {name: 8 * place for place, name in enumerate(_FIELDS)}
_NEVER = (1 << 63) - 1

_WORD, _OLD = -24, -48  # places on the stack

_ETH, _LENGTH_OFF_4, _CHECK_OFF_4, _LENGTH_OFF_6 = 14, 16, 24, 18
_IP6_LEN = 40


@dataclass(frozen=True, slots=True)
class Counts:
    """What a port has done since its rate was set, in packets."""

    marked: int
    trimmed: int
    dropped: int


def _classify(classes: Classes, ipv4: bool) -> Parts:
    """Go on at "first" for control packets; else put into r9 whether the packet may be trimmed."""
    first = (classes.control, classes.trimmed, classes.trimmed_lasthop)
    proto = b"\x08\x00" if ipv4 else b"\x86\xdd"
    return [
        load_imm(R9, 0),
        load_u32(R1, R6, _SKB_PROTOCOL),
        Jump("second", JNE, R1, imm=int.from_bytes(proto, "little")),
        move(R1, R6),
        load_imm(R2, _ETH),
        on_stack(R3, _WORD),
        load_imm(R4, 2),
        call(_SKB_LOAD_BYTES),
        Jump("second", JNE, R0, imm=0),
        insn(0x69, R1, R10, _WORD),  # r1 = *(u16 *)(r10 + word)
        insn(0xDC, R1, imm=16),  # to host order
        insn(0x77, R1, imm=2 if ipv4 else 6),  # r1 >>= where the DSCP is
        insn(0x57, R1, imm=63),
        *(Jump("first", JEQ, R1, imm=dscp) for dscp in first),
        Jump("may be trimmed", JEQ, R1, imm=classes.trimmable),
        Jump("second", JNE, R1, imm=classes.retransmit),
        "may be trimmed",
        load_imm(R9, 1),
        "second",
    ]


def _store(at: int, place: int) -> bytes:
    """Write two bytes of the stack into the packet."""
    return b"".join(
        (
            move(R1, R6),
            load_imm(R2, at),
            on_stack(R3, place),
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
                on_stack(R3, _OLD),
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
            on_stack(R3, _OLD),
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


def _cut(ipv4: bool) -> Parts:
    """Trim a packet for which there is no room, if it may be, and send it out of the port anew.

    The kernel notes the length of a packet for its queues before this program sees it.
    """
    return [
        "full",
        Jump("drop", JEQ, R9, imm=0),
        load_u32(R1, R6, _SKB_GSO_SIZE),
        Jump("drop", JNE, R1, imm=0),
        load_u32(R1, R6, _SKB_LEN),
        Jump("short", JLE, R1, imm=TRIM_BYTES),
        move(R1, R6),
        load_imm(R2, TRIM_BYTES),
        load_imm(R3, 0),
        call(_SKB_CHANGE_TAIL),
        Jump("drop", JNE, R0, imm=0),
        insn(0x7A, R10, offset=_OLD),  # *(u64 *)(r10 + old) = 0
        _write_length(ipv4),
        "short",
        insn(0x7A, R10, offset=_OLD),
        _write_class(ipv4),
        count(_AT["trimmed"]),
        load_u32(R1, R6, _SKB_IFINDEX),
        load_imm(R2, 0),
        call(_REDIRECT),
        insn(0x95),  # return r0
    ]


def _go_first() -> Parts:
    """Take the packet into the first queue if there is room."""
    return [
        "first",
        load_u64(R1, R10, TIME),
        load_u64(R3, R10, NOW),
        load_u64(R2, R7, _AT["first_until"]),
        insn(JGE | REGISTER, R2, R3, 1),
        move(R2, R3),
        move(R4, R1),
        insn(0x27, R4, imm=CONTROL_PART),  # r4 *= 2
        add(R2, R4),
        move(R4, R2),
        subtract(R4, R3),
        load_u64(R5, R7, _AT["first_full"]),
        Jump("drop", JGT | REGISTER, R4, R5),
        store_u64(R7, _AT["first_until"], R2),
        load_u64(R2, R10, BUSY),
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
            *bucket.find(map_fd),
            *_classify(classes, ipv4),
            *bucket.admit(full="full"),
            *bucket.mark(),
            *_cut(ipv4),
            *_go_first(),
            "drop",
            count(_AT["dropped"]),
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
