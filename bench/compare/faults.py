# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of faults under load: pauses, capacity, retransmissions, connections.

A fault strikes where most of the traffic is at the time, so that it hits competitors that use only
one path.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.compare import configuration, traffic
from bench.compare.arena import Arena
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow, Traffic
from bench.instruments import counters, path_states, shaping, simultaneous
from bench.instruments.flow import Step
from bench.instruments.metrics import MS, S
from cli.lab import lab, topology
from cli.lab.injection import Applied
from mrcd.fabric.description import Fabric

CONNECTIONS = 4
SLOW = 0.1  # of the rate
_WARM_S = 0.8
_FAULT_S = 2.0
_REST_S = 0.3  # after the fault is cleared
_LOOK_S = 0.15  # to find where most of the traffic is
_LOOK_AHEAD_S = 0.4
_FLAP_S = 0.25  # down, and the same time up

Where = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of most of the traffic from h1 to h2."""

    plane: int
    t1: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A competitor under traffic in a lab; call `look` first."""

    arena: Arena
    competitor: Competitor
    found: list[Spot] = field(default_factory=list)

    @property
    def spot(self) -> Spot:
        """Return the place of most of the traffic."""
        return self.found[0]

    def look(self) -> Applied:
        """Find the spot before the fault strikes, because it takes a while."""
        began_ns = time.monotonic_ns()
        self.found.append(busiest(self.arena))
        return Applied(began_ns, time.monotonic_ns())

    def fault(self, element: str, action: str) -> Applied:
        """Make a fault of the lab."""
        return lab.fault(self.arena.name, element, action)

    def repair(self) -> None:
        """Restore the routes that were removed with a link."""
        for competitor in self.arena.competitors:
            configuration.repair(self.arena.name, competitor, self.spot.plane)

    def clear(self) -> Applied:
        """Clear all faults of the lab."""
        began_ns = time.monotonic_ns()
        simultaneous.clear_all(self.arena.name)
        return Applied(began_ns, time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: `left` is the share of capacity that it leaves; `strike` is repeated meanwhile."""

    name: str
    about: str
    left: Callable[[Fabric], float]
    strike: Callable[[Stage], Applied]
    heal: Callable[[Stage], Applied]
    every_s: float = 0.0


def _others(fabric: Fabric) -> float:
    return (fabric.planes - 1) / fabric.planes


def _everywhere(stage: Stage, action: str) -> Applied:
    planes = {f"p{plane}": action for plane in range(stage.arena.shape.planes)}
    return simultaneous.faults(stage.arena.name, planes)


def _slow(stage: Stage) -> Applied:
    return shaping.plane_rate(
        stage.arena.name, stage.spot.plane, stage.arena.shape.rate_mbps * SLOW
    )


def _fast(stage: Stage) -> Applied:
    return shaping.plane_rate(stage.arena.name, stage.spot.plane, stage.arena.shape.rate_mbps)


def _flap(stage: Stage) -> Applied:
    """Take a link down for a while, then up with everything as before."""
    link = f"h2:p{stage.spot.plane}"
    applied = stage.fault(link, "down")
    time.sleep(_FLAP_S)
    stage.clear()
    configuration.repair(stage.arena.name, stage.competitor, stage.spot.plane)
    return applied


FAULTS = (
    Fault(
        "a plane dies silently", "the busiest plane is black-holed, links stay up", _others,
        lambda stage: stage.fault(f"p{stage.spot.plane}", "blackhole"), Stage.clear,
    ),
    Fault(
        "a T1 dies silently", "the busiest T1 of the busiest plane is black-holed", lambda _: 1.0,
        lambda stage: stage.fault(f"p{stage.spot.plane}t1-{stage.spot.t1}", "blackhole"),
        Stage.clear,
    ),
    Fault(
        "0.1 % loss", "every plane loses 0.1 % of its packets", lambda _: 0.999,
        lambda stage: _everywhere(stage, "loss=0.1%"), Stage.clear,
    ),
    Fault(
        "1 % loss", "every plane loses 1 % of its packets", lambda _: 0.99,
        lambda stage: _everywhere(stage, "loss=1%"), Stage.clear,
    ),
    Fault(
        "20 % loss on a path", "the busiest link between T0 and T1 loses 20 %", lambda _: 1.0,
        lambda stage: stage.fault(
            f"p{stage.spot.plane}t0-1:p{stage.spot.plane}t1-{stage.spot.t1}", "loss=20%"
        ),
        Stage.clear,
    ),
    Fault(
        "a link flaps", f"the busiest NIC link of h2 is down for {_FLAP_S * 1000:.0f} ms twice a"
        " second", _others, _flap, Stage.clear, every_s=2 * _FLAP_S,
    ),
    Fault(
        "a slow plane", f"the busiest plane's switches send at {SLOW:.0%} of its rate",
        lambda fabric: _others(fabric) + SLOW / fabric.planes, _slow, _fast,
    ),
)  # fmt: skip
_QUICK = ("a plane dies silently", "1 % loss")


def faults(arena: Arena) -> None:
    """Measure each fault under four connections from h1 to h2."""
    for fault in FAULTS:
        if not arena.quick or fault.name in _QUICK:

            def measure(competitor: Competitor, where: Where, fault: Fault = fault) -> None:
                _note(arena, fault, where, *struck(arena, competitor, fault))

            arena.take_turns("faults", fault.name, measure)


def struck(arena: Arena, competitor: Competitor, fault: Fault) -> tuple[Traffic, int, int]:
    """Run traffic through a fault; return it with the times of the fault's start and end."""
    lasts_s = 1.5 if arena.quick else 2.0
    stage = Stage(arena, competitor)
    times = int(lasts_s / fault.every_s) if fault.every_s else 1
    steps = [Step(_FAULT_S - _LOOK_AHEAD_S, stage.look)]
    steps += [Step(_FAULT_S + i * fault.every_s, lambda: fault.strike(stage)) for i in range(times)]
    steps.append(Step(_FAULT_S + lasts_s, lambda: fault.heal(stage)))
    try:
        seen = traffic.run(
            arena.name, competitor, [Flow("h1", "h2", CONNECTIONS)], _FAULT_S + lasts_s + _REST_S,
            steps,
        )  # fmt: skip
    finally:
        stage.clear()
        if stage.found:
            fault.heal(stage)
            if fault.every_s:
                stage.repair()
    path_states.wait_restored(arena.name)
    return seen, seen.applied[1].began_ns, seen.applied[-1].began_ns


def _note(
    arena: Arena, fault: Fault, where: Where, seen: Traffic, began_ns: int, ended_ns: int
) -> None:
    fabric = arena.shape.fabric(arena.name, arena.mtu)
    before = seen.bps(seen.began_ns + int(_WARM_S * S), began_ns)
    during = seen.bps(began_ns, ended_ns)
    possible = before * fault.left(fabric)
    note, busy = arena.results.note, seen.busy
    note(where, "before", "Mb/s", before / 1e6, busy)
    note(where, "while it lasts", "Mb/s", during / 1e6, busy)
    note(where, "kept", "%", 100 * during / before if before else None, busy)
    if possible:
        lost_s = (ended_ns - began_ns) / S * max(0.0, 1 - during / possible)
        note(where, "capacity lost", "ms", 1000 * lost_s, busy)
    gap = seen.longest_gap_ns(began_ns, ended_ns)
    calm = seen.longest_gap_ns(seen.began_ns + int(_WARM_S * S), began_ns)
    note(where, "longest gap of a connection", "ms", gap / MS, busy)
    note(where, "... before the fault", "ms", calm / MS, busy)
    note(where, "TCP retransmissions", "", seen.resent(began_ns, ended_ns), busy)
    note(where, "connections lost", "", seen.broken, busy)
    if where not in arena.results.curves:
        around = seen.arrivals().bins_bps(began_ns - S // 2, began_ns + 3 * S // 2, 10 * MS)
        arena.results.curves[where] = [float(rate) / 1e6 for rate in around]


def busiest(arena: Arena) -> Spot:
    """Return the plane with most traffic to h2, and its T1 with most traffic from h1's T0."""
    planes = tuple(f"plane{plane}" for plane in range(arena.shape.planes))
    uplinks = tuple(f"t1-{m}" for m in range(1, arena.shape.t1 + 1))
    plan = topology.plan(arena.shape.fabric(arena.name, arena.mtu))
    nics = counters.Interfaces(plan.namespace("h2"), planes)
    try:
        switches = [plan.namespace(f"p{plane}t0-1") for plane in range(arena.shape.planes)]
        were = nics.read(), [counters.sent_packets(each, uplinks) for each in switches]
        time.sleep(_LOOK_S)
        are = nics.read(), [counters.sent_packets(each, uplinks) for each in switches]
    finally:
        nics.close()
    plane = most(were[0], are[0])
    return Spot(plane, 1 + most(were[1][plane], are[1][plane]))


def most(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Return the index of the counter that has grown most; the first of equals."""
    grown = [now - was for was, now in zip(before, after, strict=True)]
    return grown.index(max(grown))
