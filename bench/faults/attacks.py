# SPDX-License-Identifier: GPL-2.0-only
"""Measure what a flood of forged packets costs two hosts with keys.

    python -m bench.faults.attacks [--pps N] [--seconds S] [--kind KIND]... [--returns N] (as root)

In a lab of three hosts, the third has no key, and sends forged packets to both others in each
other's names (tests/net/stranger.py), half of them to each. Meanwhile h1 sends TCP to h2. For each
kind it prints the frames a second that left, the runs of h1's mrc_receive, the goodput, the share
of a CPU that h1's daemon takes, and the mean time of a run; at last how long a peer's daemon that
is restarted takes from being ready to having a session, without and with a flood.

The sender, the switches and both hosts share the CPUs of this machine, so the goodput shows
what forwarding the flood costs, too. A flood to addresses of nobody (`forwarded only`) tells
how much that is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

from bench.instruments.processor import cpu_s
from bench.instruments.progstats import counted, programs_of, runs
from cli.lab import lab
from mrcd.fabric import description
from rigs import lab_hosts
from rigs.besieged import VICTIMS, hide_from, return_s, settle
from rigs.running_lab import RunningLab
from rigs.stranger import KINDS, Flood, Stranger, frames
from rigs.traffic import Stream

NAME = "attacks"
CALM, FORWARDED = "nothing", "forwarded only"
RETURN_KINDS = ("inits", "indexed", "offers")
_FRAMES = 4000


@dataclass(frozen=True, slots=True)
class Cost:
    """What was measured during a flood."""

    kind: str
    sent_pps: float
    arrived_pps: float
    goodput_mbps: float
    daemon_cpu: float
    mean_ns: float

    def __str__(self) -> str:
        return (
            f"{self.kind:15} {self.sent_pps:10.0f} {self.arrived_pps:10.0f} "
            f"{self.goodput_mbps:9.0f} {self.daemon_cpu:8.1%} {self.mean_ns:9.0f}"
        )


HEAD = f"{'kind':15} {'sent/s':>10} {'runs/s':>10} {'Mb/s':>9} {'mrcd':>8} {'ns a run':>9}"


def flood_of(running: RunningLab, kinds: tuple[str, ...]) -> Flood:
    """Return a flood of these kinds to both victims, not started."""
    h1, h2, h3 = (running.fabric.host(name) for name in ("h1", "h2", "h3"))
    pairs = [Stranger(running, h3, h1, h2, 1), Stranger(running, h3, h2, h1, 2)]
    wanted = ("data",) if kinds == (FORWARDED,) else kinds
    made = [
        f for s in pairs for kind in wanted for f in frames(s, kind, _FRAMES // 2 // len(wanted))
    ]
    pairs[0].rng.shuffle(made)
    if kinds == (FORWARDED,):  # the host's uSID, the last one of the list, is that of no port
        made = [f[: 14 + 24 + 8] + b"\0" * 8 + f[14 + 40 :] for f in made]
    return Flood(running.namespace("h3"), made, running.fabric.planes)


def measure(running: RunningLab, kind: str, pps: int, seconds: float) -> Cost:
    """Flood both victims for some seconds under a TCP stream."""
    pid = lab.daemon_pid(running.name, "h1")
    assert pid is not None
    stream = Stream(running, "h1", "h2", "10.99.0.2").start()
    stream.progress(4 << 20, 60)
    flood = None if kind == CALM else flood_of(running, (kind,)).start(pps)
    with counted(), programs_of(running.name, "h1") as programs:
        before = runs(programs["mrc_receive"]), stream.received, cpu_s(pid), time.monotonic()
        sent = flood.sent if flood else 0
        time.sleep(seconds)
        took = time.monotonic() - before[3]
        ran = runs(programs["mrc_receive"]).since(before[0])
        goodput = (stream.received - before[1]) * 8e-6 / took
        cpu = (cpu_s(pid) - before[2]) / took
        sent = (flood.sent if flood else 0) - sent
    if flood is not None:
        flood.stop()
    stream.finish(60)
    return Cost(kind, sent / took, ran.count / took, goodput, cpu, ran.mean_ns)


def returns(running: RunningLab, count: int, pps: int) -> tuple[list[float], list[float]]:
    """Restart h2's daemon some times without and with a flood; return the times to a session."""
    calm = [return_s(running) for _ in range(count)]
    flood = flood_of(running, RETURN_KINDS).start(pps)
    try:
        return calm, [return_s(running) for _ in range(count)]
    finally:
        flood.stop()


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kind", action="append", choices=KINDS, default=None)
    parser.add_argument("--returns", type=int, default=2)
    options = parser.parse_args()
    fabric = description.generate(name=NAME, hosts=3, planes=2, t1=2)
    lab.up(fabric, daemons=False)
    running = RunningLab(fabric)
    try:
        hide_from(running)
        settle(running)
        print(HEAD, flush=True)
        for kind in (CALM, FORWARDED, *(options.kind or KINDS), CALM):
            print(measure(running, kind, options.pps, options.seconds), flush=True)
        if options.returns:
            calm, flooded = returns(running, options.returns, options.pps)
            print(f"return, calm:    {statistics.median(calm):.2f} s of {len(calm)}")
            print(f"return, flooded: {statistics.median(flooded):.2f} s of {len(flooded)}")
        healthy = all(lab_hosts.ok(running.name, host) for host in VICTIMS)
    finally:
        lab.down(NAME)
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
