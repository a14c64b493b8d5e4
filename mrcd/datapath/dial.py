# SPDX-License-Identifier: GPL-2.0-only
"""How long a cell may be, by what the planes were seen to carry (pure).

A cell keeps a plane busy for as long as it takes to send, and is lost or late as a whole. So it
may take a quarter of a millisecond of the slowest plane in use, which is far below the reorder
guard. On slow planes that is less than two packets, and packets go one by one.

The rate of a plane is not known, only what it was given to carry. The largest rate of the last ten
seconds is all that a plane carries only if queues were long in that time. Otherwise something else
was the limit: the application, or the CPU that short cells keep busy. Then cells grow with the
rate, but do not shrink, and where they are shorter than at first, they become as long again. A CPU
that is full looks like long queues, too, and shorter cells fill it the more. So what shorter cells
carry is compared: if it is clearly less, they become as long again, and stay so for a while.

At first they are as long as the fabric file or the NICs' speed allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

SECOND = 1_000_000_000
CELL_NS = 250_000
"""Time for which a cell may keep the slowest plane busy."""
WINDOW_NS = 10 * SECOND
"""Time for which a measured rate counts."""
FIRST_BYTES, FIRST_PACKETS = 16384, 3
"""Longest cell while nothing is known or measured, whichever is longer. Several packets are needed
to learn what planes carry: sent one by one, they may keep the CPU too busy to load a plane."""
LONG_QUEUES = 3
"""Measurements with long queues that it takes to make cells shorter, so that TCP's slow start and a
passing queue do not."""
FORGET = 50
"""Measurements without any long queue after which cells are no longer shorter than at first."""
JUDGED = 20
"""Measurements after cells became shorter, until what they carry is compared with before ..."""
WORTH = 0.8
"""... of which they have to carry this part, or they become as long again ..."""
BARRED_NS, BARRED_MAX_NS = 60 * SECOND, 960 * SECOND
"""... and not shorter for this time, which doubles each time up to the second one."""
GROW, SHRINK = 1.25, 0.67
"""The wanted length must differ from the present one by these factors, so that it does not flap."""
IN_USE = 1 / 32
"""A plane that carries less than this part of the busiest one carries probes, not its share."""


class Dial:
    """The length of cells. `packet` is the longest packet of an application, in bytes."""

    def __init__(
        self,
        packet: int,
        least: int,
        most: int,
        start: int | None = None,
        rates: Sequence[float] = (),
    ) -> None:
        """Bounds in bytes; 0 is one packet. `start` is the length that is in force already.

        Planes carry at most `rates`, in bytes a second; 0: unknown.
        """
        self._packet = packet
        self._seen: deque[tuple[int, tuple[float, ...], bool]] = deque()
        self.reconfigure(least, most)
        known = [rate for rate in rates if rate]
        unknown = max(FIRST_BYTES, FIRST_PACKETS * packet)
        self._first = _slowest(known) * CELL_NS // SECOND if known else unknown
        self.bytes = self._rounded(self._first if start is None else start)
        self._before: tuple[int, float] | None = (
            None  # cells became shorter: bytes, and what those carried
        )
        self._since = 0  # measurements since then
        self._barred_ns, self._bar_ns = 0, BARRED_NS

    def reconfigure(self, least: int, most: int) -> None:
        """Use these bounds from the next measurement on."""
        self._least, self._most = least, most

    @property
    def packets(self) -> int:
        """How many packets of full length a cell has."""
        return self.bytes // self._packet

    def measured(self, rates: Sequence[float], *, queued: bool, now_ns: int) -> bool:
        """Take in what each plane has carried lately, in bytes a second.

        queued: whether queues were long meanwhile. Returns whether `bytes` has changed.
        """
        self._seen.append((now_ns, tuple(rates), queued))
        while self._seen[0][0] <= now_ns - WINDOW_NS:
            self._seen.popleft()
        before = self.bytes
        self._since += 1
        wanted = self._as_before(now_ns)
        self.bytes = self._rounded(self._wanted(before, now_ns) if wanted is None else wanted)
        if self.bytes < before:
            carried = max(sum(each) for _, each, _ in self._seen)
            self._before = self._before or (before, carried)
            self._since = 0
        return self.bytes != before

    def _as_before(self, now_ns: int) -> float | None:
        """Return the length before cells became shorter, if these carry clearly less."""
        if self._before is None or self._since < JUDGED:
            return None
        (length, carried), self._before = self._before, None
        latest = [sum(rates) for _, rates, _ in self._seen][-JUDGED:]
        if max(latest) >= WORTH * carried:
            self._bar_ns = BARRED_NS
            return None
        self._barred_ns = now_ns + self._bar_ns
        self._bar_ns = min(2 * self._bar_ns, BARRED_MAX_NS)
        return max(length, self.bytes)

    def _wanted(self, before: int, now_ns: int) -> float:
        """Return the length that the measurements ask for, before it is rounded."""
        queues = [queued for _, _, queued in self._seen]
        peaks: list[float] = [
            max(column) for column in zip(*(rates for _, rates, _ in self._seen), strict=True)
        ]
        wanted = _slowest(peaks) * CELL_NS / SECOND
        if wanted >= GROW * before:
            return wanted
        if wanted <= SHRINK * before and sum(queues) >= LONG_QUEUES and now_ns >= self._barred_ns:
            return wanted
        if before < self._first and len(queues) >= FORGET and not any(queues):
            return self._first
        return before

    def _rounded(self, wanted: float) -> int:
        """Return the upper bound, or whole packets within the bounds; at least one packet."""
        bounded = min(max(wanted, self._least), self._most)
        packets = max(1, int(bounded // self._packet))
        return self._most if packets > 1 and bounded == self._most else packets * self._packet


def _slowest(rates: Sequence[float]) -> float:
    """Return the least rate that is a share of what planes carry together."""
    floor = max(rates) * IN_USE
    return min(rate for rate in rates if rate >= floor)
