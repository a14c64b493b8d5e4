# SPDX-License-Identifier: GPL-2.0-only
"""An experiment of the paper, scaled to the lab: its fabric, published result and evaluation.

The paper is "Resilient AI Supercomputer Networking using MRC and SRv6" (arXiv 2605.04333).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.instruments import flow, path_states, simultaneous
from bench.instruments.flow import Recording, Route, Step
from bench.instruments.metrics import MS, Arrivals, S
from bench.instruments.result import Line, Target
from mrcd.fabric import description
from mrcd.fabric.description import Fabric

SAMPLE_NS = 200 * MS
"""The paper's interval between samples of goodput (section 5.2.2)."""
WARM_S = 1.5
"""The time that TCP needs to find its rate; goodput before it does not count."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fabric of an experiment; every link has the same rate."""

    planes: int
    t1: int
    rate_mbps: int
    hosts: int = 2
    hosts_per_t0: int = 1

    def fabric(self, name: str, mtu: int) -> Fabric:
        """Return the fabric from which the lab is made."""
        return description.generate(
            name=name,
            hosts=self.hosts,
            planes=self.planes,
            t1=self.t1,
            hosts_per_t0=self.hosts_per_t0,
            mtu=mtu,
            rate_mbps=self.rate_mbps,
        )

    def __str__(self) -> str:
        rate = f"{self.rate_mbps} Mb/s" if self.rate_mbps else "no rate limit"
        return f"{self.hosts} hosts, {self.planes} planes x {self.t1} T1, {rate}"


@dataclass(frozen=True, slots=True)
class Setting:
    """The input of an experiment: a running lab, and the number of rounds."""

    name: str
    shape: Shape
    mtu: int
    rounds: int

    def record(self, seconds: float, steps: Sequence[Step], route: Route | None = None) -> Run:
        """Record one TCP connection of `seconds` with the steps, then clear all faults and wait."""
        try:
            recording = flow.run(self.name, route or flow.mrc0_route(self.name), seconds, steps)
        finally:
            simultaneous.clear_all(self.name)
        path_states.wait_restored(self.name)
        return Run(recording)


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded flow, and its goodput in parts of it."""

    recording: Recording

    @property
    def arrivals(self) -> Arrivals:
        """Return the bytes that arrived, with times."""
        return self.recording.arrivals

    def at(self, seconds: float) -> int:
        """Convert a time of the flow to CLOCK_MONOTONIC in ns."""
        return self.recording.began_ns + int(seconds * S)

    def applied(self, step: int) -> int:
        """Return when a step began (CLOCK_MONOTONIC, ns)."""
        return self.recording.applied[step].began_ns

    def effective(self, step: int) -> int:
        """Return when a step was in effect (CLOCK_MONOTONIC, ns)."""
        return self.recording.applied[step].effective_ns

    def before(self) -> float:
        """Return the goodput from the end of TCP's start to the first step, in bits per second."""
        return self.arrivals.bps(self.at(WARM_S), self.applied(0))

    def share(self, start_ns: int, end_ns: int) -> float:
        """Return the mean goodput in percent of that before the first step."""
        return 100 * self.arrivals.bps(start_ns, end_ns) / self.before()

    def lowest(self, start_ns: int, end_ns: int) -> float:
        """Return the lowest 200 ms sample in percent of the goodput before the first step."""
        samples = self.arrivals.bins_bps(start_ns, end_ns, SAMPLE_NS)
        return 100 * float(samples.min()) / self.before()

    def lowest_before(self) -> float:
        """Return the lowest sample before the first step, as a measure of ordinary variation."""
        return self.lowest(self.at(WARM_S), self.applied(0))

    def reached_ms(self, start_ns: int, end_ns: int, percent: float) -> float | None:
        """Return the ms until a second begins with `percent` of the goodput before; or None."""
        for at_ns in range(start_ns, end_ns - S, 20 * MS):
            if self.share(at_ns, at_ns + S) >= percent:
                return (at_ns - start_ns) / MS
        return None

    def retransmits(self) -> float:
        """Return the segments that TCP retransmitted in the whole flow."""
        samples = self.recording.retransmits
        return float(samples[-1][1]) if samples else 0.0

    def lost(self) -> float:
        """Return 1 if the connection broke or lost bytes, else 0."""
        return float(not self.recording.alive)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment; `published` is the result in the paper, or the goal."""

    name: str
    about: str
    published: str
    shape: Shape
    measure: Callable[[Setting], Iterator[Line]]
    rounds: int = 3


@dataclass(slots=True)
class Figures:
    """The figures of an experiment while its rounds run, in the order they are first noted."""

    item: str
    where: str
    _lines: dict[str, tuple[str, Target | None, list[float | None]]] = field(default_factory=dict)

    def note(self, what: str, unit: str, value: float | None, target: Target | None = None) -> None:
        """Note the figure of one round; None if there is none."""
        self._lines.setdefault(what, (unit, target, []))[2].append(value)

    def lines(self) -> Iterator[Line]:
        """Yield a line for each figure."""
        for what, (unit, target, values) in self._lines.items():
            known = tuple(value for value in values if value is not None)
            missing = len(values) - len(known)
            yield Line(self.item, self.where, what, unit, known, target, missing)
