# SPDX-License-Identifier: GPL-2.0-only
"""Assemble the program behind a fault, which drops, corrupts or redirects packets at a port.

The program is a few hand-assembled BPF instructions. Loading and attaching it takes a fraction of a
millisecond, and replacing one program by another is atomic. The alternatives are netem, which not
every kernel has, and nftables, which cannot corrupt packets and is another package to install.
"""

from __future__ import annotations

from cli.lab import holding
from cli.lab.assembler import (
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
    R10,
    TC_ACT_SHOT,
    TC_ACT_UNSPEC,
    call,
    finish,
    insn,
    load_imm,
    move,
)
from cli.lab.faults import PPM, Impairment
from mrcd.linux import bpf

_SKB_STORE_BYTES = 9
_REDIRECT = 23
_SKB_LOAD_BYTES = 26

_SKB_MARK = 8  # offsetof(struct __sk_buff, mark)
_SKB_LEN = 0  # offsetof(struct __sk_buff, len)
_HEADERS = 54  # Ethernet and outer IPv6 header, which are not corrupted


def _unless_chance(ppm: int, body: bytes) -> bytes:
    """Run `body` with the given chance, otherwise jump over it."""
    if ppm == 0:
        return b""
    if ppm >= PPM:
        return body
    threshold = ppm * (1 << 32) // PPM
    skip = insn(0x36, R0, offset=len(body) // 8, imm=threshold)  # if w0 >= threshold
    return call(PRANDOM_U32) + skip + body


def _flip_one_bit() -> bytes:
    """Flip a random bit after the first IP header; checksums are not corrected."""
    flip = b"".join(
        (
            call(PRANDOM_U32),
            insn(0xBC, R7, R0),  # w7 = w0
            insn(0x9C, R7, R8),  # w7 %= w8
            insn(0x04, R7, imm=_HEADERS),  # w7 += headers
            move(R1, R6),
            move(R2, R7),
            move(R3, R10),
            insn(0x07, R3, imm=-8),
            load_imm(R4, 1),
            call(_SKB_LOAD_BYTES),
            call(PRANDOM_U32),
            insn(0x54, R0, imm=7),  # w0 &= 7
            load_imm(R1, 1),
            insn(0x6C, R1, R0),  # w1 <<= w0
            insn(0x71, R2, R10, -8),  # r2 = *(u8 *)(r10 - 8)
            insn(0xAC, R2, R1),  # w2 ^= w1
            insn(0x73, R10, R2, -8),  # *(u8 *)(r10 - 8) = r2
            move(R1, R6),
            move(R2, R7),
            move(R3, R10),
            insn(0x07, R3, imm=-8),
            load_imm(R4, 1),
            load_imm(R5, 0),
            call(_SKB_STORE_BYTES),
        )
    )
    return b"".join(
        (
            insn(0x72, R10, offset=-8, imm=0),  # the verifier rejects reads of uninitialised stack
            insn(0x61, R8, R6, _SKB_LEN),  # w8 = skb->len
            insn(0xB6, R8, offset=1 + len(flip) // 8, imm=_HEADERS),  # if w8 <= headers
            insn(0x14, R8, imm=_HEADERS),
            flip,
        )
    )


def assemble(impairment: Impairment, redirect_to: int = 0, *, once: bool = False) -> bytes:
    """Assemble the program for one direction of a port.

    Surviving packets go to interface index `redirect_to` unless it is 0. `once`: packets that come
    back from there, with the mark of holding.py, pass unchanged.
    """
    code = move(R6, R1)
    if once:
        code += insn(0x61, R1, R6, _SKB_MARK)  # w1 = skb->mark
        code += insn(0x56, R1, offset=2, imm=holding.MARK)  # if w1 != mark
        code += finish(TC_ACT_UNSPEC)
    code += _unless_chance(impairment.drop_ppm, finish(TC_ACT_SHOT))
    if impairment.drop_ppm >= PPM:
        return code  # further code would be unreachable, which the verifier rejects
    code += _unless_chance(impairment.corrupt_ppm, _flip_one_bit())
    if redirect_to:
        divert = load_imm(R1, redirect_to) + load_imm(R2, 0) + call(_REDIRECT)
        return code + divert + insn(0x95)
    return code + finish(TC_ACT_UNSPEC)


def load(code: bytes) -> int:
    """Load the program and return its file descriptor.

    Raises BpfError with the end of the verifier's log.
    """
    # A small log keeps loading fast: a fault must take effect at once.
    handle, _ = bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, code, name="lab_fault", log_size=1 << 16)
    return handle
