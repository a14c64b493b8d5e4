# SPDX-License-Identifier: GPL-2.0-only
"""mrcd beside what a user would pick instead, in one run on one lab, as one report.

python -m tests.bench.compare [--quick] [--only WORKLOAD ...] [--rounds N] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mrcd import __version__
from mrcd.fabric.state import LabFailed
from tests.bench import entry
from tests.bench.compare import faults, latency, plots, report, routes, training, workloads
from tests.bench.compare.arena import Arena, Arenas, say
from tests.bench.compare.report import Facts, Heading
from tests.bench.compare.results import Results
from tests.bench.experiment import Shape
from tests.bench.flow import BenchFailed

PAIR = Shape(planes=4, t1=2, rate_mbps=100)
EIGHT = Shape(planes=4, t1=4, rate_mbps=50, hosts=8, hosts_per_t0=4)
FOUR = Shape(planes=4, t1=2, rate_mbps=50, hosts=4, hosts_per_t0=2)

_MTUS = (9000, 4200, 1500)
_QUICK_MTU = 4200


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured in which lab; every MTU is a lab of its own."""

    name: str
    about: str
    measure: Callable[[Arena], None]
    shape: Shape
    quick_shape: Shape
    mtus: tuple[int, ...] = (9000,)
    rounds: int = 5  # at most, unless told


WORKLOADS = (
    Workload(
        "bulk", "TCP from h1 to h2 as fast as it goes, without faults.", workloads.bulk, PAIR, PAIR,
        _MTUS,
    ),
    Workload(
        "faults", "Four connections from h1 to h2; the fault strikes where most of the traffic is"
        " just then. Capacity lost: what is missing of the goodput before, times the share of the"
        " fabric that the fault leaves, as time at that rate.", faults.faults, PAIR, PAIR,
    ),
    Workload(
        "latency", "A request of 64 bytes from h1 to h2 and an answer as long, one after another"
        " on one connection; alone, and beside four connections of the same competitor that"
        " together send 30 % of what the planes carry.", latency.latency, PAIR, PAIR,
    ),
    Workload(
        "collision", "Two connections from h1 to h2, their ports such that the hash of TCP by ECMP,"
        " and of seg6, puts both on one plane.", workloads.collision, PAIR, PAIR,
    ),
    Workload(
        "training", "Collective operations of torch.distributed (gloo) and of Open MPI over its TCP"
        " BTL, a rank in every host, float32. A step ends when its slowest rank has it. Sockets of"
        " both are made cubic, or MPTCP, by a preloaded library. For the death of a plane the one"
        " that carries most is black-holed in the middle of the run.", training.training,
        EIGHT, FOUR, rounds=3,
    ),
    Workload(
        "incast", "All other hosts send to h1; the last of them also sends to h2, the victim.",
        workloads.incast, EIGHT, FOUR,
    ),
    Workload(
        "permutation", "Every host sends to one host of the other T0 and hears from one, pairs"
        " drawn anew each round.", workloads.permutation, EIGHT, FOUR,
    ),
    Workload(
        "all-to-all", "Every host sends to every other.", workloads.all_to_all, EIGHT, FOUR,
    ),
)  # fmt: skip
NAMES = tuple(workload.name for workload in WORKLOADS)


