# SPDX-License-Identifier: GPL-2.0-only
"""The level of the log, changed while the daemon runs, for good or for some time."""

from __future__ import annotations

import asyncio

from mrcd.service import log
from mrcd.service.log import LEVELS, LogLevel, get_logger

_log = get_logger()

USUAL: LogLevel = "info"


class Level:
    """Sets the level; after a time that is asked for, the usual one again."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def set(self, level: LogLevel, seconds: float | None = None) -> LogLevel:
        """Log events from this level on; return the level before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        before = log.current_level()
        # Whoever reads the log must see why it changes, whichever of both levels is the higher.
        log.set_level(min(LEVELS[before], LEVELS[USUAL]))
        _log.info("log.level", to=level, before=before, seconds=seconds)
        log.set_level(LEVELS[level])
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self.set, USUAL)
        return before
