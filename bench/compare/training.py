# SPDX-License-Identifier: GPL-2.0-only
"""Measure training traffic: collective operations of torch.distributed (gloo) and of Open MPI.

Nothing else needs these libraries; `make setup-bench` installs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.compare import gloo, libraries, mpi, ways
from bench.compare.arena import Arena, say
from bench.compare.faults import busiest
from bench.compare.gloo import Job, Ranks
from bench.compare.results import percentiles
from bench.compare.routes import Competitor
from bench.compare.steps import Steps
from bench.compare.ways import BareMptcp, Offloads, Way
from bench.instruments import flow, path_states, simultaneous, wire
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import MS, Ints, S
from bench.instruments.processor import Processor
from cli.lab import lab
from cli.lab.injection import Applied

FAULT_BYTES = 1 << 20
PER_S = "steps a second"
RATIO = "p99.9 to p50, outside the fault's own step"

# Bytes and seconds; 0 s is one step. A step of 64 MiB takes 20 s on one plane: only gloo, 4 hosts.
_JOBS = ((1 << 16, 3.0), (1 << 20, 2.0), (1 << 24, 0.5))
_LARGEST = (1 << 26, 0.0)
_SIZES = tuple(1 << bits for bits in (16, 18, 20, 22, 24, 26))
_COUNT_S = 1.5
_SLOW_BYTES = 1 << 24  # one step of these takes seconds where links have a rate
_QUICK_JOBS = ((1 << 18, 0.6),)
_FAULT_AT_S = 0.8  # from a job's start to the fault, and from the fault's end to the job's
_FAULT_S = 1.5
_QUICK_FAULT_S = 1.0
_FEW_HOSTS = 4
_LONG_S = 60.0
_LONG_KEYS = ("mrc0", "mptcp")  # all others stall until the plane is back

Where = tuple[str, str, str]
Measure = Callable[[Arena, Competitor, str], None]


@dataclass(frozen=True, slots=True)
class Damage:
    """A fault that strikes in the middle of a job."""

    name: str
    strike: Callable[[Arena], Applied]


def _everywhere(arena: Arena, action: str) -> Applied:
    planes = {f"p{plane}": action for plane in range(arena.shape.planes)}
    return simultaneous.faults(arena.name, planes)


def _plane(arena: Arena) -> Applied:
    return lab.fault(arena.name, f"p{busiest(arena).plane}", "blackhole")


def _t1(arena: Arena) -> Applied:
    spot = busiest(arena)
    return lab.fault(arena.name, f"p{spot.plane}t1-{spot.t1}", "blackhole")


DAMAGES = (
    Damage("a plane dies", _plane),
    Damage("a T1 dies", _t1),
    Damage("0.1 % loss", lambda arena: _everywhere(arena, "loss=0.1%")),
    Damage("1 % loss", lambda arena: _everywhere(arena, "loss=1%")),
)


def training(arena: Arena) -> None:
    """Measure collectives among all hosts, with the libraries that are installed.

    MPI runs only in the largest lab, to limit the time.
    """
    both: list[tuple[str, str, Measure]] = [("gloo", "torch", _gloo)]
    if arena.quick or arena.shape.hosts > _FEW_HOSTS:
        both.append(("MPI", "mpi4py", _mpi))
    _all(arena, both)


def steps(arena: Arena) -> None:
    """Count gloo's steps a second in labs with mrcd and without, for every size."""
    missing = libraries.missing("torch")
    if missing is not None:
        arena.results.absent["gloo (steps)"] = missing
        say(f"without gloo: {missing}")
        return
    with contextlib.ExitStack() as stack:
        those = ways.with_and_without(stack, arena, BareMptcp(), Offloads())

        def turn(competitor: Competitor, where: Where) -> None:
            _count_steps(arena, those[competitor.title])

        arena.take_turns("steps", f"gloo, {_rated(arena)}", turn, ways.competitors(those))


