# SPDX-License-Identifier: GPL-2.0-only
"""What ``mrcctl path watch --json`` of a host says while a block runs: a PathEvent a line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from mrcd.lab import lab

_START_S = 3.0


@dataclass(frozen=True, slots=True)
class PathEvent:
    """A path changed its state.

    `sent_ns`: when the lost packet that was the reason was sent; none: no packet was the reason.
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
        """The path left service because a packet was lost."""
        return self.to_state == "ASSUMED_BAD" and bool(self.sent_ns)

    @property
    def took_ns(self) -> int:
        """From the sending of the lost packet to the withdrawal."""
        return self.time_ns - (self.sent_ns or 0)


_FIELDS = tuple(PathEvent.__dataclass_fields__)


def parse(lines: Iterable[str]) -> list[PathEvent]:
    """The events of lines of JSON; what else the lines hold is passed over."""
    events = []
    for line in lines:
        if line.strip():
            found: dict[str, Any] = json.loads(line)
            found = found.get("event", found)
            events.append(PathEvent(**{name: found[name] for name in _FIELDS}))
    return events


@dataclass(slots=True)
class PathWatch:
    """Runs the command in a host. `available` is False where mrcctl does not know it."""

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
        # A mrcctl without the command ends at once with a complaint.
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
        """What has been said so far."""
        return parse(list(self._lines))

    def text(self) -> str:
        """The same, as it was said."""
        return "".join(self._lines)


def _ends(process: subprocess.Popen[str], within_s: float) -> bool:
    """Whether the process ends in this time."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True
