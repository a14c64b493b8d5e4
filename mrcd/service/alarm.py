# SPDX-License-Identifier: GPL-2.0-only
"""Call something at the earliest of the times that were asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Alarm:
    """One timer of the running event loop, for many that wait."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_ns: int) -> None:
        """Ring at a time of the monotonic clock, unless the alarm rings earlier anyway."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0, due_ns - time.monotonic_ns()) / 1e9
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._due)

    def _due(self) -> None:
        self._timer = None
        self._ring()

    def cancel(self) -> None:
        """Ring no more until the alarm is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
