# SPDX-License-Identifier: GPL-2.0-only
"""The place of a recipe's turn: two hosts of a lab, the way between them, and the fault."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare import libraries
from bench.compare.routes import Competitor
from bench.instruments import flow, simultaneous
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import S
from bench.recipes.outcome import Interval
from cli.lab import lab, processes, state

HOSTS = ("h1", "h2")
PLANE = "p0"
"""The plane that dies; TCP on one plane is on this one, and MPTCP begins its connections there."""

WARM_S = 1.0
BEFORE_S = 3.0
SILENT_S = 4.0
AFTER_S = 3.0
LASTS_S = BEFORE_S + SILENT_S + AFTER_S
_READY_S = 20.0
_LOOK_S = 0.05
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A lab that is up, the way that has its turn, and a folder for the whole run of a recipe."""

    lab: str
    competitor: Competitor
    folder: Path

    def address(self, host: str) -> str:
        """Return the address of a host on this way."""
        fabric = state.read_fabric(self.lab)
        return self.competitor.address(fabric, fabric.host(host))

    def environment(self, more: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment that gives an application cubic TCP, or MPTCP, and `more`.

        The library is copied, because an application may run as a user who cannot read the sources.
        """
        wanted = libraries.preload(self.competitor)
        library = self.folder / "tcp_preload.so"
        if not library.exists():
            shutil.copyfile(wanted["LD_PRELOAD"], library)
            library.chmod(0o755)
        return {**os.environ, **wanted, "LD_PRELOAD": str(library), **more}

    @contextlib.contextmanager
    def running(
        self,
        host: str,
        command: Sequence[str],
        more: Mapping[str, str] | None = None,
        *,
        name: str = "",
        last: signal.Signals = signal.SIGTERM,
    ) -> Iterator[Running]:
        """Run a program in a host for the time of a block; `last` ends it, then SIGKILL.

        `more` are variables of its environment, and `name` is its name in errors.
        """
        name = name or Path(command[0]).name
        said = self.folder / f"{name}-{host}-{time.monotonic_ns()}"
        with said.open("wb") as out:
            process = processes.spawn(
                f"{self.lab}-{host}", command, stdout=out, stderr=subprocess.STDOUT,
                environment=self.environment(more or {}),
            )  # fmt: skip
        with process:
            try:
                yield Running(name, process, said)
            finally:
                _end(process, last)

    def strike(self, began_ns: int) -> Interval:
        """Silence the plane, `BEFORE_S` after a beginning, for `SILENT_S`; return the times."""
        flow.wait_until(began_ns + int(BEFORE_S * S))
        try:
            with flow.stepping_back():
                struck_ns = lab.fault(self.lab, PLANE, "blackhole").began_ns
            healed_ns = struck_ns + int(SILENT_S * S)
            flow.wait_until(healed_ns)
        finally:
            simultaneous.clear_all(self.lab)
        return Interval(began_ns + int(WARM_S * S), struck_ns, healed_ns)


@dataclass(frozen=True, slots=True)
class Running:
    """A program that runs in a host, and the file with all that it prints."""

    name: str
    process: subprocess.Popen[bytes]
    said: Path

    def wait(self, within_s: float) -> str:
        """Wait until it has ended well; return what it printed, or raise BenchFailed."""
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"{self.name} did not end within {within_s:.0f} s") from None
        text = self.said.read_text(errors="replace")
        if status:
            raise BenchFailed(f"{self.name} ended with status {status}: {text.strip()[-500:]}")
        return text

    def until(self, what: str, ready: Callable[[], bool], within_s: float = _READY_S) -> None:
        """Wait until a condition holds; raise BenchFailed if the program ends or is too slow."""
        end = time.monotonic() + within_s
        while not ready():
            if self.process.poll() is not None or time.monotonic() > end:
                words = self.said.read_text(errors="replace").strip()[-500:]
                raise BenchFailed(f"{self.name}: {what} did not come: {words or 'no message'}")
            time.sleep(_LOOK_S)


def _end(process: subprocess.Popen[bytes], last: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(last)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        print(f"recipes: process {process.pid} ignored {last.name}", flush=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def program(name: str, *folders: Path) -> str:
    """Return the path of a program of these folders or of PATH; BenchFailed if there is none."""
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise BenchFailed(f"{name} is not installed: {libraries.SETUP}")
    return found
