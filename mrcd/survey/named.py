# SPDX-License-Identifier: GPL-2.0-only
"""Which faults are named: what is inferred again and again, until it is no longer (pure).

While a fault begins or ends, hosts' counts belong to different moments and a wrong element may
explain them best for an instant; a burst of loss on a busy machine looks like a fault for a
moment. So a fault is named when it was found with certainty several times in a row, and taken off
the list when it was missed several times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mrcd.fabric.loops import Element
from mrcd.survey.inference import Fault

CERTAIN = 6.0
"""Odds (logarithm) by which every explanation without an element must fall behind: 400 to 1."""
NAMED_AFTER = 5
CLEARED_AFTER = 3
"""Judgements in a row."""


@dataclass(slots=True)
class Named:
    """A fault on the list, as it was found last, and since when it has been found."""

    fault: Fault
    since_ns: int


@dataclass(slots=True)
class _Streak:
    since_ns: int
    found: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What one judgement changed."""

    named: tuple[Fault, ...]
    cleared: tuple[Fault, ...]


class FaultList:
    """The faults that are named now."""

    def __init__(self) -> None:
        self._streaks: dict[Element, _Streak] = {}
        self._named: dict[Element, Named] = {}

    @property
    def named(self) -> list[Named]:
        """By name."""
        return sorted(self._named.values(), key=lambda named: named.fault.element.name)

    def update(self, faults: Iterable[Fault], *, now_ns: int) -> Changes:
        """A new judgement."""
        found = {fault.element: fault for fault in faults}
        named, cleared = [], []
        for element, fault in found.items():
            if element in self._named:
                self._named[element].fault = fault
                self._streaks[element].missed = 0
                continue
            streak = self._streaks.setdefault(element, _Streak(now_ns))
            if fault.certainty < CERTAIN:
                del self._streaks[element]
                continue
            streak.found += 1
            if streak.found >= NAMED_AFTER:
                self._named[element] = Named(fault, streak.since_ns)
                named.append(fault)
        for element in self._streaks.keys() - found.keys():
            streak = self._streaks[element]
            streak.missed += 1
            if element not in self._named or streak.missed >= CLEARED_AFTER:
                del self._streaks[element]
                if element in self._named:
                    cleared.append(self._named.pop(element).fault)
        return Changes(tuple(named), tuple(cleared))
