# SPDX-License-Identifier: GPL-2.0-only
"""Measure how TCP over mrc0 takes its new share: other flows come and go, planes die or slow down.

python -m bench.transport.steps [--only flows dies ...] [--congestion-control on off] ...
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from bench.instruments import entry, flow
from bench.instruments.experiment import WARM_S, Figures, Run, Setting, Shape
from bench.instruments.flow import FRAMINGS, Recording, Route, Step
from bench.instruments.metrics import MS, S
from bench.instruments.processor import Processor
from bench.instruments.response import response
from bench.instruments.result import Line
from cli.lab.state import LabFailed
from mrcd.fabric import naming

PLANES = 4
_RECEIVER, _SECOND = "h3", "h2"
_SECOND_PORT = 5304
_STEP_S = 3.5  # after the beginning of a flow; TCP's start is over by then
_LOOK_S = 3.0
_LAST_NS = S
_TENTH = 10


@dataclass(frozen=True, slots=True)
class How:
    """The width of the bins in which the receiver's goodput is judged, and the kind of lab."""

    bin_ns: int
    lab: str

    def figures(self, case: str) -> Figures:
        """Return the empty figures of a case."""
        return Figures(f"steps, {self.lab}", case)


def flows(setting: Setting, how: How) -> Iterator[Line]:
    """Have a second host send to the same receiver, from beside a flow that lasts longer."""
    comes, stays, left = map(how.figures, ("a flow arrives", "the one there", "a flow leaves"))
    for _ in range(setting.rounds):
        processor = Processor()
        first, second = _both(setting)
        alone = first.arrivals.bps(first.at(WARM_S), second.recording.began_ns)
        came, went = second.recording.began_ns, int(second.arrivals.times_ns[-1])
        shared = first.arrivals.bps(went - S, went)
        _note(comes, how, second, came, 0.0, alone / 2)
        _note(stays, how, first, came, alone, alone / 2)
        _note(left, how, first, went, shared, alone)
        _note_noise(comes, how, first, came)
        comes.note("TCP retransmits of both", "", first.retransmits() + second.retransmits())
        comes.note("steal", "%", 100 * processor.stolen())
    for figures in (comes, stays, left):
        yield from figures.lines()


def _both(setting: Setting) -> tuple[Run, Run]:
    """Run a flow, and a second one to the same host that begins later and ends sooner."""
    route = flow.mrc0_route(setting.name, _RECEIVER)
    other = replace(route, source=_SECOND, port=_SECOND_PORT)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(_later, setting.name, other)
        first = flow.run(setting.name, route, _STEP_S + 2 * _LOOK_S + 2)
    return Run(first), Run(second.result())


def _later(name: str, route: Route) -> Recording:
    time.sleep(_STEP_S)
    return flow.run(name, route, _LOOK_S)


def dies(setting: Setting, how: How) -> Iterator[Line]:
    """Take the link of the receiver to one plane down."""
    step = flow.fault(setting.name, naming.nic(1, _RECEIVER), "down", _STEP_S)
    yield from _one_flow(setting, how, "a plane dies", step, (PLANES - 1) / PLANES)


def slow_link(setting: Setting, how: How) -> Iterator[Line]:
    """Cut one of the receiver's links to a tenth of its rate, unannounced."""
    step = flow.fault(setting.name, naming.nic(1, _RECEIVER), _tenth(setting), _STEP_S)
    left = (PLANES - 1 + 1 / _TENTH) / PLANES
    yield from _one_flow(setting, how, "one link at a tenth", step, left)


def slow_links(setting: Setting, how: How) -> Iterator[Line]:
    """Cut all of the receiver's links to a tenth of their rate, unannounced."""
    links = [naming.nic(plane, _RECEIVER) for plane in range(PLANES)]
    step = flow.faults(setting.name, dict.fromkeys(links, _tenth(setting)), _STEP_S)
    yield from _one_flow(setting, how, "all links at a tenth", step, 1 / _TENTH)


def _tenth(setting: Setting) -> str:
    return f"rate={setting.shape.rate_mbps // _TENTH}"


