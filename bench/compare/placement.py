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
from bench.instruments.processor import Cpus
from cli.lab import processes
from cli.lab.injection import Applied
from mrcd.linux import netns, sysfs

APART: Mapping[str, int] = {"h1": 0, "h2": 1}
"""The CPUs of the sender and of the receiver."""
_STEERED = ("plane", "plain", "mrc0p", "mrc0d", "mrc0c", "ceil0p")
_TOWARDS_END_S = 0.1


def steer(lab: str, host: str, mask: int, begins: Iterable[str] = _STEERED) -> None:
    """Have a set of CPUs, 0 for none, receive for the host's interfaces that begin like this."""
    with netns.entered(f"{lab}-{host}"):
        names = [name for _, name in socket.if_nameindex() if name.startswith(tuple(begins))]
        sysfs.write_interfaces(names, "queues/rx-0/rps_cpus", sysfs.cpu_mask(mask))


def pin(lab: str, host: str, cpu: int) -> None:
    """Pin what runs in a host, every thread, to a CPU."""
    for pid in processes.inside([f"{lab}-{host}"]):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {cpu})


def apart(lab: str) -> None:
    """Give each host its CPU, with the daemon that runs there."""
    for host, cpu in APART.items():
        pin(lab, host, cpu)
        steer(lab, host, 1 << cpu)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a flow moved in a time, and the seconds that each CPU worked meanwhile."""

    bytes: float
    elapsed_s: float
    worked_s: tuple[float, ...]
    seen: Traffic

    @property
    def gbps(self) -> float:
        """Return the goodput in Gb/s."""
        return self.bytes * 8 / self.elapsed_s / 1e9

    def us(self, payload: int, cpu: int | None = None) -> float:
        """Return the us that all CPUs, or one, worked for `payload` bytes that arrived."""
        worked = sum(self.worked_s) if cpu is None else self.worked_s[cpu]
        return worked * 1e6 * payload / self.bytes

    def gigabytes(self, cpu: int | None = None) -> float:
        """Return the gigabytes that arrived for a second that all CPUs together, or one, worked."""
        return 1e6 / self.us(10**9, cpu)


def send(
    lab: str,
    competitor: Competitor,
    flows: list[Flow],
    warm_s: float,
    seconds: float,
    cpus: Mapping[str, int] | None = None,
) -> Spent:
    """Send for `seconds` after `warm_s`; return what that time moved and cost."""
    measured: list[Cpus] = []
    worked: list[tuple[float, ...]] = []

    def begin() -> Applied:
        measured.append(Cpus())
        return _now()

    def end() -> Applied:
        worked.append(measured[0].worked_s())
        return _now()

    until_s = warm_s + seconds
    steps = [Step(warm_s, begin), Step(until_s, end)]
    seen = traffic.run(lab, competitor, flows, until_s + _TOWARDS_END_S, steps, cpus=cpus)
    began_ns, ended_ns = (each.effective_ns for each in seen.applied)
    elapsed_s = (ended_ns - began_ns) / S
    moved = seen.bps(began_ns, ended_ns) / 8 * elapsed_s
    return Spent(moved, elapsed_s, worked[0], seen)


def _now() -> Applied:
    now_ns = time.monotonic_ns()
    return Applied(now_ns, now_ns)
