# SPDX-License-Identifier: GPL-2.0-only
"""Translate compiled BPF programs into C, so that fuzzers see their branches.

Every instruction becomes a statement. Registers are variables of 64 bits, and the helpers of the
kernel are functions of tests/fuzz/kernel/kernel.c. The programs' sources do not compile for a host:
they have map accesses in bcc's notation, and instructions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_LD_IMM64, _MAP = 0x18, 1
_SIZES = {0x00: "u32", 0x08: "u16", 0x10: "u8", 0x18: "u64"}
_ALU = {
    0x00: "+", 0x10: "-", 0x20: "*", 0x30: "/", 0x40: "|", 0x50: "&", 0x60: "<<", 0x70: ">>",
    0x90: "%", 0xA0: "^", 0xB0: "=", 0xC0: "sar",
}  # fmt: skip
_JUMPS = {
    0x10: "==", 0x20: ">", 0x30: ">=", 0x40: "&", 0x50: "!=", 0x60: "s>", 0x70: "s>=",
    0xA0: "<", 0xB0: "<=", 0xC0: "s<", 0xD0: "s<=",
}  # fmt: skip
_JA, _CALL, _EXIT = 0x00, 0x80, 0x90
_ATOMICS = {
    0x00: "atomic_add", 0x40: "atomic_or", 0x50: "atomic_and", 0xA0: "atomic_xor",
    0xE1: "exchange", 0xF1: "compare_exchange",
}  # fmt: skip
_FETCH = 1
_TAIL_CALL = 12


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; a wide one has its upper half in `high`."""

    code: int
    dst: int
    src: int
    offset: int
    imm: int
    high: int = 0


def decoded(program: bytes) -> dict[int, Instruction]:
    """Return the instructions by their places; a wide one takes two."""
    found: dict[int, Instruction] = {}
    at = 0
    while at < len(program):
        code, registers, offset, imm = struct.unpack_from("=BBhi", program, at)
        high = struct.unpack_from("=i", program, at + 12)[0] if code == _LD_IMM64 else 0
        found[at // 8] = Instruction(code, registers & 15, registers >> 4, offset, imm, high)
        at += 16 if code == _LD_IMM64 else 8
    return found


def function(name: str, program: bytes, maps: Sequence[str]) -> str:
    """Return a program as a function `name` of its context; `maps` are those that it refers to."""
    instructions = decoded(program)
    targets = {
        place + 1 + one.offset
        for place, one in instructions.items()
        if one.code & 7 in (5, 6) and one.code & 0xF0 not in (_CALL, _EXIT)
    }
    lines = [
        f"static u64 {name}(void *context)",
        "{",
        "\tu8 stack[512] __attribute__((aligned(8)));",
        "\tu64 " + ", ".join(f"r{k} = 0" for k in range(10)) + ", r10 = (u64)(stack + 512);",
        "",
        "\t(void)r0, (void)r6, (void)r7, (void)r8, (void)r9;",
        "\tr1 = (u64)context;",
    ]
    for place, one in instructions.items():
        if place in targets:
            lines.append(f"L{place}:;")
        lines += (f"\t{line}" for line in _statements(one, place, maps))
    return "\n".join([*lines, "}"]) + "\n"


def _statements(one: Instruction, place: int, maps: Sequence[str]) -> Iterator[str]:
    kind = one.code & 7
    if one.code == _LD_IMM64:
        if one.src == _MAP:
            yield f"r{one.dst} = (u64)&map_{maps[one.imm]};"
        else:
            yield f"r{one.dst} = {hex((one.high & 0xFFFFFFFF) << 32 | one.imm & 0xFFFFFFFF)}ull;"
    elif kind in (4, 7):
        yield _alu(one, wide=kind == 7)
    elif kind in (5, 6):
        yield from _jump(one, place, wide=kind == 5)
    elif kind == 1:
        yield f"r{one.dst} = *({_SIZES[one.code & 0x18]} *)(r{one.src} + {one.offset});"
    elif kind == 2:
        size = _SIZES[one.code & 0x18]
        yield f"*({size} *)(r{one.dst} + {one.offset}) = ({size}){one.imm};"
    elif one.code & 0xE0 == 0xC0:
        yield _atomic(one)
    elif kind == 3:
        size = _SIZES[one.code & 0x18]
        yield f"*({size} *)(r{one.dst} + {one.offset}) = ({size})r{one.src};"
    else:
        raise ValueError(f"instruction {one.code:#04x} at {place} is not known")


def _alu(one: Instruction, *, wide: bool) -> str:
    operation = one.code & 0xF0
    unsigned, signed, bits = ("u64", "s64", 63) if wide else ("u32", "s32", 31)
    to, source = f"r{one.dst}", f"({unsigned})r{one.src}"
    if not one.code & 8:
        source = f"({unsigned})(s64){one.imm}"
    if operation == 0xD0:
        swap = "" if not one.code & 8 else f"__builtin_bswap{one.imm}"
        return f"{to} = {swap}((u{one.imm}){to});"
    if operation == 0x80:
        return f"{to} = ({unsigned})-({unsigned}){to};"
    sign = _ALU[operation]
    if sign == "=":
        return f"{to} = {source};"
    if sign == "sar":
        return f"{to} = ({unsigned})(({signed}){to} >> ({source} & {bits}));"
    if sign in ("<<", ">>"):
        return f"{to} = ({unsigned})(({unsigned}){to} {sign} ({source} & {bits}));"
    if sign == "/":
        return f"{to} = {source} ? ({unsigned}){to} / {source} : 0;"
    if sign == "%":
        return f"{to} = {source} ? ({unsigned}){to} % {source} : ({unsigned}){to};"
    return f"{to} = ({unsigned})(({unsigned}){to} {sign} {source});"


def _jump(one: Instruction, place: int, *, wide: bool) -> Iterator[str]:
    operation, to = one.code & 0xF0, f"L{place + 1 + one.offset}"
    if operation == _JA:
        yield f"goto {to};"
    elif operation == _EXIT:
        yield "return r0;"
    elif operation == _CALL and one.imm == _TAIL_CALL:
        yield "if (tail_call(r3))"
        yield "\treturn 0;"
    elif operation == _CALL:
        yield f"r0 = helper_{one.imm}(r1, r2, r3, r4, r5);"
    else:
        sign = _JUMPS[operation]
        kind = ("s" if sign.startswith("s") else "u") + ("64" if wide else "32")
        right = f"r{one.src}" if one.code & 8 else f"(s64){one.imm}"
        yield f"if (({kind})r{one.dst} {sign.removeprefix('s')} ({kind}){right})"
        yield f"\tgoto {to};"


def _atomic(one: Instruction) -> str:
    name = _ATOMICS.get(one.imm) or _ATOMICS[one.imm & ~_FETCH]
    width = "64" if one.code & 0x18 == 0x18 else "32"
    call = f"{name}{width}(r{one.dst} + {one.offset}, r{one.src}"
    if name == "compare_exchange":
        return f"r0 = {call}, r0);"
    return f"r{one.src} = {call});" if one.imm & _FETCH else f"{call});"


def text(programs: Mapping[str, bytes], maps: Sequence[str], tails: Mapping[str, int]) -> str:
    """Return all programs as C, and a table of those that are the targets of tail calls."""
    parts = [f"extern struct map map_{name};\n" for name in maps]
    parts += [function(name, program, maps) for name, program in programs.items()]
    rows = "".join(f"\t[{place}] = {name},\n" for name, place in tails.items())
    parts.append(f"static program_fn *const tails[] = {{\n{rows}}};\n")
    return "\n".join(parts)
