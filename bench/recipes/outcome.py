# SPDX-License-Identifier: GPL-2.0-only
"""Judge what a silent plane did to an application's operations, and show it as a table (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.compare.results import Figure, Results, number
from bench.compare.steps import Steps
from bench.instruments.metrics import MS, S, spread

FIGURES = ("rate", "while the plane is silent", "slowest before", "slowest since", "errors")
BEFORE, DURING, CALM, WORST, ERRORS = FIGURES


@dataclass(frozen=True, slots=True)
class Interval:
    """The times of one run, CLOCK_MONOTONIC in ns: from `warm_ns` on, operations count."""

    warm_ns: int
    struck_ns: int
    healed_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave: two rates, the slowest operation before and since the fault, errors.

    `worst_ms` is None if no operation ended after the fault. `errors` counts what failed.
    """

    before: float
    during: float
    calm_ms: float | None
    worst_ms: float | None
    errors: int

    def note(self, results: Results, where: tuple[str, str, str], unit: str, busy: float) -> None:
        """Note the figures under the headings of the table."""
        results.note(where, BEFORE, unit, self.before, busy)
        results.note(where, DURING, unit, self.during, busy)
        results.note(where, CALM, "ms", self.calm_ms, busy)
        results.note(where, WORST, "ms", self.worst_ms, busy)
        results.note(where, ERRORS, "", float(self.errors), busy)


def judge(done: Steps, when: Interval, errors: int = 0, each: float = 1.0) -> Outcome:
    """Return the outcome of operations; an operation counts `each` in rates, a second.

    An operation that was in progress when the plane died, or began later, is one since the fault.
    """
    ended = done.began_ns + done.took_ns
    early = (done.began_ns >= when.warm_ns) & (ended <= when.struck_ns)
    late = ended > when.struck_ns

    def rate(start_ns: int, end_ns: int) -> float:
        count = int(((ended > start_ns) & (ended <= end_ns)).sum())
        return each * count * S / (end_ns - start_ns)

    def slowest(which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float | None:
        return float(done.took_ns[which].max()) / MS if which.any() else None

    return Outcome(
        rate(when.warm_ns, when.struck_ns),
        rate(when.struck_ns, when.healed_ns),
        slowest(early),
        slowest(late),
        errors,
    )


def rows(figures: Sequence[Figure], routes: Sequence[str], case: str) -> list[tuple[str, ...]]:
    """Return the rows of one recipe's table, headings first: medians, and the range in brackets.

    A dagger marks a route in whose turns the CPUs were busy, so that they limit its figures.
    """
    found = {(figure.route, figure.what): figure for figure in figures if figure.case == case}
    table: list[tuple[str, ...]] = [("over", *FIGURES)]
    for route in routes:
        cells = [found[route, what] for what in FIGURES if (route, what) in found]
        if cells:
            title = f"{route} †" if cells[0].cpu_bound else route
            table.append((title, *map(_cell, cells)))
    return table


def _cell(figure: Figure) -> str:
    if not figure.values:
        return "never"
    over = spread(figure.values)
    low, median, high = map(number, (over.low, over.median, over.high))
    words = f"{median} {figure.unit}".strip() + (f" ({low} to {high})" if low != high else "")
    return words + (f", {figure.missing} without" if figure.missing else "")


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown; the first row has the headings."""
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]])
