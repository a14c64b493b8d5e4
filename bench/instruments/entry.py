# SPDX-License-Identifier: GPL-2.0-only
"""Begin a benchmark, take its figures one after another, and save them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

from bench.instruments.flow import BenchFailed
from bench.instruments.result import Line, table
from cli.lab.state import LabFailed


def parser(
    about: str | None,
    *,
    name: str | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    figures: bool = True,
) -> argparse.ArgumentParser:
    """Return a parser with the options that benchmarks share, those with a default.

    about: the module's documentation, of which the first line is shown. name: of what is built in
    namespaces, a lab mostly. seconds: the length of a measurement. seed: of the order of turns.
    figures: whether they can be written to a file.
    """
    spec = sys.modules["__main__"].__spec__
    program = None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
    made = argparse.ArgumentParser(prog=program, description=(about or "").partition("\n")[0])
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds, help="of everything; %(default)s")
    if seconds is not None:
        text = "length of a measurement; %(default)s"
        made.add_argument("--seconds", type=float, default=seconds, help=text)
    if seed is not None:
        made.add_argument("--seed", type=int, default=seed, help="of the order of turns")
    if figures:
        made.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    if name is not None:
        made.add_argument("--name", default=name, help="beginning of the namespaces' names")
    return made


def begin(name: str) -> None:
    """Exit unless labs can be made here; make SIGTERM end the program cleanly."""
    if os.geteuid() != 0:
        sys.exit(f"{name}: making network namespaces for the lab needs root: run it with sudo")
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)  # unwinds, and so takes the lab down


def take(name: str, measuring: Iterable[Line]) -> list[Line] | str:
    """Print and return the figures of one measurement, or return why there are none."""
    began = time.monotonic()
    try:
        lines = list(measuring)
    except (BenchFailed, LabFailed) as problem:
        return f"{name} could not be measured: {problem}"
    print(f"{table(lines)}\n({time.monotonic() - began:.0f} s)", flush=True)
    return lines


def gather(
    results: Iterable[list[Line] | str], keep: Callable[[Sequence[Line]], None]
) -> tuple[list[Line], bool]:
    """Return all figures, and whether some could not be taken.

    `keep` is called with the figures so far after each result, in case the run is interrupted.
    """
    lines: list[Line] = []
    failed = False
    for result in results:
        if isinstance(result, str):
            print(f"bench: {result}", flush=True)
            failed = True
        else:
            lines += result
        keep(lines)
    return lines, failed


def report(lines: Sequence[Line], **more: object) -> dict[str, object]:
    """Return figures together with facts about the machine."""
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **more,
        "lines": plain(lines),
    }


def plain(lines: Sequence[Line]) -> list[dict[str, object]]:
    """Return figures as they are in JSON."""
    return [line.plain() for line in lines]


def save(file: Path | None, content: object) -> None:
    """Write JSON if a file is given."""
    if file is not None:
        file.write_text(json.dumps(content, indent=1) + "\n")
