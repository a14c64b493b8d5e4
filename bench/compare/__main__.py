# SPDX-License-Identifier: GPL-2.0-only
"""Compare mrcd with what a user would pick instead, in one run on one lab, as one report.

python -m bench.compare [--quick] [--only WORKLOAD ...] [--add] [--rounds N] [--seed N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.compare import beside, ceiling, libraries, plots, record, report, routes, unlimited, ways
from bench.compare.arena import Arena, Arenas, say
from bench.compare.catalogue import ABOUT, NAMES, WORKLOADS, Workload, labs
from bench.compare.record import Piece, Record
from bench.compare.report import Heading
from bench.compare.results import Results
from bench.instruments import entry, flow
from bench.instruments.experiment import Shape
from bench.instruments.flow import BenchFailed
from bench.instruments.processor import Processor
from bench.instruments.result import grid
from cli.lab.multiqueue import ONE_QUEUE, HostNics
from cli.lab.state import LabFailed
from mrcd import __version__

COMPETITORS = (*routes.EVERY, *unlimited.OF_SPEED, *ways.EVERY, *ceiling.EVERY)
"""All competitors of all workloads, in the order of columns and colours."""

_BUSY_BEFORE = 0.5  # above this load average, other programs use the machine as well


def main() -> None:
    """Run the requested comparisons; exit with status 1 if something could not be measured."""
    args = _arguments()
    before = record.read(json.loads(args.json.read_text())) if _goes_on(args) else Record()
    _make_room(args)
    if args.render:
        _write(args, before)
        return
    entry.begin("compare")
    results = Results()
    chosen = [each for each in WORKLOADS if each.name in (args.only or NAMES)]
    run = Run(args, chosen, results, before)
    try:
        for (shape, mtu), group in labs(chosen, args.quick, args.mtu, args.hosts).items():
            run.in_one_lab(shape, mtu, group)
            _write(args, before.plus(run.piece(), results))
    except KeyboardInterrupt:
        _write(args, before.plus(run.piece(), results))
        sys.exit(f"compare: stopped; the lab is removed, {args.report} has the figures so far")
    for heading, rows in beside.tables(results.figures()):
        print(f"\n{heading}\n\n{grid(rows)}", flush=True)
    say(f"wrote {args.report}")
    sys.exit(bool(results.problems))


def _goes_on(args: argparse.Namespace) -> bool:
    wanted = bool(args.add or args.resume or args.render)
    if wanted and not args.json.exists():
        if args.render:
            sys.exit(f"compare: {args.json} does not exist: run a measurement first")
        return False
    return wanted


def _arguments() -> argparse.Namespace:
    parser = entry.parser(__doc__, name="compare", seed=1, figures=False)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short round of each within 5 minutes; cases without time are left out and named",
    )
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, metavar="WORKLOAD", help=", ".join(NAMES)
    )
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="WORDS", help="only cases with one of the WORDS"
    )
    parser.add_argument(
        "--routes", nargs="+", choices=routes.KEYS, metavar="ROUTE", help=", ".join(routes.KEYS)
    )
    parser.add_argument(
        "--mtu", nargs="+", type=int, help="MTU of the planes, instead of the usual"
    )
    parser.add_argument(
        "--framing", nargs="+", choices=ways.FRAMINGS, default=[],
        help="framing of mrcd's data, or the envelope of cells; further ones take part where labs"
        " are made for them, as in speed, duplex and requests",
    )  # fmt: skip
    parser.add_argument("--hosts", nargs="+", type=int, help="only labs of 2, 4 or 8 hosts")
    parser.add_argument("--rounds", type=int, help="rounds of everything, instead of 2 or 3")
    parser.add_argument(
        "--add", action="store_true",
        help="keep the figures in the JSON, and replace only those that are measured again",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="like --add, but measure only what the JSON lacks"
    )
    parser.add_argument(
        "--render", action="store_true", help="measure nothing; write the report from the JSON"
    )
    parser.add_argument(
        "--report", type=Path, default=Path("build/compare/report.md"), metavar="FILE",
        help="the report in Markdown (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: beside the report")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="default: beside the report")
    flow.nic_options(parser)
    args = parser.parse_args()
    args.json = args.json or args.report.with_suffix(".json")
    args.plots = args.plots or args.report.parent
    return args


class Run:
    """A run: its labs one after another, and the facts that a reader needs."""

    def __init__(
        self,
        args: argparse.Namespace,
        chosen: Sequence[Workload],
        results: Results,
        before: Record,
    ) -> None:
        self._args, self._chosen, self._results = args, chosen, results
        self._wanted = [each for each in routes.EVERY if each.key in (args.routes or routes.KEYS)]
        self._arenas = Arenas(
            args.name, self._wanted, 1, args.quick, args.seed, results, tuple(args.cases),
            before.done if args.resume else frozenset(), tuple(args.framing),
            HostNics(args.queues, args.qdisc),
        )  # fmt: skip
        self._processor = Processor()
        self._load = os.getloadavg()[0]
        self._taken = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        self._began = time.monotonic()

    def rounds_of(self, workload: Workload) -> int:
        """Return the number of rounds of a workload."""
        return int(self._args.rounds or (1 if self._args.quick else workload.rounds))

    def in_one_lab(self, shape: Shape, mtu: int, group: Sequence[Workload]) -> None:
        """Run all workloads of a lab."""
        try:
            for workload in group:
                if workload.own_labs:
                    self._measure(workload, self._arenas.empty(shape, mtu))
            shared = [workload for workload in group if not workload.own_labs]
            if shared:
                with self._arenas.of(shape, mtu, [each.name for each in shared]) as arena:
                    for workload in shared:
                        self._measure(workload, arena)
        except (LabFailed, BenchFailed) as problem:
            names = ", ".join(workload.name for workload in group)
            words = f"{names} in a lab of {shape}, MTU {mtu}: {problem}"
            self._results.problems.append(words)
            say(words)

    def _measure(self, workload: Workload, arena: Arena) -> None:
        workload.measure(replace(arena, rounds=self.rounds_of(workload)))

    def piece(self) -> Piece:
        """Return the facts of this run so far."""
        present = {figure.route for figure in self._results.figures()}
        names = [workload.name for workload in self._chosen]
        wanted = [each for each in self._wanted if any(map(each.takes_part, names))]
        competitors = [
            (each.title, each.about)
            for each in COMPETITORS
            if each in wanted or each.title in present
        ]
        return Piece(
            self._facts(),
            tuple(competitors),
            tuple(self._results.done),
            self._results.absent,
            tuple(self._results.problems),
        )

    def _facts(self) -> dict[str, str]:
        args = self._args
        shapes = dict.fromkeys(
            shape for shape, _ in labs(self._chosen, args.quick, args.mtu, args.hosts)
        )
        rounds = sorted({self.rounds_of(workload) for workload in self._chosen})
        words = " ".join(sys.argv[1:])
        found = {
            "command": f"`{f'python -m bench.compare {words}'.strip()}`",
            "taken": f"{self._taken}, {(time.monotonic() - self._began) / 60:.0f} min",
            "mrcd": __version__ + _commit(),
            "machine": f"{os.cpu_count()} CPUs, {_processor()}",
            "kernel": platform.release(),
            "load before the run": f"{self._load:.1f}"
            + (": not alone!" if self._load > _BUSY_BEFORE else ""),
            "CPU time the hypervisor took": f"{self._processor.stolen():.1%}",
            "seed; rounds": f"{args.seed}; {' to '.join(map(str, {rounds[0]: 0, rounds[-1]: 0}))}",
            "labs": "; ".join(f"{shape}, links and NICs alike" for shape in shapes),
            "congestion control": "cubic, except of DCTCP; ECN as the kernel has it: off,"
            " except that mrcd's routes and DCTCP's sockets ask for it",
        }
        if (nics := HostNics(args.queues, args.qdisc)) != ONE_QUEUE:
            found["hosts, where there are switches"] = str(nics)
        if args.framing:
            found["framing of mrc0"] = args.framing[0]
        if any(workload.section in ("training", "steps") for workload in self._chosen):
            found["libraries"] = libraries.versions()
        return found


def _commit() -> str:
    """Return the commit, if git is available."""
    with contextlib.suppress(OSError):
        line = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0:
            return f", commit {done.stdout.strip()}"
    return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _make_room(args: argparse.Namespace) -> None:
    """Make the folders of the report and its figures, before anything is measured."""
    for folder in (args.report.parent, args.json.parent, args.plots):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"compare: cannot make {folder}: {error.strerror}; name others by --report")


def _write(args: argparse.Namespace, found: Record) -> None:
    """Write the report so far, its pictures and its figures."""
    titles = [each.title for each in COMPETITORS]
    pictures = plots.draw(found, titles, args.plots)
    headings = [
        Heading(
            section,
            about,
            {
                caption: os.path.relpath(args.plots / file, args.report.parent)
                for caption, file in pictures.get(section, {}).items()
            },
        )
        for section, about in ABOUT.items()
    ]
    args.report.write_text(report.markdown(found, headings))
    entry.save(args.json, found.plain())


if __name__ == "__main__":
    main()
