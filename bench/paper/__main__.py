# SPDX-License-Identifier: GPL-2.0-only
"""Repeat the paper's experiments, scaled to the lab, and compare: ``make bench-paper``.

python -m bench.paper [--only NAME ...] [--rounds N] [--quick] [--mtu 9000] [--json FILE]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence

from bench.instruments import entry, flow
from bench.instruments.experiment import Experiment, Setting
from bench.instruments.result import Line
from bench.paper import ecn, links, planes, tail
from cli.lab.state import LabFailed

EXPERIMENTS: tuple[Experiment, ...] = (
    *links.EXPERIMENTS,
    *planes.EXPERIMENTS,
    *tail.EXPERIMENTS,
    *ecn.EXPERIMENTS,
)
NAMES = tuple(experiment.name for experiment in EXPERIMENTS)


def main() -> None:
    """Run the requested experiments; build each fabric once for all experiments on it."""
    parser = entry.parser(__doc__, name="paper")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--rounds", type=int, help="repetitions of everything")
    parser.add_argument("--quick", action="store_true", help="run each experiment once")
    args = parser.parse_args()
    entry.begin("bench")
    chosen = [each for each in EXPERIMENTS if each.name in (args.only or NAMES)]
    rounds = 1 if args.quick else args.rounds
    published = {each.name: each.published for each in chosen}
    lines, failed = entry.gather(
        _measured(chosen, args.name, args.mtu, rounds),
        lambda lines: entry.save(args.json, entry.report(lines, published=published)),
    )
    missed = [line for line in lines if line.verdict == "MISSED"]
    print(f"\n{len(lines)} figures, {len(missed)} of them missed:" if missed else "\nnone missed")
    for line in missed:
        print(f"  {line.item}: {line.what} ({line.where})")
    sys.exit(failed)


def _measured(
    chosen: Sequence[Experiment], name: str, mtu: int, rounds: int | None
) -> Iterator[list[Line] | str]:
    """Yield the lines of each experiment, or why there are none."""
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
    print(f"\n== {experiment.name}: {experiment.about}", flush=True)
    print(f"   published: {experiment.published}", flush=True)
    print(f"   here: {setting.shape}, MTU {setting.mtu}, {setting.rounds} rounds", flush=True)
    return entry.take(experiment.name, experiment.measure(setting))


if __name__ == "__main__":
    main()
