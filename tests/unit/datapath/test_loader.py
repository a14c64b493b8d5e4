# SPDX-License-Identifier: GPL-2.0-only
"""Test programs that are moved from one set of maps to another."""

from __future__ import annotations

from mrcd.datapath.loader import retargeted
from mrcd.lab.assembler import R1, R2, call, finish, insn, load_imm, load_map, move


def test_retargeted__map_descriptors_are_replaced_and_nothing_else() -> None:
    wide_constant = insn(0x18, R2, 0, imm=7) + insn(0, imm=7)  # 64 bits, but not a map
    behind = load_imm(R1, 7) + call(7) + move(R1, R2) + finish(7)
    program = load_map(R1, 7) + wide_constant + load_map(R2, 8) + behind
    moved = load_map(R1, 70) + wide_constant + load_map(R2, 8) + behind
    assert retargeted(program, {7: 70}) == moved
    assert retargeted(program, {}) == program


def test_retargeted__descriptors_may_trade_places() -> None:
    program = load_map(R1, 7) + load_map(R2, 8)
    assert retargeted(program, {7: 8, 8: 7}) == load_map(R1, 8) + load_map(R2, 7)
