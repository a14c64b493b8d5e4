# SPDX-License-Identifier: GPL-2.0-only
"""The queue of a link with a rate: its size, and where a switch marks it (pure)."""

from __future__ import annotations

from dataclasses import dataclass

QUEUE_MS = 5
QUEUE_PACKETS = 16
MARK_FROM = 0.2  # of the queue: from here on packets are marked, more of them the longer it is
MARK_ALL = 0.8  # from here on all are
_ETHERNET = 14


@dataclass(frozen=True, slots=True)
class Queue:
    """A token bucket and the queue in front of it, as tbf takes them."""

    rate_bytes_per_s: int
    burst_bytes: int
    limit_bytes: int

    @classmethod
    def of(cls, rate_mbps: int, mtu: int) -> Queue:
        """The queue of a link of this rate, more than 0."""
        rate = rate_mbps * 1_000_000 // 8
        frame = mtu + _ETHERNET
        return cls(
            rate_bytes_per_s=rate,
            # One millisecond: the timer of a busy machine may be that late.
            burst_bytes=max(2 * frame, rate // 1000),
            limit_bytes=max(rate * QUEUE_MS // 1000, QUEUE_PACKETS * frame),
        )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When to mark, in time: how long the link needs for what it owes and for a packet.

    The burst is part of the debt: the queue grows only when the bucket is empty.
    """

    ps_per_byte: int
    some_ns: int
    all_ns: int
    full_ns: int

    @classmethod
    def of(cls, queue: Queue) -> Thresholds:
        """The marks of this queue."""

        def ns(share: float) -> int:
            owed = queue.burst_bytes + int(queue.limit_bytes * share)
            return owed * 1_000_000_000 // queue.rate_bytes_per_s

        ps = 1_000_000_000_000 // queue.rate_bytes_per_s
        return cls(ps, ns(MARK_FROM), ns(MARK_ALL), ns(1.0))
