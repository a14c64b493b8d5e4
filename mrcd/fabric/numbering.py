# SPDX-License-Identifier: GPL-2.0-only
"""Which of a peer's planes are which of ours (pure).

A plane is a network, and each host numbers those that it is on by itself. So the same network may
have another number at a peer, and a host may be on networks that a peer is not on. Each host says
by which addresses it is on its planes; where a peer is on ours is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mrcd.fabric.hosts import Address

PLANES: Final = 8
_NOT_OURS: Final = 15
_ALIKE: Final = tuple(range(PLANES))


@dataclass(frozen=True, slots=True)
class Numbering:
    """Our number of each plane of a peer, by the peer's number; None: we are not on it."""

    ours: tuple[int | None, ...] = _ALIKE

    @property
    def word(self) -> int:
        """The form of the data path: four bits for each number, 15 for none of ours."""
        known = (*self.ours, *(None,) * (16 - len(self.ours)))
        places = (_NOT_OURS if ours is None else ours for ours in known)
        return sum(ours << 4 * theirs for theirs, ours in enumerate(places))

    def mask(self, theirs: int) -> int:
        """Return the mask of our planes that are those of a mask of the peer's."""
        return sum(
            1 << ours
            for number, ours in enumerate(self.ours)
            if theirs >> number & 1 and ours is not None
        )

    def by_ours(self, theirs: Sequence[int]) -> tuple[int, ...]:
        """Return numbers that a peer gives by its planes, by ours; 0 where there is none."""
        found = [0] * PLANES
        for number, value in enumerate(theirs[: len(self.ours)]):
            if (ours := self.ours[number]) is not None:
                found[ours] = value
        return tuple(found)


ALIKE: Final = Numbering()
"""Both hosts have the same numbers."""


def between(ours: Sequence[Address], theirs: Sequence[Address]) -> Numbering:
    """Return the numbering of a peer.

    `ours` has its address on each of our planes, and `theirs` the addresses that it says it has on
    its own, unspecified ones where there is none. A plane whose address is not among the others, as
    one that has just changed, keeps its number if that is free. A peer that says nothing numbers
    its planes as we do.
    """
    if not theirs:
        return ALIKE
    free = [plane for plane, address in enumerate(ours) if not address.is_unspecified]
    found: list[int | None] = [None] * PLANES
    told = [(n, a) for n, a in enumerate(theirs[:PLANES]) if not a.is_unspecified]
    for number, address in told:
        same = [plane for plane in free if ours[plane] == address]
        if same:
            found[number] = number if number in same else same[0]
            free.remove(found[number] or 0)
    for number, _address in told:
        if found[number] is None and number in free:
            found[number] = number
            free.remove(number)
    if all(plane in (None, number) for number, plane in enumerate(found)):
        return ALIKE
    return Numbering(tuple(found))
