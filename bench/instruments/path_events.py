# SPDX-License-Identifier: GPL-2.0-only
"""Record the events that ``mrcctl path watch --json`` prints in a host while a block runs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from cli.lab import lab

_START_S = 3.0


@dataclass(frozen=True, slots=True)
class PathEvent:
    """A change of a path's state.

    `sent_ns` is when the lost packet that caused it was sent; None if no packet caused it.
    """

    time_ns: int
    peer: str
    qp: int
    ev: int
    plane: int
    t1: int
    from_state: str
    to_state: str
    cause: str
    sent_ns: int | None
    rtt_ns: int | None

    @property
    def withdrawal(self) -> bool:
        """Return whether the path left service because a packet was lost."""
        return self.to_state == "ASSUMED_BAD" and bool(self.sent_ns)

    @property
    def took_ns(self) -> int:
        """Return the ns from the sending of the lost packet to the withdrawal."""
        return self.time_ns - (self.sent_ns or 0)


_FIELDS = tuple(PathEvent.__dataclass_fields__)


def parse(lines: Iterable[str]) -> list[PathEvent]:
    """Return the events in lines of JSON; other content of the lines is ignored."""
    events = []
    for line in lines:
        if line.strip():
            found: dict[str, Any] = json.loads(line)
            found = found.get("event", found)
            events.append(PathEvent(**{name: found[name] for name in _FIELDS}))
    return events


@dataclass(slots=True)
class PathWatch:
    """A running `path watch` in a host. `available` is False if mrcctl lacks the command."""

    name: str
    host: str
    available: bool = False
    _lines: list[str] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        watch = (sys.executable, "-m", "cli", "path", "watch", "--json")
        line, environment = lab.command_in(self.name, self.host, watch)
        self._process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        # A mrcctl without the command ends at once with an error.
        self.available = not _ends(self._process, _START_S)
        if self.available:
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        if self._thread is not None:
            self._thread.join()
        self._process.communicate()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def events(self) -> list[PathEvent]:
        """Return the events so far."""
        return parse(list(self._lines))

    def text(self) -> str:
        """Return the output so far as it was printed."""
        return "".join(self._lines)


def _ends(process: subprocess.Popen[str], within_s: float) -> bool:
    """Return whether the process ends within this time."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True
