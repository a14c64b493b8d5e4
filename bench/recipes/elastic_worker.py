# SPDX-License-Identifier: GPL-2.0-only
"""Train a small model as one worker of torchrun, with an interpreter that has torch.

The environment has RECORDS, a folder, and LASTS_S. Rank 0 writes the time when the first step began
(CLOCK_MONOTONIC, ns) to the file `began`. Each rank writes rank-<rank>.<restarts>: native i64 pairs
of the times before and after each step.
"""

from __future__ import annotations

import os
import time
from array import array
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_WIDTH = 512  # a layer has 1 MiB of weights
_ROWS = 16


def main() -> None:
    """Train for LASTS_S; rank 0 decides, and all ranks end after the same step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(os.environ["RECORDS"])
    model = DistributedDataParallel(torch.nn.Linear(_WIDTH, _WIDTH))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, going, times = torch.ones(_ROWS, _WIDTH), torch.ones(1), array("q")
    dist.barrier()
    began_ns = time.monotonic_ns()
    if rank == 0:
        partial = folder / "began.partial"
        partial.write_text(str(began_ns))
        partial.rename(folder / "began")
    end_ns = began_ns + int(float(os.environ["LASTS_S"]) * 1e9)
    try:
        while going.item():
            before_ns = time.monotonic_ns()
            optimiser.zero_grad()
            model(inputs).square().mean().backward()
            optimiser.step()
            going.fill_(float(time.monotonic_ns() < end_ns))
            dist.broadcast(going, src=0)
            times.extend((before_ns, time.monotonic_ns()))
    finally:
        name = f"rank-{rank}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        with (folder / name).open("wb") as file:
            times.tofile(file)


if __name__ == "__main__":
    main()
