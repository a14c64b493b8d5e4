# SPDX-License-Identifier: GPL-2.0-only
"""Measure the clock of the data path: when its beats come, and what they cost.

    python -m bench.fastpath.ticks [--seconds 10] [--rounds 3]

A host of a lab sends a little traffic, so its clock does not rest. A socket sees each beat as it
leaves the fast end, with the kernel's time stamp. That is done on a quiet host, while `mrcctl
metrics` runs in a loop, while as many processes spin as the machine has CPUs twice, and with the
daemon killed. The cost of a beat is measured by a packet that no bucket holds back: the least time
between two beats over a few milliseconds. To that comes a timer's interrupt.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.instruments import entry, flow
from bench.instruments.flow import BenchFailed
from bench.instruments.result import Line, table
from cli.lab import lab, processes
from mrcd.linux import bpf, netns
from rigs.circle import Circle
from rigs.rig import NEVER_NS, Rig

RATE_MBPS = 100
AT_ONCE_NS = 100
"""Time between two beats where their cost is measured: less than that, so they come at once."""
WINDOW_S, WINDOWS = 0.004, 200
QPS = 16
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE = 35, 33
_OUTGOING = 4  # PACKET_OUTGOING


def beats(namespace: str, end: str, seconds: float) -> list[int]:
    """Return the times at which beats left an end of the pair, in nanoseconds."""
    with netns.entered(namespace):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    found = []
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sock.bind((end, 3))
        time.sleep(seconds)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                _data, ancillary, _flags, address = sock.recvmsg(64, 64)
                if address[2] == _OUTGOING:
                    second, ns = struct.unpack("=qq", ancillary[0][2])
                    found.append(second * 1_000_000_000 + ns)
    return found


def intervals(where: str, times: Sequence[int]) -> Iterator[Line]:
    """Yield the distribution of the times between beats."""
    if len(times) < 10:
        raise BenchFailed(f"{where}: there were {len(times)} beats")
    between = sorted((b - a) / 1e6 for a, b in itertools.pairwise(times))
    yield Line("ticks", where, "beats", "/s", (1e9 * len(between) / (times[-1] - times[0]),))
    for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        at = between[min(len(between) - 1, int(part * len(between)))]
        yield Line("ticks", where, f"between two beats, {name}", "ms", (at,))
    yield Line("ticks", where, "between two beats, longest", "ms", (between[-1],))


@contextlib.contextmanager
def traffic(name: str) -> Iterator[None]:
    """Send a little over mrc0, so that the clock does not rest."""
    with flow.iperf3_server(name, route := flow.mrc0_route(name)):
        client = processes.spawn(
            f"{name}-h1",
            ["iperf3", "-c", route.address, "-p", str(flow.IPERF3_PORT), "-b", "20M", "-t", "600"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with client:
            try:
                time.sleep(1)
                yield
            finally:
                client.kill()


@contextlib.contextmanager
def running(*commands: Sequence[str]) -> Iterator[None]:
    """Run commands again and again beside what is measured."""
    loops = [
        subprocess.Popen(
            ["sh", "-c", 'while :; do "$@" >/dev/null 2>&1; done', "loop", *command],
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        time.sleep(1)
        yield
    finally:
        for loop in loops:
            os.killpg(loop.pid, signal.SIGKILL)
            loop.wait()


def spinning() -> contextlib.AbstractContextManager[None]:
    """Keep all CPUs busy with twice as many processes."""
    spin = [sys.executable, "-c", "while True: pass"]
    return running(*[spin] * (2 * (os.cpu_count() or 1)))


def asked(name: str) -> contextlib.AbstractContextManager[None]:
    """Ask the daemon of h1 for its metrics in a loop."""
    command, environment = lab.command_in(name, "h1", [sys.executable, "-m", "cli", "metrics"])
    os.environ.update(environment)
    return running(command)


def lab_beats(name: str, seconds: float) -> Iterator[Line]:
    """Measure the beats of a host of a lab."""
    namespace, fast, slow = f"{name}-h1", "mrc0b", "mrc0bp"
    with flow.lab_up(name, mtu=9000, rate_mbps=RATE_MBPS):
        time.sleep(3)  # the messages of the start, and the clock's way to rest
        yield from intervals("nothing to do", beats(namespace, slow, seconds))
        with traffic(name):
            yield from intervals("busy QP, quiet host", beats(namespace, fast, seconds))
            with asked(name):
                yield from intervals("`mrcctl metrics` in a loop", beats(namespace, fast, seconds))
            with spinning():
                yield from intervals("all CPUs busy", beats(namespace, fast, seconds))
            pid = lab.daemon_pid(name, "h1")
            if pid is None:
                raise BenchFailed("mrcd of h1 is not running")
            os.kill(pid, signal.SIGKILL)
            yield from intervals("daemon killed", beats(namespace, fast, seconds))
            with spinning():
                yield from intervals(
                    "daemon killed, all CPUs busy", beats(namespace, fast, seconds)
                )


def cost(name: str, rounds: int) -> Iterator[Line]:
    """Measure what a beat costs with active QPs that need nothing."""
    found: dict[int, list[float]] = {1: [], QPS: []}
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(name, Path(folder))
        with contextlib.closing(rig), netns.entered(name):
            rig.reset()
            for index in range(QPS):
                rig.connect("h2", index, qpn=0x100000, remote_qpn=0x200000 | index)
            circle = Circle(rig, tick_ns=AT_ONCE_NS)
            for _ in range(rounds):
                for qps, values in found.items():
                    busy(rig, qps)
                    circle.wake()
                    values.append(min(took_us(circle) for _ in range(WINDOWS)))
                    circle.lose()
            circle.stop()
    for qps, values in found.items():
        yield Line("ticks", f"{qps} active QPs", "CPU time of a beat", "us", tuple(values))


def took_us(circle: Circle) -> float:
    """Return the time of a beat over a short while, in which perhaps nothing else ran."""
    before = circle.rig.clock()
    time.sleep(WINDOW_S)
    after = circle.rig.clock()
    count = after["beats"] - before["beats"]
    return (after["beat_ns"] - before["beat_ns"]) / 1e3 / count if count else math.inf


def busy(rig: Rig, qps: int) -> None:
    """Give QPs a packet each that is not overdue: they stay active and need no tick."""
    rig.tune(rto_min_ns=NEVER_NS)
    now = time.monotonic_ns()
    for index in range(qps):
        rig.edit("txs", index, "mrc_tx", next=1001, una=1000, progress_ns=now, moved_ns=now)
    bits = struct.pack("=Q", (1 << qps) - 1)
    bpf.update(rig.dp.maps["active"], struct.pack("=I", 0), bits)


def main() -> None:
    """Measure and print the figures."""
    parser = entry.parser(__doc__, name="ticks", rounds=5, seconds=10)
    args = parser.parse_args()
    entry.begin("bench")
    lines = [
        *lab_beats(args.name, args.seconds),
        *cost(f"{args.name}-cost", args.rounds),
    ]
    print(table(lines))
    entry.save(args.json, entry.plain(lines))


if __name__ == "__main__":
    main()
