# SPDX-License-Identifier: GPL-2.0-only
"""Find the libraries of training traffic and run their processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compare import programs
from bench.compare.routes import Competitor
from bench.instruments.flow import BenchFailed

SETUP = "run `make setup-bench`"
HERE = Path(__file__).parent
STEP_S = 60  # a step that takes longer counts as failed
READY_S = 60.0
_LOOK_S = 0.02

_INTERPRETERS = ("/usr/bin/python3", sys.executable)  # the distribution's torch needs its own


def missing(module: str) -> str | None:
    """Return how to install a missing module; None if it is installed."""
    try:
        interpreter(module)
    except BenchFailed as problem:
        return str(problem)
    return None


def versions() -> str:
    """Return the installed versions, for the report."""
    found = []
    for module in ("torch", "mpi4py"):
        code = f"import importlib.metadata as m; print({module!r}, m.version({module!r}))"
        with contextlib.suppress(BenchFailed):
            line = [interpreter(module), "-c", code]
            done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
            found.append(done.stdout.strip())
    return ", ".join(found) or f"neither torch nor mpi4py: {SETUP}"


def interpreter(module: str) -> str:
    """Return an interpreter that has the module; BenchFailed if there is none."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    for python in _INTERPRETERS:
        if os.path.exists(python) and not subprocess.call([python, "-c", code]):
            return python
    raise BenchFailed(f"{module} is not installed: {SETUP}")


def preload(competitor: Competitor) -> Mapping[str, str]:
    """Return the environment that makes the ranks' sockets like those of other workloads."""
    kind = "mptcp" if competitor.mptcp else "tcp"
    return {"LD_PRELOAD": str(programs.tcp_preload()), "TCP_PRELOAD": kind}


@dataclass(frozen=True, slots=True)
class Voice:
    """A job's output: an object a line in the file `said` of its folder, errors in `wailed`."""

    name: str
    process: subprocess.Popen[bytes]
    folder: Path

    def first(
        self, what: str, wanted: Callable[[dict[str, Any]], bool], end: float
    ) -> dict[str, Any]:
        """Wait until `end` (monotonic) for the first message wanted; BenchFailed if none comes."""
        while True:
            over = self.process.poll() is not None or time.monotonic() > end
            for message in self._said():
                if wanted(message):
                    return message
            if over:
                wails = (self.folder / "wailed").read_text().strip()[-300:]
                reason = self.errors() or wails or "nothing was said"
                raise BenchFailed(f"{self.name}: {what} did not come: {reason}")
            time.sleep(_LOOK_S)

    def errors(self) -> str:
        """Return the errors by rank; empty if there are none."""
        wrong = [each for each in self._said() if "error" in each]
        return "; ".join(f"rank {each['rank']}: {each['error']}" for each in wrong)

    def _said(self) -> list[dict[str, Any]]:
        lines = (self.folder / "said").read_text().splitlines(keepends=True)
        whole = (line for line in lines if line.startswith("{") and line.endswith("\n"))
        return [json.loads(line) for line in whole]


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill the whole session that a process leads after the block."""
    with process:
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
