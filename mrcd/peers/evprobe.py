# SPDX-License-Identifier: GPL-2.0-only
"""Account for the EV probes of one request: probes sent, answers, round trips. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class PathResult:
    """The results of one EV's probes. Times are in nanoseconds, None when no probe came back."""

    ev: int
    sent: int
    answered: int
    min_ns: int | None
    median_ns: int | None
    max_ns: int | None


class ProbeRound:
    """The probes of one request, and those in flight.

    A request id belongs to one probe; a second answer to it is ignored.
    """

    def __init__(self, evs: Iterable[int]) -> None:
        self._rtts: dict[int, list[int]] = {ev: [] for ev in evs}
        self._sent: dict[int, int] = dict.fromkeys(self._rtts, 0)
        self._waiting: dict[int, tuple[int, int]] = {}

    @property
    def evs(self) -> Sequence[int]:
        """The EVs under test."""
        return list(self._rtts)

    @property
    def complete(self) -> bool:
        """Return whether every probe sent so far came back."""
        return not self._waiting

    def sent(self, request_id: int, ev: int, now_ns: int) -> None:
        """Record that a probe leaves."""
        self._sent[ev] += 1
        self._waiting[request_id] = (ev, now_ns)

    def answered(self, request_id: int, ev: int, now_ns: int) -> bool:
        """Record an answer. Returns False if no answer with this id and EV is due."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting[0] != ev:
            return False
        del self._waiting[request_id]
        self._rtts[ev].append(max(0, now_ns - waiting[1]))
        return True

    def results(self) -> list[PathResult]:
        """Return the results so far, in the order of the EVs."""
        return [
            PathResult(
                ev,
                self._sent[ev],
                len(rtts),
                min(rtts, default=None),
                int(median(rtts)) if rtts else None,
                max(rtts, default=None),
            )
            for ev, rtts in self._rtts.items()
        ]
