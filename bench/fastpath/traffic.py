# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of a packet while traffic flows, compared with the limits of the machine.

One cubic TCP connection goes from h1 to h2 of one lab in three ways, which take turns. Packets are
handled one by one everywhere (no segmentation offload):

    mrc0    spray, four planes of uN switches, reorder window
    veth    one veth pair, with an XDP program at its end that passes everything
    seg6    the kernel's H.Encaps.Red, the same switches, End.DX4

The same CPUs do the work of both hosts and the switches, so figures "of a core" are per second of
any CPU being busy. bench/transport/speed.py has the comparison with plain TCP.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.compare import configuration
from bench.compare.routes import Seg6
from bench.instruments import flow, progstats
from bench.instruments.flow import Route
from bench.instruments.result import Line
from mrcd.linux import bpf, ethtool, netns

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6)  # of a cpu line in /proc/stat: user, nice, system, irq, softirq
_VETH = "direct0"
_PASS = """
int pass_all(struct xdp_md *ctx) { return 2; }
"""
_COLD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Way:
    """A way between the hosts, and the interface at h2 where its packets arrive."""

    route: Route
    interface: str


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of one flow: seconds of all CPUs, and packets that arrived."""

    goodput: float
    packets: int
    seconds: float
    busy_s: float

    @property
    def per_core_gbps(self) -> float:
        """Return the goodput for each busy core."""
        return self.goodput * self.seconds / self.busy_s / 1e9

    @property
    def per_core_pps(self) -> float:
        """Return the packets per second for each busy core."""
        return self.packets / self.busy_s


def traffic(name: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure one MTU."""
    where = f"MTU {mtu}"
    yield from copying(mtu, rounds)
    with flow.lab_up(name, mtu=mtu, rate_mbps=0), _ways(name, mtu) as (ways, passing):
        turns: dict[str, list[Turn]] = {key: [] for key in ways}
        rng = random.Random(mtu)
        for _ in range(rounds):
            for key in rng.sample(sorted(ways), len(ways)):
                turns[key].append(_turn(name, ways[key], seconds))
        yield from _lines(where, turns)
        yield from _programs(name, where, ways, passing, rounds, seconds)


def copying(mtu: int, rounds: int) -> Iterator[Line]:
    """Measure the ns to copy a packet's bytes within the caches, and within memory."""
    rows = _COLD_BYTES // mtu
    source, target = (np.ones((rows, mtu), np.uint8) for _ in range(2))
    hot = 64
    cached, memory = [], []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        for _ in range(200):
            np.copyto(target[:hot], source[:hot])
        middle = time.perf_counter_ns()
        np.copyto(target, source)
        cached.append((middle - began) / (200 * hot))
        memory.append((time.perf_counter_ns() - middle) / rows)
    for what, values in (("in the cache", cached), ("in memory", memory)):
        yield Line("limits", f"MTU {mtu}", f"a copy of a packet, {what}", "ns", tuple(values))


@contextlib.contextmanager
def _ways(name: str, mtu: int) -> Iterator[tuple[dict[str, Way], int]]:
    """Set up the other ways in mrcd's lab; also yield the program that passes everything."""
    for host in ("h1", "h2"):
        with netns.entered(f"{name}-{host}"):
            for plane in range(4):
                ethtool.set_features(f"plane{plane}", tso=False, gso=False, gro=False)
    with _direct(name, mtu) as passing:
        configuration.prepare(name, Seg6())
        yield (
            {
                "mrc0": Way(flow.mrc0_route(name), "mrc0"),
                "veth": Way(Route("veth", "10.94.0.2", "10.94.0.2"), _VETH),
                "seg6": Way(Seg6().between(name, "h1", "h2"), "plane"),
            },
            passing,
        )


