# SPDX-License-Identifier: GPL-2.0-only
"""Training traffic: collective operations of torch.distributed (gloo) and of Open MPI.

Neither is needed for anything else; `make setup-bench` installs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mrcd.fabric import lab, processes, state
from tests.bench import flow, path_states, simultaneous
from tests.bench.compare import programs
from tests.bench.compare.arena import Arena, say
from tests.bench.compare.faults import busiest
from tests.bench.compare.processor import Processor
from tests.bench.compare.results import percentiles
from tests.bench.compare.routes import Competitor
from tests.bench.flow import BenchFailed
from tests.bench.metrics import MS, Ints, S

SETUP = "run `make setup-bench`"

_HERE = Path(__file__).parent
_INTERPRETERS = ("/usr/bin/python3", sys.executable)  # the distribution's torch needs its own
_STEP_S = 60  # a step that takes longer has failed
_READY_S = 60.0
_LOOK_S = 0.02
_SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
_QUICK_SIZES = (1 << 18,)
_FAULT_BYTES = 1 << 20
_FAULT_AT_S = 1.2

Where = tuple[str, str, str]
Job = tuple[str, int, float]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a job: when each began, and what it took the slowest rank, in ns."""

    began_ns: Ints
    took_ns: Ints


def training(arena: Arena) -> None:
    """Collectives among all hosts, of both libraries as far as they are installed."""
    for what, missing, measure in (
        ("gloo", _without("torch"), _gloo),
        ("MPI", _without("mpi4py"), _mpi),
    ):
        if missing is not None:
            arena.results.absent[f"{what} (training)"] = missing
            say(f"without {what}: {missing}")
            continue

        def turn(
            competitor: Competitor,
            where: Where,
            measure: Callable[[Arena, Competitor, str], None] = measure,
        ) -> None:
            measure(arena, competitor, where[2])

        arena.take_turns("training", what, turn)


def _without(module: str) -> str | None:
    """What to do about a module that is not installed; None when it is."""
    try:
        _interpreter(module)
    except BenchFailed as problem:
        return str(problem)
    return None


def versions() -> str:
    """What of it is installed, for the report."""
    found = []
    for module in ("torch", "mpi4py"):
        code = f"import importlib.metadata as m; print({module!r}, m.version({module!r}))"
        with contextlib.suppress(BenchFailed):
            line = [_interpreter(module), "-c", code]
            done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
            found.append(done.stdout.strip())
    return ", ".join(found) or f"neither torch nor mpi4py: {SETUP}"


