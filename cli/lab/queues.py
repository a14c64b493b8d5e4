# SPDX-License-Identifier: GPL-2.0-only
"""The queue of a rate-limited link: its size and its marking thresholds (pure)."""

from __future__ import annotations

from dataclasses import dataclass

QUEUE_MS = 5
QUEUE_PACKETS = 16
MARK_FROM = 0.2  # part of the queue above which packets are marked, more of them the longer it is
MARK_ALL = 0.8  # part of the queue above which all packets are marked
_ETHERNET = 14
TRIM_BYTES = _ETHERNET + 128
"""What a switch leaves of a frame that it trims: real switches cut at a fixed length, too. It
holds all headers up to RETH in each encapsulation, and those of TCP in a cell."""
SPARE = 4  # a qdisc whose timer is late falls behind what the program believes
CONTROL_PART = 2  # a packet of the first queue occupies this many times its time on the link


@dataclass(frozen=True, slots=True)
class Queue:
    """The parameters of a token bucket and the queue in front of it, as tbf takes them."""

    rate_bytes_per_s: int
    burst_bytes: int
    limit_bytes: int

    @classmethod
    def of(cls, rate_mbps: int, mtu: int) -> Queue:
        """Return the queue of a link of this rate, which must be more than 0."""
        rate = rate_mbps * 1_000_000 // 8
        frame = mtu + _ETHERNET
        return cls(
            rate_bytes_per_s=rate,
            # At least 1 ms, because the timer of a busy machine may be that late.
            burst_bytes=max(2 * frame, rate // 1000),
            limit_bytes=max(rate * QUEUE_MS // 1000, QUEUE_PACKETS * frame),
        )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Marking thresholds in time: how long the link needs for its backlog, and for a byte.

    The backlog includes the burst, because the queue grows only when the bucket is empty.
    """

    ps_per_byte: int
    some_ns: int
    all_ns: int
    full_ns: int

    @classmethod
    def of(cls, queue: Queue) -> Thresholds:
        """Return the thresholds of this queue."""

        def ns(share: float) -> int:
            owed = queue.burst_bytes + int(queue.limit_bytes * share)
            return owed * 1_000_000_000 // queue.rate_bytes_per_s

        ps = 1_000_000_000_000 // queue.rate_bytes_per_s
        return cls(ps, ns(MARK_FROM), ns(MARK_ALL), ns(1.0))


@dataclass(frozen=True, slots=True)
class TrimQueue:
    """The two queues of a port that trims, and what the program in front of them believes of them.

    Trimmed and control packets have the first queue, which is served first but gets at most half of
    the link; everything else has the second. Times include the burst, as in Thresholds. The queues
    themselves are longer: the program decides what is dropped or trimmed.
    """

    first_bytes: int  # length of the first queue
    second_bytes: int
    first_ns: int  # time for which the first may be busy, at its half of the link
    full_ns: int  # time for which both together may keep the link busy

    @classmethod
    def of(cls, queue: Queue) -> TrimQueue:
        """Return the queues of a link with this queue."""
        held = queue.burst_bytes + queue.limit_bytes
        rate = queue.rate_bytes_per_s
        return cls(
            first_bytes=SPARE * held,
            second_bytes=SPARE * held,
            first_ns=held * CONTROL_PART * 1_000_000_000 // rate,
            full_ns=held * 1_000_000_000 // rate,
        )
