# SPDX-License-Identifier: GPL-2.0-only
"""Log withdrawn paths: at most one line for each plane and second, not one for each path.

A dead cable takes every path of its plane with it, and a lossy one may do so many times a second.
An operator needs to know which plane is affected and how often.
"""

from __future__ import annotations

import time

from mrcd.fabric import usid
from mrcd.service.log import get_logger

log = get_logger()

INTERVAL_S = 1.0


class PathLog:
    """A log of withdrawals that counts them and writes them in batches."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._unsaid: dict[int, int] = {}

    def withdrawn(self, ev: int) -> None:
        """Count a path that lost a packet and was withdrawn."""
        plane, now = usid.ev_plane(ev), time.monotonic()
        self._unsaid[plane] = self._unsaid.get(plane, 0) + 1
        if now - self._last.get(plane, -INTERVAL_S) >= INTERVAL_S:
            self._last[plane] = now
            log.info(
                "path.withdrawn",
                plane=plane,
                t1=usid.ev_t1(ev),
                ev=f"{ev:#010x}",
                withdrawals=self._unsaid.pop(plane),
            )
