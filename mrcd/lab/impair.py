# SPDX-License-Identifier: GPL-2.0-only
"""The program behind a fault: drops, corrupts or diverts packets at a port.

A few hand-assembled BPF instructions instead of netem (not in every kernel)
or nftables (no corruption, one more package): loading and attaching takes a
fraction of a millisecond, and replacing one program by another is atomic.
"""

from __future__ import annotations

from mrcd.lab import holding
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
    R10,
    TC_ACT_SHOT,
    TC_ACT_UNSPEC,
    call,
    finish,
    insn,
    load_imm,
    move,
)
from mrcd.lab.faults import PPM, Impairment
from mrcd.linux import bpf

_SKB_STORE_BYTES = 9
_REDIRECT = 23
_SKB_LOAD_BYTES = 26

_SKB_MARK = 8  # offsetof(struct __sk_buff, mark)
_SKB_LEN = 0  # offsetof(struct __sk_buff, len)
_HEADERS = 54  # Ethernet and the outer IPv6 header stay whole


def _unless_chance(ppm: int, body: bytes) -> bytes:
    """Run `body` with the given chance, else jump over it."""
    if ppm == 0:
        return b""
    if ppm >= PPM:
        return body
    threshold = ppm * (1 << 32) // PPM
    skip = insn(0x36, R0, offset=len(body) // 8, imm=threshold)  # if w0 >= threshold
    return call(PRANDOM_U32) + skip + body


def _flip_one_bit() -> bytes:
    """Flip a random bit behind the first IP header, checksums left wrong."""
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
            insn(0x72, R10, offset=-8, imm=0),  # the verifier wants it written
            insn(0x61, R8, R6, _SKB_LEN),  # w8 = skb->len
            insn(0xB6, R8, offset=1 + len(flip) // 8, imm=_HEADERS),  # if w8 <= headers
            insn(0x14, R8, imm=_HEADERS),
            flip,
        )
    )


def assemble(impairment: Impairment, redirect_to: int = 0, *, once: bool = False) -> bytes:
    """The program for one direction of a port; what survives may go to `redirect_to`.

    `once`: what comes back from there, with the mark of holding.py, passes untouched.
    """
    code = move(R6, R1)
    if once:
        code += insn(0x61, R1, R6, _SKB_MARK)  # w1 = skb->mark
        code += insn(0x56, R1, offset=2, imm=holding.MARK)  # if w1 != mark
        code += finish(TC_ACT_UNSPEC)
    code += _unless_chance(impairment.drop_ppm, finish(TC_ACT_SHOT))
    if impairment.drop_ppm >= PPM:
        return code  # what follows could not be reached, which the verifier refuses
    code += _unless_chance(impairment.corrupt_ppm, _flip_one_bit())
    if redirect_to:
        divert = load_imm(R1, redirect_to) + load_imm(R2, 0) + call(_REDIRECT)
        return code + divert + insn(0x95)
    return code + finish(TC_ACT_UNSPEC)


def load(code: bytes) -> int:
    """Load the program; its file descriptor. BpfError with the verifier's last words."""
    # The log stays small: a fault must take effect at once.
    handle, _ = bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, code, name="lab_fault", log_size=1 << 16)
    return handle
