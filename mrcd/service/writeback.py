# SPDX-License-Identifier: GPL-2.0-only
"""Decide when to write state that changes often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

GAP_S: Final = 0.05
"""The least time between two writes: a first change is written at once, later ones together."""
SHARE: Final = 0.02
"""The most of a CPU that writing may take; with thousands of sessions the gap grows to fit."""


class Writeback:
    """A scheduler that calls `write` after changes, on the event loop that created it."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.TimerHandle | None = None
        self._written_s = 0.0
        self._gap_s = GAP_S

    def changed(self) -> None:
        """Schedule a write for a change."""
        if self._due is None:
            at_s = max(self._loop.time(), self._written_s + self._gap_s)
            self._due = self._loop.call_at(at_s, self.now)

    def now(self) -> None:
        """Write at once, and drop a scheduled write."""
        self.cancel()
        began_s = time.thread_time()
        self._write()
        self._written_s = self._loop.time()
        self._gap_s = max(GAP_S, (time.thread_time() - began_s) / SHARE)

    def cancel(self) -> None:
        """Drop a scheduled write."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
