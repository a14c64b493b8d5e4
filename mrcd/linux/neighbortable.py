# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's tables of neighbours: how many entries they take, and whether they were full.

One table of a family serves the whole machine, all network namespaces together. Its limit is
net.ipv4.neigh.default.gc_thresh3 (and ipv6), which only the first namespace shows; counters are in
/proc/net/stat (arp(7); the kernel's Documentation/networking/ip-sysctl.rst).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
KERNEL_LIMIT = 1024
"""gc_thresh3 as the kernel has it."""
_TABLES = {"ipv4": "arp_cache", "ipv6": "ndisc_cache"}


@dataclass(frozen=True, slots=True)
class Table:
    """A family's table: entries that count, how often it was full, and the limit; None: hidden."""

    family: str
    entries: int
    fulls: int
    limit: int | None

    @property
    def key(self) -> str:
        """The sysctl that sets the limit."""
        return _key(self.family)


def neighbor_limit(proc: Path = PROC) -> int:
    """Return the smaller limit of both tables, the kernel's own where it is not shown."""
    limits = [_limit(family, proc) for family in _TABLES]
    return min((limit for limit in limits if limit is not None), default=KERNEL_LIMIT)


def read_tables(proc: Path = PROC) -> list[Table]:
    """Return the tables that the kernel has; without IPv6 that is one."""
    found = []
    for family, name in _TABLES.items():
        try:
            lines = (proc / "net" / "stat" / name).read_text().splitlines()
        except OSError:
            continue
        names, *rows = (line.split() for line in lines)
        counts = [dict(zip(names, (int(word, 16) for word in row), strict=False)) for row in rows]
        found.append(
            Table(
                family,
                counts[0]["entries"],  # the same in each CPU's row
                sum(count.get("table_fulls", 0) for count in counts),
                _limit(family, proc),
            )
        )
    return found


def _key(family: str) -> str:
    return f"net.{family}.neigh.default.gc_thresh3"


def _limit(family: str, proc: Path) -> int | None:
    try:
        text = (proc / "sys" / _key(family).replace(".", "/")).read_text()
    except OSError:
        return None
    return int(text)
