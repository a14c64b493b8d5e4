# SPDX-License-Identifier: GPL-2.0-only
"""An experiment of the paper, scaled to the lab: its fabric, what was published, how it is judged.

The paper is "Resilient AI Supercomputer Networking using MRC and SRv6" (arXiv 2605.04333).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench import flow, path_states, simultaneous
from bench.flow import Recording, Route, Step
from bench.metrics import MS, Arrivals, S
from bench.result import Line, Target
from mrcd.fabric import description
from mrcd.fabric.description import Fabric

SAMPLE_NS = 200 * MS
"""The paper samples goodput so often (section 5.2.2)."""
WARM_S = 1.5
"""TCP needs so long to find its rate; what is before does not count."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fabric of an experiment; every link has the same rate."""

    planes: int
    t1: int
    rate_mbps: int
    hosts: int = 2
    hosts_per_t0: int = 1

    def fabric(self, name: str, mtu: int) -> Fabric:
        """The fabric as a lab is made from it."""
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
    """What an experiment is given: a lab that is up, and how often to repeat."""

    name: str
    shape: Shape
    mtu: int
    rounds: int

    def record(self, seconds: float, steps: Sequence[Step], route: Route | None = None) -> Run:
        """One TCP connection for so long, steps on the way, then everything healthy again."""
        try:
            recording = flow.run(self.name, route or flow.mrc0_route(self.name), seconds, steps)
        finally:
            simultaneous.clear_all(self.name)
        path_states.wait_restored(self.name)
        return Run(recording)


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded flow, and what its goodput was in parts of it."""

    recording: Recording

    @property
    def arrivals(self) -> Arrivals:
        """What arrived when."""
        return self.recording.arrivals

    def at(self, seconds: float) -> int:
        """A time of the flow as CLOCK_MONOTONIC."""
        return self.recording.began_ns + int(seconds * S)

    def applied(self, step: int) -> int:
        """When a step began to act."""
        return self.recording.applied[step].began_ns

    def effective(self, step: int) -> int:
        """When a step was in effect."""
        return self.recording.applied[step].effective_ns

    def before(self) -> float:
        """Goodput from the end of TCP's start to the first step, bits per second."""
        return self.arrivals.bps(self.at(WARM_S), self.applied(0))

    def share(self, start_ns: int, end_ns: int) -> float:
        """Mean goodput, in percent of that before the first step."""
        return 100 * self.arrivals.bps(start_ns, end_ns) / self.before()

    def lowest(self, start_ns: int, end_ns: int) -> float:
        """The lowest sample of 200 ms, in percent of the goodput before the first step."""
        samples = self.arrivals.bins_bps(start_ns, end_ns, SAMPLE_NS)
        return 100 * float(samples.min()) / self.before()

    def lowest_before(self) -> float:
        """The same for the time before the first step: what is ordinary here."""
        return self.lowest(self.at(WARM_S), self.applied(0))

    def reached_ms(self, start_ns: int, end_ns: int, percent: float) -> float | None:
        """When a second begins whose goodput is `percent` of before; None: none does."""
        for at_ns in range(start_ns, end_ns - S, 20 * MS):
            if self.share(at_ns, at_ns + S) >= percent:
                return (at_ns - start_ns) / MS
        return None

    def retransmits(self) -> float:
        """Segments TCP sent again in the whole flow."""
        samples = self.recording.retransmits
        return float(samples[-1][1]) if samples else 0.0

    def lost(self) -> float:
        """1 when the connection broke or lost bytes, else 0."""
        return float(not self.recording.alive)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment: `published` is what the paper, or the aim, says of it."""

    name: str
    about: str
    published: str
    shape: Shape
    measure: Callable[[Setting], Iterator[Line]]
    rounds: int = 3


@dataclass(slots=True)
class Figures:
    """The figures of an experiment while its rounds are run, in the order they are first noted."""

    item: str
    where: str
    _lines: dict[str, tuple[str, Target | None, list[float | None]]] = field(default_factory=dict)

    def note(self, what: str, unit: str, value: float | None, target: Target | None = None) -> None:
        """The figure of one round; None when there is none."""
        self._lines.setdefault(what, (unit, target, []))[2].append(value)

    def lines(self) -> Iterator[Line]:
        """All of them."""
        for what, (unit, target, values) in self._lines.items():
            known = tuple(value for value in values if value is not None)
            missing = len(values) - len(known)
            yield Line(self.item, self.where, what, unit, known, target, missing)
