# SPDX-License-Identifier: GPL-2.0-only
"""Run applications of clusters over mrc0, TCP on one plane, and MPTCP while a plane dies silently.

python -m bench.recipes [--only NAME ...] [--routes mrc0 tcp mptcp] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.compare import configuration
from bench.compare.results import Results
from bench.compare.routes import Competitor, Mptcp, Mrc0, Plane
from bench.instruments import entry, flow, path_states
from bench.instruments.experiment import Shape
from bench.instruments.flow import BenchFailed
from bench.instruments.processor import Processor
from bench.recipes.catalogue import NAMES, RECIPES, Recipe
from bench.recipes.outcome import markdown, rows
from bench.recipes.stage import Stage
from cli.lab.state import LabFailed

ROUTES: tuple[Competitor, ...] = (Mrc0(), Plane(), Mptcp())
_SHARED = Path("/dev/shm")  # keeps the disk out of the measurement


def main() -> None:
    """Measure the recipes; exit with status 1 if something could not be measured."""
    args = arguments().parse_args()
    entry.begin("recipes")
    shape = Shape(planes=4, t1=2, rate_mbps=args.rate)
    routes = [each for each in ROUTES if each.key in args.routes]
    results, processor = Results(), Processor()
    shared = _SHARED if _SHARED.is_dir() else None
    try:
        with (
            tempfile.TemporaryDirectory(prefix="recipes-", dir=shared) as folder,
            flow.fabric_up(shape.fabric(args.name, args.mtu)),
        ):
            print(f"a lab: {shape}, MTU {args.mtu}", flush=True)
            found, absent = configuration.usable(args.name, routes)
            for title, reason in absent.items():
                print(f"without {title}: {reason}", flush=True)
            for recipe in RECIPES:
                if recipe.name in (args.only or NAMES):
                    _measure(recipe, args, found, Path(folder), results)
                    entry.save(args.json, _plain(results, args))
    except LabFailed as problem:
        results.problems.append(str(problem))
    print(f"\nCPU time the hypervisor took: {processor.stolen():.1%}")
    for words in results.problems:
        print(f"could not be measured: {words}")
    sys.exit(bool(results.problems))


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = entry.parser(__doc__, name="recipes", rounds=3, seed=1)
    keys = [each.key for each in ROUTES]
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--routes", nargs="+", choices=keys, default=keys, metavar="ROUTE", help=", ".join(keys)
    )
    parser.add_argument("--rate", type=int, default=250, help="Mb/s of every link (%(default)s)")
    parser.add_argument("--mtu", type=int, default=9000, help="of the planes (%(default)s)")
    return parser


def _measure(
    recipe: Recipe,
    args: argparse.Namespace,
    routes: Sequence[Competitor],
    folder: Path,
    results: Results,
) -> None:
    """Measure a recipe over every route in every round, each round in another order.

    The table is printed at the end, or when the run is stopped.
    """
    began = time.monotonic()
    chance = random.Random(f"{args.seed} {recipe.name}")
    try:
        for turn in range(args.rounds):
            for route in chance.sample(routes, len(routes)):
                words = f"{recipe.name}, {route.title}, round {turn + 1}"
                _take_turn(recipe, Stage(args.name, route, folder), words, results)
    finally:
        print(f"\n{recipe.title} ({time.monotonic() - began:.0f} s)\n", flush=True)
        titles = [route.title for route in routes]
        print(markdown(rows(results.figures(), titles, recipe.name)), flush=True)


def _take_turn(recipe: Recipe, stage: Stage, words: str, results: Results) -> None:
    """Measure a recipe once, and wait until all paths are back; `words` name it in a problem."""
    processor = Processor()
    try:
        outcome = recipe.measure(stage)
        where = ("recipes", recipe.name, stage.competitor.title)
        outcome.note(results, where, recipe.unit, processor.busy())
        path_states.wait_restored(stage.lab)
    except (BenchFailed, LabFailed) as problem:
        results.problems.append(f"{words}: {problem}")


def _plain(results: Results, args: argparse.Namespace) -> dict[str, object]:
    figures = [asdict(figure) for figure in results.figures()]
    return {
        **entry.report([], mtu=args.mtu, rate_mbps=args.rate, seed=args.seed),
        "figures": figures,
        "problems": results.problems,
    }


if __name__ == "__main__":
    main()
