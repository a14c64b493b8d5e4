# SPDX-License-Identifier: GPL-2.0-only
"""Start and stop the processes that hold packets for `delay=` faults."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from cli.lab import holding, processes

_SCRIPT = str(Path(holding.__file__).resolve())
_START_DEADLINE_MS = 5000


def tap(port: str) -> str:
    """Return the name of the tap through which a port's packets reach the holding process."""
    return f"dl-{port}"


def running(namespace: str, port: str) -> dict[int, int]:
    """Return the processes that hold packets of a port: pid to delay in microseconds."""
    found = {}
    for pid in processes.inside([namespace]):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # the process has ended
        if _SCRIPT in words and words[-4] == port:
            found[pid] = int(words[-2])
    return found


def start(namespace: str, port: str, delay_us: int) -> None:
    """Start holding the packets that reach the port's tap; return when the tap exists.

    Raises OSError when the process does not start within its deadline.
    """
    command = [sys.executable, "-I", "-S", _SCRIPT, port, tap(port), str(delay_us)]
    process = processes.spawn(namespace, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as pipe:
        ready, _, _ = select.select([pipe], [], [], _START_DEADLINE_MS / 1000)
        if not ready or os.read(pipe.fileno(), len(holding.READY)) != holding.READY:
            process.kill()
            raise OSError(f"the process that delays packets of {port} did not start")


def stop(pids: list[int]) -> None:
    """Stop processes after the packets that they hold have left."""
    processes.stop(pids)
