# SPDX-License-Identifier: GPL-2.0-only
"""Measure how soon traffic leaves a dead path, from the kernel's own time stamps.

    python -m bench.faults.failover [--deaths 60] [--ports 20] [--rate 250] [--events FILE]

Paths are black-holed repeatedly under load: links, T1s, whole planes. There are two sources of
times: the events of ``mrcctl path watch``, stamped by the data path, and the headers of all MRC
packets on the sender's NICs, stamped by the kernel. --events saves the former.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.instruments import capture, entry, flow, path_states, simultaneous
from bench.instruments.capture import Capture, Packets
from bench.instruments.experiment import Shape
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import MS
from bench.instruments.path_events import PathEvent, PathWatch
from bench.instruments.result import Line, Target, at_most, table
from cli.lab import lab, processes

SHAPE = Shape(planes=4, t1=4, rate_mbps=250)
_CONNECTIONS = 8  # flows are hashed over the QPs, and every QP should carry some
_DEAD_S = 0.4
_WARM_S = 2.0
_RTTS = at_most(2)
QUEUED_NS = 10 * MS
"""A lost packet may have left the data path this long before the fault: NICs have queues."""


@dataclass(frozen=True, slots=True)
class Death:
    """An element that was black-holed for a while; times are CLOCK_MONOTONIC."""

    element: str
    dead_ns: int
    cleared_ns: int

    def covers(self, plane: int, t1: int) -> bool:
        """Return whether a path crosses the element."""
        planes = re.findall(r"p(\d+)", self.element)
        t1s = re.findall(r"t1-(\d+)", self.element)
        return int(planes[0]) == plane and (not t1s or int(t1s[0]) == t1)


@dataclass(frozen=True, slots=True)
class Left:
    """A path that died, as seen on the wire. Times are in ns since its first lost packet was sent.

    `again_ns` is when that packet was retransmitted. `last_ns` is when the last data packet was
    sent over the path.
    """

    ev: int
    qpn: int
    again_ns: int
    last_ns: int
    rtt_ns: int | None


def elements(shape: Shape, count: int) -> Iterator[str]:
    """Yield the elements to kill: links, T1s and planes in turn, different ones each time."""
    for i in range(count):
        plane, t1 = i % shape.planes, i // shape.planes % shape.t1 + 1
        kinds = (f"p{plane}t0-1:p{plane}t1-{t1}", f"p{plane}t1-{t1}", f"p{plane}")
        yield kinds[i % 3]


def paths_left(packets: Packets, death: Death, rtts: dict[int, int]) -> list[Left]:
    """Return every path of every QP that lost packets in a death."""
    data = packets.where(packets.outgoing & (packets.opcode == capture.DATA))
    again = data.where(data.rtx)
    first = data.where(
        ~data.rtx & (data.time_ns >= death.dead_ns) & (data.time_ns < death.cleared_ns)
    )
    found = []
    for ev in np.unique(first.ev):
        if not death.covers(int(ev) >> 28, int(ev) >> 16 & 0xFFF):
            continue
        on_path = first.where(first.ev == ev)
        for qpn in np.unique(on_path.qpn):
            mine = on_path.where(on_path.qpn == qpn)
            left = _left(mine, again.where(again.qpn == qpn), int(ev), int(qpn), rtts)
            if left is not None:
                found.append(left)
    return found


def _left(mine: Packets, again: Packets, ev: int, qpn: int, rtts: dict[int, int]) -> Left | None:
    """Find the first packet of `mine` that was retransmitted; None if there is none."""
    for sent_ns, psn in zip(mine.time_ns, mine.psn, strict=True):
        repeats = again.time_ns[(again.psn == psn) & (again.time_ns > sent_ns)]
        if len(repeats):
            after = int(repeats[0] - sent_ns)
            return Left(ev, qpn, after, int(mine.time_ns[-1] - sent_ns), rtts.get(ev))
    return None


def round_trips(packets: Packets, qpns: Mapping[int, int]) -> list[int]:
    """Return the times in ns from sending a packet to the arrival of the SACK it caused.

    `qpns` maps the peer's QPNs to ours.
    """
    data = packets.where(packets.outgoing & (packets.opcode == capture.DATA))
    sacks = packets.where(~packets.outgoing & (packets.answers >= 0))
    found = []
    for theirs, ours in qpns.items():
        mine = data.where(data.qpn == theirs)
        sent_ns = dict(zip(mine.psn.tolist(), mine.time_ns.tolist(), strict=True))
        about = sacks.where(sacks.qpn == ours)
        for psn, at_ns in zip(about.answers.tolist(), about.time_ns.tolist(), strict=True):
            if sent_ns.get(psn, at_ns) < at_ns:
                found.append(at_ns - sent_ns[psn])
    return found


Place = tuple[int, int, int]  # number of the death, QP, EV


def withdrawals(events: Iterable[PathEvent], deaths: Sequence[Death]) -> dict[Place, PathEvent]:
    """Return the first withdrawal of each path of each QP for a packet lost in each death."""
    found: dict[Place, PathEvent] = {}
    for event in sorted(events, key=lambda each: each.time_ns):
        for i, death in enumerate(deaths):
            sent_ns = event.sent_ns or 0
            inside = death.dead_ns - QUEUED_NS <= sent_ns < death.cleared_ns
            inside = inside and event.time_ns >= death.dead_ns
            if event.withdrawal and inside and death.covers(event.plane, event.t1):
                found.setdefault((i, event.qp, event.ev), event)
    return found


def _quantiles(
    where: str, what: str, unit: str, values: Sequence[float], target: Target | None
) -> Iterator[Line]:
    """Yield a line each for the median, the 99th percentile and the worst."""
    if not values:
        yield Line("failover", where, f"{what}: no sample", unit, (), target, 1)
        return
    for word, percent in (("median", 50), ("p99", 99), ("worst", 100)):
        figure = (float(np.percentile(np.array(values), percent)),)
        goal = target if percent < 100 else None
        yield Line("failover", where, f"{what}: {word} of {len(values)}", unit, figure, goal)


def of_events(
    events: Iterable[PathEvent], deaths: Sequence[Death], carried: Container[Place]
) -> Iterator[Line]:
    """Yield the figures from the data path's events; `carried` are the paths that lost data."""
    found = withdrawals(events, deaths)
    seen = [event for place, event in found.items() if place in carried]
    idle = [event for place, event in found.items() if place not in carried]
    what = "lost packet sent to path withdrawn"
    yield from _quantiles("data path", what, "ms", [event.took_ns / MS for event in seen], None)
    known = [event.took_ns / event.rtt_ns for event in seen if event.rtt_ns]
    yield from _quantiles("data path", what, "RTT", known, _RTTS)
    rtts = [event.rtt_ns / MS for event in seen if event.rtt_ns]
    yield from _quantiles("data path", "RTT of these paths", "ms", rtts, None)
    what = "idle paths: lost probe sent to path withdrawn"
    yield from _quantiles("data path", what, "ms", [event.took_ns / MS for event in idle], None)


