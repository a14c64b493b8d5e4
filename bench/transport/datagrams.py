# SPDX-License-Identifier: GPL-2.0-only
"""Count datagrams that a working network carries and mrc0 loses, with faults and without.

python -m bench.transport.datagrams [--rates 200 400] [--flows 1 16] [--control auto off] ...

iperf3 sends UDP of a fixed rate over a lab, and numbers it; a fault begins with the second second.
There is a lab for each kind of congestion control, all up at the same time, and turns are taken in
random order. Nothing may be lost while less is offered than the planes that are left carry.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from bench.instruments import entry, flow, path_states, stream
from bench.instruments.experiment import Figures, Shape
from bench.instruments.flow import FRAMINGS, IPERF3_PORT, BenchFailed
from bench.instruments.processor import Processor
from bench.instruments.result import Line
from cli.lab import lab, processes
from mrcd.linux import netns

FAULTS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "dead": {"p3": "blackhole"},
    "loss": {"p1t0-1": "loss=2.5%"},
    "dead-loss": {"p3": "blackhole", "p1t0-1": "loss=2.5%"},
    "everywhere": {f"p{plane}": "loss=0.4%" for plane in range(4)},
}
"""Elements of a lab of four planes, and what happens to them."""
_COUNTED = ("tx_held", "tx_parked", "drop_backlog", "drop_window", "rtx_timeout", "path_withdrawn")
_FAULT_S = 1.0
_HOST = "h1"


def _send(
    name: str, args: argparse.Namespace, mbps: int, flows: int, fault: str
) -> tuple[int, int]:
    """Send datagrams from h1 to h2. Return how many were sent, and how many were not delivered."""
    route = flow.mrc0_route(name)
    with flow.iperf3_server(name, route):
        client = processes.spawn(
            f"{name}-{_HOST}",
            [
                *("iperf3", "-J", "-u", "-c", route.address, "-p", str(IPERF3_PORT)),
                *("-b", f"{mbps / flows}M", "-l", str(args.size), "-t", str(args.seconds)),
                *("-P", str(flows)),
            ],
            stdout=subprocess.PIPE,
        )
        with client:
            time.sleep(_FAULT_S)
            for element, action in FAULTS[fault].items():
                lab.fault(name, element, action)
            output, _ = client.communicate(timeout=args.seconds + 30)
    for element in FAULTS[fault]:
        lab.fault(name, element, "clear")
    report = json.loads(output)
    if "sum" not in report.get("end", {}):
        raise BenchFailed(f"iperf3 says: {report.get('error', 'nothing')}")
    return int(report["end"]["sum"]["packets"]), int(report["end"]["sum"]["lost_packets"])


def _refused(name: str) -> int:
    """Return how many datagrams have found the receiving sockets of h2 full."""
    with netns.entered(f"{name}-h2"):
        return stream.counter("snmp", "Udp", "RcvbufErrors")


def _turn(
    name: str, args: argparse.Namespace, case: tuple[int, int, str], figures: Figures
) -> None:
    mbps, flows, fault = case
    path_states.wait_restored(name)
    before, refused, processor = path_states.counters(name, _HOST), _refused(name), Processor()
    sent, missing = _send(name, args, mbps, flows, fault)
    after, refused = path_states.counters(name, _HOST), _refused(name) - refused
    figures.note("lost", "", float(max(0, missing - refused)))
    figures.note("refused by the socket of a slow reader", "", float(refused))
    figures.note("sent", "", float(sent))
    figures.note("rate", "Mb/s", sent * args.size * 8 / args.seconds / 1e6)
    figures.note("steal", "%", 100 * processor.stolen())
    for key in _COUNTED:
        figures.note(key, "", float(after.get(key, 0) - before.get(key, 0)))


def measured(args: argparse.Namespace) -> Iterator[Line]:
    """Build the labs, take turns, and return the figures of each case."""
    chance = random.Random(args.seed)
    cases = [
        (mbps, flows, fault) for mbps in args.rates for flows in args.flows for fault in args.faults
    ]
    found: dict[tuple[str, tuple[int, int, str]], Figures] = {}
    with contextlib.ExitStack() as stack:
        for control in args.control:
            name = f"{args.name}{control}"
            settings = flow.framed(args.framing, congestion_control=control)
            fabric = Shape(planes=4, t1=2, rate_mbps=args.rate).fabric(name, args.mtu)
            stack.enter_context(flow.fabric_up(fabric, settings=settings))
            for case in cases:
                mbps, flows, fault = case
                where = f"{control}, {mbps} Mb/s in {flows}, {fault}"
                found[name, case] = Figures("datagrams", where)
        for _ in range(args.rounds):
            for name, case in chance.sample(sorted(found), len(found)):
                _turn(name, args, case, found[name, case])
    for figures in found.values():
        yield from figures.lines()


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = entry.parser(__doc__, name="dg", rounds=3, seconds=6, seed=1)
    parser.add_argument("--rates", nargs="+", type=int, default=[200, 400], help="offered, Mb/s")
    parser.add_argument("--flows", nargs="+", type=int, default=[1])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--control", nargs="+", choices=("auto", "on", "off"), default=["auto"])
    parser.add_argument("--size", type=int, default=1000, help="of a datagram, bytes")
    parser.add_argument("--mtu", type=int, default=1500, help="MTU of the planes")
    parser.add_argument("--rate", type=int, default=250, help="Mb/s of every link")
    parser.add_argument("--framing", choices=FRAMINGS, default="auto", help="framing of data")
    return parser


def main() -> None:
    """Count, print the figures, and save them."""
    args = arguments().parse_args()
    entry.begin("datagrams")
    load = os.getloadavg()[0]
    print(
        f"4 planes of {args.rate} Mb/s, MTU {args.mtu}, framing {args.framing}, datagrams of"
        f" {args.size} bytes, {args.rounds} rounds of {args.seconds:g} s; load before: {load:.1f}",
        flush=True,
    )
    result = entry.take("datagrams", measured(args))
    lines, failed = entry.gather([result], lambda _: None)
    entry.save(args.json, entry.report(lines, load=load))
    sys.exit(failed)


if __name__ == "__main__":
    main()
