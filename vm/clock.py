# SPDX-License-Identifier: GPL-2.0-only
"""The machines' time, which stands still while one of them is stopped.

A deadline limits the time that a machine takes. Time during which qemu is stopped (by SIGSTOP, a
debugger, or a measurement that needs the processor for itself) does not count. On a shared
processor, MRC_VM_PATIENCE stretches all deadlines.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

LOOK_S = 1.0
"""The longest time to wait for a machine before checking the clock again."""


def patience() -> float:
    """Return the factor that stretches every deadline: MRC_VM_PATIENCE, 1 by default."""
    return float(os.environ.get("MRC_VM_PATIENCE", "1"))


class Clock:
    """A clock that counts the seconds during which no watched process was stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._looked = time.monotonic()
        self._now = 0.0
        self._stopped = 0.0

    def watch(self, pid: int) -> None:
        """Watch a process: from now on, stand still while it is stopped."""
        with self._lock:
            self._pids.add(pid)

    def forget(self, pid: int) -> None:
        """Stop watching a process."""
        with self._lock:
            self._pids.discard(pid)

    def now(self) -> float:
        """Return the seconds since the clock was made."""
        with self._lock:
            looked, self._looked = self._looked, time.monotonic()
            if any(map(_stopped, self._pids)):
                self._stopped += self._looked - looked
            else:
                self._now += self._looked - looked
            return self._now

    def stopped(self) -> float:
        """Return the seconds for which it stood still; the machines' own clocks kept running."""
        self.now()
        return self._stopped

    def deadline(self, within_s: float) -> float:
        """Return the time at which `within_s`, stretched by the patience, will be over."""
        return self.now() + within_s * patience()


def _stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in "Tt"


CLOCK = Clock()
