# SPDX-License-Identifier: GPL-2.0-only
"""Schedule the turns of thousands of sessions with one timer (pure).

Each name has a time at which it is due. There are two queues. A *prompt* name gets its turn when it
is due. The others share a budget of packets a second, which caps the cost of thousands of peers
that do not answer, or of a start with thousands of peers. Within a queue the earliest comes first.

Postponing a name does not search a queue: the old entry stays until its time comes. A session that
gets a turn therefore checks its own deadline again, and does nothing if the turn is early.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mrcd.handshake import MS

NEVER_NS: Final = 1 << 63
PACKETS_PER_S: Final = 2000
"""Offers a second to peers that do not answer. On four planes a start asks 500 peers a second."""
BURST: Final = 256
"""Offers that may leave at once after an idle time, so that a small fabric is asked without
delay."""
TURNS: Final = 32
"""Turns without a pause, after which other tasks on the event loop get theirs."""
GRAIN_NS: Final = 100 * MS
"""Least time between two rounds of turns with more than GRAIN_NAMES names. With many names one is
always due, and waking up costs more than most turns, so due names are served together."""
GRAIN_NAMES: Final = 64


@dataclass(slots=True)
class _Entry:
    due_ns: int
    prompt: bool


class Agenda:
    """The turns of many names. Times are nanoseconds of a monotonic clock."""

    def __init__(self, *, now_ns: int, grain_ns: int = GRAIN_NS) -> None:
        """Start empty. `grain_ns` is the least time between two rounds with many names."""
        self._grain_ns = grain_ns
        self._entries: dict[str, _Entry] = {}
        self._prompt: list[tuple[int, str]] = []
        self._patient: list[tuple[int, str]] = []
        self._budget = float(BURST)
        self._paid_ns = now_ns
        self._served_ns = now_ns - grain_ns

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, name: str, due_ns: int, *, prompt: bool) -> None:
        """Set the time of a name's next turn, which replaces an earlier setting."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(NEVER_NS, prompt)
        elif entry.prompt == prompt and entry.due_ns <= due_ns:
            return  # it is postponed when the earlier time has come
        entry.due_ns, entry.prompt = due_ns, prompt
        queue = self._prompt if prompt else self._patient
        heapq.heappush(queue, (due_ns, name))
        if len(queue) > 4 * len(self._entries) + GRAIN_NAMES:
            self._tidy()

    def drop(self, name: str) -> None:
        """Forget a name."""
        self._entries.pop(name, None)

    def spend(self, packets: int) -> None:
        """Charge the budget for packets sent in the turn of a name that is not prompt."""
        self._budget -= packets

    def take(self, *, now_ns: int) -> Sequence[str]:
        """Return the names that are due, at most TURNS in all.

        The caller must `put` each of them again, and `spend` the packets of those not prompt.
        """
        self._pay(now_ns)
        self._served_ns = now_ns
        due: list[str] = []
        for queue, prompt in ((self._prompt, True), (self._patient, False)):
            room = TURNS if prompt else min(TURNS, max(0, round(self._budget)))
            while queue and queue[0][0] <= now_ns and len(due) < room:
                at, name = heapq.heappop(queue)
                if self._is(name, at, prompt=prompt):
                    del self._entries[name]
                    due.append(name)
        return due

    def deadline_ns(self, *, now_ns: int) -> int:
        """Return when `take` must be called next.

        If that is now or earlier, call it as soon as the event loop's other tasks had a turn.
        """
        self._trim()
        soonest = self._prompt[0][0] if self._prompt else NEVER_NS
        if self._patient:
            soonest = min(soonest, max(self._patient[0][0], self._solvent_ns(now_ns)))
        if len(self._entries) > GRAIN_NAMES and soonest > now_ns:
            soonest = max(soonest, self._served_ns + self._grain_ns)
        return soonest

    def _is(self, name: str, at: int, *, prompt: bool) -> bool:
        entry = self._entries.get(name)
        return entry is not None and (entry.due_ns, entry.prompt) == (at, prompt)

    def _pay(self, now_ns: int) -> None:
        gained = (now_ns - self._paid_ns) * PACKETS_PER_S / 1e9
        self._budget = min(float(BURST), self._budget + gained)
        self._paid_ns = now_ns

    def _solvent_ns(self, now_ns: int) -> int:
        """Return the time from which the budget allows a turn."""
        self._pay(now_ns)
        lacking = 1 - self._budget
        return now_ns if lacking <= 0 else now_ns + round(lacking * 1e9 / PACKETS_PER_S)

    def _trim(self) -> None:
        """Remove outdated entries from the front of both queues."""
        for queue, prompt in ((self._prompt, True), (self._patient, False)):
            while queue and not self._is(queue[0][1], queue[0][0], prompt=prompt):
                heapq.heappop(queue)

    def _tidy(self) -> None:
        """Remove every outdated entry."""
        for queue, prompt in ((self._prompt, True), (self._patient, False)):
            queue[:] = [entry for entry in queue if self._is(entry[1], entry[0], prompt=prompt)]
            heapq.heapify(queue)
