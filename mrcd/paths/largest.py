# SPDX-License-Identifier: GPL-2.0-only
"""The search of the largest packet that gets through (pure).

Routers and bridges need not say that a packet was too long, and what they say may not arrive. So
packets are tried, as datagram packetization layers do (RFC 8899): the longest first, and where that
is lost, lengths between one that got through and one that did not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

STEP = 8
"""Bytes between what is found to get through and what is not."""
LEAST = 576
"""The shortest packet that matters, bytes: any IPv4 host takes it (RFC 791)."""

_LIKELY_MTUS = (1500, 9000, 8900, 4200, 4000, 1492, 1480, 1450, 1420, 1400, 1280)
"""The most frequent first: each that is lost costs the wait for an answer that does not come."""

Search = Generator[int, bool, int]
"""Yields lengths to try, takes whether they got through, and returns the longest that did; or 0."""


def search(longest: int, likely: Iterable[int] = ()) -> Search:
    """Search for the largest packet, in bytes. `likely` are tried first, in their order.

    A likely length that gets through is often the one that is searched, so a longer packet is tried
    next. Returns 0 if not even the least gets through.
    """
    if (yield longest):
        return longest
    least = min(LEAST, longest)
    if not (yield least):
        return 0
    low, high = least, longest
    for guess in likely:
        for length in (guess, guess + STEP):
            if not low < length < high:
                continue
            if (yield length):
                low = length
            else:
                high = length
    while high - low > STEP:
        middle = (low + high) // 2
        if (yield middle):
            low = middle
        else:
            high = middle
    return longest if (yield longest) else low  # the network may have changed meanwhile


def likely(headers: int) -> Iterator[int]:
    """Yield what networks often carry, in bytes, without `headers` bytes of each packet."""
    return (mtu - headers for mtu in _LIKELY_MTUS)
