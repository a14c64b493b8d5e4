# SPDX-License-Identifier: GPL-2.0-only
"""Measure what the project claims, and print it with the targets: ``make bench-transport``.

The program fails if a figure could not be taken, but not because a figure is bad.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.instruments import entry, flow
from bench.instruments.result import Line
from bench.transport import application, deaths, speed, steady
from bench.transport.steady import RATE_MBPS


@dataclass(frozen=True, slots=True)
class Item:
    """A measurement: its rounds and seconds of a flow, in full and with --quick."""

    name: str
    about: str
    measure: Callable[[str, int, int, float], Iterator[Line]]
    rounds: int
    seconds: float
    quick_rounds: int
    quick_seconds: float


ITEMS = (
    Item("goodput", "one TCP connection, no faults", steady.goodput, 5, 6, 1, 4),
    Item("death", "silent deaths, links down, and recovery", deaths.death, 3, 0, 1, 0),
    Item("loss", "random loss", steady.loss, 3, 5, 1, 4),
    Item("order", "order of arrivals, without and with loss", steady.order, 3, 5, 1, 3),
    Item("rsync", "an unmodified application under fire", application.application, 1, 60, 1, 20),
)
SPEED = "speed"
_SPEED_ABOUT = (
    "CPU-bound, no rate limit, beside plain TCP without segmentation offload and with all"
)
NAMES = (*(item.name for item in ITEMS), SPEED)


def main() -> None:
    """Measure the requested items."""
    parser = entry.parser(__doc__, name="bench")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="ITEM", help=", ".join(NAMES))
    parser.add_argument("--mtu", nargs="+", type=int, default=[9000, 1500])
    parser.add_argument("--rounds", type=int, help="repetitions of everything")
    parser.add_argument("--quick", action="store_true", help="run once each, and shorter")
    flow.framing_option(parser)
    args = parser.parse_args()
    entry.begin("bench")
    wanted = args.only or NAMES
    results = (
        result
        for mtu in args.mtu
        for result in _all(
            args.name, mtu, wanted, args.rounds, args.quick, flow.framed(args.framing)
        )
    )
    _, failed = entry.gather(results, lambda lines: entry.save(args.json, entry.report(lines)))
    sys.exit(failed)


def _all(
    name: str, mtu: int, wanted: Sequence[str], rounds: int | None, quick: bool, settings: str
) -> Iterator[list[Line] | str]:
    """Yield the lines of each item, or why there are none."""
    items = [item for item in ITEMS if item.name in wanted]
    if items:
        with flow.lab_up(name, mtu=mtu, rate_mbps=RATE_MBPS, settings=settings):
            for item in items:
                times = rounds or (item.quick_rounds if quick else item.rounds)
                seconds = item.quick_seconds if quick else item.seconds
                what = f"{item.name}, MTU {mtu}"
                print(f"\n== {what}: {item.about}", flush=True)
                yield entry.take(what, item.measure(name, mtu, times, seconds))
    if SPEED in wanted:
        with contextlib.ExitStack() as stack:
            stack.enter_context(flow.lab_up(name, mtu=mtu, rate_mbps=0, settings=settings))
            bare = f"{name}-bare"
            stack.enter_context(flow.lab_up(bare, mtu=mtu, rate_mbps=0, daemons=False))
            measuring = speed.speed(
                name, bare, mtu, rounds or (1 if quick else 3), 2 if quick else 4
            )
            print(f"\n== {SPEED}, MTU {mtu}: {_SPEED_ABOUT}", flush=True)
            yield entry.take(f"{SPEED}, MTU {mtu}", measuring)


if __name__ == "__main__":
    main()
