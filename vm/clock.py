# SPDX-License-Identifier: GPL-2.0-only
"""Time as the machines have it: it stands still while one of them is stopped.

A deadline is about what a machine does. Whoever stops qemu for a while (SIGSTOP, a debugger, a
measurement that wants the processor for itself) takes nothing from it. Stretched by
MRC_VM_PATIENCE, where the processor is shared with others.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

LOOK_S = 1.0
"""How long whoever waits for a machine waits at most before the clock is looked at again."""


def patience() -> float:
    """By what every deadline is stretched: MRC_VM_PATIENCE, 1 by default."""
    return float(os.environ.get("MRC_VM_PATIENCE", "1"))


class Clock:
    """Seconds in which all processes that are watched were allowed to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._looked = time.monotonic()
        self._now = 0.0
        self._stopped = 0.0

    def watch(self, pid: int) -> None:
        """Stand still from now on while this process is stopped."""
        with self._lock:
            self._pids.add(pid)

    def forget(self, pid: int) -> None:
        """Take no notice of this process any more."""
        with self._lock:
            self._pids.discard(pid)

    def now(self) -> float:
        """Seconds since the clock was made."""
        with self._lock:
            looked, self._looked = self._looked, time.monotonic()
            if any(map(_stopped, self._pids)):
                self._stopped += self._looked - looked
            else:
                self._now += self._looked - looked
            return self._now

    def stopped(self) -> float:
        """Seconds for which it stood still so far: machines' own clocks went on."""
        self.now()
        return self._stopped

    def deadline(self, within_s: float) -> float:
        """When `within_s` will be over, patience included."""
        return self.now() + within_s * patience()


def _stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in "Tt"


CLOCK = Clock()
