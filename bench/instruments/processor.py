# SPDX-License-Identifier: GPL-2.0-only
"""Measure how busy this machine's CPUs were, to tell which figures are bound by the CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

BOUND = 0.9
"""With at least this busy share, a figure counts as bound by the CPU."""

_IDLE = (3, 4)  # idle and iowait, in /proc/stat's first line
_INTERRUPTS = (5, 6)  # hard and soft ones
_STOLEN = 7
_HERTZ = os.sysconf("SC_CLK_TCK")


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


class Spending:
    """A measurement of what CPUs and groups of processes spend, which starts when it is made.

    What other programs do meanwhile does not count, but for the interrupts that they cause.
    """

    def __init__(self, groups: Sequence[Collection[int]]) -> None:
        self._groups = groups
        self._before, self._times = _each(), [_together_s(pids) for pids in groups]

    def interrupts_s(self) -> tuple[float, ...]:
        """Return the seconds since in which each CPU served interrupts, hard and soft ones."""
        return handled(self._before, _each(), _HERTZ)

    def processes_s(self) -> tuple[float, ...]:
        """Return the seconds that each group of processes has run since."""
        now = [_together_s(pids) for pids in self._groups]
        return tuple(later - sooner for sooner, later in zip(self._times, now, strict=True))


def user_and_kernel_s(pid: int) -> tuple[float, float]:
    """Return the seconds that a process has run so far; OSError if it has ended."""
    row = Path(f"/proc/{pid}/stat").read_text()
    user, kernel = row.rpartition(")")[2].split()[11:13]
    return int(user) / _HERTZ, int(kernel) / _HERTZ


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used so far; OSError if it has ended."""
    return sum(user_and_kernel_s(pid))


def handled(before: list[list[int]], after: list[list[int]], hertz: int) -> tuple[float, ...]:
    """Return the seconds in interrupts of each CPU between two readings, in ticks of `hertz`."""
    return tuple(
        sum(now[i] - was[i] for i in _INTERRUPTS) / hertz
        for was, now in zip(before, after, strict=True)
    )


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


def _together_s(pids: Collection[int]) -> float:
    """Return the seconds of CPU that those of these processes that still run have used."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            total += cpu_s(pid)
    return total
