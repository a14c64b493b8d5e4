# SPDX-License-Identifier: GPL-2.0-only
"""The paper's experiments, scaled to the lab, beside what was published: ``make bench-paper``.

python -m tests.bench.paper [--only NAME ...] [--rounds N] [--quick] [--mtu 9000] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from mrcd.fabric.state import LabFailed
from tests.bench import flow, paper_ecn, paper_links, paper_planes, paper_tail
from tests.bench.experiment import Experiment, Setting
from tests.bench.flow import BenchFailed
from tests.bench.result import Line, table

EXPERIMENTS: tuple[Experiment, ...] = (
    *paper_links.EXPERIMENTS,
    *paper_planes.EXPERIMENTS,
    *paper_tail.EXPERIMENTS,
    *paper_ecn.EXPERIMENTS,
)
NAMES = tuple(experiment.name for experiment in EXPERIMENTS)


def main() -> None:
    """Run what was asked for, each fabric once for all experiments on it."""
    parser = argparse.ArgumentParser(prog="make bench-paper", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--rounds", type=int, help="repetitions of everything")
    parser.add_argument("--quick", action="store_true", help="once each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures of all rounds")
    parser.add_argument("--name", default="paper", help="of the lab")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench: labs are made of network namespaces: run this as root")
    signal.signal(signal.SIGTERM, _terminated)
    chosen = [each for each in EXPERIMENTS if each.name in (args.only or NAMES)]
    rounds = 1 if args.quick else args.rounds
    lines: list[Line] = []
    failed = False
    for measured in _measured(chosen, args.name, args.mtu, rounds):
        if isinstance(measured, str):
            print(f"bench: {measured}", flush=True)
            failed = True
        else:
            lines += measured
        if args.json:  # what there is so far, should the rest be cut short
            args.json.write_text(json.dumps(_report(chosen, lines), indent=1) + "\n")
    missed = [line for line in lines if line.verdict == "MISSED"]
    print(f"\n{len(lines)} figures, {len(missed)} of them missed:" if missed else "\nnone missed")
    for line in missed:
        print(f"  {line.item}: {line.what} ({line.where})")
    sys.exit(failed)


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)  # unwinds, and so takes the lab down


def _measured(
    chosen: Sequence[Experiment], name: str, mtu: int, rounds: int | None
) -> Iterator[list[Line] | str]:
    """The lines of each experiment, or why there are none."""
    by_shape = sorted(chosen, key=lambda each: str(each.shape))
    for shape, group in itertools.groupby(by_shape, key=lambda each: each.shape):
        try:
            with flow.fabric_up(shape.fabric(name, mtu)):
                for experiment in group:
                    setting = Setting(name, shape, mtu, rounds or experiment.rounds)
                    yield _one(experiment, setting)
        except LabFailed as problem:
            yield f"lab of {shape} failed: {problem}"


def _one(experiment: Experiment, setting: Setting) -> list[Line] | str:
    began = time.monotonic()
    print(f"\n== {experiment.name}: {experiment.about}", flush=True)
    print(f"   published: {experiment.published}", flush=True)
    print(f"   here: {setting.shape}, MTU {setting.mtu}, {setting.rounds} rounds", flush=True)
    lines = []
    try:
        for line in experiment.measure(setting):
            lines.append(line)
    except (BenchFailed, LabFailed) as problem:
        return f"{experiment.name} could not be measured: {problem}"
    print(f"{table(lines)}\n({time.monotonic() - began:.0f} s)", flush=True)
    return lines


def _report(chosen: Sequence[Experiment], lines: Sequence[Line]) -> dict[str, object]:
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "published": {each.name: each.published for each in chosen},
        "lines": [line.plain() for line in lines],
    }


if __name__ == "__main__":
    main()
