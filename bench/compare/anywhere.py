# SPDX-License-Identifier: GPL-2.0-only
"""Compare mrc0 with plain TCP over one plane, and with MPTCP, on hosts without a fabric.

python -m bench.compare.anywhere [--between router4] [--mtu 1500 9000] [--connections 1 4] ...

For each envelope of data there are two hosts with mrcd, and two more without it for the others, all
up at the same time. Between the hosts of a pair is a bridge or a router. Turns are taken in random
order, and what mrc0 carries is divided by what plain TCP carried in the same round.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.compare import traffic
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow, counted
from bench.instruments import counters, entry, flow, wire
from bench.instruments.experiment import Figures
from bench.instruments.flow import BenchFailed, Route
from bench.instruments.processor import Processor
from bench.instruments.result import Line
from bench.instruments.wire import Wire
from rigs import bare_hosts
from rigs.bare_hosts import HOSTS, INNER, MIDDLE, Bare, address_of, nic

BETWEEN: Mapping[str, Callable[[Bare], None]] = {
    each.__name__: each for each in (bare_hosts.bridge, bare_hosts.router4, bare_hosts.router6)
}
"""What is between the hosts."""
SETTINGS = {
    "udp": '[transport]\ncell_envelope = "udp"\n',
    "ipv6": '[transport]\ncell_envelope = "ipv6"\n',
    "mrc": '[transport]\nframing = "mrc"\n',
}
"""The configuration for each envelope of data."""
WIRES = {"whole": Wire.WHOLE, "cut": Wire.CUT}
PLAIN = "plain TCP"
_SENDER, _RECEIVER = HOSTS
_WARM_S = 1.0
_IDLE_S = 1.0
_REQUEST_BYTES = 64
_RESENT = ("rtx_fifo", "rtx_guard", "rtx_timeout", "rtx_nack")
_COUNTED = ("tx_packets", "tx_cells", *_RESENT)


class Way(Competitor):
    """A way between the two hosts of a pair: one address of each."""

    interface = ""

    def __init__(self, title: str, addresses: Mapping[str, str]) -> None:
        self.key = self.title = self.about = title
        self._addresses = addresses

    def between(self, name: str, source: str, target: str) -> Route:
        """Return the route for a flow."""
        address = self._addresses[target]
        return Route(self.key, address, address, self.mptcp, source, target)


class Multipath(Way):
    """A way of MPTCP, which finds the other planes' addresses by itself."""

    mptcp = True


@dataclass(slots=True)
class Turns:
    """The ways, the hosts that each one has, and the figures by case and way."""

    hosts: dict[str, Bare] = field(default_factory=dict)
    ways: dict[str, Way] = field(default_factory=dict)
    figures: dict[tuple[str, str], Figures] = field(default_factory=dict)

    def note(self, case: str, way: str) -> Figures:
        """Return the figures of a way in a case."""
        return self.figures.setdefault((case, way), Figures("anywhere", f"{case}: {way}"))

    def lines(self) -> Iterator[Line]:
        """Yield all figures."""
        for figures in self.figures.values():
            yield from figures.lines()


def unfit(between: str, envelope: str) -> str | None:
    """Return why an envelope cannot be used there, or None."""
    if (between, envelope) == ("router4", "ipv6"):
        return "cells of IP in IPv6 do not cross an IPv4 router"
    return None


def addressed(bare: Bare) -> None:
    """Give NICs that have only link-local addresses IPv4 ones, for plain TCP and MPTCP."""
    for plane in range(bare.planes):
        for number, host in enumerate(HOSTS, 1):
            if "%" in address_of(bare, host, plane):
                bare.ip(host, f"address add 192.168.{plane}.{number}/24 dev {nic(plane)}")


def announce(bare: Bare) -> None:
    """Configure MPTCP for best results: the receiver announces the addresses of all its planes."""
    for host in HOSTS:
        for setting in ("enabled=1", "blackhole_timeout=0"):
            bare.run(host, "sysctl", "-qw", f"net.mptcp.{setting}")
        bare.ip(host, "mptcp limits set subflow 8 add_addr_accepted 8")
    for plane in range(1, bare.planes):
        address = address_of(bare, _RECEIVER, plane)
        bare.ip(_RECEIVER, f"mptcp endpoint add {address} dev {nic(plane)} signal")


