# SPDX-License-Identifier: GPL-2.0-only
"""Measure how busy this machine's CPUs were, to tell which figures are bound by the CPU."""

from __future__ import annotations

import os
from pathlib import Path

BOUND = 0.9
"""With at least this busy share, a figure counts as bound by the CPU."""

_IDLE = (3, 4)  # idle and iowait, in /proc/stat's first line
_STOLEN = 7


class Processor:
    """A measurement of the CPUs that starts when it is made."""

    def __init__(self) -> None:
        self._before = _times()

    def busy(self) -> float:
        """Return the share of all CPUs' time that was not idle, from 0 to 1."""
        return share(self._before, _times())

    def stolen(self) -> float:
        """Return the share of stolen time, from 0 to 1."""
        return stolen(self._before, _times())


class Cpus:
    """A measurement of the time that each CPU works, which starts when it is made."""

    def __init__(self) -> None:
        self._before = _each()

    def worked_s(self) -> tuple[float, ...]:
        """Return the seconds that each CPU has worked since: neither idle nor stolen."""
        return worked(self._before, _each(), os.sysconf("SC_CLK_TCK"))


def worked(before: list[list[int]], after: list[list[int]], hertz: int) -> tuple[float, ...]:
    """Return the seconds that each CPU worked between two readings of `hertz` ticks a second."""
    found = []
    for was, now in zip(before, after, strict=True):
        spent = [later - sooner for sooner, later in zip(was, now, strict=True)]
        found.append((sum(spent) - sum(spent[i] for i in (*_IDLE, _STOLEN))) / hertz)
    return tuple(found)


def share(before: list[int], after: list[int]) -> float:
    """Return the busy share between two readings."""
    spent = [now - was for was, now in zip(before, after, strict=True)]
    total = sum(spent)
    return 1 - sum(spent[i] for i in _IDLE) / total if total else 0.0


def stolen(before: list[int], after: list[int]) -> float:
    """Return the stolen share between two readings."""
    total = sum(after) - sum(before)
    return (after[_STOLEN] - before[_STOLEN]) / total if total else 0.0


def _times() -> list[int]:
    first = Path("/proc/stat").read_text().partition("\n")[0]
    return [int(word) for word in first.split()[1:9]]


def _each() -> list[list[int]]:
    """Return the times of every CPU, in the order of their numbers."""
    rows = (row.split() for row in Path("/proc/stat").read_text().splitlines())
    return [[int(word) for word in row[1:9]] for row in rows if row[0][:3] == "cpu" and row[0][3:]]
