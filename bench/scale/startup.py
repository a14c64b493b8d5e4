# SPDX-License-Identifier: GPL-2.0-only
"""Measure how long mrcctl takes to start: ``python -m bench.scale.startup``.

The target is 0.25 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rigs.control_double import FakeSource, serving

ROUNDS = 15
COMMANDS = (["--help"], ["status"], ["path", "list"], ["lab", "--help"])


def milliseconds(socket: Path, command: list[str]) -> float:
    """Return the ms of one run, from exec to exit."""
    before = time.perf_counter_ns()
    subprocess.run(
        [sys.executable, "-m", "cli", "--socket", str(socket), *command],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return (time.perf_counter_ns() - before) / 1e6


def main() -> None:
    """Print the median and the worst time of each command."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "mrcd.sock")
        with serving(socket, FakeSource()):
            for command in COMMANDS:
                times = [milliseconds(socket, command) for _ in range(ROUNDS)]
                print(
                    f"mrcctl {' '.join(command):10} "
                    f"median {statistics.median(times):4.0f} ms, worst {max(times):4.0f} ms"
                )


if __name__ == "__main__":
    main()
