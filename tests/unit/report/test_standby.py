# SPDX-License-Identifier: GPL-2.0-only
"""Which planes carry data, where some are on standby."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mrcd.report.standby import serving
from tests.host_path import Memory, build


@pytest.mark.parametrize(
    ("up", "spare", "in_use", "suspects", "found"),
    [
        (0b111, 0b100, 0b111, 0, 0b011),
        (0b111, 0b110, 0b111, 0b001, 0b111),  # the only other one is a suspect
        (0b111, 0b100, 0b111, 0b001, 0b011),
        (0b111, 0b110, 0b110, 0, 0b111),  # it has no paths in use
        (0b110, 0b110, 0b111, 0, 0b110),  # it is down
        (0b111, 0b111, 0b111, 0, 0b111),
    ],
)
def test_serving(up: int, spare: int, in_use: int, suspects: int, found: int) -> None:
    assert serving(up, spare, in_use, suspects) == found


def test_the_programs_choose_the_same(tmp_path: Path) -> None:
    programs, planes = build(tmp_path), range(1 << 3)
    for in_use, suspects in itertools.product(planes, planes):
        tx = Memory("mrc_tx", plane_use=in_use, suspects=suspects)
        for up, spare in itertools.product(planes, planes):
            found = programs.host_serving(tx.at, up, spare)
            assert found == serving(up, spare, in_use, suspects)
            assert not up or found, "there is always one to send by"
