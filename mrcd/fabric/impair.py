# SPDX-License-Identifier: GPL-2.0-only
"""The program behind a fault: drops, corrupts or diverts packets at a port.

A few hand-assembled BPF instructions instead of netem (not in every kernel)
or nftables (no corruption, one more package): loading and attaching takes a
fraction of a millisecond, and replacing one program by another is atomic.
"""

from __future__ import annotations

import struct

from mrcd import bpfsys
from mrcd.fabric.faults import PPM, Impairment

_TC_ACT_UNSPEC = 0xFFFFFFFF  # go on as if there were no program
_TC_ACT_SHOT = 2

_PRANDOM_U32 = 7
_SKB_STORE_BYTES = 9
_REDIRECT = 23
_SKB_LOAD_BYTES = 26

_SKB_LEN = 0  # offsetof(struct __sk_buff, len)
_HEADERS = 54  # Ethernet and the outer IPv6 header stay whole
_R0, _R1, _R2, _R3, _R4, _R5, _R6, _R7, _R8, _R10 = 0, 1, 2, 3, 4, 5, 6, 7, 8, 10


def _insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhI", code, src << 4 | dst, offset, imm & 0xFFFFFFFF)


def _call(helper: int) -> bytes:
    return _insn(0x85, imm=helper)


def _move(dst: int, src: int) -> bytes:
    return _insn(0xBF, dst, src)


def _load_imm(dst: int, imm: int) -> bytes:
    return _insn(0xB4, dst, imm=imm)


def _finish(verdict: int) -> bytes:
    return _load_imm(_R0, verdict) + _insn(0x95)


def _unless_chance(ppm: int, body: bytes) -> bytes:
    """Run `body` with the given chance, else jump over it."""
    if ppm == 0:
        return b""
    if ppm >= PPM:
        return body
    threshold = ppm * (1 << 32) // PPM
    skip = _insn(0x36, _R0, offset=len(body) // 8, imm=threshold)  # if w0 >= threshold
    return _call(_PRANDOM_U32) + skip + body


def _flip_one_bit() -> bytes:
    """Flip a random bit behind the first IP header, checksums left wrong."""
    flip = b"".join(
        (
            _call(_PRANDOM_U32),
            _insn(0xBC, _R7, _R0),  # w7 = w0
            _insn(0x9C, _R7, _R8),  # w7 %= w8
            _insn(0x04, _R7, imm=_HEADERS),  # w7 += headers
            _move(_R1, _R6),
            _move(_R2, _R7),
            _move(_R3, _R10),
            _insn(0x07, _R3, imm=-8),
            _load_imm(_R4, 1),
            _call(_SKB_LOAD_BYTES),
            _call(_PRANDOM_U32),
            _insn(0x54, _R0, imm=7),  # w0 &= 7
            _load_imm(_R1, 1),
            _insn(0x6C, _R1, _R0),  # w1 <<= w0
            _insn(0x71, _R2, _R10, -8),  # r2 = *(u8 *)(r10 - 8)
            _insn(0xAC, _R2, _R1),  # w2 ^= w1
            _insn(0x73, _R10, _R2, -8),  # *(u8 *)(r10 - 8) = r2
            _move(_R1, _R6),
            _move(_R2, _R7),
            _move(_R3, _R10),
            _insn(0x07, _R3, imm=-8),
            _load_imm(_R4, 1),
            _load_imm(_R5, 0),
            _call(_SKB_STORE_BYTES),
        )
    )
    return b"".join(
        (
            _insn(0x72, _R10, offset=-8, imm=0),  # the verifier wants it written
            _insn(0x61, _R8, _R6, _SKB_LEN),  # w8 = skb->len
            _insn(0xB6, _R8, offset=1 + len(flip) // 8, imm=_HEADERS),  # if w8 <= headers
            _insn(0x14, _R8, imm=_HEADERS),
            flip,
        )
    )


def assemble(impairment: Impairment, redirect_to: int = 0) -> bytes:
    """The program for one direction of a port; what survives may go to `redirect_to`."""
    code = _move(_R6, _R1)
    code += _unless_chance(impairment.drop_ppm, _finish(_TC_ACT_SHOT))
    if impairment.drop_ppm >= PPM:
        return code  # what follows could not be reached, which the verifier refuses
    code += _unless_chance(impairment.corrupt_ppm, _flip_one_bit())
    if redirect_to:
        divert = _load_imm(_R1, redirect_to) + _load_imm(_R2, 0) + _call(_REDIRECT)
        return code + divert + _insn(0x95)
    return code + _finish(_TC_ACT_UNSPEC)


def load(code: bytes) -> int:
    """Load the program; its file descriptor. BpfError with the verifier's last words."""
    # The log stays small: a fault must take effect at once.
    handle, _ = bpfsys.load_program(
        bpfsys.PROG_TYPE_SCHED_CLS, code, name="lab_fault", log_size=1 << 16
    )
    return handle
