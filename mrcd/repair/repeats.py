# SPDX-License-Identifier: GPL-2.0-only
"""Notice that something else keeps undoing the same repair (pure)."""

from __future__ import annotations

from typing import Final

MOST: Final = 5
WITHIN_S: Final = 60.0
"""More repairs of one object than this within this time are a quarrel with something else."""


class Repeats:
    """When each object was put right lately."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def repaired(self, about: str, now_s: float) -> None:
        """Note a repair."""
        self._times[about] = [*self._recent(about, now_s), now_s]

    def count(self, about: str, now_s: float) -> int:
        """Return the number of repairs lately."""
        return len(self._recent(about, now_s))

    def quarrels(self, now_s: float) -> dict[str, int]:
        """Return the objects that were put right too often lately, with the number of times."""
        counts = {about: self.count(about, now_s) for about in self._times}
        self._times = {about: self._times[about] for about, count in counts.items() if count}
        return {about: count for about, count in counts.items() if count > MOST}

    def _recent(self, about: str, now_s: float) -> list[float]:
        return [at for at in self._times.get(about, ()) if now_s - at < WITHIN_S]