def _count_steps(arena: Arena, way: Way) -> None:
    jobs: list[Job] = [
        (operation, size, 0.0 if arena.shape.rate_mbps and size >= _SLOW_BYTES else _COUNT_S)
        for operation in ("all-reduce", "all-to-all")
        for size in _SIZES
    ]
    wire.lay(way.lab, way.wire)
    with gloo.ranks(way.lab, way.competitor, jobs, len(jobs)) as ranks:
        for job, (operation, size, _) in enumerate(jobs):
            ranks.await_job(job)
            processor = Processor()
            ranks.await_over(job)
            case = f"gloo {operation}, {_shown(size)}, {_rated(arena)}"
            where, busy = ("steps", case, way.competitor.title), processor.busy()
            rate = ranks.steps(job).per_s
            arena.results.note(where, PER_S, "", rate, busy)
            arena.results.note(where, ways.STEAL, "%", 100 * processor.stolen())
        ranks.await_end()


def _rated(arena: Arena) -> str:
    rate = arena.shape.rate_mbps
    return f"{_hosts(arena)}, {f'{rate} Mb/s' if rate else 'no rate limit'}"


def long_run(arena: Arena) -> None:
    """Run all-reduce long enough to know one step in a thousand; a plane dies half-way."""
    among = [each for each in arena.competitors if each.key in _LONG_KEYS]
    _all(arena, (("gloo, long", "torch", _gloo_long),), among)


def _all(
    arena: Arena,
    libraries_: Sequence[tuple[str, str, Measure]],
    among: Sequence[Competitor] | None = None,
) -> None:
    for what, module, measure in libraries_:
        missing = libraries.missing(module)
        if missing is not None:
            arena.results.absent[f"{what} (training)"] = missing
            say(f"without {what}: {missing}")
            continue

        def turn(competitor: Competitor, where: Where, measure: Measure = measure) -> None:
            measure(arena, competitor, where[2])

        arena.take_turns("training", f"{what}, {_hosts(arena)}", turn, among)


def _hosts(arena: Arena) -> str:
    return f"{arena.shape.hosts} hosts"


def _gloo(arena: Arena, competitor: Competitor, title: str) -> None:
    """Run every size of every operation, then one of them through each fault."""
    few = arena.shape.hosts <= _FEW_HOSTS
    jobs: list[Job] = [
        (operation, size, seconds)
        for operation in ("all-reduce", "all-to-all")
        for size, seconds in (*_jobs(arena), *([_LARGEST] if few and not arena.quick else []))
    ]
    damages = DAMAGES[: 1 if arena.quick else len(DAMAGES) if few else 2]
    lasts_s = _QUICK_FAULT_S if arena.quick else _FAULT_S
    plain = len(jobs)
    jobs += [("all-reduce", FAULT_BYTES, 2 * _FAULT_AT_S + lasts_s)] * len(damages)
    processor = Processor()
    with gloo.ranks(arena.name, competitor, jobs, plain) as ranks:
        ranks.await_over(plain - 1)
        busy = processor.busy()
        for job, (operation, size, _) in enumerate(jobs[:plain]):
            where = ("training", f"gloo {operation}, {_shown(size)}, {_hosts(arena)}", title)
            _note(arena, where, ranks.steps(job), busy)
        for job, damage in enumerate(damages, plain):
            _damaged(arena, ranks, job, damage, title, lasts_s)
        ranks.await_end()


def _damaged(
    arena: Arena, ranks: Ranks, job: int, damage: Damage, title: str, lasts_s: float
) -> None:
    """Run one job with a fault in its middle; clear the fault afterwards."""
    path_states.wait_restored(arena.name)
    processor = Processor()
    ranks.go(job)
    began_ns = ranks.await_job(job)
    flow.wait_until(began_ns + int(_FAULT_AT_S * S))
    try:
        struck_ns = damage.strike(arena).began_ns
        flow.wait_until(struck_ns + int(lasts_s * S))
    finally:
        simultaneous.clear_all(arena.name)
    healed_ns = struck_ns + int(lasts_s * S)
    where = ("training", _case("gloo", FAULT_BYTES, arena, damage.name), title)
    try:
        ranks.await_over(job)
    except BenchFailed:
        arena.results.note(where, "failed steps", "", 1.0, processor.busy())
        raise
    steps, busy = ranks.steps(job), processor.busy()
    _note_damage(arena, where, steps, struck_ns, healed_ns, busy)


