# SPDX-License-Identifier: GPL-2.0-only
"""Compare mrc0 with plain TCP where only the processor limits the rate.

Plain TCP without segmentation offload uses plane 0 of the same hosts, through mrcd's programs like
all traffic on a plane, and plane 0 of hosts of the same kind without mrcd. On the latter, plain TCP
also runs with every offload, and the kernel's seg6 takes part. The same switches shift its uSIDs,
so it shows the cost of a source-routed packet without copies, ordering or acknowledgements; but
TCP's large segments get their header before they are segmented. Turns alternate in each round.

What keeps its large segments is measured as they cross the cables whole, and as packets.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bench.compare import ceiling, configuration, direct, placement, traffic, ways
from bench.compare.arena import Arena, say
from bench.compare.routes import Competitor, Plane, Seg6
from bench.compare.traffic import Flow, Traffic
from bench.compare.ways import Offloads, Way, Ways, Where
from bench.instruments import flow, path_states, simultaneous, wire
from bench.instruments.flow import BenchFailed, Step
from bench.instruments.metrics import MS, S, outage
from bench.instruments.processor import Processor
from bench.instruments.wire import Wire
from cli.lab import lab
from cli.lab.injection import Applied
from mrcd.fabric.description import Fabric, Host

CONNECTIONS = (1, 4)
REQUEST_BYTES = 64
_FLOW = [Flow("h1", "h2")]
_CUT = {Wire.CUT: "packets on the wire"}
_MERGED = {Wire.MERGED: "packets on the wire and switches that merge"}
_DIES_S = 2.5
_DEAD_S = 1.5
_SETTLED_S = 0.5  # goodput has settled this long after a plane has died
_LOOKS = 5  # samples of TCP's round trip before the fault
_LOOK_S = 0.25
OF_A_SECOND = "GB a CPU second"


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


class OffloadsCable(Offloads):
    """The same by a cable between two hosts."""

    def address(self, fabric: Fabric, host: Host) -> str:
        """Return the address of a host on this way."""
        return direct.PLAIN_ADDRESSES[host.name]


class BareSeg6(Seg6):
    """The kernel's source routes on hosts without mrcd."""

    title = "seg6, no offload, no mrcd"
    about = "the kernel's H.Encaps.Red without segmentation offload, in that second lab"


def speed(arena: Arena) -> None:
    """Measure goodput, idle round trip and a plane's death in a fabric without rate limits."""
    with contextlib.ExitStack() as stack:
        mrcd = ways.with_mrcd(stack, arena, ways.fabric(arena))
        bare = ways.without_mrcd(stack, arena)
        source_routed, refused = configuration.usable(bare, [BareSeg6()])
        arena.results.absent |= refused
        those = ways.by_title(
            *mrcd,
            Way(Plain(), arena.name, Wire.SINGLE),
            Way(Bare(), bare, Wire.SINGLE),
            *(Way(each, bare, Wire.SINGLE) for each in source_routed),
            Way(Offloads(), bare),
            *_stateless(arena, bare),
        )
        _goodput(arena, "speed", those, _CUT | _MERGED)
        _round_trip(arena, "speed", those)
        _death(arena, ways.by_title(mrcd[0]))


def on_direct_planes(arena: Arena) -> None:
    """Measure the same without switches between the hosts."""
    say(f"labs: 2 hosts on {direct.PLANES} direct planes, unlimited, MTU {arena.mtu}")

    def build(name: str, framing: str | None) -> contextlib.AbstractContextManager[object]:
        return direct.up(name, arena.mtu, framing)

    with contextlib.ExitStack() as stack:
        mrcd = ways.with_mrcd(stack, arena, build)
        bare = f"{arena.name}-bare"
        stack.enter_context(direct.up(bare, arena.mtu, daemons=False))
        those = ways.by_title(
            *mrcd,
            Way(Cable(), arena.name, Wire.SINGLE),
            Way(OffloadsCable(), bare),
            *_stateless(arena, bare),
        )
        _goodput(arena, "direct", those, _CUT)
        _round_trip(arena, "direct", those)
        _apart(arena, "direct", those)


def _stateless(arena: Arena, bare: str) -> list[Way]:
    """Set up what programs without state reach in a lab without mrcd."""
    found, refused = ceiling.set_up(bare)
    arena.results.absent |= refused
    return [Way(each, bare) for each in found]


