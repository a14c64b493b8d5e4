# SPDX-License-Identifier: GPL-2.0-only
"""Store the losses of loops compactly, interval by interval (pure).

A large fabric has hundreds of loops for each of hundreds of hosts. Their counts are arrays, one set
for each host, plane and interval. Intervals older than SINGLE units are summed in blocks.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mrcd.fabric.loops import Trip

RECENT: Final = 3
"""Intervals in a unit; the intervals of a unit are always examined together."""
MEMORY: Final = 64
"""Units that are kept."""
SINGLE: Final = 8
"""Newest units, whose intervals are kept separately."""
BLOCK: Final = 4
"""Older units that are summed in one block."""
_STEP_MAX: Final = (1 << 32) - 1  # the most that one message may add; sums then fit in 64 bits

Part = tuple[str, int]
"""The loops of one host (name) in one plane (index)."""


class Tally:
    """The counts of the loops of a part: probes sent, probes lost, least round trip.

    Each array has one element per loop. Round trips are in microseconds, and infinite if no probe
    came back.
    """

    __slots__ = ("lost", "rtt_us", "sent")

    def __init__(self, sent: array[int], lost: array[int], rtt_us: array[float]) -> None:
        """Take ownership of these arrays."""
        self.sent, self.lost, self.rtt_us = sent, lost, rtt_us

    @classmethod
    def empty(cls, loops: int) -> Tally:
        """Return the tally of this number of loops before any probe was sent."""
        none = array("Q", bytes(8 * loops))
        return cls(none, none[:], array("f", (math.inf,)) * loops)

    @classmethod
    def total(cls, tallies: Sequence[Tally]) -> Tally:
        """Return the sum of one or more tallies of the same loops."""
        first, *others = tallies
        if not others:
            return cls(first.sent[:], first.lost[:], first.rtt_us[:])
        return cls(
            array("Q", map(sum, zip(*(each.sent for each in tallies), strict=True))),
            array("Q", map(sum, zip(*(each.lost for each in tallies), strict=True))),
            array("f", map(min, *(each.rtt_us for each in tallies))),
        )

    def forget_round_trips(self) -> None:
        """Drop the round trips and keep the counts."""
        self.rtt_us = array("f", (math.inf,)) * len(self.rtt_us)


class History:
    """The counts of all hosts' loops. Intervals are numbered by the caller's clock."""

    def __init__(self) -> None:
        """Start without hosts and counts."""
        self._parts: dict[str, dict[int, list[Trip]]] = {}
        self._places: dict[str, list[tuple[Part, int]]] = {}
        self._intervals: dict[int, dict[Part, Tally]] = {}  # a block is at its last interval
        self._lossy: set[int] = set()  # intervals in which anything was lost

    def know(self, host: str, loops: Sequence[Trip]) -> None:
        """Register a host's loops in the order of its numbers; required before `add`."""
        parts: dict[int, list[Trip]] = {}
        places = []
        for loop in loops:
            part = parts.setdefault(loop.plane, [])
            places.append(((host, loop.plane), len(part)))
            part.append(loop)
        self._parts[host], self._places[host] = parts, places

    def loops(self, part: Part) -> Sequence[Trip]:
        """Return the loops of a part, in the order of its tallies."""
        host, plane = part
        return self._parts[host][plane]

    def add(
        self, number: int, host: str, index: int, sent: int, lost: int, rtt_us: float | None
    ) -> None:
        """Add the counts of one loop to an interval.

        A negative `lost` takes back losses that were counted before: those probes were only late.
        """
        part, at = self._places[host][index]
        sent = min(sent, _STEP_MAX)
        lost = min(lost, sent)
        tally = self._intervals.setdefault(number, {}).get(part)
        if tally is None:
            tally = self._intervals[number][part] = Tally.empty(len(self.loops(part)))
        if lost > 0:
            tally.lost[at] += lost
            self._lossy.add(number)
        elif lost < 0:
            self._give_back(number, part, at, -lost)
        tally.sent[at] += sent
        if rtt_us is not None:
            tally.rtt_us[at] = min(tally.rtt_us[at], rtt_us)

    def _give_back(self, number: int, part: Part, at: int, count: int) -> None:
        """Subtract late probes from the losses of this interval and the two before it."""
        for earlier in (number, number - 1, number - 2):
            tally = self._intervals.get(earlier, {}).get(part)
            if tally is not None:
                back = min(tally.lost[at], count)
                tally.lost[at] -= back
                count -= back

    def lost_since(self, number: int) -> bool:
        """Return whether anything was lost in this interval or later."""
        return any(lossy >= number for lossy in self._lossy)

    def age(self, newest: int) -> None:
        """Drop intervals older than MEMORY units, and sum up those older than SINGLE units."""
        length = RECENT * BLOCK
        blocks: dict[int, list[dict[Part, Tally]]] = {}
        for number in sorted(self._intervals):
            last = number - number % length + length - 1
            if number <= newest - RECENT * MEMORY:
                del self._intervals[number]
                self._lossy.discard(number)
            elif number < last <= newest - RECENT * SINGLE:
                if number in self._lossy:
                    self._lossy.remove(number)
                    self._lossy.add(last)
                blocks.setdefault(last, []).append(self._intervals.pop(number))
        for last, singles in blocks.items():
            self._intervals[last] = _total([self._intervals.get(last, {}), *singles])

    def total(self, newest: int, intervals: int) -> dict[int, dict[str, Tally]]:
        """Return the sums of some intervals up to `newest`, by plane and host.

        The caller may change them.
        """
        numbers = range(newest - intervals + 1, newest + 1)
        sums = _total([self._intervals[n] for n in numbers if n in self._intervals])
        planes: dict[int, dict[str, Tally]] = {}
        for (host, plane), tally in sums.items():
            planes.setdefault(plane, {})[host] = tally
        return planes

    def __len__(self) -> int:
        """Return the number of intervals and blocks that are kept."""
        return len(self._intervals)


def _total(intervals: Iterable[Mapping[Part, Tally]]) -> dict[Part, Tally]:
    found: dict[Part, list[Tally]] = {}
    for tallies in intervals:
        for part, tally in tallies.items():
            found.setdefault(part, []).append(tally)
    return {part: Tally.total(tallies) for part, tallies in found.items()}
