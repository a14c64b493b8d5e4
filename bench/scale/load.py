# SPDX-License-Identifier: GPL-2.0-only
"""Measure what the daemons of eight hosts take of this machine, idle and in an all-to-all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from bench.compare import traffic
from bench.compare.catalogue import EIGHT
from bench.compare.routes import Mrc0
from bench.compare.traffic import Flow, Traffic
from bench.instruments import flow
from bench.instruments.flow import BenchFailed
from bench.instruments.processor import cpu_s
from bench.instruments.result import Line
from bench.scale.host import children
from cli.console.client import Client
from cli.lab import lab, state

MTU = 1500
WARM_S = 3.0
"""Time after the start of traffic until something is measured."""
_READY_S = 60.0
_LOOK_S = 0.2


def with_children_s(pid: int) -> float:
    """Return the seconds of CPU that a process and its children of now have used so far.

    The child of a daemon is its privileged process.
    """
    return sum(map(cpu_s, (pid, *children(pid))))


def share(pids: list[int], seconds: float) -> float:
    """Return the percentage of one CPU that these daemons take together in the next seconds."""
    began, before = time.monotonic(), sum(map(with_children_s, pids))
    time.sleep(seconds)
    return 100 * (sum(map(with_children_s, pids)) - before) / (time.monotonic() - began)


def all_established(name: str, hosts: list[str]) -> None:
    """Wait until every host has sessions with all others; BenchFailed if one has not in time."""
    end = time.monotonic() + _READY_S
    for host in hosts:
        with Client(str(state.places(name, host).socket)) as client:
            while client.status().peers_up < len(hosts) - 1:
                if time.monotonic() > end:
                    raise BenchFailed(f"{host} lacks sessions after {_READY_S:.0f} s")
                time.sleep(_LOOK_S)


def measured(name: str, seconds: float) -> Iterator[Line]:
    """Measure the daemons of a lab for `seconds` without traffic, and as long with it."""
    fabric = EIGHT.fabric(name, MTU)
    hosts = [host.name for host in fabric.hosts]
    where = f"{len(hosts)} daemons"
    with flow.fabric_up(fabric):
        all_established(name, hosts)
        pids = [pid for host in hosts if (pid := lab.daemon_pid(name, host)) is not None]
        yield Line("load", where, "CPU, idle", "%", (share(pids, seconds),))
        loaded, seen = under_load(name, hosts, pids, seconds)
        yield Line("load", where, "CPU, every host sends to every other", "%", (loaded,))
        yield Line("load", where, "goodput of all flows", "Mb/s", (seen.after(WARM_S) / 1e6,))
        yield Line("load", where, "CPUs busy meanwhile", "%", (100 * seen.busy,))


def under_load(
    name: str, hosts: list[str], pids: list[int], seconds: float
) -> tuple[float, Traffic]:
    """Return the percentage of one CPU of daemons while all send to all, and the flows' record."""
    flows = [Flow(one, other) for one in hosts for other in hosts if one != other]
    begun = threading.Event()
    found: list[float] = []

    def watch() -> None:
        if begun.wait(_READY_S):
            time.sleep(WARM_S)
            found.append(share(pids, seconds))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        seen = traffic.run(name, Mrc0(), flows, WARM_S + seconds, begun=begun)
    finally:
        watcher.join()
    if not found:
        raise BenchFailed(f"no traffic within {_READY_S:.0f} s")
    return found[0], seen
