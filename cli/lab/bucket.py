# SPDX-License-Identifier: GPL-2.0-only
"""Code by which a program at a switch port knows how long the queue behind it is (pure).

A program at a port's egress cannot see the queueing discipline behind it. It therefore simulates
the bucket, in time instead of bytes: `busy_until` is when the link will have sent everything it was
given. The difference to now is the length of the queue. Each packet adds its transmission time at
the link's rate, and like the real queue the simulated one never grows beyond its limit. Between two
thresholds (queues.py) the chance of a mark rises from 0 to 1.

The state of a port is an entry of a map that begins with FIELDS, 64 bits each. Registers: r6 the
packet, r7 the entry, r8 the length of the queue in ns. Places on the stack: NOW, the packet's TIME
on the link in ns, and when the link is no longer BUSY.
"""

from __future__ import annotations

from cli.lab.assembler import (
    PRANDOM_U32,
    R0,
    R1,
    R2,
    R3,
    R6,
    R7,
    R8,
    R9,
    R10,
    Jump,
    add,
    always,
    call,
    insn,
    load_imm,
    load_map,
    load_u32,
    load_u64,
    move,
    store_u64,
    subtract,
)

FIELDS = ("busy_until", "ps_per_byte", "some", "all", "full", "marked")
AT = {name: 8 * place for place, name in enumerate(FIELDS)}
"""Offsets in a port's entry."""
TIME, BUSY, NOW = -16, -32, -40
_KEY = -4

JEQ, JNE, JGT, JGE, JLE = 0x15, 0x55, 0x25, 0x35, 0xB5
"""Comparisons with a constant."""
REGISTER = 0x08
"""Added to a comparison: with a register."""

Parts = list[bytes | str | Jump]

_MAP_LOOKUP_ELEM = 1
_KTIME_GET_NS = 5
_SKB_PULL_DATA = 39
_SKB_ECN_SET_CE = 97

_SKB_TC_CLASSID = 72  # offsetof(struct __sk_buff, ...)
_SKB_WIRE_LEN = 160  # with the link header, of each segment


def on_stack(register: int, place: int) -> bytes:
    """Emit register = the address of a place on the stack."""
    return move(register, R10) + insn(0x07, register, imm=place)


def count(offset: int) -> bytes:
    """Emit an atomic addition of 1 to a counter of the port."""
    return load_imm(R1, 1) + insn(0xDB, R7, R1, offset)  # lock *(u64 *)(r7 + offset) += r1


def find(map_fd: int) -> Parts:
    """Find the port's entry, which skb->tc_classid numbers, and its queue; go to "out" without one.

    `map_fd` is an array of entries. A port whose ps_per_byte is 0 has no rate and no queue.
    """
    return [
        move(R6, R1),
        load_u32(R2, R6, _SKB_TC_CLASSID),
        insn(0x63, R10, R2, _KEY),  # *(u32 *)(r10 + key) = r2
        load_map(R1, map_fd),
        on_stack(R2, _KEY),
        call(_MAP_LOOKUP_ELEM),
        Jump("out", JEQ, R0, imm=0),
        move(R7, R0),
        load_u64(R8, R7, AT["ps_per_byte"]),
        Jump("out", JEQ, R8, imm=0),
        call(_KTIME_GET_NS),
        move(R9, R0),
        store_u64(R10, NOW, R9),
        load_u32(R1, R6, _SKB_WIRE_LEN),
        load_u64(R2, R7, AT["ps_per_byte"]),
        insn(0x2F, R1, R2),  # r1 *= r2
        insn(0x37, R1, imm=1000),  # r1 /= 1000
        store_u64(R10, TIME, R1),
        load_u64(R2, R7, AT["busy_until"]),
        insn(JGE | REGISTER, R2, R9, 1),
        move(R2, R9),
        store_u64(R10, BUSY, R2),
        move(R8, R2),
        subtract(R8, R9),
    ]


def admit(full: str) -> Parts:
    """Add the packet to the queue; go to the label `full` if there is no room."""
    return [
        load_u64(R1, R10, TIME),
        move(R2, R8),
        add(R2, R1),
        load_u64(R3, R7, AT["full"]),
        Jump(full, JGT | REGISTER, R2, R3),
        load_u64(R2, R10, BUSY),
        add(R2, R1),
        store_u64(R7, AT["busy_until"], R2),
    ]


def mark() -> Parts:
    """Mark the packet by the thresholds; then go to "out".

    Only ECT packets become CE; the kernel's helper also corrects the IPv4 header checksum.
    """
    return [
        load_u64(R1, R7, AT["some"]),
        Jump("out", JLE | REGISTER, R8, R1),
        load_u64(R2, R7, AT["all"]),
        Jump("mark", JGE | REGISTER, R8, R2),
        subtract(R8, R1),
        subtract(R2, R1),
        insn(0x67, R8, imm=32),  # r8 <<= 32
        insn(0x3F, R8, R2),  # r8 /= r2: the chance in 2^-32
        call(PRANDOM_U32),
        Jump("out", JGE | REGISTER, R0, R8),
        "mark",
        move(R1, R6),
        load_imm(R2, 0),
        call(_SKB_PULL_DATA),  # the header may belong to a clone
        move(R1, R6),
        call(_SKB_ECN_SET_CE),
        Jump("out", JEQ, R0, imm=0),  # not ECT
        count(AT["marked"]),
        always("out"),
    ]
