# SPDX-License-Identifier: GPL-2.0-only
"""Test how programs of the lab are put together from code, labels and jumps."""

from __future__ import annotations

import pytest

from rigs.assembler import R1, R2, Jump, always, insn, link, load_map, move

NEXT = move(R1, R2)


def test_jumps_count_the_instructions_between_them_and_their_label() -> None:
    code = link([Jump("end", 0x15, R1, imm=7), NEXT, load_map(R2, 3), "end", NEXT])
    assert code == insn(0x15, R1, offset=3, imm=7) + NEXT + load_map(R2, 3) + NEXT


def test_a_label_takes_no_room_and_may_have_several_jumps() -> None:
    code = link([always("end"), always("end"), NEXT, "end", "other", NEXT])
    assert code == insn(5, offset=2) + insn(5, offset=1) + NEXT + NEXT


def test_a_label_right_behind_its_jump_is_no_distance() -> None:
    assert link([always("end"), "end", NEXT]) == insn(5) + NEXT


@pytest.mark.parametrize("parts", [[always("end")], ["end", always("end")]])
def test_a_label_must_follow_its_jump(parts: list[bytes | str | Jump]) -> None:
    with pytest.raises(ValueError, match="no label end behind the jump to it"):
        link(parts)


def test_a_label_stands_once() -> None:
    with pytest.raises(ValueError, match="label end stands twice"):
        link(["end", NEXT, "end"])
