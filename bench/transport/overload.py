# SPDX-License-Identifier: GPL-2.0-only
"""Offer one host more than its links carry, by UDP or TCP, and see what becomes of it.

python -m bench.transport.overload [--senders 5] [--congestion-control on off] [--trim on off] ...

An incast of seven, by UDP and TCP, in all four kinds of lab, with a victim beside it:

python -m bench.transport.overload --senders 7 --transport udp tcp --trim off on --victim 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from bench.instruments import backlog, entry, flow
from bench.instruments.backlog import Backlogs
from bench.instruments.counters import Watch
from bench.instruments.experiment import Figures
from bench.instruments.flow import BenchFailed, Recording
from bench.instruments.metrics import Floats, S
from bench.instruments.processor import Processor
from bench.instruments.result import Line
from cli.lab import lab, processes, state, topology
from cli.lab.state import LabFailed
from mrcd.fabric import description

_PORT = 5301
_PING_GAP_S = 0.02
_SETTLE_S = 3.0
_WITHIN_S = 60.0
_SAMPLE_S = 0.005
_EDGE_S = 1.0  # of the load that is left out at its beginning and at its end
_ALONE_S = 3.0
_RTT = re.compile(rb"time=([0-9.]+) ms")
_MRCCTL = (sys.executable, "-m", "cli")
_NACKS = ("nack_trimmed", "nack_lasthop", "nack_stale")
_COUNTS = ("tx_packets", "rtx_fifo", "rtx_guard", "rtx_timeout", "tx_held", "drop_backlog")
_REPAIRED = ("rtx_fifo", "rtx_guard", "rtx_timeout", "rtx_nack")


@dataclass(frozen=True, slots=True)
class Roles:
    """The hosts of a run: all senders send to `target`. `victim` sends to `spared`, if any."""

    senders: tuple[str, ...]
    target: str = "h1"
    victim: str = ""
    spared: str = ""


def roles(senders: int, hosts_per_t0: int, victim: bool) -> Roles:
    """Return who does what.

    The victim's flow begins beside senders and ends beside the target, if T0s have several hosts.
    It shares T0s, T1s and the links between them with the overload, but no host's link.
    """
    if not victim:
        return Roles(tuple(f"h{i + 2}" for i in range(senders)))
    source = min(max(hosts_per_t0, 2) + 1, senders + 3)
    others = [number for number in range(3, senders + 4) if number != source]
    return Roles(tuple(f"h{number}" for number in others), victim=f"h{source}", spared="h2")


@dataclass(frozen=True, slots=True)
class Load:
    """What the senders offer: `mbps` each in datagrams of `size` bytes, or a TCP connection.

    `victim_mbps` is the pace of one TCP connection beside them, 0 if there is none.
    """

    senders: int
    transport: str
    mbps: float
    size: int
    seconds: float
    victim_mbps: float = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave. Rates are in Mb/s of payload, times in ms.

    `queue` are samples of each of the target's last hops, None where links have no rate.
    """

    rates: tuple[float, ...]
    pings: tuple[float, ...]
    unanswered: int
    sent: int
    repaired: int
    held: int
    nacks: int  # of trimmed packets
    trimmed: int  # by the programs at switch ports
    refused: int  # dropped by these
    dropped: int  # by the qdiscs of switch ports
    queue: Floats | None
    victim: tuple[float, float] | None  # alone, and beside the load
    stolen: float  # part of the CPUs' time that the hypervisor took

    def note(self, figures: Figures) -> None:
        """Note the figures."""
        mean = sum(self.rates) / len(self.rates)
        note = figures.note
        note("goodput", "Mb/s", sum(self.rates))
        note("slowest of a fair share", "", min(self.rates) / mean if mean else None)
        note("fastest of a fair share", "", max(self.rates) / mean if mean else None)
        note("sent again", "%", 100 * self.repaired / max(1, self.sent))
        note("waited for the window", "%", 100 * self.held / max(1, self.sent))
        note("ping p50", "ms", percentile(self.pings, 50))
        note("ping p99", "ms", percentile(self.pings, 99))
        note("pings lost", "", float(self.unanswered))
        if self.queue is not None:
            note("queue at the last hop, p50", "ms", percentile(self.queue, 50))
            note("queue at the last hop, p99", "ms", percentile(self.queue, 99))
            note("samples of it", "", float(len(self.queue)))
        if self.victim is not None:
            alone, beside = self.victim
            note("victim alone", "Mb/s", alone)
            note("victim beside the load, of alone", "%", 100 * beside / alone if alone else None)
        note("trimmed at switches", "", float(self.trimmed))
        note("dropped by trimming ports", "", float(self.refused))
        note("dropped by their qdiscs", "", float(self.dropped))
        note("NACKs of trimmed packets", "", float(self.nacks))
        note("steal", "%", 100 * self.stolen)


def percentile(samples: Sequence[float] | Floats, which: float) -> float | None:
    """Return a percentile; None without samples."""
    return float(np.percentile(np.asarray(samples), which)) if len(samples) else None


