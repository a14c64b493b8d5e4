# SPDX-License-Identifier: GPL-2.0-only
"""Start and end the processes that hold packets for `delay=` faults."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from mrcd.lab import holding, processes

_SCRIPT = str(Path(holding.__file__).resolve())
_START_DEADLINE_MS = 5000


def tap(port: str) -> str:
    """The interface through which a port's packets go to be held."""
    return f"dl-{port}"


def running(namespace: str, port: str) -> dict[int, int]:
    """The processes that hold packets of a port: pid and microseconds."""
    found = {}
    for pid in processes.inside([namespace]):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it has ended
        if _SCRIPT in words and words[-4] == port:
            found[pid] = int(words[-2])
    return found


def start(namespace: str, port: str, delay_us: int) -> None:
    """Hold what comes to the port's tap; returns when the tap is there.

    OSError when the process does not start.
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
    """End processes once what they hold has left."""
    processes.stop(pids)
