# SPDX-License-Identifier: GPL-2.0-only
"""How often strangers are answered (pure): Offers can be recorded, and sent in any number."""

from __future__ import annotations

from typing import Final

from mrcd.handshake.pace import MS

BURST: Final = 32
"""A bucket of so many answers, ..."""
GAP_NS: Final = 10 * MS
"""... which gains one in this time."""


class Answers:
    """Whether an Offer is answered: once for all copies of it, and while the bucket lasts."""

    def __init__(self) -> None:
        self._left = BURST
        self._gained_ns = 0
        self._answered: dict[int, int] = {}  # stranger's sid: seq of its Offer

    def take(self, sid: int, seq: int, *, now_ns: int) -> bool:
        """True if the Offer `seq` of `sid` may be answered; that answer then counts."""
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