def run(name: str, load: Load, who: Roles) -> Outcome:
    """Have all senders send at the same time, with a ping beside the first of them."""
    address = flow.mrc0_route(name, who.target).address
    before, before_there = _counters(name, who.senders), _at_switches(name)
    processor = Processor()
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(_victim(name, load, who)) if load.victim_mbps else None
        stack.enter_context(_servers(name, who.target, address, len(who.senders)))
        began_ns = time.monotonic_ns()
        pinging = _started(stack, name, who.senders[0], _ping(load.seconds, address))
        clients = [
            _started(stack, name, host, _client(load, address, _PORT + i))
            for i, host in enumerate(who.senders)
        ]
        queue = _queue(name, who.target, began_ns, load.seconds)
        reports = [_output(client, load.seconds + _WITHIN_S) for client in clients]
        answers = _output(pinging, _WITHIN_S)
        beside = victim.result() if victim is not None else None
    after = _counters(name, who.senders)
    moved = {key: after[key] - before[key] for key in after}
    trimmed, refused, dropped = (
        now - then for now, then in zip(_at_switches(name), before_there, strict=True)
    )
    rtts = tuple(float(found) for found in _RTT.findall(answers))
    return Outcome(
        tuple(_rate(report) for report in reports),
        rtts,
        int(load.seconds / _PING_GAP_S) - len(rtts),
        moved["tx_packets"],
        sum(moved[key] for key in _REPAIRED),
        moved["tx_held"],
        moved["nack_trimmed"] + moved["nack_lasthop"],
        trimmed,
        refused,
        dropped,
        queue,
        _shares(beside, began_ns, load.seconds) if beside is not None else None,
        processor.stolen(),
    )


def _edge_ns(seconds: float) -> int:
    return int(min(_EDGE_S, seconds / 4) * S)


def _queue(name: str, host: str, began_ns: int, seconds: float) -> Floats | None:
    """Sample the host's last hops until the load ends; return the queues in ms."""
    fabric = state.read_fabric(name)
    end_ns = began_ns + int(seconds * S)
    if not fabric.rate_mbps:
        flow.wait_until(end_ns)
        return None
    with Watch(Backlogs(backlog.last_hops(topology.plan(fabric), host)), _SAMPLE_S) as watch:
        flow.wait_until(end_ns)
    edge_ns = _edge_ns(seconds)
    return backlog.in_ms(watch.table(), fabric.rate_mbps, began_ns + edge_ns, end_ns - edge_ns)


@contextlib.contextmanager
def _victim(name: str, load: Load, who: Roles) -> Iterator[Future[Recording]]:
    """Run the victim's flow, alone at first; the block is to begin with the load."""
    route = replace(flow.mrc0_route(name, who.spared), source=who.victim)
    seconds = _ALONE_S + load.seconds + 2 * _EDGE_S
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(flow.run, name, route, seconds, (), load.victim_mbps)
        time.sleep(_ALONE_S)
        yield running


