# SPDX-License-Identifier: GPL-2.0-only
"""What the daemons of a lab say of their paths and peers."""

from __future__ import annotations

import time
from collections import Counter

from bench.flow import BenchFailed
from cli.client import Client
from mrcd.lab import state
from mrcd.model import ConnInfo, PathInfo, PeerInfo, Status

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


Withdrawn = tuple[str, str, int, int]  # host, peer, QP, EV


def withdrawn(name: str) -> set[Withdrawn]:
    """The paths that are not in service now."""
    return {
        (host, path.peer, path.qp, path.ev)
        for host in hosts(name)
        for path in paths(name, host)
        if path.state in ("ASSUMED_BAD", "DENIED")
    }


class Recovery:
    """Paths that have been withdrawn at every look so far.

    Under load a busy machine makes now one path late and now another; what must not be is a path
    that never comes back.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._never = withdrawn(name)

    def missing(self) -> list[str]:
        """Look again: what is still to come, by host, peer and EV."""
        if self._never:
            self._never &= withdrawn(self._name)
        count = Counter((host, peer, ev) for host, peer, _qp, ev in self._never)
        return [
            f"{host} to {peer} EV {ev:#x}: {n}" for (host, peer, ev), n in sorted(count.items())
        ]


def wait_restored(name: str, deadline_s: float = 30.0) -> float:
    """Return when no path of any host has been withdrawn throughout: after how many seconds."""
    began, recovery = time.monotonic(), Recovery(name)
    while missing := recovery.missing():
        if time.monotonic() - began > deadline_s:
            raise BenchFailed(f"paths are still withdrawn after {deadline_s:.0f} s: {missing}")
        time.sleep(_EVERY_S)
    return time.monotonic() - began
