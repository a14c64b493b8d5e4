# SPDX-License-Identifier: GPL-2.0-only
"""Names for the parts of a fabric (pure).

p1              a plane
p1t0-1, p1t1-2  its switches
p1t0-1:p1t1-2   a link between switches, the T0 first
h2:p1           the link of a host's NIC
"""

from __future__ import annotations

import re

PLANE = re.compile(r"p(\d+)")
SWITCH = re.compile(r"p(\d+)t([01])-(\d+)")
"""Matches a switch; the groups are plane, tier and index."""


def plane(index: int) -> str:
    """Return the name of a plane."""
    return f"p{index}"


def t0(plane: int, index: int) -> str:
    """Return the name of a T0."""
    return f"p{plane}t0-{index}"


def t1(plane: int, index: int) -> str:
    """Return the name of a T1."""
    return f"p{plane}t1-{index}"


def link(plane: int, t0_index: int, t1_index: int) -> str:
    """Return the name of the link between a T0 and a T1."""
    return f"{t0(plane, t0_index)}:{t1(plane, t1_index)}"


def nic(plane: int, host: str) -> str:
    """Return the name of a host's link to its T0."""
    return f"{host}:p{plane}"


def every_switch(planes: int, t0s: int, t1s: int) -> str:
    """Return the range of a fabric's switches for a message."""
    last = planes - 1
    return f"{t0(0, 1)} to {t0(last, t0s)} and {t1(0, 1)} to {t1(last, t1s)}"
