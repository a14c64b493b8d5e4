# SPDX-License-Identifier: GPL-2.0-only
"""Count the probes that arrive on one way, and tell those that a full queue took (pure).

Probes are numbered, and leave in pairs: an even number is a short probe, the odd one after it a
long probe that follows at once. The pairs take the UDP source ports in turn. So the number of a
probe says its length and its port, also of one that is lost.

A full queue loses packets as well, and a pair is what tells: the other probe of the pair, or the
ones before and after it, came late then. Such a loss is excused. A bad cable loses one of a pair,
and the other is as prompt as ever. The clocks of two hosts differ, so late is what comes later than
the most prompt of the last seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MS: Final = 1_000_000
LATE_NS: Final = MS // 2
"""A probe is late that took this much longer than the most prompt ones of late."""
USUAL_NS: Final = 5_000 * MS
"""The most prompt probe of at least this time, and of at most twice as long, is the usual one."""
WAIT_NS: Final = 300 * MS
"""A probe that later ones have overtaken counts as lost after this time."""
NEAR_NS: Final = 1_000 * MS
"""Probes before and after a lost pair tell of a queue if they came within this time of it."""
LEAP: Final = 4096
"""A number that is further ahead or behind than this is not of the same count."""
PORTS: Final = 8
"""Source ports that the probes of a way take in turn, because switches and bonds hash them."""
FADE: Final = 256
"""Probes after which the counts by kind are halved, so that they tell of the present."""
KEPT: Final = 256
"""Numbers around which it is known what came and when."""


def is_long(number: int) -> bool:
    """Return whether a probe is the long one of its pair."""
    return bool(number & 1)


def port_of(number: int) -> int:
    """Return by which of the source ports a probe leaves."""
    return (number >> 1) % PORTS


@dataclass(slots=True)
class Kinds:
    """What came of the last probes of a way, by kind: pairs of sent and lost, and oddities.

    The numbers fade, so that they tell of the present. `repeated` came twice, `moved` after a later
    one of the same port, and `damaged` with other bytes than they left with.
    """

    short: list[float] = field(default_factory=lambda: [0.0, 0.0])
    long: list[float] = field(default_factory=lambda: [0.0, 0.0])
    ports: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(PORTS)])
    repeated: float = 0.0
    moved: float = 0.0
    damaged: float = 0.0

    @property
    def sent(self) -> float:
        """The probes of which it is known what came of them."""
        return self.short[0] + self.long[0]

    def add(self, number: int, lost: bool) -> None:
        """Count what came of a probe."""
        for pair in (self.long if is_long(number) else self.short, self.ports[port_of(number)]):
            pair[0] += 1
            pair[1] += lost
        if self.sent > FADE:
            self._fade()

    def found(self, number: int) -> None:
        """Take back that a probe was lost: it was only late."""
        for pair in (self.long if is_long(number) else self.short, self.ports[port_of(number)]):
            pair[1] = max(0.0, pair[1] - 1)

    def _fade(self) -> None:
        for pair in (self.short, self.long, *self.ports):
            pair[0] /= 2
            pair[1] /= 2
        self.repeated /= 2
        self.moved /= 2
        self.damaged /= 2


class Arrivals:
    """The probes of one sender that arrived by one plane. Times are nanoseconds.

    `run` tells the counts of one run of the sender from those of another, and `start` is the number
    of the first probe that counts.
    """

    def __init__(self, run: int, start: int) -> None:
        self.run = run
        self.top = start - 1
        self.received = self.lost = self.excused = 0
        self.kinds = Kinds()
        self.last_ns: int | None = None
        self._start = start
        self._missing: dict[int, int] = {}  # numbers that were overtaken, and until when to wait
        self._gone: dict[int, bool] = {}  # lost of late, and whether that was excused
        self._came: dict[int, tuple[int, bool]] = {}  # when a number came, and whether late
        self._newest: dict[int, int] = {}  # by port
        self._usual: list[int | None] = [None, None]  # of this time, and of the time before
        self._usual_since = 0
        self._least: int | None = None  # since it was asked for

    def begin_again(self, run: int, start: int) -> None:
        """Count the probes of another run of the sender. What was counted stays."""
        self.run, self.top, self._start = run, start - 1, start
        for kept in (self._missing, self._gone, self._came, self._newest):
            kept.clear()

    def arrived(self, number: int, sent_ns: int, at_ns: int, now_ns: int) -> None:
        """Take notice of a probe that left at `sent_ns` and came at `at_ns`, by two hosts' clocks.

        `now_ns` is of a clock that never leaps.
        """
        if number < self._start:
            return
        if abs(number - self.top) > LEAP:
            self.begin_again(self.run, number)
        late = self._is_late(at_ns - sent_ns, now_ns)
        self.last_ns = now_ns
        if number > self.top:
            for skipped in range(self.top + 1, number):
                self._missing[skipped] = now_ns + WAIT_NS
            self.top = number
        elif number in self._missing:
            del self._missing[number]
        elif number in self._gone:
            self.lost -= 1
            self.excused -= self._gone.pop(number)
            self.kinds.found(number)
            self.received += 1
            return
        else:
            self.kinds.repeated += 1
            return
        self._note(number, now_ns, late)

    def damaged(self, now_ns: int) -> None:
        """Take notice of a packet of this sender whose bytes are not what it sent."""
        self.kinds.damaged += 1
        self.last_ns = now_ns

    def settle(self, now_ns: int) -> None:
        """Count as lost what has been waited for long enough."""
        for number in [n for n, until in self._missing.items() if until <= now_ns]:
            del self._missing[number]
            excused = self._is_excused(number, now_ns)
            self.lost += 1
            self.excused += excused
            self._gone[number] = excused
            self.kinds.add(number, lost=not excused)
            if len(self._gone) > KEPT:
                self._gone.pop(next(iter(self._gone)))

    def take_least(self) -> int | None:
        """Return the least time that a probe took since the last call; clocks may differ."""
        least, self._least = self._least, None
        return least

    def _note(self, number: int, now_ns: int, late: bool) -> None:
        self.received += 1
        port = port_of(number)
        if number < self._newest.get(port, -1):
            self.kinds.moved += 1
        else:
            self._newest[port] = number
        self.kinds.add(number, lost=False)
        self._came[number] = now_ns, late
        if len(self._came) > KEPT:
            self._came.pop(next(iter(self._came)))

    def _is_late(self, took_ns: int, now_ns: int) -> bool:
        if now_ns - self._usual_since > USUAL_NS:
            self._usual = [None, self._usual[0]]
            self._usual_since = now_ns
        usual = min((each for each in self._usual if each is not None), default=took_ns)
        self._usual[0] = took_ns if self._usual[0] is None else min(self._usual[0], took_ns)
        self._least = took_ns if self._least is None else min(self._least, took_ns)
        return took_ns > usual + LATE_NS

    def _is_excused(self, number: int, now_ns: int) -> bool:
        """Return whether a queue was full when a probe was lost."""
        other = self._came.get(number ^ 1)
        if other is not None:
            return other[1]
        before = max((n for n in self._came if n < number), default=None)
        after = min((n for n in self._came if n > number), default=None)
        near = (self._came[n] for n in (before, after) if n is not None)
        return any(late and now_ns - at < NEAR_NS + WAIT_NS for at, late in near)
