# SPDX-License-Identifier: GPL-2.0-only
"""Limit the answers to strangers (pure), since recorded Offers can be replayed in any number."""

from __future__ import annotations

from typing import Final

from mrcd.handshake.pace import MS

BURST: Final = 32
"""The number of answers that the token bucket holds."""
GAP_NS: Final = 10 * MS
"""The time in which the bucket gains one answer."""


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
