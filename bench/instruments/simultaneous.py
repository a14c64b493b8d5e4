# SPDX-License-Identifier: GPL-2.0-only
"""Make several faults of a lab at once: links that flap together, half of a host's NIC links.

`lab.fault` takes some 20 ms for each element, mostly for preparation. Here all elements are
prepared first and change within a few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cli.lab import lab, state
from cli.lab.injection import Applied


def faults(name: str, actions: Mapping[str, str]) -> Applied:
    """Apply an action to each element at once; return when all are in effect."""
    return asyncio.run(lab.inject_together(name, actions))


def clear_all(name: str) -> None:
    """Clear all faults of the lab."""
    elements = {fault.element for fault in state.read(name).faults}
    if elements:
        faults(name, dict.fromkeys(sorted(elements), "clear"))
