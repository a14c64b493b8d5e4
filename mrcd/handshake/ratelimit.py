# SPDX-License-Identifier: GPL-2.0-only
"""Limit what strangers can make a host do (pure), since what is recorded can be replayed."""

from __future__ import annotations

from typing import Final

from mrcd.handshake.pace import MS

BURST: Final = 32
"""The number of answers that the token bucket holds."""
GAP_NS: Final = 10 * MS
"""The time in which the bucket gains one answer."""


class Allowance:
    """What may be done once in `gap_ns`, and `burst` times at once after a rest."""

    def __init__(self, gap_ns: int, burst: int) -> None:
        self._gap_ns, self._burst = gap_ns, burst
        self._paid_ns = -burst * gap_ns

    def take(self, now_ns: int) -> bool:
        """Return whether it may be done now, and count it."""
        paid = max(self._paid_ns, now_ns - self._burst * self._gap_ns)
        if paid + self._gap_ns > now_ns:
            return False
        self._paid_ns = paid + self._gap_ns
        return True


class Answers:
    """The answers that one session may give to strangers.

    All copies of an Offer get one answer, and only while the bucket is not empty.
    """

    def __init__(self) -> None:
        self._left = BURST
        self._gained_ns = 0
        self._answered: dict[int, int] = {}  # stranger's sid to the seq of its Offer

    def take(self, sid: int, seq: int, *, now_ns: int) -> bool:
        """Return whether the Offer `seq` of `sid` may be answered; if so, count the answer."""
        if self._answered.get(sid) == seq:
            return False
        gained = (now_ns - self._gained_ns) // GAP_NS
        self._left = min(BURST, self._left + gained)
        self._gained_ns += gained * GAP_NS
        if self._left == 0:
            return False
        self._left -= 1
        self._answered[sid] = seq
        if len(self._answered) > BURST:
            del self._answered[next(iter(self._answered))]
        return True
