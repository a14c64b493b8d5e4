# SPDX-License-Identifier: GPL-2.0-only
"""Compare mrc0 with others while two hosts send to each other at the same time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from bench.compare import ways
from bench.compare.arena import Arena
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow, Traffic, counted
from bench.compare.ways import BareEcmp, BareMptcp, Where

CONNECTIONS = (1, 4)  # each way
GOODPUT = "goodput"
SLOWER = "slower direction"
RATIO = "slower to faster"
_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Both:
    """The goodput of both directions, from h1 to h2 and back, in any unit."""

    there: float
    back: float

    @property
    def total(self) -> float:
        """Return what both have together."""
        return self.there + self.back

    @property
    def slower(self) -> float:
        """Return the goodput of the slower direction."""
        return min(self.there, self.back)

    @property
    def ratio(self) -> float:
        """Return the slower one in parts of the faster one: 1 if they are equal; 0 without any."""
        faster = max(self.there, self.back)
        return self.slower / faster if faster else 0.0


def of(seen: Traffic, unit_bps: float) -> Both:
    """Return what the flow there and the flow back carried once they were warm."""
    return Both(*(seen.after(ways.WARM_S, which) / unit_bps for which in (0, 1)))


def duplex(arena: Arena) -> None:
    """Measure one and four connections each way between two hosts."""
    with contextlib.ExitStack() as stack:
        those = ways.with_and_without(stack, arena, BareMptcp(), BareEcmp())
        for connections in CONNECTIONS:

            def measure(competitor: Competitor, where: Where, count: int = connections) -> None:
                flows = [Flow("h1", "h2", count), Flow("h2", "h1", count)]
                seen, stolen = those[competitor.title].send(flows, _SECONDS)
                _note(arena, where, seen, stolen)

            case = f"{counted(connections)} each way, {_rated(arena)}, MTU {arena.mtu}"
            arena.take_turns("duplex", case, measure, ways.competitors(those))


def _rated(arena: Arena) -> str:
    rate = arena.shape.rate_mbps
    return f"{arena.shape.planes} x {rate} Mb/s" if rate else "no rate limit"


def _note(arena: Arena, where: Where, seen: Traffic, stolen: float) -> None:
    unit, unit_bps = ("Mb/s", 1e6) if arena.shape.rate_mbps else ("Gb/s", 1e9)
    found, note = of(seen, unit_bps), arena.results.note
    ways.note(arena, where, GOODPUT, unit, found.total, seen, stolen)
    note(where, "h1 to h2", unit, found.there, seen.busy)
    note(where, "h2 to h1", unit, found.back, seen.busy)
    note(where, SLOWER, unit, found.slower, seen.busy)
    note(where, RATIO, "", found.ratio, seen.busy)
    if arena.capacity_bps:
        share = 100 * found.total * unit_bps / (2 * arena.capacity_bps)
        note(where, "of all planes, both ways", "%", share, seen.busy)
