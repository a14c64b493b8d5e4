# SPDX-License-Identifier: GPL-2.0-only
"""Test which planes are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrcd.planes.usable import PortState, usable_mask, why_unused

WELL = PortState(up=True, carrier=True, gateway=True)
DOWN = replace(WELL, up=False)
CUT = replace(WELL, carrier=False)
LONELY = replace(WELL, gateway=False)
DRAINED = replace(WELL, drained=True)
SICK = replace(WELL, sick="loses 4 % of its own probes")


@pytest.mark.parametrize(
    ("states", "mask"),
    [
        ([], 0),
        ([WELL, WELL], 0b11),
        ([WELL, DOWN], 0b01),
        ([CUT, WELL], 0b10),
        ([LONELY, WELL], 0b10),
        ([DRAINED, WELL], 0b10),
        ([SICK, WELL], 0b10),
        ([SICK, SICK], 0b11),  # some plane has to be used
        ([SICK, DOWN], 0b01),
        ([SICK, DRAINED], 0b01),
        ([SICK, CUT, WELL], 0b100),
        ([DRAINED, DOWN], 0),  # a drained plane is never used
        ([DRAINED, DRAINED], 0),
        ([replace(SICK, drained=True), SICK], 0b10),
        ([replace(SICK, carrier=False), DOWN], 0),
    ],
)
def test_usable_mask(states: list[PortState], mask: int) -> None:
    assert usable_mask(states) == mask


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (WELL, None),
        (DOWN, "eth1 is down"),
        (CUT, "eth1 has no carrier"),
        (LONELY, "eth1 has no answer from its gateway fe80::1"),
        (DRAINED, "drained by the operator"),
        (SICK, "loses 4 % of its own probes"),
        (replace(DRAINED, carrier=False), "eth1 has no carrier"),
    ],
)
def test_why_unused(state: PortState, why: str | None) -> None:
    assert why_unused(state, "eth1", "fe80::1") == why
