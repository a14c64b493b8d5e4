# SPDX-License-Identifier: GPL-2.0-only
"""Compare mrc0 with MPTCP on planes with a rate, such as four of 250 Mb/s: a gigabit a host."""

from __future__ import annotations

import contextlib

from bench.compare import traffic, ways
from bench.compare.arena import Arena
from bench.compare.results import jain
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow
from bench.compare.ways import BareMptcp, Where
from cli.lab import state

CONNECTIONS = (1, 4, 16, 64)
GOODPUT = "goodput"
_SECONDS = 2.0


def gigabit(arena: Arena) -> None:
    """Measure bulk traffic between two hosts, or from all to all if there are more."""
    with contextlib.ExitStack() as stack:
        those = ways.with_and_without(stack, arena, BareMptcp())
        for words, flows in _cases(arena):

            def measure(competitor: Competitor, where: Where, flows: list[Flow] = flows) -> None:
                seen, stolen = those[competitor.title].send(flows, _SECONDS)
                goodput = seen.after(ways.WARM_S) / 1e6
                ways.note(arena, where, GOODPUT, "Mb/s", goodput, seen, stolen)
                if len(flows) > 1:
                    rates = [seen.after(ways.WARM_S, which) / 1e6 for which in range(len(flows))]
                    arena.results.note(where, "slowest flow", "Mb/s", min(rates), seen.busy)
                    arena.results.note(where, "Jain's fairness", "", jain(rates), seen.busy)

            case = f"{words}, MTU {arena.mtu}"
            arena.take_turns("gigabit", case, measure, ways.competitors(those))


def _cases(arena: Arena) -> list[tuple[str, list[Flow]]]:
    hosts = [host.name for host in state.read_fabric(arena.name).hosts]
    if len(hosts) == 2:
        return [(traffic.counted(count), [Flow(*hosts, count)]) for count in CONNECTIONS]
    flows = [Flow(a, b) for a in hosts for b in hosts if a != b]
    return [(f"all-to-all of {len(hosts)} hosts", flows)]