def _shares(victim: Recording, began_ns: int, seconds: float) -> tuple[float, float]:
    """Return the victim's Mb/s before the load and while it lasts."""
    edge_ns, arrivals = _edge_ns(seconds), victim.arrivals
    end_ns = began_ns + int(seconds * S)
    alone = arrivals.bps(victim.began_ns + S // 2, began_ns)
    return alone / 1e6, arrivals.bps(began_ns + edge_ns, end_ns - edge_ns) / 1e6


@contextlib.contextmanager
def _servers(name: str, host: str, address: str, count: int) -> Iterator[None]:
    """Run an iperf3 server for each sender; the block begins when all listen."""
    ports = range(_PORT, _PORT + count)
    with contextlib.ExitStack() as stack:
        for port in ports:
            line = ["iperf3", "-s", "-1", "-B", address, "-p", str(port)]
            _started(stack, name, host, line, subprocess.DEVNULL)
        for port in ports:
            flow.wait_listening(f"{name}-{host}", port)
        yield


def _started(
    stack: contextlib.ExitStack,
    name: str,
    host: str,
    line: Sequence[str],
    stdout: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a command in a host; it ends with the stack."""
    process = processes.spawn(f"{name}-{host}", line, stdout=stdout)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _output(process: subprocess.Popen[bytes], within_s: float) -> bytes:
    try:
        return process.communicate(timeout=within_s)[0]
    except subprocess.TimeoutExpired as problem:
        raise BenchFailed(f"iperf3 or ping did not end within {within_s:.0f} s") from problem


def _ping(seconds: float, address: str) -> Sequence[str]:
    count = str(int(seconds / _PING_GAP_S))
    return ["ping", "-n", "-i", str(_PING_GAP_S), "-c", count, "-W", "3", address]


def _client(load: Load, address: str, port: int) -> Sequence[str]:
    line = ["iperf3", "-J", "-c", address, "-p", str(port), "-t", str(load.seconds)]
    if load.transport == "tcp":
        return [*line, "-C", "cubic"]
    return [*line, "-u", "-b", f"{load.mbps}M", "-l", str(load.size)]


def _rate(report: bytes) -> float:
    """Return the Mb/s that have arrived."""
    parsed = json.loads(report)
    if "error" in parsed:
        raise BenchFailed(f"iperf3: {parsed['error']}")
    # What iperf3 calls lost are gaps: datagrams behind the last that arrived are not among them.
    return float(parsed["end"]["sum_received"]["bits_per_second"]) / 1e6


def _counters(name: str, hosts: Sequence[str]) -> dict[str, int]:
    total: dict[str, int] = dict.fromkeys((*_COUNTS, *_REPAIRED, *_NACKS), 0)
    for host in hosts:
        found = json.loads(flow.inside(name, host, *_MRCCTL, "stats", "--json"))["counters"]
        for counter in found:
            if counter["name"] in total:
                total[counter["name"]] += int(counter["value"])
    return total


def _at_switches(name: str) -> tuple[int, int, int]:
    """Return what all switch ports have trimmed and dropped, and what their qdiscs have dropped."""
    ports = lab.ports(name)
    dropped = 0
    for namespace in {switch.namespace for switch in lab.status(name).switches}:
        line = ["tc", "-n", namespace, "-s", "-j", "qdisc", "show"]
        for qdisc in json.loads(subprocess.check_output(line)):
            dropped += qdisc["drops"] if qdisc.get("root") else 0
    return sum(port.trimmed for port in ports), sum(port.dropped for port in ports), dropped


def main() -> None:
    """Measure what the arguments ask for, and print medians and ranges."""
    args = arguments().parse_args()
    entry.begin("overload")
    _, failed = entry.gather(
        _measured(args), lambda lines: entry.save(args.json, entry.report(lines))
    )
    sys.exit(failed)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = entry.parser(__doc__, name="overload", rounds=3, seconds=8)
    parser.add_argument("--senders", type=int, nargs="+", default=[5])
    parser.add_argument(
        "--congestion-control", nargs="+", default=["on", "off"], choices=["on", "off"]
    )
    parser.add_argument("--trim", nargs="+", default=["off"], choices=["on", "off"])
    parser.add_argument("--transport", nargs="+", default=["udp"], choices=["udp", "tcp"])
    parser.add_argument("--mtu", type=int, default=4200)
    parser.add_argument("--rate", type=int, default=50, help="Mb/s of every link")
    parser.add_argument("--offer", type=float, default=120, help="Mb/s of each sender of datagrams")
    parser.add_argument("--size", type=int, default=3000, help="bytes of a datagram")
    parser.add_argument(
        "--victim", type=float, default=0, metavar="MBPS",
        help="pace of a TCP connection beside the load, to a host that is not overloaded",
    )  # fmt: skip
    parser.add_argument("--hosts-per-t0", type=int, default=3)
    flow.framing_option(parser)
    return parser


def _measured(args: argparse.Namespace) -> Iterator[list[Line] | str]:
    """Yield the lines of each case, or why there are none."""
    for control in args.congestion_control:
        for trim in args.trim:
            shown = f"congestion control {control}, trim {trim}, MTU {args.mtu}"
            try:
                yield from _in_one_lab(args, control, trim, shown)
            except LabFailed as problem:
                yield f"{shown}: {problem}"


def _in_one_lab(
    args: argparse.Namespace, control: str, trim: str, shown: str
) -> Iterator[list[Line] | str]:
    fabric = description.generate(
        name=args.name, hosts=max(args.senders) + (3 if args.victim else 1), mtu=args.mtu,
        rate_mbps=args.rate, hosts_per_t0=args.hosts_per_t0, trim=trim == "on",
    )  # fmt: skip
    settings = flow.framed(args.framing, congestion_control=control)
    with flow.fabric_up(fabric, settings=settings):
        for transport in args.transport:
            for senders in args.senders:
                load = Load(senders, transport, args.offer, args.size, args.seconds, args.victim)
                figures = Figures(f"overload, {shown}", f"{senders} senders, {transport}")
                print(f"\n== {figures.item}: {figures.where}", flush=True)
                who = roles(senders, args.hosts_per_t0, bool(args.victim))
                lines = _rounds(args.name, load, who, figures, args.rounds)
                yield entry.take(f"{figures.item}, {figures.where}", lines)
        print("faults:", flow.inside(args.name, "h1", *_MRCCTL, "fault", "list").strip())


def _rounds(name: str, load: Load, who: Roles, figures: Figures, rounds: int) -> Iterator[Line]:
    """Yield the figures of all rounds; one that fails is named and has none."""
    problems: list[BenchFailed] = []
    for number in range(1, rounds + 1):
        try:
            outcome = run(name, load, who)
        except BenchFailed as problem:
            print(f"  round {number} failed: {problem}", flush=True)
            problems.append(problem)
        else:
            outcome.note(figures)
            print("  rates:", " ".join(f"{rate:.1f}" for rate in outcome.rates), flush=True)
        time.sleep(_SETTLE_S)
    if len(problems) == rounds:
        raise problems[-1]
    if problems:
        figures.note("rounds that failed", "", float(len(problems)))
    yield from figures.lines()


if __name__ == "__main__":
    main()
