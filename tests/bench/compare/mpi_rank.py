# SPDX-License-Identifier: GPL-2.0-only
"""One rank of an MPI all-reduce, started by mpirun: `mpi_rank.py SECONDS BYTES ...`.

Rank 0 prints a JSON list: for each size what every step took, in ns, the slowest rank's.
"""

from __future__ import annotations

import json
import sys
import time
from array import array

from mpi4py import MPI

_STEPS_MIN = 3
_STEPS_MAX = 20_000
_WARM_BYTES = 1 << 24  # how much is worth more than one step to warm up


def main() -> None:
    """All sizes, one after another."""
    seconds, sizes = float(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    result = [steps(size, seconds) for size in sizes]
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(result), flush=True)


def steps(size: int, seconds: float) -> list[int]:
    """What the steps of one size took."""
    world = MPI.COMM_WORLD
    mine, total = array("f", [1.0]) * (size // 4), array("f", [0.0]) * (size // 4)

    def step() -> int:
        began_ns = time.monotonic_ns()
        world.Allreduce([mine, MPI.FLOAT], [total, MPI.FLOAT])
        return time.monotonic_ns() - began_ns

    warm_steps = 1 if size >= _WARM_BYTES else 3
    warm_ns = world.allreduce(min(step() for _ in range(warm_steps)), op=MPI.MAX)
    count = min(_STEPS_MAX, max(_STEPS_MIN, int(seconds * 1e9 / warm_ns)))
    world.Barrier()
    took = array("q", (step() for _ in range(count)))
    slowest = array("q", [0]) * count
    world.Allreduce([took, MPI.INT64_T], [slowest, MPI.INT64_T], op=MPI.MAX)
    return list(slowest)


if __name__ == "__main__":
    main()
