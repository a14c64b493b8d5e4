# SPDX-License-Identifier: GPL-2.0-only
"""Whose turn it is, with one timer for thousands of sessions (pure).

Each name has a time at which it wants a turn. There are two queues: who is *prompt* gets it then;
the others share a budget of packets a second, so that thousands of peers that do not answer, or a
start with thousands of peers, cost no more than that. Within a queue the earliest comes first.

A name may be put off without looking for it in a queue: an old entry is found out when its time
comes. So whoever gets a turn looks at his own clock again, and does nothing if it is early.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mrcd.handshake import MS

NEVER_NS: Final = 1 << 63
PACKETS_PER_S: Final = 2000
"""Offers a second to peers that do not answer: a start asks 500 peers a second on four planes."""
BURST: Final = 256
"""So many at once after a while without: a small fabric is asked without delay."""
TURNS: Final = 32
"""Turns without a pause: others on the same event loop want theirs."""
GRAIN_NS: Final = 100 * MS
"""With many names there is always one whose time has come: they are served together, since waking
up costs more than what most turns are about."""
GRAIN_NAMES: Final = 64


@dataclass(slots=True)
class _Entry:
    due_ns: int
    prompt: bool


class Agenda:
    """The turns of many names. Times are a monotonic clock, nanoseconds."""

    def __init__(self, *, now_ns: int, grain_ns: int = GRAIN_NS) -> None:
        """`grain_ns`: least time between two looks at many names."""
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
        """Give a name a turn at a time, instead of the one it was to have."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(NEVER_NS, prompt)
        elif entry.prompt == prompt and entry.due_ns <= due_ns:
            return  # it is put off when that time has come
        entry.due_ns, entry.prompt = due_ns, prompt
        queue = self._prompt if prompt else self._patient
        heapq.heappush(queue, (due_ns, name))
        if len(queue) > 4 * len(self._entries) + GRAIN_NAMES:
            self._tidy()

    def drop(self, name: str) -> None:
        """Forget a name."""
        self._entries.pop(name, None)

    def spend(self, packets: int) -> None:
        """A turn of somebody who is not prompt has sent packets."""
        self._budget -= packets

    def take(self, *, now_ns: int) -> Sequence[str]:
        """Names whose turn it is, at most TURNS; each wants to be put again, and `spend` for it."""
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
        """When `take` is to be called next; now or earlier: as soon as others had their turn."""
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
        """From when on there is a budget for a turn."""
        self._pay(now_ns)
        lacking = 1 - self._budget
        return now_ns if lacking <= 0 else now_ns + round(lacking * 1e9 / PACKETS_PER_S)

    def _trim(self) -> None:
        """Leave no old entry in front."""
        for queue, prompt in ((self._prompt, True), (self._patient, False)):
            while queue and not self._is(queue[0][1], queue[0][0], prompt=prompt):
                heapq.heappop(queue)

    def _tidy(self) -> None:
        """Leave no old entry at all."""
        for queue, prompt in ((self._prompt, True), (self._patient, False)):
            queue[:] = [entry for entry in queue if self._is(entry[1], entry[0], prompt=prompt)]
            heapq.heapify(queue)
