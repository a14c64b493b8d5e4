# SPDX-License-Identifier: GPL-2.0-only
"""The steps of a training job, and what a fault in the middle did to them (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.instruments.metrics import Ints, S


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a job: when each began, and what it took the slowest rank, in ns."""

    began_ns: Ints
    took_ns: Ints

    @property
    def per_s(self) -> float | None:
        """Return the steps a second from the first begin to the last end; None without steps."""
        if not len(self.took_ns):
            return None
        lasted_ns = self.began_ns[-1] + self.took_ns[-1] - self.began_ns[0]
        return len(self.took_ns) * S / float(lasted_ns)

    def between(self, start_ns: int, end_ns: int) -> Ints:
        """Return the durations of the steps that began and ended between two times."""
        ended = self.began_ns + self.took_ns
        return self.took_ns[(self.began_ns >= start_ns) & (ended <= end_ns)]

    def during(self, when_ns: int) -> Ints:
        """Return the duration of the step in progress at a time; empty between two steps."""
        return self.took_ns[self._at(when_ns)]

    def outside(self, when_ns: int) -> Ints:
        """Return the durations of all other steps."""
        return self.took_ns[~self._at(when_ns)]

    def _at(self, when_ns: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return (self.began_ns <= when_ns) & (when_ns < self.began_ns + self.took_ns)


def joined(records: Sequence[Ints]) -> Steps:
    """Join the ranks' rows of begin and end; only steps that every rank has are included."""
    count = min(len(record) for record in records)
    began = np.min([record[:count, 0] for record in records], axis=0)
    took = np.max([record[:count, 1] - record[:count, 0] for record in records], axis=0)
    return Steps(began, took)
