# SPDX-License-Identifier: GPL-2.0-only
"""Collect the figures of a comparison while its rounds run, and summarise them (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.instruments.metrics import Ints, spread
from bench.instruments.processor import BOUND

PERCENTILES = (50.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one competitor, with a value for each round that gave one."""

    workload: str
    case: str
    route: str
    what: str
    unit: str
    values: tuple[float, ...]
    missing: int = 0
    busy: float = 0.0

    @property
    def median(self) -> float | None:
        """Return the median of the rounds that gave a value."""
        return spread(self.values).median if self.values else None

    @property
    def cpu_bound(self) -> bool:
        """Return whether the CPUs were busy in most rounds, and so limit the figure."""
        return self.busy >= BOUND

    @property
    def short(self) -> str:
        """Return the median as text."""
        if self.median is None:
            return "-"
        return number(self.median) + ("†" if self.cpu_bound else "")

    def __str__(self) -> str:
        if not self.values:
            return "-"
        over = spread(self.values)
        words = number(over.median)
        if number(over.low) != number(over.high):
            words += f" ({number(over.low)} to {number(over.high)})"
        if self.missing:
            words += f", {self.missing} without"
        return words + ("†" if self.cpu_bound else "")


@dataclass(slots=True)
class _Rounds:
    unit: str
    values: list[float | None] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Results:
    """All figures in the order they are first noted, curves for pictures, and problems.

    `absent` are the competitors and parts that were left out, with the reason. `done` are the
    finished cases, by workload.
    """

    absent: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    curves: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    done: list[tuple[str, str]] = field(default_factory=list)
    _rounds: dict[tuple[str, str, str, str], _Rounds] = field(default_factory=dict)

    def note(
        self,
        where: tuple[str, str, str],
        what: str,
        unit: str,
        value: float | None,
        busy: float = 0.0,
    ) -> None:
        """Note the figure of one round; `where` is workload, case and competitor."""
        rounds = self._rounds.setdefault((*where, what), _Rounds(unit))
        rounds.values.append(value)
        rounds.busy.append(busy)

    def figures(self, workload: str | None = None) -> list[Figure]:
        """Return all figures, or those of one workload."""
        found = []
        for (of, case, route, what), rounds in self._rounds.items():
            if workload in (None, of):
                known = tuple(value for value in rounds.values if value is not None)
                missing = len(rounds.values) - len(known)
                busy = spread(rounds.busy).median
                found.append(Figure(of, case, route, what, rounds.unit, known, missing, busy))
        return found


def number(value: float) -> str:
    """Return a number with as many digits as are useful."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}"


def percentiles(samples: Sequence[float] | Ints) -> dict[float, float | None]:
    """Return the usual percentiles; None if less than one sample lies beyond."""
    count = len(samples)
    return {
        which: float(np.percentile(np.asarray(samples), which))
        if count * (100 - which) >= 100 * (1 - 1e-9)
        else None
        for which in PERCENTILES
    }


def jain(rates: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0
