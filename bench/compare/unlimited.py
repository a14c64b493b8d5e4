# SPDX-License-Identifier: GPL-2.0-only
"""Compare mrc0 with TCP without segmentation offload where only the processor limits the rate.

Plain TCP uses plane 0 of the same hosts, through mrcd's programs like all traffic on a plane, and
plane 0 of hosts of the same kind without mrcd. On the latter, the kernel's seg6 takes part, too.
The same switches shift its uSIDs, so it shows the cost of a source-routed packet without copies,
ordering or acknowledgements; but TCP's large segments get their header before they are segmented.
Turns alternate in each round.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench import flow, path_states, simultaneous
from bench.compare import configuration, direct, traffic
from bench.compare.arena import Arena, say
from bench.compare.processor import Processor
from bench.compare.routes import Competitor, Mrc0, Plane, Seg6
from bench.compare.traffic import Flow, Traffic
from bench.flow import BenchFailed, Step
from bench.metrics import MS, S, outage
from bench.speed import no_segmentation_offload
from mrcd.fabric.description import Fabric, Host
from mrcd.lab import lab
from mrcd.lab.injection import Applied

CONNECTIONS = (1, 4)
REQUEST_BYTES = 64
_FLOW = [Flow("h1", "h2")]
_WARM_S = 1.0
_DIES_S = 2.5
_DEAD_S = 1.5
_SETTLED_S = 0.5  # goodput has settled this long after a plane has died
_LOOKS = 5  # samples of TCP's round trip before the fault
_LOOK_S = 0.25

Where = tuple[str, str, str]


class Plain(Plane):
    """Plane 0 of the hosts that mrcd runs on."""

    key = "plain"
    title = "TCP, no offload"
    about = (
        "cubic TCP by plane 0 of the same hosts, without segmentation offload; where there are no"
        " switches by a cable of its own, without mrcd's programs"
    )


class Cable(Plain):
    """A cable between two hosts that mrcd does not use."""

    key = "cable"

    def address(self, fabric: Fabric, host: Host) -> str:
        """Return the address of a host on this way."""
        return direct.PLAIN_ADDRESSES[host.name]


class Bare(Plane):
    """Plane 0 of hosts without mrcd."""

    key = "bare"
    title = "TCP, no offload, no mrcd"
    about = "the same on hosts where no mrcd runs, in a second lab"


class BareSeg6(Seg6):
    """The kernel's source routes on hosts without mrcd."""

    title = "seg6, no offload, no mrcd"
    about = "the kernel's H.Encaps.Red without segmentation offload, in that second lab"


@dataclass(frozen=True, slots=True)
class _Ways:
    """The competitors and the lab of each; `bare` is the lab without mrcd."""

    name: str
    competitors: tuple[Competitor, ...]
    bare: str = ""

    def lab_of(self, competitor: Competitor) -> str:
        """Return the lab of a competitor."""
        return self.bare if isinstance(competitor, Bare | BareSeg6) else self.name


def speed(arena: Arena) -> None:
    """Measure goodput, idle round trip and a plane's death in a fabric without rate limits."""
    with contextlib.ExitStack() as stack:
        name, bare, shape = arena.name, f"{arena.name}-bare", arena.shape
        say(f"two labs: {shape}, MTU {arena.mtu}, one without mrcd")
        stack.enter_context(flow.fabric_up(shape.fabric(name, arena.mtu)))
        stack.enter_context(flow.fabric_up(shape.fabric(bare, arena.mtu), daemons=False))
        for each in (name, bare):
            no_segmentation_offload(each, shape.planes)
        source_routed, refused = configuration.usable(bare, [BareSeg6()])
        arena.results.absent |= refused
        ways = _Ways(name, (Mrc0(), Plain(), Bare(), *source_routed), bare)
        _goodput(arena, "speed", ways)
        _round_trip(arena, "speed", ways)
        _death(arena, ways)


def on_direct_planes(arena: Arena) -> None:
    """Measure the same without switches between the hosts."""
    say(f"a lab: 2 hosts on {direct.PLANES} direct planes, unlimited, MTU {arena.mtu}")
    with direct.up(arena.name, arena.mtu) as name:
        ways = _Ways(name, (Mrc0(), Cable()))
        _goodput(arena, "direct", ways)
        _round_trip(arena, "direct", ways)


def _goodput(arena: Arena, workload: str, ways: _Ways) -> None:
    seconds = 1.2 if arena.quick else 3.0
    for connections in CONNECTIONS[:1] if arena.quick else CONNECTIONS:

        def measure(competitor: Competitor, where: Where, connections: int = connections) -> None:
            flows = [Flow("h1", "h2", connections)]
            seen = traffic.run(ways.lab_of(competitor), competitor, flows, _WARM_S + seconds)
            goodput = seen.after(_WARM_S) / 1e9
            arena.results.note(where, "goodput", "Gb/s", goodput, seen.busy)
            resent = float(seen.retransmits[-1][1])
            arena.results.note(where, "TCP retransmissions", "", resent, seen.busy)

        words = traffic.counted(connections)
        arena.take_turns(workload, f"{words}, MTU {arena.mtu}", measure, ways.competitors)


