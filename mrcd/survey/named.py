# SPDX-License-Identifier: GPL-2.0-only
"""Decide which inferred faults are named (pure).

While a fault begins or ends, the hosts' counts belong to different moments, and a wrong element may
briefly explain them best. A burst of loss on a busy machine may also look like a fault for a
moment. A fault is therefore named only after it was found with certainty several times in a row,
and cleared only after it was missed several times in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mrcd.fabric.loops import Element
from mrcd.model import FaultInfo
from mrcd.survey.inference import Fault

CERTAIN = 6.0
"""Margin (logarithm of the odds) by which every explanation without an element must fall behind
before the element counts as found: 400 to 1."""
NAMED_AFTER = 5
CLEARED_AFTER = 3
"""Judgements in a row after which a fault is named or cleared."""


@dataclass(slots=True)
class Named:
    """A fault on the list, as it was found last, and the time since which it has been found."""

    fault: Fault
    since_ns: int


@dataclass(slots=True)
class _Streak:
    since_ns: int
    found: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that one judgement made."""

    named: tuple[Fault, ...]
    cleared: tuple[Fault, ...]


class FaultList:
    """The list of named faults."""

    def __init__(self, dead_after: int = NAMED_AFTER) -> None:
        """Name nothing yet; what is dead is named after `dead_after` judgements in a row."""
        self._dead_after = dead_after
        self._streaks: dict[Element, _Streak] = {}
        self._named: dict[Element, Named] = {}

    @property
    def named(self) -> list[Named]:
        """The named faults, sorted by the element's name."""
        return sorted(self._named.values(), key=lambda named: named.fault.element.name)

    @property
    def pending(self) -> bool:
        """Whether something was found that is not named yet."""
        return bool(self._streaks.keys() - self._named.keys())

    def update(
        self, faults: Iterable[Fault], *, now_ns: int, after: Mapping[Element, int] | None = None
    ) -> Changes:
        """Apply a new judgement, and return the faults that it named and cleared.

        `after`: the judgements in a row after which certain elements are named.
        """
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
            needed = self._dead_after if fault.kind == "dead" else NAMED_AFTER
            if streak.found >= (after or {}).get(element, needed):
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


def fields_of(fault: Fault) -> dict[str, str]:
    """Return what the log says of a fault."""
    fields = {"element": fault.element.name, "kind": fault.kind}
    if fault.kind not in ("dead", "slow", "flap"):
        fields["loss"] = f"{fault.loss:.1%}"
    if fault.alternatives:
        fields["or"] = ", or ".join(" and ".join(names) for names in fault.alternatives)
    return fields


def info_of(named: Named, *, now_ns: int) -> FaultInfo:
    """Return a named fault as the control API and `mrcctl` show it."""
    fault = named.fault
    return FaultInfo(
        element=fault.element.name,
        kind=fault.kind,
        loss=round(fault.loss, 5),
        loss_low=round(fault.low, 5),
        loss_high=round(fault.high, 5),
        extra_us=round(fault.extra_us, 1),
        since_s=round((now_ns - named.since_ns) / 1e9, 3),
        evidence=list(fault.evidence),
        alternatives=[list(names) for names in fault.alternatives],
    )