def _one_flow(setting: Setting, how: How, case: str, step: Step, left: float) -> Iterator[Line]:
    """Measure a step that leaves this part of a flow's goodput."""
    figures = how.figures(case)
    route = flow.mrc0_route(setting.name, _RECEIVER)
    for _ in range(setting.rounds):
        processor = Processor()
        run = setting.record(_STEP_S + _LOOK_S + 0.5, [step], route)
        before = run.before()
        _note(figures, how, run, run.effective(0), before, before * left)
        _note_noise(figures, how, run, run.applied(0))
        figures.note("TCP retransmits", "", run.retransmits())
        figures.note("steal", "%", 100 * processor.stolen())
    yield from figures.lines()


def _note(figures: Figures, how: How, run: Run, step_ns: int, before: float, share: float) -> None:
    """Note what a flow made of its new share in the seconds after the step."""
    found = response(
        run.arrivals, step_ns=step_ns, until_ns=step_ns + int(_LOOK_S * S), before_bps=before,
        share_bps=share, bin_ns=how.bin_ns, last_ns=_LAST_NS,
    )  # fmt: skip
    reached = None if found.reached_ns is None else found.reached_ns / MS
    over = None if found.over is None else 100 * found.over
    figures.note("new share", "Mb/s", share / 1e6)
    figures.note("within 10 % of it after" if share < before else "90 % of it after", "ms", reached)
    figures.note("overshoot: largest bin from then on, above it", "%", over)
    figures.note("goodput of the last second, of it", "%", 100 * found.settled)
    gap = run.arrivals.longest_gap_ns(step_ns, step_ns + int(_LOOK_S * S)) / MS
    figures.note("longest gap", "ms", gap)
    figures.note("connections lost", "", run.lost())


def _note_noise(figures: Figures, how: How, run: Run, step_ns: int) -> None:
    """Note how far bins exceed their mean without any step."""
    rates = run.arrivals.bins_bps(run.at(WARM_S), step_ns, how.bin_ns)
    above = 100 * (float(rates.max() / rates.mean()) - 1)
    figures.note("largest bin before the step, above the mean", "%", above)


@dataclass(frozen=True, slots=True)
class Case:
    """A step, or two of one run."""

    name: str
    about: str
    measure: Callable[[Setting, How], Iterator[Line]]


CASES = (
    Case("flows", "a flow arrives beside another, and leaves", flows),
    Case("dies", "a plane's link to the receiver goes down", dies),
    Case("slow-link", "one of the receiver's links at a tenth of its rate", slow_link),
    Case("slow-links", "all of the receiver's links at a tenth of their rate", slow_links),
)
NAMES = tuple(case.name for case in CASES)


def main() -> None:
    """Measure the requested cases in a lab of each kind."""
    args = arguments().parse_args()
    entry.begin("steps")
    _, failed = entry.gather(
        _measured(args), lambda lines: entry.save(args.json, entry.report(lines))
    )
    sys.exit(failed)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = entry.parser(__doc__, name="steps", rounds=3)
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="CASE", help=", ".join(NAMES))
    parser.add_argument(
        "--congestion-control", nargs="+", default=["on", "off"], choices=["on", "off"]
    )
    parser.add_argument("--mtu", nargs="+", type=int, default=[9000])
    parser.add_argument("--framing", nargs="+", default=["auto"], choices=FRAMINGS)
    parser.add_argument("--rate", type=int, default=250, help="Mb/s of every link")
    parser.add_argument("--bin", type=int, default=20, help="ms of the receiver's bins")
    return parser


def _measured(args: argparse.Namespace) -> Iterator[list[Line] | str]:
    """Yield the lines of each case, or why there are none."""
    shape = Shape(planes=PLANES, t1=2, rate_mbps=args.rate, hosts=3)
    for framing, mtu, control in itertools.product(args.framing, args.mtu, args.congestion_control):
        shown = f"congestion control {control}, MTU {mtu}, framing {framing}"
        settings = flow.framed(framing, congestion_control=control)
        try:
            with flow.fabric_up(shape.fabric(args.name, mtu), settings=settings):
                setting = Setting(args.name, shape, mtu, args.rounds)
                for case in CASES:
                    if case.name in (args.only or NAMES):
                        print(f"\n== {shown}: {case.about}", flush=True)
                        lines = case.measure(setting, How(args.bin * MS, shown))
                        yield entry.take(f"{case.name}, {shown}", lines)
        except LabFailed as problem:
            yield f"{shown}: {problem}"


if __name__ == "__main__":
    main()
