# SPDX-License-Identifier: GPL-2.0-only
"""When something that changes often is written down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

GAP_S: Final = 0.05
"""A change is written down at once, those that follow together, so much later ..."""
SHARE: Final = 0.02
"""... or later, where that would take more of a CPU than this part: with thousands of sessions."""


class Writeback:
    """Calls `write` after changes, on the event loop it is made on."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.TimerHandle | None = None
        self._written_s = 0.0
        self._gap_s = GAP_S

    def changed(self) -> None:
        """Something is to be written, soon."""
        if self._due is None:
            at_s = max(self._loop.time(), self._written_s + self._gap_s)
            self._due = self._loop.call_at(at_s, self.now)

    def now(self) -> None:
        """Write at once, whatever waits."""
        self.cancel()
        began_s = time.thread_time()
        self._write()
        self._written_s = self._loop.time()
        self._gap_s = max(GAP_S, (time.thread_time() - began_s) / SHARE)

    def cancel(self) -> None:
        """What waits is not written any more."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
