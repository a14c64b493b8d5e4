# SPDX-License-Identifier: GPL-2.0-only
"""Assemble BPF instructions for the few that a test puts into the kernel (pure).

Encoding: Documentation/bpf/standardization/instruction-set.rst of the kernel. The offset of a jump
counts instructions of 8 bytes from the one after the jump.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)

TC_ACT_UNSPEC = 0xFFFFFFFF  # continue as if there were no program


def insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    """Encode one instruction."""
    return struct.pack("<BBhI", code, src << 4 | dst, offset, imm & 0xFFFFFFFF)


def call(helper: int) -> bytes:
    """Call a helper: takes arguments in r1 to r5, returns in r0, clobbers r1 to r5."""
    return insn(0x85, imm=helper)


def move(dst: int, src: int) -> bytes:
    """Emit dst = src, 64 bits."""
    return insn(0xBF, dst, src)


def load_imm(dst: int, imm: int) -> bytes:
    """Emit dst = imm, 32 bits, with the upper half zero."""
    return insn(0xB4, dst, imm=imm)


def load_u32(dst: int, src: int, offset: int) -> bytes:
    """Emit dst = *(u32 *)(src + offset)"""
    return insn(0x61, dst, src, offset)


def load_map(dst: int, map_fd: int) -> bytes:
    """Emit dst = the map; this takes two instructions."""
    return insn(0x18, dst, 1, imm=map_fd) + insn(0)


def finish(verdict: int) -> bytes:
    """Emit return verdict"""
    return load_imm(R0, verdict) + insn(0x95)


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump to a label further on: `code`, `dst`, `src` and `imm` as for insn()."""

    to: str
    code: int
    dst: int = 0
    src: int = 0
    imm: int = 0


def always(to: str) -> Jump:
    """Jump to a label in any case."""
    return Jump(to, 0x05)


def link(parts: Iterable[bytes | str | Jump]) -> bytes:
    """Put a program together: code, labels (strings), and the jumps to them.

    Raises ValueError if a label is missing, stands twice, or lies behind its jump: the verifier of
    old kernels refuses loops.
    """
    listed = list(parts)
    at, places = 0, dict[str, int]()
    for part in listed:
        if isinstance(part, str):
            if part in places:
                raise ValueError(f"label {part} stands twice")
            places[part] = at
        else:
            at += len(part) // 8 if isinstance(part, bytes) else 1
    at, code = 0, b""
    for part in listed:
        if isinstance(part, Jump):
            if places.get(part.to, -1) <= at:
                raise ValueError(f"no label {part.to} behind the jump to it")
            part = insn(part.code, part.dst, part.src, places[part.to] - at - 1, part.imm)
        if isinstance(part, bytes):
            code += part
            at = len(code) // 8
    return code