def _interpreter(module: str) -> str:
    """One that has the module."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    for python in _INTERPRETERS:
        if os.path.exists(python) and not subprocess.call([python, "-c", code]):
            return python
    raise BenchFailed(f"{module} is not installed: {SETUP}")


def _gloo(arena: Arena, competitor: Competitor, title: str) -> None:
    """Every size of every operation; then one of them while a plane dies and returns."""
    seconds = 0.6 if arena.quick else 4.0
    sizes = _QUICK_SIZES if arena.quick else _SIZES
    jobs: list[Job] = [
        (operation, size, seconds) for operation in ("all-reduce", "all-to-all") for size in sizes
    ]
    dead_s = 1.0 if arena.quick else 3.0
    jobs.append(("all-reduce", _FAULT_BYTES, 2 * _FAULT_AT_S + dead_s))
    processor = Processor()
    with _ranks(arena.name, competitor, jobs) as ranks:
        began_ns = ranks.await_job(len(jobs) - 1)
        busy = processor.busy()
        died_ns = _plane_dies(arena, began_ns, dead_s)
        failed = ranks.await_end()
        steps = [ranks.steps(job) for job in range(len(jobs))]
    path_states.wait_restored(arena.name)
    for (operation, size, _), done in zip(jobs[:-1], steps[:-1], strict=True):
        _note(arena, ("training", f"gloo {operation}, {_shown(size)}", title), done, busy)
    where = ("training", f"gloo all-reduce, {_shown(_FAULT_BYTES)}, a plane dies", title)
    before = steps[-1].took_ns[steps[-1].began_ns < died_ns]
    note = arena.results.note
    note(where, "p50 before", "ms", float(np.median(before)) / MS if len(before) else None, busy)
    _note(arena, where, steps[-1], busy, failed=int(bool(failed)))


def _plane_dies(arena: Arena, began_ns: int, dead_s: float) -> int:
    """The busiest plane is silent for a while, in the middle of a job; when it died."""
    flow.wait_until(began_ns + int(_FAULT_AT_S * S))
    try:
        died_ns = lab.fault(arena.name, f"p{busiest(arena).plane}", "blackhole").began_ns
        flow.wait_until(died_ns + int(dead_s * S))
    finally:
        simultaneous.clear_all(arena.name)
    return died_ns


def _note(arena: Arena, where: Where, steps: Steps, busy: float, failed: int = 0) -> None:
    took = steps.took_ns
    note = arena.results.note
    for which, value in percentiles(took).items():
        if which < 99.95:
            note(where, f"p{which:g}", "ms", None if value is None else value / MS, busy)
    note(where, "worst", "ms", float(took.max()) / MS if len(took) else None, busy)
    note(where, "steps", "", float(len(took)), busy)
    note(where, "failed steps", "", float(failed), busy)


def _shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"


@dataclass(frozen=True, slots=True)
class Ranks:
    """gloo_ranks.py at work."""

    process: subprocess.Popen[bytes]
    folder: Path
    count: int

    def _await(self, what: str, wanted: Callable[[dict[str, Any]], bool], s: float) -> Any:
        """The first message that is wanted, once it has been said."""
        end = time.monotonic() + s
        while True:
            ended = self.process.poll() is not None
            lines = (self.folder / "said").read_text().splitlines(keepends=True)
            said = [json.loads(line) for line in lines if line.endswith("\n")]
            for message in said:
                if wanted(message):
                    return message
            if ended or time.monotonic() > end:
                why = [f"rank {each['rank']}: {each['error']}" for each in said if "error" in each]
                raise BenchFailed(f"gloo: {what} did not come: {'; '.join(why) or self._wails()}")
            time.sleep(_LOOK_S)

    def _wails(self) -> str:
        return (self.folder / "wailed").read_text().strip()[-300:] or "nothing was said"

    def await_job(self, job: int) -> int:
        """When a job began."""
        message = self._await("the last job", lambda m: m.get("job") == job, 10 * _STEP_S)
        return int(message["began_ns"])

    def await_end(self) -> list[int]:
        """The ranks that failed, when all have ended."""
        message = self._await("the end", lambda m: "failed" in m, 2 * _STEP_S + _READY_S)
        return [int(rank) for rank in message["failed"]]

    def steps(self, job: int) -> Steps:
        """The steps that all ranks have done."""
        files = [self.folder / f"{job}-{rank}" for rank in range(self.count)]
        records = [np.fromfile(file, dtype=np.int64).reshape(-1, 2) for file in files]
        return joined(records)


def joined(records: Sequence[Ints]) -> Steps:
    """Steps of which every rank has a row: when it began and when it ended there."""
    count = min(len(record) for record in records)
    began = np.min([record[:count, 0] for record in records], axis=0)
    took = np.max([record[:count, 1] - record[:count, 0] for record in records], axis=0)
    return Steps(began, took)


@contextlib.contextmanager
def _ranks(name: str, competitor: Competitor, jobs: Sequence[Job]) -> Iterator[Ranks]:
    """A rank in every host; gone afterwards."""
    fabric = state.read_fabric(name)
    preload = _preload(competitor)
    environment = dict(os.environ, OMP_NUM_THREADS="1", LD_PRELOAD=preload["LD_PRELOAD"])
    with tempfile.TemporaryDirectory() as folder:
        namespaces = [f"{name}-{host.name}" for host in fabric.hosts]
        spec = {
            "namespaces": namespaces,
            "interface": competitor.interface,
            "preload": preload["TCP_PRELOAD"],
            "folder": folder,
            "jobs": jobs,
            "timeout_s": _STEP_S,
        }
        command = [_interpreter("torch"), str(_HERE / "gloo_ranks.py"), json.dumps(spec)]
        said, wailed = Path(folder, "said"), Path(folder, "wailed")
        with said.open("wb") as out, wailed.open("wb") as errors:
            process = processes.spawn(
                f"{name}-h1", command, stdout=out, stderr=errors, environment=environment
            )
        with _ended(process):
            yield Ranks(process, Path(folder), len(namespaces))


@contextlib.contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A process that leads a session; all of it is gone afterwards."""
    with process:
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _mpi(arena: Arena, competitor: Competitor, title: str) -> None:
    """All-reduce of Open MPI over TCP."""
    seconds = 0.6 if arena.quick else 4.0
    sizes = _QUICK_SIZES if arena.quick else _SIZES
    processor = Processor()
    rounds = _mpirun(arena.name, competitor, seconds, sizes)
    busy = processor.busy()
    for size, took in zip(sizes, rounds, strict=True):
        where = ("training", f"MPI all-reduce, {_shown(size)}", title)
        empty = np.zeros(0, dtype=np.int64)
        _note(arena, where, Steps(empty, np.array(took, dtype=np.int64)), busy)


def _mpirun(
    name: str, competitor: Competitor, seconds: float, sizes: Sequence[int]
) -> list[list[int]]:
    """What each step of each size took, in ns."""
    hosts = [host.name for host in state.read_fabric(name).hosts]
    with tempfile.TemporaryDirectory(prefix="mpi") as folder:
        components = {
            "plm_rsh_agent": str(_HERE / "mpi_agent.sh"),
            "plm_rsh_no_tree_spawn": "1",
            "orte_tmpdir_base": folder,
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": competitor.interface,
            "oob_tcp_if_include": competitor.interface,
        }
        exported = _preload(competitor)
        command = [
            *(str(_HERE / "mpi_agent.sh"), hosts[0]),
            *("mpirun", "-np", str(len(hosts)), "--bind-to", "none"),
            *("--host", ",".join(f"{host}:1" for host in hosts)),
            *(word for key, value in components.items() for word in ("--mca", key, value)),
            *(word for key, value in exported.items() for word in ("-x", f"{key}={value}")),
            *(_interpreter("mpi4py"), str(_HERE / "mpi_rank.py"), str(seconds)),
            *map(str, sizes),
        ]
        environment = dict(
            os.environ, MPI_LAB=name, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"
        )
        process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        with _ended(process):
            try:
                out, errors = process.communicate(timeout=_READY_S + len(sizes) * _STEP_S)
            except subprocess.TimeoutExpired:
                raise BenchFailed("mpirun did not end in time") from None
    if process.returncode:
        raise BenchFailed(f"mpirun: {errors.strip()[-300:]}")
    found: list[list[int]] = json.loads(out.splitlines()[-1])
    return found


def _preload(competitor: Competitor) -> Mapping[str, str]:
    """What makes the sockets of ranks as those of other workloads are."""
    kind = "mptcp" if competitor.mptcp else "tcp"
    return {"LD_PRELOAD": str(programs.tcp_preload()), "TCP_PRELOAD": kind}