@contextlib.contextmanager
def _direct(name: str, mtu: int) -> Iterator[int]:
    """Connect the hosts by a veth pair with a program at h2's end that passes everything."""
    from bcc import BPF  # type: ignore[import-untyped]

    one, other = f"{name}-h1", f"{name}-h2"
    lines = [f"link add {_VETH} netns {one} mtu {mtu} type veth peer name {_VETH} netns {other}"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # bcc prefers names as bytes
        code = bytes(BPF(text=_PASS.encode()).dump_func(b"pass_all"))
    program, _ = bpf.load_program(bpf.PROG_TYPE_XDP, code, name="pass_all")
    link = -1
    try:
        for number, host in enumerate((one, other), 1):
            with netns.entered(host):
                ethtool.set_features(_VETH, tso=False, gso=False, gro=False)
                lines = [
                    f"addr add 10.94.0.{number}/24 dev {_VETH}",
                    f"link set {_VETH} mtu {mtu} up",
                ]
                subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
                if host == other:
                    index = socket.if_nametoindex(_VETH)
                    flags = bpf.XDP_FLAGS_SKB_MODE  # natively, a veth copies every packet
                    link = bpf.create_link(program, index, bpf.ATTACH_XDP, flags=flags)
        yield program
    finally:
        if link >= 0:
            os.close(link)
        os.close(program)


def _busy_s() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[i]) for i in _BUSY) / _TICKS


def _arrived(name: str, interface: str) -> int:
    """Return the packets that h2 has received on interfaces whose names start with `interface`."""
    with netns.entered(f"{name}-h2"):
        rows = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    found = (row.partition(":") for row in rows)
    return sum(int(rest.split()[1]) for nic, _, rest in found if nic.strip().startswith(interface))


def _turn(name: str, way: Way, seconds: float) -> Turn:
    packets, busy, began = _arrived(name, way.interface), _busy_s(), time.monotonic()
    rate = flow.iperf3(name, way.route, seconds, skip_s=0)
    took = time.monotonic() - began
    return Turn(
        rate * seconds / took, _arrived(name, way.interface) - packets, took, _busy_s() - busy
    )


def _lines(where: str, turns: dict[str, list[Turn]]) -> Iterator[Line]:
    for key, some in turns.items():
        rates = tuple(turn.goodput * turn.seconds / 1e9 / turn.busy_s for turn in some)
        yield Line("limits", where, f"{key}, goodput of a core", "Gb/s", rates)
        pps = tuple(turn.per_core_pps / 1e3 for turn in some)
        yield Line("limits", where, f"{key}, packets of a core", "kpps", pps)
        ns = tuple(1e9 / turn.per_core_pps for turn in some)
        yield Line("limits", where, f"{key}, a packet in all", "ns", ns)
    for key in turns:
        if key != "mrc0":
            pairs = zip(turns["mrc0"], turns[key], strict=True)
            ratios = tuple(ours.per_core_pps / theirs.per_core_pps for ours, theirs in pairs)
            yield Line("limits", where, f"packets of a core, mrc0 to {key}", "", ratios)


def _programs(
    name: str, where: str, ways: dict[str, Way], passing: int, rounds: int, seconds: float
) -> Iterator[Line]:
    """Yield the ns of each program's run in mrc0's traffic, and its share per packet."""
    means: dict[tuple[str, str], list[float]] = {}
    shares: dict[str, list[float]] = {}
    floors: list[float] = []
    with contextlib.ExitStack() as stack:
        hosts = {
            "sender": stack.enter_context(progstats.programs_of(name, "h1")),
            "receiver": stack.enter_context(progstats.programs_of(name, "h2")),
        }
        stack.enter_context(progstats.counted())
        for _ in range(rounds):
            before_pass = progstats.runs(passing)
            _turn(name, ways["veth"], seconds / 2)
            floors.append(progstats.runs(passing).since(before_pass).mean_ns)
            before = {side: progstats.snapshot(programs) for side, programs in hosts.items()}
            turn = _turn(name, ways["mrc0"], seconds)
            for side, programs in hosts.items():
                after = progstats.snapshot(programs)
                for program, runs in after.items():
                    added = runs.since(before[side][program])
                    if added.count * 50 > turn.packets:
                        means.setdefault((side, program), []).append(added.mean_ns)
                    shares.setdefault(side, []).append(added.ns / turn.packets)
        yield Line("traffic", where, "floor: a program that passes all", "ns", tuple(floors))
        for (side, program), values in sorted(means.items(), reverse=True):
            yield Line("traffic", where, f"{side}, {program}, a run", "ns", tuple(values))
        for side, parts in shares.items():
            whole = _grouped(parts, len(parts) // rounds)
            yield Line("traffic", where, f"{side}, all programs, a packet", "ns", whole)


def _grouped(parts: Sequence[float], size: int) -> tuple[float, ...]:
    return tuple(sum(parts[at : at + size]) for at in range(0, len(parts), size))
