# SPDX-License-Identifier: GPL-2.0-only
"""Measure how busy this machine's CPUs were, to tell which figures are bound by the CPU."""

from __future__ import annotations

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
