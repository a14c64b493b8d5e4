# SPDX-License-Identifier: GPL-2.0-only
"""Limit how often a daemon with many peers sends Offers to each of them (pure).

With a handful of peers every session keeps its own time. An unanswered session sends once a second
on every plane, and an established one sends one keepalive a second. With thousands of peers that
would be tens of thousands of packets a second. All unanswered sessions therefore share one budget
and all established sessions another: intervals grow with the number of peers that share a budget.
Longer intervals do not delay a peer that comes up, because it sends Offers at once on every plane
and is answered at once.

A receiver must know how often to expect keepalives, so each Offer states the interval (`pace_ms`).
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
"""The budget of Offers a second to all peers that do not answer."""
KEEPALIVES_PER_S: Final = 20
"""The budget of Offers a second to all peers that do answer.

Just as many arrive from them, at the same cost.
"""
QUIET_NS: Final = 2500 * MS
DEAD_AFTER_NS: Final = 5000 * MS
JITTER: Final = 0.3
"""A stretched interval is randomly shorter or longer by up to this part of it.

This keeps sessions that began together from sending together.
"""
FEW: Final = 64
"""Up to this number of answering sessions, each keepalive leaves when it is due.

With more sessions one is always due, and waking up would cost more than sending, so their
keepalives leave together.
"""
BEAT_NS: Final = 100 * MS
BEAT_MAX_NS: Final = 500 * MS
BEATS: Final = 10
"""Batched keepalives leave at intervals of at most 1/BEATS of the keepalive interval.

The batch interval is a multiple of BEAT_NS and at most BEAT_MAX_NS.
"""


@dataclass(slots=True)
class Pace:
    """The pace shared by all sessions of one daemon.

    The owner of the sessions keeps the two counts up to date.
    """

    answering: int = 0
    unanswered: int = 0
    phase_ns: int = 0  # offset of the beats, so that hosts which share a clock do not send together

    @property
    def keepalive_ns(self) -> int:
        """The time between two Offers of an established session."""
        return max(KEEPALIVE_NS, self.answering * 1000 * MS // KEEPALIVES_PER_S)

    @property
    def crowd(self) -> bool:
        """Return whether enough peers answer for keepalives to leave in batches, a little late."""
        return self.answering > FEW

    def beat(self, due_ns: int) -> int:
        """Return when a keepalive that is due at `due_ns` leaves."""
        if not self.crowd:
            return due_ns
        part_ns = self.keepalive_ns // BEATS // BEAT_NS * BEAT_NS
        return self.next(due_ns, min(BEAT_MAX_NS, part_ns))

    def next(self, now_ns: int, period_ns: int) -> int:
        """Return the first multiple of a period, offset by the phase, that is not before now."""
        return -(-(now_ns - self.phase_ns) // period_ns) * period_ns + self.phase_ns

    @property
    def retry_max_ns(self) -> int:
        """The longest time between two Offers to a peer that does not answer."""
        return max(RETRY_MAX_NS, self.unanswered * 1000 * MS // OFFERS_PER_S)

    def crowded(self, planes: int) -> bool:
        """Return whether sending to all unanswered peers on all planes exceeds the budget."""
        return self.unanswered * planes > OFFERS_PER_S


@dataclass(frozen=True, slots=True)
class Patience:
    """The waiting times for an established peer, counted from its last Offer."""

    quiet_ns: int  # after this, Offers that ask for an answer go out on every plane
    again_ns: int  # between two of these Offers
    dead_ns: int  # after this, the peer counts as silent


@lru_cache(maxsize=256)
def patience(pace_ms: int) -> Patience:
    """Return how long to wait for a peer that sends a keepalive every `pace_ms`.

    At one keepalive a second, two may be lost before we ask for an answer. Where keepalives are
    rare there is time to ask four times after the first missing one, so a dead peer is found no
    later than with twice as many keepalives.
    """
    pace_ns = pace_ms * MS
    return Patience(
        max(QUIET_NS, 3 * pace_ns // 2),
        max(KEEPALIVE_NS, pace_ns // 4),
        max(DEAD_AFTER_NS, 5 * pace_ns // 2),
    )


def spread(interval_ns: int, least_ns: int, rng: random.Random) -> int:
    """Return the interval, with jitter if it was stretched beyond `least_ns`."""
    if interval_ns <= least_ns:
        return interval_ns
    return round(interval_ns * (1 + JITTER * (2 * rng.random() - 1)))
