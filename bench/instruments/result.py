# SPDX-License-Identifier: GPL-2.0-only
"""Show the figures of a benchmark with their targets, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.instruments.metrics import spread


@dataclass(frozen=True, slots=True)
class Target:
    """The least or the most that a figure should be."""

    bound: float
    at_least: bool

    def met(self, value: float) -> bool:
        """Return whether a figure meets the target."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


def at_least(bound: float) -> Target:
    """Return a target of `bound` or more."""
    return Target(bound, True)


def at_most(bound: float) -> Target:
    """Return a target of `bound` or less."""
    return Target(bound, False)


@dataclass(frozen=True, slots=True)
class Line:
    """A figure with a value for each repetition that gave one."""

    item: str
    where: str
    what: str
    unit: str
    values: tuple[float, ...]
    target: Target | None = None
    missing: int = 0

    @property
    def verdict(self) -> str:
        """Return `ok` if all repetitions meet the target, `mostly` if the median does."""
        if self.target is None:
            return ""
        if self.missing or not self.values:
            return "MISSED"
        if all(map(self.target.met, self.values)):
            return "ok"
        return "mostly" if self.target.met(spread(self.values).median) else "MISSED"

    def cells(self) -> tuple[str, ...]:
        """Return the cells: where, what, median, range, target, verdict."""
        if not self.values:
            median, span = "never", ""
        else:
            over = spread(self.values)
            median = f"{_number(over.median)} {self.unit}".strip()
            span = "" if over.low == over.high else f"{_number(over.low)} .. {_number(over.high)}"
            if self.missing:
                span += f" (never: {self.missing})"
        target = "" if self.target is None else str(self.target)
        return self.where, self.what, median, span, target, self.verdict

    def plain(self) -> dict[str, object]:
        """Return the figure for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def grid(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Align rows as text; the first row has headings, the first `left` columns are left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


HEADINGS = ("", "figure", "median", "range", "target", "")


def table(lines: Sequence[Line]) -> str:
    """Return the lines of one item as aligned text."""
    return grid([HEADINGS, *(line.cells() for line in lines)], left=2)