def _round_trip(arena: Arena, workload: str, ways: _Ways) -> None:
    seconds = 0.5 if arena.quick else 2.0

    def measure(competitor: Competitor, where: Where) -> None:
        processor, name = Processor(), ways.lab_of(competitor)
        took = traffic.requests(name, competitor, "h1", "h2", seconds, REQUEST_BYTES)
        busy = processor.busy()
        for which in (50, 99, 99.9):
            value = float(np.percentile(took, which)) / 1e3
            arena.results.note(where, f"p{which:g}", "us", value, busy)
        arena.results.note(where, "requests", "", float(len(took)), busy)

    arena.take_turns(workload, f"idle round trip, MTU {arena.mtu}", measure, ways.competitors)


def _death(arena: Arena, ways: _Ways) -> None:
    """Black-hole plane 1 under one connection over mrc0, which the CPU limits."""

    def measure(competitor: Competitor, where: Where) -> None:
        note, name = arena.results.note, ways.name
        trips: list[float] = []
        address = competitor.between(name, "h1", "h2").address

        def look() -> Applied:
            began_ns = time.monotonic_ns()
            trips.extend(tcp_round_trips(flow.shell(name, "h1", f"ss -tinH dst {address}")))
            return Applied(began_ns, time.monotonic_ns())

        try:
            steps = [Step(_WARM_S + i * _LOOK_S, look) for i in range(_LOOKS)]
            steps.append(Step(_DIES_S, lambda: lab.fault(name, "p1", "blackhole")))
            seen = traffic.run(name, competitor, _FLOW, _DIES_S + _DEAD_S, steps)
        finally:
            simultaneous.clear_all(name)
        path_states.wait_restored(name)
        if not trips:
            raise BenchFailed("ss showed no round trip of the connection")
        loaded_ns = float(np.median(trips)) * MS
        died_ns = seen.applied[-1].began_ns
        lost_ns, gap_ns = judged(seen, died_ns)
        # Judge a time without a fault in the same way, to know the machine's own variation.
        calm_ns = seen.began_ns + int((_DIES_S - 1) * S)
        calm_lost_ns, calm_gap_ns = judged(seen, calm_ns, until_ns=died_ns)
        note(where, "loaded round trip", "ms", loaded_ns / MS, seen.busy)
        note(where, "goodput lost", "ms", lost_ns / MS, seen.busy)
        note(where, "... at a moment without a fault", "ms", calm_lost_ns / MS, seen.busy)
        note(where, "longest gap", "ms", gap_ns / MS, seen.busy)
        note(where, "... without a fault", "ms", calm_gap_ns / MS, seen.busy)
        note(where, "longest gap, in loaded round trips", "", gap_ns / loaded_ns, seen.busy)
        resent = seen.resent(died_ns, seen.ended_ns)
        note(where, "TCP retransmissions", "", float(resent), seen.busy)

    words = f"a plane dies silently, 1 connection, MTU {arena.mtu}"
    arena.take_turns("speed", words, measure, ways.competitors[:1])


def tcp_round_trips(listed: str) -> list[float]:
    """Return the smoothed round trips in ms of the busiest connections in a list of `ss -i`."""
    found = [
        (int(sent.group(1)), float(trip.group(1)))
        for line in listed.splitlines()
        if (sent := re.search(r"bytes_sent:(\d+)", line))
        and (trip := re.search(r"\brtt:([\d.]+)/", line))
    ]
    return [max(found)[1]] if found else []


def judged(seen: Traffic, died_ns: int, until_ns: int | None = None) -> tuple[int, int]:
    """Return the goodput lost, as time at the lower of the rates before and after; and the gap.

    "Before" is the second up to the fault, and "after" begins when the rest has settled.
    """
    arrivals, end_ns = seen.arrivals(), until_ns or seen.ended_ns
    before = arrivals.bps(max(seen.began_ns + S // 2, died_ns - S), died_ns)
    after = arrivals.bps(died_ns + int(_SETTLED_S * S), end_ns)
    found = outage(
        arrivals,
        steady_ns=died_ns - S,
        fault_ns=died_ns,
        until_ns=end_ns,
        left=min(1.0, after / before) if before else 0.0,
        reference_bps=before,
    )
    return found.lost_ns, found.gap_ns


def competitors() -> Iterator[tuple[str, str]]:
    """Yield the competitors of mrc0: title and description."""
    yield from ((each.title, each.about) for each in (Plain(), Bare(), BareSeg6()))
