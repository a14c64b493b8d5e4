# SPDX-License-Identifier: GPL-2.0-only
"""The helpers that copy or reallocate a packet: calls in the programs, against docs/performance.md.

A copy of a packet costs more than everything else that a program does to it. This test notices an
added copy, and the table in the document gives the purpose of each.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from pathlib import Path

from mrcd.datapath import loader
from rigs.rig import Rig, code_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"
HELPERS = {
    9: "skb_store_bytes",
    13: "clone_redirect",
    25: "perf_event_output",
    26: "skb_load_bytes",
    31: "skb_change_proto",
    38: "skb_change_tail",
    39: "skb_pull_data",
    43: "skb_change_head",
    44: "xdp_adjust_head",
    50: "skb_adjust_room",
    65: "xdp_adjust_tail",
    189: "xdp_load_bytes",
    190: "xdp_store_bytes",
}
"""By number, enum bpf_func_id of include/uapi/linux/bpf.h: whatever may touch a whole packet."""
CALL, OF_KERNEL, LOAD_WIDE = 0x85, 0, 0x18
ROW = re.compile(r"^\| `(mrc_[a-z]+)` \| `([a-z_]+)` \| (\d+) \|", re.MULTILINE)


def called(code: bytes) -> Counter[str]:
    """Count the calls of such helpers in a program as it is loaded."""
    found: Counter[str] = Counter()
    at = 0
    while at < len(code):
        opcode, registers, _offset, imm = struct.unpack_from("<BBhi", code, at)
        if opcode == CALL and registers >> 4 == OF_KERNEL and imm in HELPERS:
            found[HELPERS[imm]] += 1
        at += 16 if opcode == LOAD_WIDE else 8
    return found


def documented(text: str) -> dict[str, Counter[str]]:
    """Return the rows "program, helper, calls" of a document."""
    found: dict[str, Counter[str]] = {}
    for program, helper, count in ROW.findall(text):
        found.setdefault(program, Counter())[helper] += int(count)
    return found


def test_calls_that_copy_are_those_of_the_document(built_rig: Rig) -> None:
    code = code_of(built_rig.dp.sizes)
    built = {name: called(code.programs[name]) for name in loader.PROGRAMS}
    wanted = documented(DOCUMENT.read_text())
    assert {name: calls for name, calls in built.items() if calls} == wanted


def test_calls_are_counted() -> None:
    def insn(opcode: int, registers: int = 0, imm: int = 0) -> bytes:
        return struct.pack("<BBhi", opcode, registers, 0, imm)

    wide = insn(LOAD_WIDE, imm=9) + insn(CALL, imm=9)  # the second half is not a call
    code = wide + insn(CALL, imm=13) + insn(CALL, 0x10, 13) + insn(CALL, imm=1) + insn(0x95)
    assert called(code) == {"clone_redirect": 1}
    assert documented("| `mrc_x` | `clone_redirect` | 2 | why |\n| `mrc_x` | other | 1 |") == {
        "mrc_x": {"clone_redirect": 2}
    }
