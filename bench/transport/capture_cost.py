# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of `mrcctl capture`: ``python -m bench.transport.capture_cost``.

The figures are: the instructions of each program with and without capture; the time to switch it
on, for the first time and later; the datagrams lost in many switchings under UDP; and the goodput
of TCP with capture on and off in turn, limited by the links and limited only by the processor.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

from bench.instruments import entry, flow
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import order_of
from bench.instruments.result import Line, at_most
from bench.transport.steady import PLANES, RATE_MBPS
from cli.console.client import Client
from cli.lab import lab
from mrcd.datapath import loader
from mrcd.datapath.sizes import Sizes
from rigs.lab_hosts import ROOT, socket_of

_SIZES = Sizes(mtu=8872, window=4096, ring_slots=64, peers=4, qps=16, evs=64, prefixes=16, loops=64)
_UDP_MBPS = 200.0
_UDP_SIZE = 1400


def programs() -> Iterator[Line]:
    """Measure the programs' lengths, and the instructions that the verifier processes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        maps, _programs, ordinary = loader.load(_SIZES)
        _own, _programs, recording = loader.load_over(maps, replace(_SIZES, capture=True))
    for without, with_it in zip(ordinary, recording, strict=True):
        if (without.instructions, without.verifier) == (with_it.instructions, with_it.verifier):
            continue
        for words, report in (("ordinary", without), ("capture", with_it)):
            walked = re.search(r"processed (\d+) insns", report.verifier)
            if walked is None:
                raise BenchFailed(f"no instruction count in the verifier's log of {report.name}")
            yield Line("instructions", report.name, words, "", (float(report.instructions),))
            yield Line("instructions", report.name, f"{words}, walked", "", (float(walked[1]),))


def switchings(name: str, count: int) -> Iterator[Line]:
    """Switch capture on and off under a UDP flow."""
    before = _qpns(name)
    on_ms: list[float] = []
    first = _switch(name, on_ms)
    stop = threading.Event()

    def switch() -> None:
        while len(on_ms) < count + 1 and not stop.is_set():
            _switch(name, on_ms)

    lost = Lost()
    thread = threading.Thread(target=switch)
    thread.start()
    try:
        while thread.is_alive():
            lost.add(flow.run_udp(name, flow.mrc0_route(name), 10, _UDP_MBPS, _UDP_SIZE))
    finally:
        stop.set()
        thread.join()
    if _qpns(name) != before:
        raise BenchFailed("QPs were recreated")
    yield Line("switching", "", "on, the first time: compiled", "ms", (first,))
    yield Line("switching", "", "off and on again", "ms", tuple(on_ms[1:]))
    yield Line("switching", "", "times, on and off", "", (float(len(on_ms) - 1),))
    yield from lost.lines()


class Lost:
    """Counts of numbered datagrams by their fate."""

    def __init__(self) -> None:
        self._counts = {"sent": 0, "missing": 0, "full socket buffer": 0, "out of order": 0,
                        "duplicates": 0}  # fmt: skip

    def add(self, recording: flow.UdpRecording) -> None:
        """Add the counts of a flow."""
        seen = order_of(recording.sent, recording.numbers)
        found = (recording.sent, seen.missing, recording.overrun, seen.reordered, seen.duplicated)
        for what, value in zip(self._counts, found, strict=True):
            self._counts[what] += int(value)

    def lines(self) -> Iterator[Line]:
        """Yield a line for each count."""
        for what, value in self._counts.items():
            target = None if what in ("sent", "full socket buffer") else at_most(0)
            yield Line("switching", f"UDP {_UDP_MBPS:.0f} Mb/s", what, "", (float(value),), target)


def _switch(name: str, on_ms: list[float]) -> float:
    """Switch on and off once; return the ms until packets were recorded.

    The time includes the end of the capture before.
    """
    with Client(str(socket_of(name, "h1"))) as client:
        began = time.perf_counter()
        begun = client.capture(snaplen=192)
        on_ms.append((time.perf_counter() - began) * 1e3)
        os.close(begun.records)
        os.close(begun.state)
    return on_ms[-1]


def _qpns(name: str) -> list[tuple[int, int]]:
    with Client(str(socket_of(name, "h1"))) as client:
        found = client.connections(None)["connections"]
    return [(conn.qpn, conn.remote_qpn) for conn in found]


def goodput(name: str, where: str, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure one TCP connection without capture, with headers captured, with whole packets."""
    variants = {"off": (), "-s 200": ("-s", "200"), "whole packets": ("-s", "0")}
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    missed: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(rounds):
        # Alternate the order, because the machine's state differs between first and last.
        for variant, options in list(variants.items())[:: -1 if number % 2 else 1]:
            capture = _capture(name, *options) if options else None
            rates[variant].append(flow.iperf3(name, flow.mrc0_route(name), seconds) / 1e9)
            if capture is not None:
                missed[variant].append(_missed(capture))
    for variant, values in rates.items():
        of = f"{where}, {variant}"
        yield Line("goodput", of, "of one TCP connection", "Gb/s", tuple(values))
        if variant != "off":
            ratios = tuple(100 * on / off for on, off in zip(values, rates["off"], strict=True))
            yield Line("goodput", of, "of that without", "%", ratios)
            yield Line("goodput", of, "packets not captured", "%", tuple(missed[variant]))


def _capture(name: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a capture on h1; return when it has begun."""
    line, environment = lab.command_in(
        name, "h1", [sys.executable, "-m", "cli", "capture", "-w", "/dev/null", *options]
    )
    process = subprocess.Popen(line, env=dict(environment), cwd=ROOT, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.readline()
    if not said.startswith(b"capturing"):
        raise BenchFailed(f"the capture did not begin: {said.decode()}")
    return process


def _missed(process: subprocess.Popen[bytes]) -> float:
    """End a capture; return the percentage of packets that found no room."""
    process.terminate()
    _out, said = process.communicate(timeout=60)
    numbers = [int(number) for number in re.findall(rb"^(\d+) packets", said, re.MULTILINE)]
    captured, lost = (*numbers, 0)[:2]
    return 100 * lost / (captured + lost)


def main() -> None:
    """Measure and print."""
    parser = entry.parser(__doc__, name="capcost", rounds=3, seconds=5)
    parser.add_argument("--switchings", type=int, default=1000, help="0 leaves them out")
    parser.add_argument("--mtu", type=int, default=9000, help="MTU of the planes")
    args = parser.parse_args()
    entry.begin("bench")

    def results() -> Iterator[list[Line] | str]:
        yield entry.take("instructions", programs())
        for rate, where in ((RATE_MBPS, f"{PLANES} x {RATE_MBPS} Mb/s"), (0, "no limit")):
            if not (args.rounds or (rate and args.switchings)):
                continue
            with flow.lab_up(args.name, mtu=args.mtu, rate_mbps=rate):
                if rate and args.switchings:
                    yield entry.take("switching", switchings(args.name, args.switchings))
                if args.rounds:
                    found = goodput(args.name, where, args.rounds, args.seconds)
                    yield entry.take("goodput", found)

    _, failed = entry.gather(results(), lambda lines: entry.save(args.json, entry.report(lines)))
    sys.exit(failed)


if __name__ == "__main__":
    main()
