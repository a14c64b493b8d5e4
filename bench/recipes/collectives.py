# SPDX-License-Identifier: GPL-2.0-only
"""Measure all-reduce between two hosts: torch.distributed's gloo, and Open MPI over TCP."""

from __future__ import annotations

from bench.compare import gloo, libraries, mpi
from bench.recipes.outcome import Interval, Outcome, judge
from bench.recipes.stage import LASTS_S, Stage, program

UNIT = "steps/s"
_BYTES = 1 << 20
_SPARE = 1.5  # MPI counts its steps beforehand, by the fastest of three


def measure_gloo(stage: Stage) -> Outcome:
    """Sum 1 MiB with gloo, a rank in every host, one step after another."""
    libraries.interpreter("torch")
    jobs = [("all-reduce", _BYTES, LASTS_S)]
    with gloo.ranks(stage.lab, stage.competitor, jobs, len(jobs)) as ranks:
        when = stage.strike(ranks.await_job(0))
        failed = ranks.await_end()
        return judge(ranks.steps(0), when, len(failed))


def measure_mpi(stage: Stage) -> Outcome:
    """Sum 1 MiB with Open MPI's Allreduce, a rank in every host, one step after another."""
    program("mpirun")
    struck: list[Interval] = []
    done = mpi.run(
        stage.lab, stage.competitor, [(_BYTES, _SPARE * LASTS_S)],
        lambda began_ns: struck.append(stage.strike(began_ns)),
    )  # fmt: skip
    return judge(done[0], struck[0])