def main() -> None:
    """Compare what was asked for; status 1 when something could not be measured."""
    args = _arguments()
    entry.begin("compare")
    wanted = [each for each in routes.EVERY if each.key in (args.routes or routes.KEYS)]
    results = Results()
    chosen = [each for each in WORKLOADS if each.name in (args.only or NAMES)]
    rounds = args.rounds or (1 if args.quick else max(each.rounds for each in chosen))
    arenas = Arenas(args.name, wanted, rounds, args.quick, args.seed, results)
    facts = _facts(args, rounds, chosen)
    try:
        for (shape, mtu), group in labs(chosen, args.quick, args.mtu).items():
            _in_one_lab(arenas, shape, mtu, group, told=args.rounds is not None)
            _write(args, facts, arenas, chosen)
    except KeyboardInterrupt:
        _write(args, facts, arenas, chosen)
        sys.exit(f"compare: stopped; the lab is gone, {args.report} has what there was")
    say(f"wrote {args.report}")
    sys.exit(bool(results.problems))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="once each, less of it, within 5 minutes; what has no time is left out and named",
    )
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, metavar="WORKLOAD", help=", ".join(NAMES)
    )
    parser.add_argument(
        "--routes", nargs="+", choices=routes.KEYS, metavar="ROUTE", help=", ".join(routes.KEYS)
    )
    parser.add_argument("--mtu", nargs="+", type=int, help="of the planes, in place of the usual")
    parser.add_argument("--rounds", type=int, help="of everything; usually 5, of training 3")
    parser.add_argument("--seed", type=int, default=1, help="draws the order and the pairs")
    parser.add_argument(
        "--report", type=Path, default=Path("build/compare/report.md"), metavar="FILE",
        help="the report in Markdown (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="beside the report if not told")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="beside the report if not told")
    parser.add_argument("--name", default="compare", help="of the lab")
    args = parser.parse_args()
    args.json = args.json or args.report.with_suffix(".json")
    args.plots = args.plots or args.report.parent
    return args


def labs(
    chosen: Sequence[Workload], quick: bool, mtus: Sequence[int] | None
) -> dict[tuple[Shape, int], list[Workload]]:
    """The workloads of each lab, so that none is built twice."""
    found: dict[tuple[Shape, int], list[Workload]] = {}
    for workload in chosen:
        shape = workload.quick_shape if quick else workload.shape
        for mtu in mtus or ((_QUICK_MTU,) if quick else workload.mtus):
            found.setdefault((shape, mtu), []).append(workload)
    return found


def _in_one_lab(
    arenas: Arenas, shape: Shape, mtu: int, group: Sequence[Workload], told: bool
) -> None:
    try:
        with arenas.of(shape, mtu) as arena:
            for workload in group:
                rounds = arena.rounds if told else min(arena.rounds, workload.rounds)
                workload.measure(replace(arena, rounds=rounds))
    except (LabFailed, BenchFailed) as problem:
        names = ", ".join(workload.name for workload in group)
        arenas.results.problems.append(f"{names} in a lab of {shape}, MTU {mtu}: {problem}")
        say(arenas.results.problems[-1])


def _facts(
    args: argparse.Namespace, rounds: int, chosen: Sequence[Workload]
) -> tuple[tuple[str, str], ...]:
    """What a reader has to know of this run."""
    shapes = dict.fromkeys(each.quick_shape if args.quick else each.shape for each in chosen)
    load = os.getloadavg()[0]
    more = [("libraries", training.versions())] if "training" in [x.name for x in chosen] else []
    return (
        ("command", f"`python -m tests.bench.compare {' '.join(sys.argv[1:])}`".replace(" `", "`")),
        ("taken", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("mrcd", __version__),
        ("machine", f"{os.cpu_count()} CPUs, {_processor()}"),
        ("load before the run", f"{load:.1f}" + (": not alone!" if load > 0.5 else "")),
        ("kernel", platform.release()),
        ("seed, rounds", f"{args.seed}, {rounds}"),
        ("labs", "; ".join(f"{shape}, links and NICs alike" for shape in shapes)),
        (
            "congestion control",
            "cubic for every competitor; ECN as the kernel has it: off, except that"
            " mrcd's routes ask for it",
        ),
        *more,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _write(
    args: argparse.Namespace,
    lines: tuple[tuple[str, str], ...],
    arenas: Arenas,
    chosen: Sequence[Workload],
) -> None:
    """The report of what there is so far."""
    results = arenas.results
    args.report.parent.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(results, [each.title for each in routes.EVERY], args.plots)
    headings = [
        Heading(
            each.name,
            each.about,
            {
                caption: os.path.relpath(args.plots / file, args.report.parent)
                for caption, file in pictures.get(each.name, {}).items()
            },
        )
        for each in chosen
    ]
    competitors = tuple((each.title, each.about) for each in arenas.wanted)
    facts = Facts(lines, competitors, results.absent, results.problems)
    args.report.write_text(report.markdown(facts, headings, results.figures()))
    raw = {
        "facts": dict(lines),
        "absent": results.absent,
        "problems": results.problems,
        "figures": [asdict(figure) for figure in results.figures()],
        "curves": [
            {"workload": workload, "case": case, "route": route, "values": values}
            for (workload, case, route), values in results.curves.items()
        ],
    }
    entry.save(args.json, raw)


if __name__ == "__main__":
    main()