def _gloo_long(arena: Arena, competitor: Competitor, title: str) -> None:
    """Run one job with a plane silent from its middle to its end."""
    jobs: list[Job] = [("all-reduce", FAULT_BYTES, _LONG_S)]
    processor = Processor()
    with gloo.ranks(arena.name, competitor, jobs, len(jobs)) as ranks:
        flow.wait_until(ranks.await_job(0) + int(_LONG_S / 2 * S))
        try:
            struck_ns = DAMAGES[0].strike(arena).began_ns
            failed = ranks.await_end()
            if failed:
                say(f"a step of gloo over {title} failed: {ranks.voice.errors()}")
        finally:
            simultaneous.clear_all(arena.name)
        steps = ranks.steps(0)
    path_states.wait_restored(arena.name)
    case = f"{_case('gloo', FAULT_BYTES, arena, 'a plane dies half-way')}, {_LONG_S:.0f} s"
    where, busy = ("training", case, title), processor.busy()
    end_ns = int(steps.began_ns[-1] + steps.took_ns[-1]) if len(steps.took_ns) else struck_ns
    _note_damage(arena, where, steps, struck_ns, end_ns, busy, bool(failed))
    outside = steps.outside(struck_ns)
    rare = percentiles(outside)[99.9]
    ratio = None if rare is None else rare / float(np.median(outside))
    arena.results.note(where, RATIO, "", ratio, busy)


def _mpi(arena: Arena, competitor: Competitor, title: str) -> None:
    """Run Open MPI's all-reduce over TCP in every size, then once while a plane dies."""
    struck: list[int] = []
    lasts_s = _QUICK_FAULT_S if arena.quick else _FAULT_S
    processor = Processor()

    def strike(began_ns: int) -> None:
        flow.wait_until(began_ns + int(_FAULT_AT_S * S))
        try:
            struck.append(DAMAGES[0].strike(arena).began_ns)
            flow.wait_until(struck[0] + int(lasts_s * S))
        finally:
            simultaneous.clear_all(arena.name)

    jobs = [*_jobs(arena), (FAULT_BYTES, 2 * _FAULT_AT_S + lasts_s)]
    done = mpi.run(arena.name, competitor, jobs, strike)
    busy = processor.busy()
    for (size, _), steps in zip(jobs[:-1], done[:-1], strict=True):
        where = ("training", f"MPI all-reduce, {_shown(size)}, {_hosts(arena)}", title)
        _note(arena, where, steps, busy)
    where = ("training", _case("MPI", FAULT_BYTES, arena, DAMAGES[0].name), title)
    _note_damage(arena, where, done[-1], struck[0], struck[0] + int(lasts_s * S), busy)
    path_states.wait_restored(arena.name)


def _jobs(arena: Arena) -> list[tuple[int, float]]:
    """Return the jobs that both libraries run."""
    return list(_QUICK_JOBS if arena.quick else _JOBS)


def _case(library: str, size: int, arena: Arena, damage: str) -> str:
    return f"{library} all-reduce, {_shown(size)}, {_hosts(arena)}, {damage}"


def _note_damage(
    arena: Arena,
    where: Where,
    steps: Steps,
    struck_ns: int,
    healed_ns: int,
    busy: float,
    broken: bool = False,
) -> None:
    """Note the durations of all steps, and of those before, in and outside the fault."""
    over = not len(steps.took_ns) or steps.began_ns[-1] + steps.took_ns[-1] < struck_ns
    if over and not broken:
        raise BenchFailed("the job was over before the fault struck")

    def note(what: str, took: Ints, choose: Callable[[Ints], float]) -> None:
        value = choose(took) / MS if len(took) else None
        arena.results.note(where, what, "ms", value, busy)

    note("p50 before", steps.between(0, struck_ns), _median)
    note("p50 while it lasts", steps.between(struck_ns, healed_ns), _median)
    note("the fault's own step", steps.during(struck_ns), _longest)
    note("worst other step", steps.outside(struck_ns), _longest)
    _note(arena, where, steps, busy, failed=int(broken))


def _median(took: Ints) -> float:
    return float(np.median(took))


def _longest(took: Ints) -> float:
    return float(took.max())


def _note(arena: Arena, where: Where, steps: Steps, busy: float, failed: int = 0) -> None:
    took = steps.took_ns
    note = arena.results.note
    for which, value in percentiles(took).items():
        if which < 99.95:
            if which == 50 and len(took):
                value = _median(took)  # of one step, too
            note(where, f"p{which:g}", "ms", None if value is None else value / MS, busy)
    note(where, "worst", "ms", float(took.max()) / MS if len(took) else None, busy)
    note(where, "steps", "", float(len(took)), busy)
    note(where, "failed steps", "", float(failed), busy)


def _shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
