# SPDX-License-Identifier: GPL-2.0-only
"""Measure what several queues of the hosts' NICs do to the order of packets over mrc0.

python -m bench.transport.queues [--queues 1 4] [--connections 1 4] [--rounds 5] ...

There is a lab for each number of queues, all up at the same time, and turns are taken in random
order. Nothing is lost in them, so each packet that is sent again is sent for nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
from collections.abc import Iterator

from bench.instruments import entry, flow, path_states, stream
from bench.instruments.experiment import Figures, Shape
from bench.instruments.flow import FRAMINGS
from bench.instruments.processor import Processor
from bench.instruments.result import Line
from cli.lab.multiqueue import QDISCS, HostNics
from mrcd.linux import netns
from rigs.running_lab import deep_backlog

_SENDER, _RECEIVER = "h1", "h2"
_RESENT = ("rtx_fifo", "rtx_guard", "rtx_timeout", "rtx_nack")
_BY_SENDER = ("tx_packets", *_RESENT, "rtx_needless", "path_withdrawn")
_BY_RECEIVER = ("rx_overlap", *_RESENT, "path_withdrawn")  # what it sends again acknowledges
_SKIP_S = 1.0  # of a turn, in which TCP finds its rate; its packets are counted


def _counts(name: str) -> dict[str, int]:
    """Return counters of mrcd and of TCP on both hosts, by host and name."""
    found: dict[str, int] = {}
    for host, wanted in ((_SENDER, _BY_SENDER), (_RECEIVER, _BY_RECEIVER)):
        there = path_states.counters(name, host)
        found |= {f"{host} {key}": there.get(key, 0) for key in wanted}
    with netns.entered(f"{name}-{_RECEIVER}"):
        found[f"{_RECEIVER} TCPOFOQueue"] = stream.counter("netstat", "TcpExt", "TCPOFOQueue")
    with netns.entered(f"{name}-{_SENDER}"):
        found[f"{_SENDER} RetransSegs"] = stream.counter("snmp", "Tcp", "RetransSegs")
    return found


def _turn(name: str, connections: int, seconds: float, figures: Figures) -> None:
    """Send by iperf3 from one host to the other, and note what became of it."""
    path_states.wait_restored(name)
    before, processor = _counts(name), Processor()
    rate = flow.iperf3(
        name, flow.mrc0_route(name), seconds, connections=connections, skip_s=_SKIP_S
    )
    figures.note("goodput", "Gb/s", rate / 1e9)
    figures.note("steal", "%", 100 * processor.stolen())
    added = {key: value - before[key] for key, value in _counts(name).items()}
    resent = sum(added[f"{_SENDER} {key}"] for key in _RESENT)
    sent = added[f"{_SENDER} tx_packets"]
    figures.note("sent again, of a million packets", "", 1e6 * resent / sent if sent else None)
    for key, value in added.items():
        figures.note(key, "", float(value))


def measured(args: argparse.Namespace) -> Iterator[Line]:
    """Build the labs, take turns, and return the figures of each lab and number of connections."""
    shape = Shape(planes=args.planes, t1=2, rate_mbps=args.rate)
    chance = random.Random(args.seed)
    cases: dict[tuple[str, int], Figures] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(deep_backlog())
        for queues in args.queues:
            nics = HostNics(queues, args.qdisc)
            name = f"{args.name}{queues}"
            settings = flow.framed(args.framing)
            fabric = shape.fabric(name, args.mtu)
            stack.enter_context(flow.fabric_up(fabric, settings=settings, host_nics=nics))
            for connections in args.connections:
                where = f"{nics}, {connections} connection{'s' if connections > 1 else ''}"
                cases[name, connections] = Figures("queues", where)
        for _ in range(args.rounds):
            for name, connections in chance.sample(sorted(cases), len(cases)):
                _turn(name, connections, args.seconds, cases[name, connections])
    for figures in cases.values():
        yield from figures.lines()


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = entry.parser(__doc__, name="queues", rounds=5, seconds=6, seed=1)
    parser.add_argument("--queues", nargs="+", type=int, default=[1, 4], help="of hosts' NICs")
    parser.add_argument("--qdisc", choices=QDISCS, default="", help="their queueing discipline")
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--planes", type=int, default=4)
    parser.add_argument("--mtu", type=int, default=1500, help="MTU of the planes")
    parser.add_argument("--rate", type=int, default=0, help="Mb/s of every link; 0 is unlimited")
    parser.add_argument("--framing", choices=FRAMINGS, default="auto", help="framing of data")
    return parser


def main() -> None:
    """Measure, print the figures, and save them."""
    args = arguments().parse_args()
    entry.begin("queues")
    load = os.getloadavg()[0]
    print(
        f"{args.planes} planes, MTU {args.mtu}, framing {args.framing},"
        f" {f'{args.rate} Mb/s' if args.rate else 'no rate limit'}, {args.rounds} rounds of"
        f" {args.seconds:g} s; load before: {load:.1f}",
        flush=True,
    )
    result = entry.take("queues", measured(args))
    lines, failed = entry.gather([result], lambda _: None)
    entry.save(args.json, entry.report(lines, load=load))
    sys.exit(failed)


if __name__ == "__main__":
    main()
