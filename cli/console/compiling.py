# SPDX-License-Identifier: GPL-2.0-only
"""Say that a daemon which was started compiles its programs, and for how long.

That happens once on a machine, and again after an upgrade of a checkout; packages bring compiled
programs. The daemon says so in its log, which this reads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

EVENT = b"datapath.compiling"
SECONDS = 8
"""What compiling takes on two quiet cores, about; longer on a busy machine."""


class Compiling:
    """Shows a progress bar from the time that one of some daemons compiles until the end."""

    def __init__(self, logs: Sequence[Path]) -> None:
        """Read each log from its present end on."""
        self._read = {log: log.stat().st_size if log.exists() else 0 for log in logs}
        self._bar: Any = None
        self._since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            if error is None:
                self._bar.update(self._bar.length - self._bar.pos)
            self._bar.render_finish()

    def look(self) -> None:
        """Look for the event, or go on with the bar; to be called now and then."""
        if self._bar is None:
            if any(self._says_so(log) for log in self._read):
                self._begin()
            return
        done = min(SECONDS - 1, int(time.monotonic() - self._since))
        self._bar.update(max(0, done - self._bar.pos))

    def _says_so(self, log: Path) -> bool:
        """Return whether what is new in a log has the event."""
        try:
            with log.open("rb") as file:
                file.seek(self._read[log])
                new = file.read()
        except OSError:
            return False
        self._read[log] += max(0, len(new) - len(EVENT) + 1)  # it may be written by halves
        return EVENT in new

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._bar = click.progressbar(
            length=SECONDS,
            label=f"mrcd compiles its programs, once, for about {SECONDS} s",
            file=sys.stderr,
            show_eta=False,
        )
        self._bar.render_progress()
