# SPDX-License-Identifier: GPL-2.0-only
"""How much of its time each CPU works for the kernel: system calls, interrupts, packets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 2, 5, 6, 7
_COLUMNS = 8  # what follows counts guests, whose time is in the others already

Times = Mapping[str, tuple[int, int]]
"""Of each CPU by its name: ticks for the kernel, or taken by a hypervisor, and ticks in all."""


def read(stat: Path = Path("/proc/stat")) -> Times:
    """Return the times of all CPUs since the start."""
    found = {}
    for line in stat.read_text().splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(word) for word in words[:_COLUMNS]]
            ours = sum(ticks[place] for place in (_SYSTEM, _IRQ, _SOFTIRQ, _STEAL))
            found[name] = ours, sum(ticks)
    return found


def busiest(before: Times, after: Times) -> float:
    """Return the part of its time for which the busiest CPU worked for the kernel in between."""
    parts = [0.0]
    for name, (ours, ticks) in after.items():
        ours_then, ticks_then = before.get(name, (ours, ticks))
        if ticks > ticks_then:
            parts.append((ours - ours_then) / (ticks - ticks_then))
    return max(parts)
