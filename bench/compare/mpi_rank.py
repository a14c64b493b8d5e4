# SPDX-License-Identifier: GPL-2.0-only
"""Run one rank of an MPI all-reduce, started by mpirun: `mpi_rank.py BYTES:SECONDS ...`.

Rank 0 prints one JSON object a line: {"job", "began_ns"} when the steps of a job begin, and
{"steps": [[began_ns, took_ns], ...]} at the end. There is a pair for each job: when rank 0 began
each step (CLOCK_MONOTONIC), and the time that the slowest rank took.
"""

from __future__ import annotations

import json
import sys
import time
from array import array

from mpi4py import MPI

_STEPS_MIN = 2
_STEPS_MAX = 20_000
_LONG_BYTES = 1 << 24  # steps of this size need no warm-up step


def main() -> None:
    """Do all jobs one after another."""
    jobs = [word.split(":") for word in sys.argv[1:]]
    result = [steps(job, int(size), float(s)) for job, (size, s) in enumerate(jobs)]
    say(steps=result)


def say(**what: object) -> None:
    """Print one JSON object, as rank 0."""
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(what), flush=True)


def steps(job: int, size: int, seconds: float) -> tuple[list[int], list[int]]:
    """Do the steps of one job; return when they began, and their times."""
    world = MPI.COMM_WORLD
    mine, total = array("f", [1.0]) * (size // 4), array("f", [0.0]) * (size // 4)

    def step() -> int:
        began_ns = time.monotonic_ns()
        world.Allreduce([mine, MPI.FLOAT], [total, MPI.FLOAT])
        return time.monotonic_ns() - began_ns

    count = _STEPS_MIN
    if size < _LONG_BYTES:
        warm_ns = world.allreduce(min(step() for _ in range(3)), op=MPI.MAX)
        count = min(_STEPS_MAX, max(count, int(seconds * 1e9 / warm_ns)))
    world.Barrier()
    say(job=job, began_ns=time.monotonic_ns())
    began, took = array("q", [0]) * count, array("q", [0]) * count
    for number in range(count):
        began[number] = time.monotonic_ns()
        took[number] = step()
    slowest = array("q", [0]) * count
    world.Allreduce([took, MPI.INT64_T], [slowest, MPI.INT64_T], op=MPI.MAX)
    return list(began), list(slowest)


if __name__ == "__main__":
    main()
