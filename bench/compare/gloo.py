# SPDX-License-Identifier: GPL-2.0-only
"""Run torch.distributed's gloo with a rank in every host (gloo_ranks.py); read its steps."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.compare import libraries
from bench.compare.libraries import HERE, READY_S, STEP_S, Voice
from bench.compare.routes import Competitor
from bench.compare.steps import Steps, joined
from cli.lab import processes, state

Job = tuple[str, int, float]
"""A job: operation, bytes, seconds."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """A running gloo_ranks.py."""

    voice: Voice
    count: int

    def _await(self, what: str, wanted: Callable[[dict[str, Any]], bool], s: float) -> Any:
        return self.voice.first(what, wanted, time.monotonic() + s)

    def await_job(self, job: int) -> int:
        """Wait until a job has begun; return the time when it did."""
        message = self._await(f"job {job}", lambda m: m.get("job") == job, 10 * STEP_S)
        return int(message["began_ns"])

    def go(self, job: int) -> None:
        """Let a held job begin."""
        (self.voice.folder / f"go-{job}").touch()

    def await_over(self, job: int) -> None:
        """Wait until a job is over on all ranks."""
        self._await(f"the end of job {job}", lambda m: m.get("over") == job, 10 * STEP_S)

    def await_end(self) -> list[int]:
        """Wait until all ranks have ended; return those that failed."""
        message = self._await("the end", lambda m: "failed" in m, 2 * STEP_S + READY_S)
        return [int(rank) for rank in message["failed"]]

    def steps(self, job: int) -> Steps:
        """Return the steps that all ranks have done."""
        files = [self.voice.folder / f"{job}-{rank}" for rank in range(self.count)]
        records = [np.fromfile(file, dtype=np.int64).reshape(-1, 2) for file in files]
        return joined(records)


@contextlib.contextmanager
def ranks(name: str, competitor: Competitor, jobs: Sequence[Job], held: int) -> Iterator[Ranks]:
    """Run a rank in every host; end them afterwards. Jobs from `held` on wait for `go`."""
    fabric = state.read_fabric(name)
    preload = libraries.preload(competitor)
    environment = dict(os.environ, OMP_NUM_THREADS="1", LD_PRELOAD=preload["LD_PRELOAD"])
    with tempfile.TemporaryDirectory() as folder:
        namespaces = [f"{name}-{host.name}" for host in fabric.hosts]
        spec = {
            "namespaces": namespaces,
            "interface": competitor.interface,
            "preload": preload["TCP_PRELOAD"],
            "folder": folder,
            "jobs": jobs,
            "held": held,
            "timeout_s": STEP_S,
        }
        command = [libraries.interpreter("torch"), str(HERE / "gloo_ranks.py"), json.dumps(spec)]
        said, wailed = Path(folder, "said"), Path(folder, "wailed")
        with said.open("wb") as out, wailed.open("wb") as errors:
            process = processes.spawn(
                f"{name}-h1", command, stdout=out, stderr=errors, environment=environment
            )
        with libraries.ended(process):
            yield Ranks(Voice("gloo", process, Path(folder)), len(namespaces))
