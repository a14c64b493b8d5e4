# SPDX-License-Identifier: GPL-2.0-only
"""Run Open MPI over its TCP BTL with a rank in every host (mpi_rank.py); read its steps."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.compare import libraries
from bench.compare.libraries import HERE, READY_S, STEP_S, Voice
from bench.compare.routes import Competitor
from bench.compare.steps import Steps
from cli.lab import state

Job = tuple[int, float]
"""A job: bytes, seconds."""


def run(
    name: str, competitor: Competitor, jobs: Sequence[Job], strike: Callable[[int], None]
) -> list[Steps]:
    """Run all-reduce in every host of a lab, one job after another; return the steps of each.

    `strike` is called with the starting time of the last job, once that has begun.
    """
    with tempfile.TemporaryDirectory(prefix="mpi") as folder:
        said, wailed = Path(folder, "said"), Path(folder, "wailed")
        with said.open("wb") as out, wailed.open("wb") as errors:
            process = subprocess.Popen(
                _command(name, competitor, jobs, folder), env=_environment(name),
                stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + READY_S + len(jobs) * STEP_S
        with libraries.ended(process):
            voice = Voice("mpirun", process, Path(folder))
            last = len(jobs) - 1
            strike(int(voice.first(f"job {last}", lambda m: m.get("job") == last, end)["began_ns"]))
            found = voice.first("steps", lambda m: "steps" in m, end)["steps"]
    return [Steps(np.array(began, np.int64), np.array(took, np.int64)) for began, took in found]


def _command(name: str, competitor: Competitor, jobs: Sequence[Job], folder: str) -> list[str]:
    hosts = [host.name for host in state.read_fabric(name).hosts]
    components = {
        "plm_rsh_agent": str(HERE / "mpi_agent.sh"),
        "plm_rsh_no_tree_spawn": "1",
        "orte_tmpdir_base": folder,
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": competitor.interface,
        "oob_tcp_if_include": competitor.interface,
    }
    exported = libraries.preload(competitor)
    return [
        *(str(HERE / "mpi_agent.sh"), hosts[0]),
        *("mpirun", "-np", str(len(hosts)), "--bind-to", "none"),
        *("--host", ",".join(f"{host}:1" for host in hosts)),
        *(word for key, value in components.items() for word in ("--mca", key, value)),
        *(word for key, value in exported.items() for word in ("-x", f"{key}={value}")),
        *(libraries.interpreter("mpi4py"), str(HERE / "mpi_rank.py")),
        *(f"{size}:{seconds}" for size, seconds in jobs),
    ]


def _environment(name: str) -> dict[str, str]:
    return dict(
        os.environ, MPI_LAB=name, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"
    )
