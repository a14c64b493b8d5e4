# SPDX-License-Identifier: GPL-2.0-only
"""How often a daemon with many peers may speak to each of them (pure).

With a handful of peers every session goes by its own clock: an unanswered one asks once a second on
every plane, an established one says once a second that it lives. With thousands that would be tens
of thousands of packets a second, so there is a budget for either, shared by all sessions: intervals
grow with the number of peers that share it. Nothing waits for a peer that is to be found by asking:
who comes up asks by himself, at once and on every plane, and is answered at once.

Whoever waits for keepalives has to know how often they come, so each Offer says it (`pace_ms`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MS: Final = 1_000_000
RETRY_MIN_NS: Final = 50 * MS
RETRY_MAX_NS: Final = 1000 * MS
KEEPALIVE_NS: Final = 1000 * MS
OFFERS_PER_S: Final = 100
"""Offers a second to all peers that do not answer."""
KEEPALIVES_PER_S: Final = 20
"""Offers a second to all that do; as many come from them, and cost as much."""
QUIET_NS: Final = 2500 * MS
DEAD_AFTER_NS: Final = 5000 * MS
JITTER: Final = 0.3
"""Part by which an interval that was stretched is shorter or longer, at random: sessions that began
together do not go on together."""
FEW: Final = 64
"""So many sessions are each served when their time has come. With more there is always one, and
waking up costs more than what is to be said: they are served together."""
BEAT_NS: Final = 100 * MS
BEAT_MAX_NS: Final = 500 * MS
BEATS: Final = 10
"""Keepalives leave together every so many milliseconds: a tenth of their interval at most."""


@dataclass(slots=True)
class Pace:
    """What the sessions of one daemon have in common. Whoever counts them sets the numbers."""

    answering: int = 0
    unanswered: int = 0
    phase_ns: int = 0  # when beats are, so that hosts which share a clock do not share them

    @property
    def keepalive_ns(self) -> int:
        """Between two Offers of an established session."""
        return max(KEEPALIVE_NS, self.answering * 1000 * MS // KEEPALIVES_PER_S)

    @property
    def crowd(self) -> bool:
        """Whether so many answer that their keepalives are handled together, a little late."""
        return self.answering > FEW

    def beat(self, due_ns: int) -> int:
        """When a keepalive leaves that is due at a time."""
        if not self.crowd:
            return due_ns
        part_ns = self.keepalive_ns // BEATS // BEAT_NS * BEAT_NS
        return self.next(due_ns, min(BEAT_MAX_NS, part_ns))

    def next(self, now_ns: int, period_ns: int) -> int:
        """The first time from now on at which something is done that is done so often."""
        return -(-(now_ns - self.phase_ns) // period_ns) * period_ns + self.phase_ns

    @property
    def retry_max_ns(self) -> int:
        """Between two Offers to a peer that has not answered for long."""
        return max(RETRY_MAX_NS, self.unanswered * 1000 * MS // OFFERS_PER_S)

    def crowded(self, planes: int) -> bool:
        """Whether asking every unanswered peer on all planes every second is too much."""
        return self.unanswered * planes > OFFERS_PER_S


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an established peer, from when it was heard last."""

    quiet_ns: int  # then it is asked to answer, on every plane ...
    again_ns: int  # ... and so long later once more
    dead_ns: int


@lru_cache(maxsize=256)
def patience(pace_ms: int) -> Patience:
    """What a peer is granted that sends a keepalive so often.

    With one a second two may be lost before anybody asks. Where they come rarely there is time to
    ask four times after the first that is missing, so that a dead peer is found no later than with
    twice as many keepalives.
    """
    pace_ns = pace_ms * MS
    return Patience(
        max(QUIET_NS, 3 * pace_ns // 2),
        max(KEEPALIVE_NS, pace_ns // 4),
        max(DEAD_AFTER_NS, 5 * pace_ns // 2),
    )


def spread(interval_ns: int, least_ns: int, rng: random.Random) -> int:
    """An interval, with jitter where it was stretched beyond its least."""
    if interval_ns <= least_ns:
        return interval_ns
    return round(interval_ns * (1 + JITTER * (2 * rng.random() - 1)))
