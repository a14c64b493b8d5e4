# SPDX-License-Identifier: GPL-2.0-only
"""How busy this machine's CPUs were, to tell which figures the CPU decides."""

from __future__ import annotations

from pathlib import Path

BOUND = 0.9
"""From this share on a figure counts as bound by the CPU."""

_IDLE = (3, 4)  # idle and iowait, in /proc/stat's first line
_STOLEN = 7


class Processor:
    """Counts from where it is made."""

    def __init__(self) -> None:
        self._before = _times()

    def busy(self) -> float:
        """The share of all CPUs' time that was not idle, from 0 to 1."""
        return share(self._before, _times())

    def stolen(self) -> float:
        """The share that the hypervisor gave to others, from 0 to 1."""
        return stolen(self._before, _times())


def share(before: list[int], after: list[int]) -> float:
    """The busy share between two readings."""
    spent = [now - was for was, now in zip(before, after, strict=True)]
    total = sum(spent)
    return 1 - sum(spent[i] for i in _IDLE) / total if total else 0.0


def stolen(before: list[int], after: list[int]) -> float:
    """The stolen share between two readings."""
    total = sum(after) - sum(before)
    return (after[_STOLEN] - before[_STOLEN]) / total if total else 0.0


def _times() -> list[int]:
    first = Path("/proc/stat").read_text().partition("\n")[0]
    return [int(word) for word in first.split()[1:9]]
