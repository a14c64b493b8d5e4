# SPDX-License-Identifier: GPL-2.0-only
"""Ask the daemons of a lab for their paths and peers."""

from __future__ import annotations

import time
from collections import Counter

from bench.instruments.flow import BenchFailed
from cli.console.client import Client
from cli.lab import state
from mrcd.model import ConnInfo, PathInfo, PeerInfo, Status

_EVERY_S = 0.1


def client(name: str, host: str) -> Client:
    """Return a connection to the daemon of a host."""
    return Client(str(state.places(name, host).socket))


def hosts(name: str) -> list[str]:
    """Return the hosts of a lab."""
    return [host.name for host in state.read_fabric(name).hosts]


def paths(name: str, host: str, peer: str | None = None) -> list[PathInfo]:
    """Return every path of a host, or those to one peer."""
    with client(name, host) as asked:
        return asked.paths(peer)["paths"]


def connections(name: str, host: str) -> list[ConnInfo]:
    """Return every QP of a host."""
    with client(name, host) as asked:
        return asked.connections(None)["connections"]


def peers(name: str, host: str) -> list[PeerInfo]:
    """Return every peer of a host."""
    with client(name, host) as asked:
        return asked.peers()["peers"]


def status(name: str, host: str) -> Status:
    """Return the status of a host's daemon."""
    with client(name, host) as asked:
        return asked.status()


def counters(name: str, host: str) -> dict[str, int]:
    """Return all counters of a host."""
    with client(name, host) as asked:
        return {counter.name: counter.value for counter in asked.stats().counters}


Withdrawn = tuple[str, str, int, int]  # host, peer, QP, EV


def withdrawn(name: str) -> set[Withdrawn]:
    """Return the paths that are not in service now."""
    return {
        (host, path.peer, path.qp, path.ev)
        for host in hosts(name)
        for path in paths(name, host)
        if path.state in ("ASSUMED_BAD", "DENIED")
    }


class Recovery:
    """The paths that have been withdrawn at every check so far.

    Under load, a busy machine delays some path at any time. Only a path that never comes back is
    an error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._never = withdrawn(name)

    def missing(self) -> list[str]:
        """Check again; return the paths still missing, by host, peer and EV."""
        if self._never:
            self._never &= withdrawn(self._name)
        count = Counter((host, peer, ev) for host, peer, _qp, ev in self._never)
        return [
            f"{host} to {peer} EV {ev:#x}: {n}" for (host, peer, ev), n in sorted(count.items())
        ]


def wait_restored(name: str, deadline_s: float = 30.0) -> float:
    """Wait until no path of any host has been withdrawn all the time; return the seconds."""
    began, recovery = time.monotonic(), Recovery(name)
    while missing := recovery.missing():
        if time.monotonic() - began > deadline_s:
            raise BenchFailed(f"paths are still withdrawn after {deadline_s:.0f} s: {missing}")
        time.sleep(_EVERY_S)
    return time.monotonic() - began
