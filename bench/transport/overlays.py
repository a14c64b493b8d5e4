# SPDX-License-Identifier: GPL-2.0-only
"""Measure TCP in VXLAN over mrc0, with its checksums left to a NIC and computed by the tunnel.

python -m bench.transport.overlays [--connections 1 4] [--losses 0 1] [--rounds 4] [--seconds 4] ...

Packets within packets have two checksums, of which copies need both: what is sent again, and what
waits for the window, is a copy. With transmit checksums off there is none left to complete, so
that is what the other is compared with, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator

from bench.instruments import entry, flow, path_states, simultaneous
from bench.instruments.experiment import Figures, Shape
from bench.instruments.flow import Route
from bench.instruments.processor import Processor
from bench.instruments.result import Line, at_least, at_most
from rigs.running_lab import deep_backlog

_HOSTS = ("h1", "h2")
_DEVICE, _INNER = "over", "10.88.0"
_MODES = ("on", "off")
_ROUTE = Route("VXLAN", f"{_INNER}.2", f"{_INNER}.2")


def _join(name: str) -> None:
    """Join both hosts by VXLAN between their addresses of mrc0."""
    for own, other in (_HOSTS, _HOSTS[::-1]):
        here, there = (flow.mrc0_route(name, host).address for host in (own, other))
        ends = f"local {here} remote {there} udpcsum"
        kind = f"type vxlan id 7 dstport 4789 {ends}"
        flow.shell(name, own, f"ip link add {_DEVICE} mtu 1300 {kind}")
        flow.shell(name, own, f"ip address add {_INNER}.{own[1:]}/24 dev {_DEVICE}")
        flow.shell(name, own, f"ip link set {_DEVICE} up")


def _wrong_sums(name: str) -> int:
    """Return how many packets both hosts' stacks have found damaged."""
    counts = ("UdpInCsumErrors", "TcpInCsumErrors")
    found = [json.loads(flow.inside(name, host, "nstat", "-asz", "--json", *counts))["kernel"]
             for host in _HOSTS]  # fmt: skip
    return sum(each[count] for each in found for count in counts)


def _turn(name: str, mode: str, connections: int, seconds: float, figures: Figures) -> float:
    """Send by iperf3 through the tunnel; return the goodput, in bits per second."""
    for host in _HOSTS:
        flow.shell(name, host, f"ethtool -K {_DEVICE} tx {mode}")
    before, processor = path_states.counters(name, _HOSTS[0]), Processor()
    rate = flow.iperf3(name, _ROUTE, seconds, connections=connections)
    after = path_states.counters(name, _HOSTS[0])
    figures.note(f"tx {mode}: goodput", "Mb/s", rate / 1e6)
    figures.note(f"tx {mode}: refused at mrc0", "", after["drop_backlog"] - before["drop_backlog"])
    figures.note("steal", "%", 100 * processor.stolen())
    return rate


def measured(args: argparse.Namespace) -> Iterator[Line]:
    """Take turns with checksums on and off, without and with loss on one plane."""
    shape = Shape(planes=4, t1=2, rate_mbps=args.rate)
    with deep_backlog(), flow.fabric_up(shape.fabric(args.name, args.mtu)):
        _join(args.name)
        damaged = _wrong_sums(args.name)
        for loss, connections in itertools.product(args.losses, args.connections):
            action = f"loss={loss:g}%" if loss else "clear"
            simultaneous.faults(args.name, {"p1": action})
            many = "s" * (connections > 1)
            figures = Figures("VXLAN", f"{loss:g} % loss, {connections} connection{many}")
            for number in range(args.rounds):
                rates = {
                    mode: _turn(args.name, mode, connections, args.seconds, figures)
                    for mode in _MODES[:: 1 if number % 2 else -1]
                }
                figures.note("on to off", "", rates["on"] / rates["off"], at_least(0.8))
            sums = _wrong_sums(args.name)
            figures.note("wrong checksums", "", sums - damaged, at_most(0))
            damaged = sums
            yield from figures.lines()


def main() -> None:
    """Measure, print the figures, and save them."""
    parser = entry.parser(__doc__, name="overlays", rounds=4, seconds=4)
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--losses", nargs="+", type=float, default=[0, 1], help="%% on plane 1")
    parser.add_argument("--mtu", type=int, default=1500, help="MTU of the planes")
    parser.add_argument("--rate", type=int, default=250, help="Mb/s of every link")
    args = parser.parse_args()
    entry.begin("overlays")
    load = os.getloadavg()[0]
    result = entry.take("overlays", measured(args))
    lines, failed = entry.gather([result], lambda _: None)
    entry.save(args.json, entry.report(lines, load=load))
    sys.exit(failed)


if __name__ == "__main__":
    main()
