# SPDX-License-Identifier: GPL-2.0-only
"""Which of the ways to a host are to carry data, by the hosts in between and by their rates (pure).

Fewer hosts are better. A way through more hosts is preferred only if its rate is clearly higher.
Unknown rates count as equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

CLEARLY: Final = 4
"""A way is preferred to one through fewer hosts if it has more than this times its rate for each
host more. Two of it are for the cables behind that host: in a triangle both carry data of another
pair, too, and half is what is left of a cable that two share. Two are for the host, which takes in
and sends each packet in software. So 25 Gb/s stay in front of 100 through another host and 1 Gb/s
does of 2.5, while 10 Mb/s do not of 100. Rates that waver by less change nothing."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What counts of a way: the hosts in between, and its rate in Mb/s, 0 if that is unknown."""

    relays: int = 0
    mbps: int = 0

    @property
    def worth(self) -> Fraction:
        """The rate, CLEARLY times less for each host in between; Mb/s."""
        return Fraction(self.mbps, CLEARLY**self.relays)

    def beats(self, other: Rank) -> bool:
        """Return whether this way through more hosts is preferred to another one."""
        return self.relays > other.relays and other.mbps > 0 and self.worth > other.worth


def spare(ways: Mapping[int, Rank], known: Iterable[int]) -> int:
    """Return the mask of planes whose ways carry data only while no better one can.

    `known` are the planes whose ways are there now, as far as is known. Of the others, those are
    spare that would not carry data beside these: a better way that comes back is used only when it
    is known again, in place of these.
    """
    there = [ways[plane] for plane in known]
    if not there:
        return 0
    relays = min(way.relays for way in there)
    shortest = [way.mbps for way in there if way.relays == relays]
    shown = Rank(relays, max(shortest) if all(shortest) else 0)
    better = [way for way in there if way.beats(shown)]
    best = max(better, key=lambda way: (way.worth, -way.relays), default=shown)

    def serves(way: Rank) -> bool:
        return way.relays == best.relays and (best == shown or way.beats(shown))

    return sum(1 << plane for plane, way in ways.items() if not serves(way))