def lay(bare: Bare, each: Wire) -> None:
    """Choose what crosses the cables of the hosts and of what is between them."""
    for host in HOSTS:
        wire.lay_in(bare.namespace(host), ("eth",), each, host=True)
    ports = tuple(f"{host}{plane}" for host in HOSTS for plane in range(bare.planes))
    wire.lay_in(bare.namespace(MIDDLE), ports, each, host=False)


@contextlib.contextmanager
def built(name: str, between: str, mtu: int, planes: int) -> Iterator[Bare]:
    """Build two hosts and what is between them; remove all at the end."""
    bare = Bare(name, planes, mtu)
    try:
        for host in HOSTS:
            bare.add(host)
        BETWEEN[between](bare)
        yield bare
    finally:
        bare.close()


def start(bare: Bare, settings: str) -> None:
    """Start mrcd on both hosts, and wait until they reach each other over all planes."""
    bare.write_secret()
    planes = range(bare.planes)
    addresses = {host: [address_of(bare, host, plane) for plane in planes] for host in HOSTS}
    bare.configure(_SENDER, addresses[_RECEIVER], settings)
    bare.configure(_RECEIVER, addresses[_SENDER], settings)
    try:
        bare.begin()
    except AssertionError as late:
        raise BenchFailed(str(late)) from late


def turns(stack: contextlib.ExitStack, args: argparse.Namespace, between: str, mtu: int) -> Turns:
    """Build the hosts of every way."""
    found = Turns()
    plain = stack.enter_context(built(f"{args.name}0", between, mtu, args.planes))
    addressed(plain)
    addresses = {host: address_of(plain, host, 0) for host in HOSTS}
    found.hosts[PLAIN], found.ways[PLAIN] = plain, Way(PLAIN, addresses)
    if flow.has_mptcp():
        announce(plain)
        found.hosts["MPTCP"], found.ways["MPTCP"] = plain, Multipath("MPTCP", addresses)
    for number, envelope in enumerate(args.envelopes, 1):
        if why := unfit(between, envelope):
            print(f"{between}: {why}", flush=True)
            continue
        bare = stack.enter_context(built(f"{args.name}{number}", between, mtu, args.planes))
        start(bare, SETTINGS[envelope])
        title = f"mrc0, {envelope}"
        found.hosts[title], found.ways[title] = bare, Way(title, INNER)
    return found


@dataclass(frozen=True, slots=True)
class Counts:
    """What a pair of hosts has counted: mrcd at the sender, and skbs at mrc0 of both."""

    mrcd: Mapping[str, int]
    sent: int
    received: int


def counts(bare: Bare) -> Counts:
    """Return what a pair of hosts has counted so far."""
    (sent,) = counters.sent_packets(bare.namespace(_SENDER), ("mrc0",))
    (received,) = counters.received_packets(bare.namespace(_RECEIVER), ("mrc0",))
    return Counts(bare.counters(_SENDER), sent, received)


def note_counts(figures: Figures, before: Counts, after: Counts) -> None:
    """Note how large cells were, how they arrived, and what mrcd sent again."""
    added = {key: after.mrcd.get(key, 0) - before.mrcd.get(key, 0) for key in _COUNTED}
    packets, cells = added["tx_packets"], added["tx_cells"]
    figures.note("packets a cell", "", packets / cells if cells else None)
    sent, received = after.sent - before.sent, after.received - before.received
    figures.note("skbs received for one sent", "", received / sent if sent else None)
    again = sum(added[key] for key in _RESENT)
    figures.note("sent again, of a million packets", "", 1e6 * again / packets if packets else None)


def goodput(here: Turns, title: str, figures: Figures, connections: int, seconds: float) -> float:
    """Send over a way; note what became of it, and return the goodput in bits per second."""
    bare = here.hosts[title]
    mrcd = bool(bare.processes)
    before, processor = counts(bare) if mrcd else None, Processor()
    flows = [Flow(_SENDER, _RECEIVER, connections)]
    seen = traffic.run(bare.prefix, here.ways[title], flows, _WARM_S + seconds)
    stolen = processor.stolen()
    if seen.broken:
        raise BenchFailed(f"{title}: {seen.broken} connections broke")
    rate = seen.after(_WARM_S)
    figures.note("goodput", "Gb/s", rate / 1e9)
    figures.note("steal", "%", 100 * stolen)
    figures.note("TCP retransmissions", "", float(seen.retransmits[-1][1]))
    if before is not None:
        note_counts(figures, before, counts(bare))
    return rate