def of_wire(seen: Sequence[Left]) -> Iterator[Line]:
    """Yield the figures from the packets on the sender's NICs."""
    for what, times in (
        ("first lost packet sent again", [(left.again_ns, left.rtt_ns) for left in seen]),
        ("last data packet onto the path", [(left.last_ns, left.rtt_ns) for left in seen]),
    ):
        yield from _quantiles("wire", what, "ms", [ns / MS for ns, _rtt in times], None)
        ratios = [ns / rtt for ns, rtt in times if rtt]
        yield from _quantiles("wire", what, "RTT", ratios, _RTTS)


@contextlib.contextmanager
def load(name: str, seconds: float) -> Iterator[None]:
    """Send TCP from h1 to h2 over all QPs while the block runs."""
    route = flow.mrc0_route(name)
    with flow.iperf3_server(name, route):
        port = str(flow.IPERF3_PORT)
        client = processes.spawn(
            f"{name}-h1",
            ["iperf3", "-C", "cubic", "-c", route.address, "-p", port, "-t", str(int(seconds)),
             "-P", str(_CONNECTIONS)], stdout=subprocess.DEVNULL,
        )  # fmt: skip
        with client:
            try:
                time.sleep(_WARM_S)
                yield
                if client.poll() is not None:
                    raise BenchFailed("the load ended before the measurement did")
            finally:
                client.kill()


