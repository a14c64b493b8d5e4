# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of a death under full load, and the time until the revived part is in use."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from bench.instruments import flow
from bench.instruments.counters import Interfaces, Watch
from bench.instruments.flow import Step
from bench.instruments.metrics import MS, Arrivals, Outage, S, last_at, outage
from bench.instruments.result import Line, Target, at_least, at_most
from bench.transport.steady import planes_of

_WARM_NS = S
_DIES_S = 2.5
_SECOND_S = 2.7
_CLEARS_S = 4.0
_SECONDS = 7.0
_WINDOW_NS = 50 * MS
_BACK_IN_USE = 0.8  # of the fair share


@dataclass(frozen=True, slots=True)
class Death:
    """A kind of death. The first `faults` steps kill, the others revive.

    `left` is the share of capacity that remains after each fault in turn, as the targets count it.
    `carries` is the share that the fabric could still carry after all faults. `revived` are the
    interfaces of `node` that should carry the share `fair` of the traffic again; with `node` h2,
    they are its NICs.
    """

    name: str
    steps: tuple[Step, ...]
    faults: int
    left: tuple[float, ...]
    carries: float
    node: str
    revived: tuple[str, ...]
    fair: float


def deaths(name: str) -> list[Death]:
    """Return all kinds of death, for a lab of this name."""
    fault = functools.partial(flow.fault, name)
    return [
        Death(
            "plane",
            (fault("p1", "blackhole", _DIES_S), fault("p1", "clear", _CLEARS_S)),
            *(1, (0.75,), 0.75, "h2", ("plane1",), 0.25),
        ),
        Death(
            "two planes, 200 ms apart",
            (
                fault("p1", "blackhole", _DIES_S),
                fault("p2", "blackhole", _SECOND_S),
                fault("p1", "clear", _CLEARS_S),
                fault("p2", "clear", _CLEARS_S),
            ),
            *(2, (0.75, 0.5), 0.5, "h2", ("plane1", "plane2"), 0.5),
        ),
        Death(
            "T1 p0t1-1",
            (fault("p0t1-1", "blackhole", _DIES_S), fault("p0t1-1", "clear", _CLEARS_S)),
            *(1, (0.75,), 1.0, "p0t1-1", ("t0-1",), 0.125),
        ),
        Death(
            "NIC link down, switch side",
            (fault("h1:p0", "down", _DIES_S), fault("h1:p0", "clear", _CLEARS_S)),
            *(1, (0.75,), 0.75, "h2", ("plane0",), 0.25),
        ),
        Death(
            "NIC link down, sender's side",
            (
                flow.command(name, "h1", "ip link set plane0 down", _DIES_S),
                flow.command(name, "h1", "ip link set plane0 up", _CLEARS_S),
            ),
            *(1, (0.75,), 0.75, "h2", ("plane0",), 0.25),
        ),
        Death(
            "NIC link down, receiver's side",
            (
                flow.command(name, "h2", "ip link set plane0 down", _DIES_S),
                flow.command(name, "h2", "ip link set plane0 up", _CLEARS_S),
            ),
            *(1, (0.75,), 0.75, "h2", ("plane0",), 0.25),
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The result of one run: an outage for each fault that killed, and the recovery."""

    outages: tuple[Outage, ...]
    dead_share: float
    retransmits: int
    retransmits_back: int
    alive: bool
    used_again_ns: int | None
    share_again: float


def death(name: str, mtu: int, rounds: int, _seconds: float) -> Iterator[Line]:
    """Measure every kind of death `rounds` times."""
    for kind in deaths(name):
        runs = [_run(name, kind) for _ in range(rounds)]
        yield from _lines(f"MTU {mtu}, {kind.name}", kind, runs)


def _run(name: str, kind: Death) -> _Seen:
    watched = Interfaces(f"{name}-{kind.node}", kind.revived)
    with Watch(watched) as part, Watch(planes_of(name, "h2")) as total:
        recording = flow.run(name, flow.mrc0_route(name), _SECONDS, kind.steps)
    times = [applied.began_ns for applied in recording.applied]
    cleared = times[kind.faults]
    before = recording.arrivals.bps(recording.began_ns + _WARM_NS, times[0])
    judged = _judge(recording.arrivals, kind, times, before)
    again = recording.applied[-1].effective_ns
    counts = recording.retransmits
    dead_bps = recording.arrivals.bps(cleared - S // 2, cleared)
    return _Seen(
        outages=judged,
        dead_share=dead_bps / before / kind.carries if before else 0.0,
        retransmits=last_at(counts, cleared) - last_at(counts, times[0]),
        retransmits_back=last_at(counts, recording.ended_ns) - last_at(counts, cleared),
        alive=recording.alive,
        used_again_ns=_used_again(part, total, again, recording.ended_ns, kind.fair),
        share_again=_share(part, total, recording.ended_ns - S // 2, recording.ended_ns),
    )


def _judge(arrivals: Arrivals, kind: Death, times: list[int], before: float) -> tuple[Outage, ...]:
    return tuple(
        outage(
            arrivals,
            steady_ns=times[0] - S,
            fault_ns=times[i],
            until_ns=times[i + 1],
            left=kind.left[i],
            reference_bps=before,
        )
        for i in range(kind.faults)
    )


def _share(part: Watch, total: Watch, start_ns: int, end_ns: int) -> float:
    _, of_part = part.between(start_ns, end_ns)
    _, of_all = total.between(start_ns, end_ns)
    return float(of_part.sum() / of_all.sum()) if of_all.sum() else 0.0


def _used_again(part: Watch, total: Watch, from_ns: int, end_ns: int, fair: float) -> int | None:
    """Return the ns from the repair to the first 50 ms window with most of the fair share."""
    for at_ns in range(from_ns, end_ns - _WINDOW_NS, 10 * MS):
        if _share(part, total, at_ns, at_ns + _WINDOW_NS) >= fair * _BACK_IN_USE:
            return at_ns - from_ns
    return None


def _lines(where: str, kind: Death, runs: list[_Seen]) -> Iterator[Line]:
    def line(what: str, unit: str, values: list[float | None], target: Target | None) -> Line:
        known = tuple(value for value in values if value is not None)
        return Line("death", where, what, unit, known, target, len(values) - len(known))

    worst_gap: list[float | None] = [max(o.gap_ns for o in run.outages) / MS for run in runs]
    yield line("longest gap", "ms", worst_gap, at_most(10))
    for i, left in enumerate(kind.left):
        which = f", fault {i + 1}" if kind.faults > 1 else ""
        back = [run.outages[i].back_ns for run in runs]
        lost: list[float | None] = [run.outages[i].lost_ns / MS for run in runs]
        yield line(
            f"back at {left:g} of before (5 ms bins){which}", "ms",
            [None if ns is None else ns / MS for ns in back], at_most(20),
        )  # fmt: skip
        yield line(f"surviving rate lost{which}", "ms", lost, at_most(40))
    carries = f"{kind.carries:g}"
    dead: list[float | None] = [run.dead_share * 100 for run in runs]
    yield line(f"goodput while dead, of {carries} of before", "%", dead, None)
    yield line("TCP retransmits", "", [float(run.retransmits) for run in runs], at_most(5))
    yield line("connections lost", "", [float(not run.alive) for run in runs], at_most(0))
    used = [None if ns is None else ns / MS for ns in (run.used_again_ns for run in runs)]
    share: list[float | None] = [run.share_again / kind.fair * 100 for run in runs]
    yield line("used again after", "ms", used, None)
    yield line("share at the end, of a fair one", "%", share, at_least(_BACK_IN_USE * 100))
    back_again: list[float | None] = [float(run.retransmits_back) for run in runs]
    yield line("TCP retransmits when it comes back", "", back_again, None)
