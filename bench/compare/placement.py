# SPDX-License-Identifier: GPL-2.0-only
"""Give each of two hosts that are cabled to each other a CPU of its own.

Without, both hosts share all CPUs, and /proc/stat cannot tell what each of them has used. With
switches between them there would be a third party.

A host's processes are pinned. Receive packet steering leads what its interfaces receive to its
CPU: a veth that has no steering receives on the CPU of its sender.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.compare import traffic
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow, Traffic
from bench.instruments.flow import Step
from bench.instruments.metrics import S
from bench.instruments.processor import Spending
from cli.lab import processes
from cli.lab.injection import Applied
from mrcd.linux import netns, sysfs

APART: Mapping[str, int] = {"h1": 0, "h2": 1}
"""The CPUs of the sender and of the receiver."""
_STEERED = ("plane", "plain", "mrc0p", "mrc0d", "mrc0c", "ceil0p")
_SPREAD = ("mrc0p", "mrc0cp", "ceil0p")
"""Interfaces whose packets mrcd spreads over CPUs, and that of the ceiling."""
_TOWARDS_END_S = 0.1


def steer(lab: str, host: str, mask: int, begins: Iterable[str] = _STEERED) -> None:
    """Have a set of CPUs, 0 for none, receive for the host's interfaces that begin like this."""
    with netns.entered(f"{lab}-{host}"):
        names = [name for _, name in socket.if_nameindex() if name.startswith(tuple(begins))]
        sysfs.write_interfaces(names, "queues/rx-0/rps_cpus", sysfs.cpu_mask(mask))


def pin(lab: str, host: str, cpu: int) -> None:
    """Pin what runs in a host, every thread, to a CPU."""
    for pid in processes.inside([f"{lab}-{host}"]):
        _pin(pid, [cpu])


def _pin(pid: int, cpus: Iterable[int]) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)


def apart(lab: str) -> None:
    """Give each host its CPU, with the daemon that runs there."""
    for host, cpu in APART.items():
        pin(lab, host, cpu)
        steer(lab, host, 1 << cpu)


def together(lab: str) -> None:
    """Leave all CPUs to both hosts, as a lab begins."""
    for host in APART:
        for pid in processes.inside([f"{lab}-{host}"]):
            _pin(pid, range(os.cpu_count() or 1))
        steer(lab, host, 0)
        steer(lab, host, sysfs.all_cpus(), _SPREAD)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a flow moved in a time, and what both hosts spent on it.

    interrupts_s: seconds that each CPU served interrupts. processes_s: seconds that the processes
    of the hosts, in the order of APART, ran.
    """

    bytes: float
    elapsed_s: float
    interrupts_s: tuple[float, ...]
    processes_s: tuple[float, ...]
    seen: Traffic

    @property
    def gbps(self) -> float:
        """Return the goodput in Gb/s."""
        return self.bytes * 8 / self.elapsed_s / 1e9

    def us(self, payload: int, host: str | None = None) -> float:
        """Return the us of CPU for `payload` bytes that arrived; of a host that has its own CPU."""
        worked = sum(self.interrupts_s) + sum(self.processes_s)
        if host is not None:
            worked = self.interrupts_s[APART[host]] + self.processes_s[list(APART).index(host)]
        return worked * 1e6 * payload / self.bytes

    def gigabytes(self, host: str | None = None) -> float:
        """Return the gigabytes that arrived for a second of CPU; of a host that has its own."""
        return 1e6 / self.us(10**9, host)


def send(
    lab: str,
    competitor: Competitor,
    flows: list[Flow],
    warm_s: float,
    seconds: float,
    cpus: Mapping[str, int] | None = None,
) -> Spent:
    """Send for `seconds` after `warm_s`; return what that time moved and cost."""
    begun: list[Spending] = []
    found: list[tuple[float, ...]] = []

    def begin() -> Applied:
        begun.append(Spending([processes.inside([f"{lab}-{host}"]) for host in APART]))
        return _now()

    def end() -> Applied:
        found.extend((begun[0].interrupts_s(), begun[0].processes_s()))
        return _now()

    until_s = warm_s + seconds
    steps = [Step(warm_s, begin), Step(until_s, end)]
    seen = traffic.run(lab, competitor, flows, until_s + _TOWARDS_END_S, steps, cpus=cpus)
    began_ns, ended_ns = (each.effective_ns for each in seen.applied)
    elapsed_s = (ended_ns - began_ns) / S
    moved = seen.bps(began_ns, ended_ns) / 8 * elapsed_s
    return Spent(moved, elapsed_s, *found, seen)


def _now() -> Applied:
    now_ns = time.monotonic_ns()
    return Applied(now_ns, now_ns)