def deaths(name: str, count: int, save: Path | None) -> Iterator[Line]:
    """Kill paths and evaluate both sources of times."""
    died: list[Death] = []
    seen: list[Left] = []
    carried: set[Place] = set()
    lost = 0
    conns = path_states.connections(name, "h1")
    qps = {conn.remote_qpn: conn.qp for conn in conns}
    healthy: list[float] = []
    with PathWatch(name, "h1") as watch, load(name, count * 20):
        for element in elements(SHAPE, count):
            path_states.wait_restored(name)
            rtts = _rtts(name)
            with Capture(f"{name}-h1") as wire:
                time.sleep(0.1)
                dead_ns = lab.fault(name, element, "blackhole").began_ns
                time.sleep(_DEAD_S)
                cleared_ns = lab.fault(name, element, "clear").began_ns
                time.sleep(0.1)
            death = Death(element, dead_ns, cleared_ns)
            died.append(death)
            packets = wire.packets()
            lost += packets.lost
            left = paths_left(packets, death, rtts)
            before = packets.where(packets.time_ns < dead_ns)
            trips = round_trips(before, {conn.remote_qpn: conn.qpn for conn in conns})
            usual = float(np.median(trips)) if trips else 0.0
            healthy += [trip / usual for trip in trips]
            seen += left
            carried.update((len(died) - 1, qps[each.qpn], each.ev) for each in left)
        events = watch.events()
    if save is not None:
        save.write_text(watch.text())
    yield Line("failover", "deaths", "black holes made", "", (float(len(died)),))
    yield Line("failover", "deaths", "packet heads missed", "", (float(lost),), at_most(0))
    if watch.available:
        yield from of_events(events, died, carried)
    else:
        print("bench: mrcctl has no `path watch`: times come from the wire only", flush=True)
    yield from of_wire(seen)
    what = "round trips before deaths, of each one's median"
    yield from _quantiles("wire", what, "RTT", healthy, None)


def _rtts(name: str) -> dict[int, int]:
    """Return the smoothed RTT in ns of each EV to h2: the median over the QPs."""
    found: dict[int, list[float]] = {}
    for path in path_states.paths(name, "h1", "h2"):
        if path.srtt_us:
            found.setdefault(path.ev, []).append(path.srtt_us)
    return {ev: int(float(np.median(values)) * 1e3) for ev, values in found.items()}


def ports(name: str, count: int) -> Iterator[Line]:
    """Take NIC links of h2 down; measure at h1's T0 what h1 still sends to them."""
    last: list[float] = []
    other: list[float] = []
    with load(name, count * 20):
        for i in range(count):
            plane = i % SHAPE.planes
            path_states.wait_restored(name)
            with Capture(f"{name}-p{plane}t0-1", megabytes=16) as wire:
                time.sleep(0.1)
                down = lab.fault(name, f"h2:p{plane}", "down")
                time.sleep(1.0)
                cleared = lab.fault(name, f"h2:p{plane}", "clear")
            found = wire.packets()
            from_h1 = found.where(
                (found.ifindex == wire.ifindex["port1"]) & ~found.outgoing
                & (found.time_ns >= down.began_ns) & (found.time_ns < cleared.began_ns)
            )  # fmt: skip
            data = from_h1.time_ns[from_h1.opcode == capture.DATA]
            last.append((int(data[-1]) - down.began_ns) / MS if len(data) else 0.0)
            tail_s = (cleared.began_ns - down.began_ns) / 1e9
            other.append((len(from_h1.time_ns) - len(data)) / tail_s)
    simultaneous.clear_all(name)
    yield from _quantiles("port", "carrier lost to last data packet", "ms", last, None)
    yield from _quantiles("port", "other packets meanwhile", "/s", other, None)


def main() -> None:
    """Measure, print, and save the requested files."""
    parser = entry.parser(__doc__, name="failover")
    parser.add_argument("--deaths", type=int, default=60, help="deaths of paths; 0 for none")
    parser.add_argument("--ports", type=int, default=20, help="lost carriers; 0 for none")
    parser.add_argument("--mtu", type=int, default=9000, help="MTU of the planes")
    parser.add_argument("--rate", type=int, default=SHAPE.rate_mbps, help="Mb/s of each link")
    parser.add_argument("--events", type=Path, metavar="FILE", help="save path watch's output")
    args = parser.parse_args()
    entry.begin("bench")
    lines: list[Line] = []
    shape = replace(SHAPE, rate_mbps=args.rate)
    with flow.fabric_up(shape.fabric(args.name, args.mtu)):
        print(f"== failover: {shape}, MTU {args.mtu}, {_CONNECTIONS} TCP connections", flush=True)
        if args.deaths:
            lines += deaths(args.name, args.deaths, args.events)
        if args.ports:
            lines += ports(args.name, args.ports)
    print(table(lines))
    entry.save(args.json, entry.plain(lines))


if __name__ == "__main__":
    main()
