# SPDX-License-Identifier: GPL-2.0-only
"""Several faults of a lab in one moment: links that flap together, half of a host's NIC links.

`lab.fault` takes some 20 ms for each element, most of it preparation; here all elements are
prepared first and change within a few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mrcd.lab import lab, state
from mrcd.lab.injection import Applied


def faults(name: str, actions: Mapping[str, str]) -> Applied:
    """Do the action of each element at once; returns when all are in effect."""
    return asyncio.run(lab.inject_together(name, actions))


def clear_all(name: str) -> None:
    """Clear every fault there is."""
    elements = {fault.element for fault in state.read(name).faults}
    if elements:
        faults(name, dict.fromkeys(sorted(elements), "clear"))
