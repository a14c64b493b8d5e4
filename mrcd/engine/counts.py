# SPDX-License-Identifier: GPL-2.0-only
"""Conclude from counters of the programs what others on this host do to packets.

The programs count what they pass to the host's stack; what stands between that and our sockets is
the firewall of this host. They also count what they refuse because of where it comes from. The
kernel counts how often its tables of neighbours were full.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from mrcd.linux.neighbortable import Table, read_tables
from mrcd.service.findings import Findings

LOOK_S: Final = 1.0
"""Time between two looks."""
LEAST: Final = 4
"""Number of packets passed on, of which none is read, after which status names it."""
KEPT: Final = 10
"""Number of looks after a refusal during which status names it."""
_FIREWALL = "firewall"


class Blocked:
    """Compares the packets passed on and those read by our sockets from time to time (pure).

    A full socket's buffer drops packets, too, but not all of them.
    """

    def __init__(self) -> None:
        self._read = -1
        self._passed = 0
        self._blocked = False

    def look(self, passed: int, read: int) -> bool:
        """Return whether packets are blocked, given how many were passed on and read so far."""
        if read != self._read:
            self._read, self._passed, self._blocked = read, passed, False
        elif passed - self._passed >= LEAST:
            self._blocked = True
        return self._blocked


class Refused:
    """Remembers for a while that a counter has grown (pure)."""

    def __init__(self) -> None:
        self._count = -1
        self._left = 0

    def look(self, count: int) -> bool:
        """Return whether it has grown since the first look, and lately."""
        self._left = KEPT if 0 <= self._count < count else max(0, self._left - 1)
        self._count = count
        return self._left > 0


class Counts:
    """Looks at counters until it is cancelled.

    counters: returns all of them by name.
    read: returns how many datagrams of hand-shakes were read.
    tables: returns the kernel's tables of neighbours.
    """

    def __init__(
        self,
        counters: Callable[[], Mapping[str, int]],
        read: Callable[[], int],
        mrc0: str,
        port: int,
        findings: Findings,
        tables: Callable[[], list[Table]] = read_tables,
    ) -> None:
        self._counters = counters
        self._read = read
        self._tables = tables
        self._full: defaultdict[str, Refused] = defaultdict(Refused)
        self._findings = findings
        self._blocked, self._strangers = Blocked(), Refused()
        self.warnings: list[str] = []
        self._strange = (
            "packets to peers come from addresses that are none of this host's, as containers' "
            "are, and are refused: masquerade them (`nft add rule ip nat postrouting oifname "
            f"{mrc0} masquerade`), or put their prefix into `routed` here and "
            "`allowed` at the peers"
        )
        self._firewall = (
            "hand-shakes of peers arrive, and none reaches mrcd: a firewall of this host "
            f"drops UDP port {port}; `mrcctl doctor` names chains of nftables that do, "
            "and `nft list ruleset` shows all rules"
        )

    async def follow(self) -> None:
        """Name, while it lasts, what the counters tell."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Look once."""
        counters = self._counters()
        found = self._blocked.look(counters["control_rx"], self._read())
        self._findings.replace(_FIREWALL, {_FIREWALL: self._firewall} if found else {})
        strange = self._strangers.look(counters["drop_not_ours"])
        full = [table for table in self._tables() if self._full[table.family].look(table.fulls)]
        self.warnings = [*([self._strange] if strange else []), *map(_full_table, full)]


def _full_table(table: Table) -> str:
    limit = "" if table.limit is None else f", {table.limit} entries"
    return (
        f"the kernel's table of neighbours for {table.family} is full{limit} for the whole "
        f"machine: connections to peers can stand still for seconds; raise {table.key}"
    )
