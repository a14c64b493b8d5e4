# SPDX-License-Identifier: GPL-2.0-only
"""Count every refused message, and log at most one a second.

Any host may send any number of them, so the log must not grow with the packets that arrive.
"""

from __future__ import annotations

from mrcd.service.log import get_logger

log = get_logger()

INTERVAL_NS = 1_000_000_000


class Rejections:
    """The rejections of one kind of message, logged as `event`."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._quiet_until_ns = 0
        self.count = 0

    def add(self, plane: int, reason: str, *, now_ns: int) -> None:
        """Count a message refused on a plane; `now_ns` is of CLOCK_MONOTONIC."""
        self.count += 1
        if now_ns >= self._quiet_until_ns:
            self._quiet_until_ns = now_ns + INTERVAL_NS
            log.info(self._event, plane=plane, reason=reason, count=self.count)