def _goodput(arena: Arena, workload: str, those: Ways, wires: Mapping[Wire, str]) -> None:
    """Measure goodput, then that of the ways with large segments when these are cut."""
    large = [way for way in those.values() if way.wire is Wire.WHOLE]
    for connections in CONNECTIONS[:1] if arena.quick else CONNECTIONS:
        words = traffic.counted(connections)
        _in_turns(arena, workload, f"{words}, MTU {arena.mtu}", those, connections)
        for each, how in () if arena.quick else wires.items():
            cut = ways.by_title(*(replace(way, wire=each) for way in large))
            _in_turns(arena, workload, f"{words}, {how}, MTU {arena.mtu}", cut, connections)


def _in_turns(arena: Arena, workload: str, case: str, those: Ways, connections: int) -> None:
    seconds = 1.2 if arena.quick else 3.0

    def measure(competitor: Competitor, where: Where) -> None:
        flows = [Flow("h1", "h2", connections)]
        seen, stolen = those[competitor.title].send(flows, seconds)
        goodput = seen.after(ways.WARM_S) / 1e9
        ways.note(arena, where, "goodput", "Gb/s", goodput, seen, stolen)
        arena.results.note(where, OF_A_SECOND, "", of_a_second(seen, os.cpu_count() or 1))

    arena.take_turns(workload, case, measure, ways.competitors(those))


def of_a_second(seen: Traffic, cpus: int) -> float:
    """Return the gigabytes that arrived for each second that a CPU worked, all CPUs together."""
    arrived = seen.bps(seen.began_ns, seen.ended_ns) / 8 / 1e9
    return arrived / (seen.busy * cpus)


def _apart(arena: Arena, workload: str, those: Ways) -> None:
    """Measure goodput, and what each host's CPU does for it, with a CPU for each of them."""
    for name in dict.fromkeys(way.lab for way in those.values()):
        placement.apart(name)

    def measure(competitor: Competitor, where: Where) -> None:
        way, processor = those[competitor.title], Processor()
        wire.lay(way.lab, way.wire)
        spent = placement.send(way.lab, competitor, _FLOW, ways.WARM_S, 3.0, placement.APART)
        ways.note(arena, where, "goodput", "Gb/s", spent.gbps, spent.seen, processor.stolen())
        for host, end in (("h1", "sender"), ("h2", "receiver")):
            value = spent.gigabytes(host)
            arena.results.note(where, f"{OF_A_SECOND}, {end}", "", value)

    case = f"1 connection, a CPU for each host, MTU {arena.mtu}"
    arena.take_turns(workload, case, measure, ways.competitors(those))


def _round_trip(arena: Arena, workload: str, those: Ways) -> None:
    seconds = 0.5 if arena.quick else 2.0

    def measure(competitor: Competitor, where: Where) -> None:
        way = those[competitor.title]
        wire.lay(way.lab, way.wire)
        processor = Processor()
        took = traffic.requests(way.lab, competitor, "h1", "h2", seconds, REQUEST_BYTES)
        busy = processor.busy()
        for which in (50, 99, 99.9):
            value = float(np.percentile(took, which)) / 1e3
            arena.results.note(where, f"p{which:g}", "us", value, busy)
        arena.results.note(where, "requests", "", float(len(took)), busy)

    case = f"idle round trip, MTU {arena.mtu}"
    arena.take_turns(workload, case, measure, ways.competitors(those))


def _death(arena: Arena, those: Ways) -> None:
    """Black-hole plane 1 under one connection over mrc0, which the CPU limits."""

    def measure(competitor: Competitor, where: Where) -> None:
        note, name = arena.results.note, those[competitor.title].lab
        trips: list[float] = []
        address = competitor.between(name, "h1", "h2").address

        def look() -> Applied:
            began_ns = time.monotonic_ns()
            trips.extend(tcp_round_trips(flow.shell(name, "h1", f"ss -tinH dst {address}")))
            return Applied(began_ns, time.monotonic_ns())

        try:
            steps = [Step(ways.WARM_S + i * _LOOK_S, look) for i in range(_LOOKS)]
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
    arena.take_turns("speed", words, measure, ways.competitors(those))


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


OF_SPEED: tuple[Competitor, ...] = (Plain(), Bare(), BareSeg6())
"""The competitors without segmentation offload."""
