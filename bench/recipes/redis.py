# SPDX-License-Identifier: GPL-2.0-only
"""Measure writes to Redis that wait for a replica on another host (WAIT)."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.compare.steps import Steps
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import S
from bench.recipes.outcome import Outcome, judge
from bench.recipes.stage import LASTS_S, Running, Stage, program

UNIT = "writes/s"
_PORT = 6390
_BYTES = 1 << 16
_KEYS = 1000
_GIVE_UP_S = 60.0


def measure(stage: Stage) -> Outcome:
    """Write 64 KiB at a time on h1; each write waits until the replica on h2 has it."""
    primary, replica = stage.folder / "redis-h1", stage.folder / "redis-h2"
    with (
        _server(stage, "h1", primary),
        _server(stage, "h2", replica, "--replicaof", stage.address("h1"), str(_PORT)) as second,
    ):
        second.until("the replica's link", lambda: _linked(replica))
        writer = Writer(primary, time.monotonic_ns())
        thread = threading.Thread(target=writer.run)
        thread.start()
        try:
            when = stage.strike(writer.began_ns)
        finally:
            thread.join()
        errors = writer.errors + (_get(primary, b"DBSIZE") != _get(replica, b"DBSIZE"))
    return judge(writer.steps(), when, errors)


@dataclass(slots=True)
class Writer:
    """Writes one value after another for the time of a run, from `began_ns` on."""

    place: Path
    began_ns: int
    errors: int = 0
    _times: array[int] = field(default_factory=lambda: array("q"))

    def run(self) -> None:
        """Write until the run is over, or until something fails."""
        end_ns = self.began_ns + int(LASTS_S * S)
        value, number = bytes(_BYTES), 0
        try:
            with connected(self.place) as talk:
                while (before_ns := time.monotonic_ns()) < end_ns:
                    talk.ask(b"SET", b"key%d" % (number % _KEYS), value)
                    if talk.ask(b"WAIT", b"1", b"0") < b":1":
                        self.errors += 1
                    self._times.extend((before_ns, time.monotonic_ns()))
                    number += 1
        except (OSError, BenchFailed):
            self.errors += 1

    def steps(self) -> Steps:
        """Return the writes that have ended."""
        pairs = np.array(self._times, np.int64).reshape(-1, 2)
        return Steps(pairs[:, 0], pairs[:, 1] - pairs[:, 0])


@dataclass(frozen=True, slots=True)
class Talk:
    """A connection to a server."""

    to: socket.socket

    def ask(self, *words: bytes) -> bytes:
        """Send a command; return its answer, or raise BenchFailed for an error."""
        self.to.sendall(request(*words))
        answer = self._line()
        if answer.startswith(b"$") and answer != b"$-1":
            answer = self._exactly(int(answer[1:]) + 2)[:-2]
        elif answer.startswith(b"-"):
            raise BenchFailed(f"redis: {answer.decode(errors='replace')}")
        return answer

    def _line(self) -> bytes:
        got = b""
        while not got.endswith(b"\r\n"):
            got += self._exactly(1)
        return got[:-2]

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            part = self.to.recv(size - len(got))
            if not part:
                raise BenchFailed("redis closed the connection")
            got += part
        return got


@contextlib.contextmanager
def connected(place: Path) -> Iterator[Talk]:
    """Connect to the server whose folder is given, by its Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.settimeout(_GIVE_UP_S)
        to.connect(str(place / "socket"))
        yield Talk(to)


def request(*words: bytes) -> bytes:
    """Return a command as Redis reads it: an array of strings with their lengths."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def _get(place: Path, *words: bytes) -> bytes:
    with connected(place) as talk:
        return talk.ask(*words)


def _linked(place: Path) -> bool:
    return b"master_link_status:up" in _get(place, b"INFO", b"replication")


def _answers(place: Path) -> bool:
    try:
        return _get(place, b"PING") == b"+PONG"
    except (OSError, BenchFailed):
        return False


@contextlib.contextmanager
def _server(stage: Stage, host: str, place: Path, *more: str) -> Iterator[Running]:
    place.mkdir(exist_ok=True)
    line = (
        *(program("redis-server"), "--port", str(_PORT), "--bind", stage.address(host)),
        *("--protected-mode", "no", "--save", "", "--dir", str(place)),
        *("--unixsocket", str(place / "socket"), *more),
    )
    with stage.running(host, line, last=signal.SIGTERM) as server:
        server.until("the start", lambda: _answers(place))
        yield server
