# SPDX-License-Identifier: GPL-2.0-only
"""Measure bulk traffic between two hosts, and among many hosts."""

from __future__ import annotations

import random

from bench.compare import collisions, traffic
from bench.compare.arena import Arena
from bench.compare.results import jain
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow
from bench.instruments.flow import BenchFailed
from cli.lab import state

WARM_S = 0.7
_FIRST_PORT = 20_000
_PORTS_TRIED = 64

Where = tuple[str, str, str]


def bulk(arena: Arena) -> None:
    """Measure one, a few and many connections from h1 to h2."""
    for connections in (1, 4) if arena.quick else (1, 4, 16):

        def measure(competitor: Competitor, where: Where, connections: int = connections) -> None:
            flows = [Flow("h1", "h2", connections)]
            seen = traffic.run(arena.name, competitor, flows, WARM_S + _seconds(arena))
            note, busy = arena.results.note, seen.busy
            note(where, "goodput", "Mb/s", seen.after(WARM_S) / 1e6, busy)
            share = 100 * seen.after(WARM_S) / arena.capacity_bps
            note(where, "of all planes", "%", share, busy)
            if connections > 1:
                rates = [
                    each.arrivals.bps(seen.began_ns, seen.ended_ns) for each in seen.connections
                ]
                note(where, "Jain's fairness", "", jain(rates), busy)
            note(where, "TCP retransmissions", "", seen.retransmits[-1][1], busy)

        arena.take_turns("bulk", f"{traffic.counted(connections)}, MTU {arena.mtu}", measure)


def _seconds(arena: Arena) -> float:
    return 1.2 if arena.quick else 2.0


def _many(arena: Arena, competitor: Competitor, flows: list[Flow], where: Where) -> list[float]:
    """Run several flows at once, note the usual figures, and return the Mb/s of each flow."""
    seen = traffic.run(arena.name, competitor, flows, WARM_S + _seconds(arena))
    rates = [seen.after(WARM_S, which) / 1e6 for which in range(len(flows))]
    note, busy = arena.results.note, seen.busy
    note(where, "all flows", "Mb/s", sum(rates), busy)
    note(where, "slowest flow", "Mb/s", min(rates), busy)
    note(where, "Jain's fairness", "", jain(rates), busy)
    note(where, "TCP retransmissions", "", seen.retransmits[-1][1], busy)
    arena.results.curves.setdefault(where, []).extend(sorted(rates))
    return rates


def collision(arena: Arena) -> None:
    """Run two elephant flows from h1 to h2 whose ports ECMP hashes onto one plane."""

    def measure(competitor: Competitor, where: Where) -> None:
        _many(arena, competitor, _elephants(arena.name, competitor), where)

    arena.take_turns("collision", f"two elephants, MTU {arena.mtu}", measure)


def _elephants(name: str, competitor: Competitor) -> list[Flow]:
    """Return two flows that share a plane if a hash decides; it can only be found by trying."""
    ports: dict[int, int] = {}
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS_TRIED):
        plane = collisions.plane_of(name, competitor, port) if competitor.hashes else 0
        if plane in ports:
            return [Flow("h1", "h2", port=ports[plane]), Flow("h1", "h2", port=port)]
        ports[plane] = port
    raise BenchFailed(f"no two of {_PORTS_TRIED} ports are hashed onto the same plane")


def incast(arena: Arena) -> None:
    """Make all other hosts send to h1, while one of them also sends to an otherwise idle host."""
    hosts = [host.name for host in state.read_fabric(arena.name).hosts]
    senders = [Flow(host, "h1") for host in hosts[1:]]
    victim = Flow(hosts[-1], "h2")

    def measure(competitor: Competitor, where: Where) -> None:
        alone = traffic.run(arena.name, competitor, [victim], WARM_S + _seconds(arena))
        rates = _many(arena, competitor, [*senders, victim], where)
        note = arena.results.note
        note(where, "victim alone", "Mb/s", alone.after(WARM_S) / 1e6, alone.busy)
        note(where, "victim beside it", "Mb/s", rates[-1])

    arena.take_turns("incast", f"{len(senders)}:1, MTU {arena.mtu}", measure)


def permutation(arena: Arena) -> None:
    """Make every host send to one host of another T0 and receive from one; vary them by round."""
    fabric = state.read_fabric(arena.name)
    chance = {
        competitor.key: random.Random(f"{arena.seed} permutation")
        for competitor in arena.competitors
    }
    halves = [[host.name for host in fabric.hosts if host.t0 == t0] for t0 in (1, 2)]

    def measure(competitor: Competitor, where: Where) -> None:
        pick = chance[competitor.key].sample
        flows = [
            Flow(source, target)
            for here, there in (halves, halves[::-1])
            for source, target in zip(here, pick(there, len(there)), strict=True)
        ]
        _many(arena, competitor, flows, where)

    arena.take_turns("permutation", f"{len(fabric.hosts)} hosts, MTU {arena.mtu}", measure)


def all_to_all(arena: Arena) -> None:
    """Make every host send to every other."""
    hosts = [host.name for host in state.read_fabric(arena.name).hosts]
    flows = [Flow(a, b) for a in hosts for b in hosts if a != b]

    def measure(competitor: Competitor, where: Where) -> None:
        _many(arena, competitor, flows, where)

    arena.take_turns("all-to-all", f"{len(hosts)} hosts, MTU {arena.mtu}", measure)
