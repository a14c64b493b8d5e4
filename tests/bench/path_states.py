# SPDX-License-Identifier: GPL-2.0-only
"""What the daemons of a lab say of their paths and peers."""

from __future__ import annotations

import time
from collections import Counter

from cli.client import Client
from mrcd.fabric import state
from mrcd.model import ConnInfo, PathInfo, PeerInfo, Status
from tests.bench.flow import BenchFailed

_EVERY_S = 0.1


def client(name: str, host: str) -> Client:
    """A connection to the daemon of a host."""
    return Client(str(state.places(name, host).socket))


def hosts(name: str) -> list[str]:
    """The hosts of a lab."""
    return [host.name for host in state.read_fabric(name).hosts]


def paths(name: str, host: str, peer: str | None = None) -> list[PathInfo]:
    """Every path of a host, or those towards one peer."""
    with client(name, host) as asked:
        return asked.paths(peer)["paths"]


def connections(name: str, host: str) -> list[ConnInfo]:
    """Every QP of a host."""
    with client(name, host) as asked:
        return asked.connections(None)["connections"]


def peers(name: str, host: str) -> list[PeerInfo]:
    """Every peer of a host."""
    with client(name, host) as asked:
        return asked.peers()["peers"]


def status(name: str, host: str) -> Status:
    """The daemon of a host as a whole."""
    with client(name, host) as asked:
        return asked.status()


def counters(name: str, host: str) -> dict[str, int]:
    """All counters of a host."""
    with client(name, host) as asked:
        return {counter.name: counter.value for counter in asked.stats().counters}


def withdrawn(name: str) -> Counter[tuple[str, str, str]]:
    """How many paths are not in service: by host, peer and state."""
    return Counter(
        (host, path.peer, path.state)
        for host in hosts(name)
        for path in paths(name, host)
        if path.state in ("ASSUMED_BAD", "DENIED")
    )


def wait_restored(name: str, deadline_s: float = 30.0) -> float:
    """Return when no path of any host is withdrawn: after how many seconds."""
    began = time.monotonic()
    while bad := withdrawn(name):
        if time.monotonic() - began > deadline_s:
            raise BenchFailed(f"paths are still withdrawn after {deadline_s:.0f} s: {dict(bad)}")
        time.sleep(_EVERY_S)
    return time.monotonic() - began
