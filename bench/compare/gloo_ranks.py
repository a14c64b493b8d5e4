# SPDX-License-Identifier: GPL-2.0-only
"""Run the ranks of a training job with torch.distributed's gloo, a process in each host of a lab.

The file is run by its path, with an interpreter that has torch. Its argument is a JSON object:

    namespaces   of the ranks, in order
    interface    the interface for gloo (GLOO_SOCKET_IFNAME)
    preload      "tcp" or "mptcp", for tcp_preload.so, which is loaded already
    folder       where ranks meet, and where records go: <job>-<rank>, native i64 pairs of
                 CLOCK_MONOTONIC before and after each step
    jobs         [operation, bytes, seconds], one after another; "all-reduce" or "all-to-all"; no
                 seconds: one step
    held         from this job on, rank 0 waits for a file go-<job> in the folder
    timeout_s    the time after which a step has failed

torch is imported once, before the ranks are forked. The program prints one JSON object a line when
the ranks are connected, when a job begins, when it is over on all ranks, and when one fails.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import mmap
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_LONG_BYTES = 1 << 24  # steps of this size need no warm-up step
_LOOK_S = 0.01
_CLONE_NEWNET = 0x40000000
_NEVER = 1 << 62
_NUMBER_BYTES = 8


def say(**what: object) -> None:
    """Print one JSON object for the parent process."""
    os.write(1, (json.dumps(what) + "\n").encode())


def main() -> None:
    """Fork the ranks and wait for them."""
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    # For each job, the step before which all ranks end. Rank 0 writes it, see `steps`.
    # Use a single store: struct.pack_into writes zeros first, and a rank reading them stops early.
    last = memoryview(mmap.mmap(-1, _NUMBER_BYTES * len(spec["jobs"]))).cast("Q")
    for job, (_, _, seconds) in enumerate(spec["jobs"]):
        last[job] = _NEVER if seconds else 1
    ranks = {}
    for rank in range(len(spec["namespaces"])):
        child = os.fork()
        if child == 0:
            os._exit(as_rank(spec, rank, last))
        ranks[child] = rank
    failed = []
    while ranks:
        child, status = os.wait()
        rank = ranks.pop(child)
        if status:
            failed.append(rank)
    say(failed=failed)


def as_rank(spec: dict[str, Any], rank: int, last: memoryview) -> int:
    """Do all jobs as one rank; return the exit status."""
    enter(spec["namespaces"][rank])
    os.environ["GLOO_SOCKET_IFNAME"] = spec["interface"]
    os.environ["TCP_PRELOAD"] = spec["preload"]
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{spec['folder']}/meet",
            rank=rank,
            world_size=len(spec["namespaces"]),
            timeout=datetime.timedelta(seconds=spec["timeout_s"]),
        )
        for job, (operation, size, seconds) in enumerate(spec["jobs"]):
            record = Path(spec["folder"], f"{job}-{rank}")
            step = work(operation, size)
            if rank == 0 and job >= spec["held"]:
                await_file(Path(spec["folder"], f"go-{job}"), spec["timeout_s"] / 2)
            for _ in range(0 if size >= _LONG_BYTES else 3):
                step()
            steps(job, step, seconds, rank, last, record)
            dist.barrier()
            if rank == 0:
                say(over=job)
    except Exception as problem:
        what, _, _ = str(problem).partition("\n")
        say(rank=rank, error=f"{what} ({queues()})")
        return 1
    return 0


def queues() -> str:
    """Return the queues of this host's sockets, to tell whether a failed step waits for TCP."""
    done = subprocess.run(["ss", "-tnH"], capture_output=True, text=True, check=False)
    held = [
        f"{peer}: {unread} bytes unread, {unsent} not acknowledged"
        for _, unread, unsent, _, peer, *_ in map(str.split, done.stdout.splitlines())
        if (unread, unsent) != ("0", "0")
    ]
    return ", ".join(held) or "no socket holds anything"


def await_file(file: Path, within_s: float) -> None:
    """Wait until a file exists; TimeoutError if it does not in time."""
    end = time.monotonic() + within_s
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{file.name} was not made in time")
        time.sleep(_LOOK_S)


def enter(namespace: str) -> None:
    """Move into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"enter {namespace}")


def work(operation: str, size: int) -> Callable[[], object]:
    """Return a function that does one step of an operation on `size` bytes a rank."""
    mine = torch.ones(size // 4)
    if operation == "all-reduce":
        return lambda: dist.all_reduce(mine)
    theirs = torch.empty_like(mine)
    return lambda: dist.all_to_all_single(theirs, mine)


def steps(
    job: int,
    step: Callable[[], object],
    seconds: float,
    rank: int,
    last: memoryview,
    record: Path,
) -> None:
    """Repeat a step for `seconds`, together with the other ranks.

    A rank ends a step only after all have begun it. So if rank 0 announces before step k that k + 2
    will not be done, all ranks know it before they would begin that step.
    """
    took = array("q")
    number, now = 0, time.monotonic_ns
    began_ns = now()
    if rank == 0:
        say(job=job, began_ns=began_ns)
    end_ns = began_ns + int(seconds * 1e9)
    try:
        while number < last[job]:
            before = now()
            if rank == 0 and before > end_ns and last[job] == _NEVER:
                last[job] = number + 2
            step()
            took.extend((before, now()))
            number += 1
    finally:
        with record.open("wb") as file:
            took.tofile(file)


if __name__ == "__main__":
    main()