def round_trip(here: Turns, title: str, figures: Figures) -> float:
    """Note the idle round trip of a way; return its median in ns."""
    bare, processor = here.hosts[title], Processor()
    took = traffic.requests(
        bare.prefix, here.ways[title], _SENDER, _RECEIVER, _IDLE_S, _REQUEST_BYTES
    )
    if not len(took):
        raise BenchFailed(f"{title}: no request was answered")
    for which in (50, 99):
        figures.note(f"p{which}", "us", float(np.percentile(took, which)) / 1e3)
    figures.note("steal", "%", 100 * processor.stolen())
    return float(np.median(took))


def in_turns(
    here: Turns, case: str, chance: random.Random, measure: Callable[[str, Figures], float]
) -> None:
    """Give each way a turn, in random order; note what each found, in parts of plain TCP's."""
    found = {}
    for title in chance.sample(sorted(here.ways), len(here.ways)):
        found[title] = measure(title, here.note(case, title))
    note_ratios(here, case, found)


def note_ratios(here: Turns, case: str, found: Mapping[str, float]) -> None:
    """Note what each way found in parts of what plain TCP did."""
    for title, value in found.items():
        if title != PLAIN:
            here.note(case, title).note(f"of {PLAIN}", "", value / found[PLAIN])


def measured(args: argparse.Namespace, between: str, mtu: int) -> Iterator[Line]:
    """Build all hosts, take turns, and return the figures of each case and way."""
    chance = random.Random(args.seed)
    with contextlib.ExitStack() as stack:
        here = turns(stack, args, between, mtu)
        cases = list(itertools.product(args.wire, args.connections))
        idle = f"{between}, MTU {mtu}, idle round trip"
        names = [*(_case(between, mtu, *each) for each in cases), idle]
        for case, title in itertools.product(names, here.ways):  # in the order they are shown
            here.note(case, title)
        for _ in range(args.rounds):
            for which, connections in cases:
                for bare in here.hosts.values():
                    lay(bare, WIRES[which])

                def send(title: str, figures: Figures, count: int = connections) -> float:
                    return goodput(here, title, figures, count, args.seconds)

                in_turns(here, _case(between, mtu, which, connections), chance, send)
            for bare in here.hosts.values():
                lay(bare, Wire.WHOLE)

            def ask(title: str, figures: Figures) -> float:
                return round_trip(here, title, figures)

            in_turns(here, idle, chance, ask)
    yield from here.lines()


def _case(between: str, mtu: int, which: str, connections: int) -> str:
    return f"{between}, MTU {mtu}, {which}, {counted(connections)}"


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = entry.parser(__doc__, name="anywhere", rounds=5, seconds=3, seed=1)
    parser.add_argument(
        "--between", nargs="+", choices=BETWEEN, default=["router4"], help="what is between hosts"
    )
    parser.add_argument("--mtu", nargs="+", type=int, default=[1500, 9000], help="of the planes")
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 4])
    parser.add_argument(
        "--envelopes", nargs="+", choices=SETTINGS, default=["udp"],
        help="cells in UDP, cells of IP in IPv6, MRC's framing",
    )  # fmt: skip
    parser.add_argument(
        "--wire", nargs="+", choices=WIRES, default=list(WIRES),
        help="whether segments cross the cables whole, or are cut, and merged by the receiver",
    )  # fmt: skip
    parser.add_argument("--planes", type=int, default=4)
    return parser


def results(args: argparse.Namespace) -> Iterator[list[Line] | str]:
    """Yield the figures of each network and MTU, or why there are none."""
    for between, mtu in itertools.product(args.between, args.mtu):
        yield entry.take(f"{between}, MTU {mtu}", measured(args, between, mtu))


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print the figures, and save them."""
    args = arguments().parse_args(words)
    entry.begin("anywhere")
    load = os.getloadavg()[0]
    print(
        f"{args.planes} planes, no rate limit, {args.rounds} rounds of {args.seconds:g} s after"
        f" {_WARM_S:g} s; load before: {load:.1f}",
        flush=True,
    )
    lines, failed = entry.gather(results(args), lambda _: None)
    entry.save(args.json, entry.report(lines, load=load))
    sys.exit(failed)


if __name__ == "__main__":
    main()
