# SPDX-License-Identifier: GPL-2.0-only
"""Read the counters of a lab's interfaces and hosts without starting a process."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from bench.instruments import stream
from bench.instruments.metrics import Ints
from mrcd.linux import netns


class Readings(Protocol):
    """Numbers that can be read again and again."""

    def read(self) -> tuple[int, ...]:
        """Return the numbers of now, always in the same order."""

    def close(self) -> None:
        """Release what was opened for it."""


class Interfaces:
    """The interfaces of one namespace, with the bytes they have received."""

    def __init__(self, namespace: str, names: tuple[str, ...]) -> None:
        with netns.entered(namespace):  # the open file stays with its namespace
            self._file = open("/proc/thread-self/net/dev")  # noqa: SIM115 - closed in close()
        self.names = names

    def read(self) -> tuple[int, ...]:
        """Return the bytes received so far, in the order of the names."""
        self._file.seek(0)
        found = {}
        for row in self._file.read().splitlines()[2:]:
            name, _, rest = row.partition(":")
            found[name.strip()] = int(rest.split()[0])
        return tuple(found[name] for name in self.names)

    def close(self) -> None:
        """Release the namespace."""
        self._file.close()


def sent_packets(namespace: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the packets sent so far by a namespace's interfaces, in the order of the names."""
    return _column(namespace, names, 9)


def received_packets(namespace: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the packets received so far by a namespace's interfaces, in the order of the names."""
    return _column(namespace, names, 1)


def _column(namespace: str, names: tuple[str, ...], column: int) -> tuple[int, ...]:
    with netns.entered(namespace):
        rows = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    found = {row.partition(":")[0].strip(): row.partition(":")[2].split() for row in rows}
    return tuple(int(found[name][column]) for name in names)


@dataclass(slots=True)
class Watch:
    """A sampler of readings, every few ms while the block runs."""

    source: Readings
    every_s: float = 0.01
    _rows: list[tuple[int, ...]] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        assert self._thread is not None
        self._thread.join()
        self.source.close()

    def _run(self) -> None:
        while True:
            self._rows.append((time.monotonic_ns(), *self.source.read()))
            if self._done.wait(self.every_s):
                return

    def table(self) -> Ints:
        """Return a row for each sample: time in ns, then the readings, such as received bytes."""
        return np.array(self._rows, dtype=np.int64)

    def between(self, start_ns: int, end_ns: int) -> tuple[int, Ints]:
        """Return by how much each reading grew between two times.

        The interval is that of the nearest samples, whose length in ns comes first.
        """
        rows = self.table()
        first, last = np.searchsorted(rows[:, 0], [start_ns, end_ns]).clip(0, len(rows) - 1)
        gained = rows[last] - rows[first]
        return int(gained[0]), gained[1:]


def tcp_out_of_order(namespace: str) -> int:
    """Return how many segments TCP has queued so far because they arrived ahead of a gap."""
    with netns.entered(namespace):
        return stream.counter("netstat", "TcpExt", "TCPOFOQueue")


def tcp_retransmits(namespace: str) -> int:
    """Return how many segments TCP has retransmitted so far."""
    with netns.entered(namespace):
        return stream.counter("snmp", "Tcp", "RetransSegs")
