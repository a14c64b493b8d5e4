# SPDX-License-Identifier: GPL-2.0-only
"""Offer one host more than its links carry, by UDP or TCP, and see what becomes of it.

python -m bench.overload [--senders 5] [--congestion-control on off] [--trim on off] ...
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench import flow
from bench.flow import BenchFailed
from bench.metrics import spread
from mrcd.fabric import description
from mrcd.lab import lab, processes

_PORT = 5301
_PING_GAP_S = 0.02
_SETTLE_S = 3.0
_RTT = re.compile(rb"time=([0-9.]+) ms")
_MRCCTL = (sys.executable, "-m", "cli")
_NACKS = ("nack_trimmed", "nack_lasthop", "nack_stale")
_COUNTS = ("tx_packets", "rtx_fifo", "rtx_guard", "rtx_timeout", "tx_held", "drop_backlog")
_REPAIRED = ("rtx_fifo", "rtx_guard", "rtx_timeout", "rtx_nack")


@dataclass(frozen=True, slots=True)
class Load:
    """What the senders offer: `mbps` each in datagrams of `size` bytes, or a TCP connection."""

    senders: int
    transport: str
    mbps: float
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave. Rates are in Mb/s of payload, times in ms."""

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

    def figures(self) -> dict[str, float]:
        """Return the figures by their names."""
        mean = sum(self.rates) / len(self.rates)
        pings = sorted(self.pings) or [math.nan]
        return {
            "goodput, Mb/s": sum(self.rates),
            "slowest of a fair share": min(self.rates) / mean,
            "fastest of a fair share": max(self.rates) / mean,
            "sent again, %": 100 * self.repaired / max(1, self.sent),
            "waited for the window, %": 100 * self.held / max(1, self.sent),
            "ping p50, ms": pings[len(pings) // 2],
            "ping p99, ms": pings[int(len(pings) * 0.99)],
            "pings lost": float(self.unanswered),
            "trimmed at switches": float(self.trimmed),
            "dropped by trimming ports": float(self.refused),
            "dropped by their qdiscs": float(self.dropped),
            "NACKs of trimmed packets": float(self.nacks),
        }


def run(name: str, load: Load) -> Outcome:
    """Have hosts 2 and up send to host 1 at the same time, with a ping beside the first of them."""
    route = flow.mrc0_route(name, "h1")
    hosts = [f"h{i + 2}" for i in range(load.senders)]
    before, before_there = _counters(name, hosts), _at_switches(name)
    with _servers(name, route.address, len(hosts)):
        pinging = processes.spawn(
            f"{name}-{hosts[0]}",
            ["ping", "-n", "-i", str(_PING_GAP_S), "-c", str(int(load.seconds / _PING_GAP_S)),
             "-W", "3", route.address],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        clients = [
            processes.spawn(
                f"{name}-{host}", _client(load, route.address, _PORT + i), stdout=subprocess.PIPE
            )
            for i, host in enumerate(hosts)
        ]
        reports = [client.communicate(timeout=load.seconds + 60)[0] for client in clients]
        answers, _ = pinging.communicate(timeout=30)
    after = _counters(name, hosts)
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
    )


@contextlib.contextmanager
def _servers(name: str, address: str, count: int) -> Iterator[None]:
    """Run an iperf3 server for each sender; the block begins when all listen."""
    namespace = f"{name}-h1"
    with contextlib.ExitStack() as running:
        for port in range(_PORT, _PORT + count):
            line = ["iperf3", "-s", "-1", "-B", address, "-p", str(port)]
            server = processes.spawn(namespace, line, stdout=subprocess.DEVNULL)
            running.enter_context(server)
            running.callback(server.kill)
        for port in range(_PORT, _PORT + count):
            flow.wait_listening(namespace, port)
        yield


def _client(load: Load, address: str, port: int) -> Sequence[str]:
    line = ["iperf3", "-J", "-c", address, "-p", str(port), "-t", str(load.seconds)]
    if load.transport == "tcp":
        return [*line, "-C", "cubic"]
    return [*line, "-u", "-b", f"{load.mbps}M", "-l", str(load.size)]


def _rate(report: bytes) -> float:
    parsed = json.loads(report)
    if "error" in parsed:
        raise BenchFailed(f"iperf3: {parsed['error']}")
    end = parsed["end"]
    if "lost_percent" in end.get("sum", {}):  # of datagrams; the rate is the sender's
        total = end["sum"]
        return float(total["bits_per_second"]) / 1e6 * (1 - float(total["lost_percent"]) / 100)
    return float(end["sum_received"]["bits_per_second"]) / 1e6


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
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--senders", type=int, nargs="+", default=[5])
    parser.add_argument("--congestion-control", nargs="+", default=["on", "off"])
    parser.add_argument("--trim", nargs="+", default=["off"], choices=["on", "off"])
    parser.add_argument("--transport", nargs="+", default=["udp"], choices=["udp", "tcp"])
    parser.add_argument("--mtu", type=int, default=4200)
    parser.add_argument("--rate", type=int, default=50, help="Mb/s of every link")
    parser.add_argument("--offer", type=float, default=120, help="Mb/s of each sender")
    parser.add_argument("--size", type=int, default=3000, help="bytes of a datagram")
    parser.add_argument("--hosts-per-t0", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--framing", default=None)
    parser.add_argument("--name", default="overload")
    args = parser.parse_args()
    for control in args.congestion_control:
        for trim in args.trim:
            _measure(args, control, trim)


def _measure(args: argparse.Namespace, control: str, trim: str) -> None:
    fabric = description.generate(
        name=args.name, hosts=max(args.senders) + 1, mtu=args.mtu, rate_mbps=args.rate,
        hosts_per_t0=args.hosts_per_t0, trim=trim == "on",
    )  # fmt: skip
    settings = flow.framed(args.framing, congestion_control=control)
    with flow.fabric_up(fabric, settings=settings):
        for transport in args.transport:
            for senders in args.senders:
                load = Load(senders, transport, args.offer, args.size, args.seconds)
                shown = f"congestion control {control}, trim {trim}"
                print(f"\n== {shown}, {senders} senders, {transport}, MTU {args.mtu}")
                _report([_rested(args.name, load) for _ in range(args.rounds)])
        print("faults:", flow.inside(args.name, "h1", *_MRCCTL, "fault", "list").strip())


def _rested(name: str, load: Load) -> Outcome:
    outcome = run(name, load)
    time.sleep(_SETTLE_S)
    return outcome


def _report(outcomes: Sequence[Outcome]) -> None:
    rows = [outcome.figures() for outcome in outcomes]
    for key in rows[0]:
        values = sorted(row[key] for row in rows)
        found = spread(values)
        print(f"{key:28s} {found.median:10.3f}   {found.low:.3f} .. {found.high:.3f}", flush=True)
    for outcome in outcomes:
        print("  rates:", " ".join(f"{rate:.1f}" for rate in outcome.rates), flush=True)


if __name__ == "__main__":
    main()
