# SPDX-License-Identifier: GPL-2.0-only
"""A lab of two hosts and four planes for the time of a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cli.lab import lab, state
from mrcd.fabric import description
from rigs.running_lab import RunningLab


@contextlib.contextmanager
def running(name: str, rate: int) -> Iterator[RunningLab]:
    """Run the lab, whose links have `rate` Mb/s, for the time of a block."""
    if name in state.labs():
        lab.down(name)
    fabric = description.generate(name=name, planes=4, t1=2, rate_mbps=rate)
    lab.up(fabric, daemons=True)
    try:
        yield RunningLab(fabric)
    finally:
        lab.down(name)
