# SPDX-License-Identifier: GPL-2.0-only
"""The place where competitors meet: one lab, its rounds, and the order of turns."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.compare import configuration
from bench.compare.results import Results
from bench.compare.routes import Competitor
from bench.instruments import flow
from bench.instruments.experiment import Shape
from bench.instruments.flow import BenchFailed
from cli.lab.multiqueue import ONE_QUEUE, HostNics
from cli.lab.state import LabFailed

QUICK_BUDGET_S = 215.0
"""No case of a quick run begins later: the longest takes a minute, and the run five."""


@dataclass(frozen=True, slots=True)
class Arena:
    """A lab that is up, with the competitors that could be set up in it."""

    name: str
    shape: Shape
    mtu: int
    competitors: tuple[Competitor, ...]
    rounds: int
    quick: bool
    seed: int
    results: Results
    budget_s: float = math.inf  # of the whole run; cases that have not begun by then are left out
    words: tuple[str, ...] = ()  # if not empty, only cases with one of these are measured
    done: frozenset[tuple[str, str]] = frozenset()  # workload and case of those taken already
    framings: tuple[str, ...] = ()  # of mrcd's data; none: as mrcd chooses
    nics: HostNics = ONE_QUEUE  # of the hosts

    @property
    def capacity_bps(self) -> float:
        """Return the capacity of all planes of a host together, headers included."""
        return self.shape.planes * self.shape.rate_mbps * 1e6

    def take_turns(
        self,
        workload: str,
        case: str,
        measure: Callable[[Competitor, tuple[str, str, str]], None],
        among: Sequence[Competitor] | None = None,
    ) -> None:
        """Measure every competitor in every round, each round in a different order.

        `among` are the competitors that take part; the default is all that do in this workload. A
        measurement that fails is noted and does not end the others.
        """
        if (workload, case) in self.done:
            return
        if self.words and not any(word in case for word in self.words):
            return
        usual = [each for each in self.competitors if each.takes_part(workload)]
        those = usual if among is None else among
        chance = random.Random(f"{self.seed} {workload} {case}")
        began = time.monotonic()
        if began - _began > self.budget_s:
            self.results.absent[f"{workload}: {case}"] = f"{self.budget_s:.0f} s were over before"
            return
        for turn in range(self.rounds):
            for competitor in chance.sample(those, len(those)):
                where = (workload, case, competitor.title)
                try:
                    with competitor.turn(self.name):
                        measure(competitor, where)
                except (BenchFailed, LabFailed) as problem:
                    words = f"{workload}, {case}, {competitor.title}, round {turn + 1}: {problem}"
                    self.results.problems.append(words)
                    say(f"could not be measured: {words}")
        self.results.done.append((workload, case))
        say(f"{workload}: {case} ({time.monotonic() - began:.0f} s)")


@dataclass(slots=True)
class Arenas:
    """A maker of arenas: labs of a shape and an MTU, one after another."""

    name: str
    wanted: Sequence[Competitor]
    rounds: int
    quick: bool
    seed: int
    results: Results
    words: tuple[str, ...] = ()
    done: frozenset[tuple[str, str]] = frozenset()
    framings: tuple[str, ...] = ()
    nics: HostNics = ONE_QUEUE

    @contextlib.contextmanager
    def of(self, shape: Shape, mtu: int, workloads: Sequence[str]) -> Iterator[Arena]:
        """Build a lab of this shape with all competitors in workloads; remove it afterwards."""
        say(f"a lab: {shape}, MTU {mtu}")
        settings = flow.framed(self.framings[0] if self.framings else None)
        fabric = shape.fabric(self.name, mtu)
        with flow.fabric_up(fabric, settings=settings, host_nics=self.nics):
            wanted = [each for each in self.wanted if any(map(each.takes_part, workloads))]
            competitors, refused = configuration.usable(self.name, wanted)
            self.results.absent |= refused
            for title, reason in refused.items():
                say(f"without {title}: {reason}")
            yield self._arena(shape, mtu, tuple(competitors))

    def empty(self, shape: Shape, mtu: int) -> Arena:
        """Return an arena without a lab, for a workload that makes its own."""
        return self._arena(shape, mtu, ())

    def _arena(self, shape: Shape, mtu: int, competitors: tuple[Competitor, ...]) -> Arena:
        return Arena(
            self.name, shape, mtu, competitors, self.rounds, self.quick, self.seed, self.results,
            QUICK_BUDGET_S if self.quick else math.inf, self.words, self.done, self.framings,
            self.nics,
        )  # fmt: skip


_began = time.monotonic()


def say(words: str) -> None:
    """Print the progress with the time since the start."""
    print(f"[{time.monotonic() - _began:5.0f} s] {words}", flush=True)
