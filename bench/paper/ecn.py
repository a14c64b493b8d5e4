# SPDX-License-Identifier: GPL-2.0-only
"""Check that two flows on one link move apart because the link marks their packets."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.instruments import flow, path_states
from bench.instruments.experiment import Experiment, Figures, Run, Setting, Shape
from bench.instruments.flow import BenchFailed, Recording, Route, Step
from bench.instruments.metrics import S
from bench.instruments.result import Line, at_least, at_most
from cli.lab.injection import Applied

PAIRS = Shape(planes=1, t1=2, rate_mbps=400, hosts=4, hosts_per_t0=2)

_SECONDS = 14.0
_MEET_S = 4.0
_PART_S = 7.0
_SHARED, _OTHER = 1, 2  # T1s
_SPARE = f"p0t1-{_OTHER}"
_MRCCTL = f"{sys.executable} -m cli"


def _mrcctl(name: str, host: str, action: str, at_s: float) -> Step:
    """Return a step that denies or allows a host the T1 that the flows do not share."""
    return flow.command(name, host, f"{_MRCCTL} path {action} {_SPARE}", at_s)


def moving_apart(setting: Setting) -> Iterator[Line]:
    """Keep flow 2 on one T1 and flow 1, too; then release flow 1, which marks should move."""
    figures = Figures("two flows, one EV", "2 EVs in a plane")
    name = setting.name
    for _ in range(setting.rounds):
        flow.shell(name, "h2", f"{_MRCCTL} path deny {_SPARE}")
        try:
            counts: list[tuple[int, int, int]] = []
            steps = (
                _mrcctl(name, "h1", "deny", _MEET_S),
                _mrcctl(name, "h1", "allow", _PART_S),
                *(_counting(name, counts, at_s) for at_s in (_PART_S, _SECONDS - 0.5)),
            )
            first, second = _both(setting, steps)
        finally:
            for host in ("h1", "h2"):
                _allow_if_denied(name, host)
        path_states.wait_restored(name)
        _note(figures, first, second)
        shared, total, marks = (after - before for before, after in zip(*counts, strict=True))
        share = 100 * shared / total if total else None
        figures.note("let go: marks flow 1 is told of", "", float(marks))
        figures.note("let go: flow 1's packets on the shared EV", "%", share)
    return figures.lines()


def _allow_if_denied(name: str, host: str) -> None:
    if any(path.state == "DENIED" for path in path_states.paths(name, host)):
        flow.shell(name, host, f"{_MRCCTL} path allow {_SPARE}")


def _both(setting: Setting, steps: Sequence[Step]) -> tuple[Run, Run]:
    """Run flow 1 from h1 to h3 with the steps, and flow 2 from h2 to h4 at the same time."""
    name = setting.name
    second: list[Recording] = []

    def run() -> None:
        route = replace(flow.mrc0_route(name, "h4"), source="h2")
        second.append(flow.run(name, route, _SECONDS))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        route: Route = flow.mrc0_route(name, "h3")
        first = flow.run(name, route, _SECONDS, steps)
    finally:
        thread.join()
    if not second:
        raise BenchFailed("the second flow failed")
    return Run(first), Run(second[0])


def _counting(name: str, counts: list[tuple[int, int, int]], at_s: float) -> Step:
    def act() -> Applied:
        began_ns = time.monotonic_ns()
        counts.append(_on_shared(name))
        return Applied(began_ns, time.monotonic_ns())

    return Step(at_s, act)


def _on_shared(name: str) -> tuple[int, int, int]:
    """Return flow 1's packets to h3 by the shared T1, all its packets, and the marks reported."""
    paths = path_states.paths(name, "h1", "h3")
    shared = sum(path.sent for path in paths if path.t1 == _SHARED)
    return shared, sum(path.sent for path in paths), sum(path.marked for path in paths)


def _note(figures: Figures, first: Run, second: Run) -> None:
    meet, part, end = first.effective(0), first.effective(1), first.at(_SECONDS - 0.5)
    full = PAIRS.rate_mbps * 1e6
    spans = (
        ("free", first.at(2.0), first.applied(0)),
        ("held together", meet + S // 2, first.applied(1)),
        ("let go", part + S, end),
    )
    for words, start, stop in spans:
        target = at_least(90) if words == "let go" else None
        for number, run in ((1, first), (2, second)):
            rate = 100 * run.arrivals.bps(start, stop) / full
            figures.note(f"{words}: flow {number}, of line rate", "%", rate, target)
    for number, run in ((1, first), (2, second)):
        figures.note(f"flow {number}: TCP retransmits", "", run.retransmits())
        figures.note(f"flow {number}: connection lost", "", run.lost(), at_most(0))


EXPERIMENTS = (
    Experiment(
        "ecn", "two flows share one EV and move apart by ECN (Fig 14)",
        "flow 1 migrates to the other EV; near line rate throughout", PAIRS, moving_apart,
    ),
)  # fmt: skip
