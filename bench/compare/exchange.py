# SPDX-License-Identifier: GPL-2.0-only
"""Compare mrc0 with others in requests and answers, of several sizes and many at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable

from bench.compare import traffic, ways
from bench.compare.arena import Arena
from bench.compare.results import percentiles
from bench.compare.routes import Competitor
from bench.compare.ways import BareMptcp, Offloads, Way, Where
from bench.instruments import wire
from bench.instruments.flow import BenchFailed
from bench.instruments.processor import Processor

SIZES = (64, 1 << 10, 1 << 14, 1 << 16)
IN_FLIGHT = (1, 16, 256)
PER_S = "requests a second"
_SECONDS = 0.7
_WARM_S = 0.3
_MUCH = 1 << 24  # bytes in flight that planes take more than 100 ms for ...
_LONGER = 3  # ... and so many times as long a turn
_SHOWN = (50.0, 99.0)


def exchange(arena: Arena) -> None:
    """Measure every size with every number in flight."""
    _turns(arena, itertools.product(SIZES, IN_FLIGHT))


def idle(arena: Arena) -> None:
    """Measure only the smallest, one after another."""
    _turns(arena, [(SIZES[0], IN_FLIGHT[0])])


def _turns(arena: Arena, cases: Iterable[tuple[int, int]]) -> None:
    with contextlib.ExitStack() as stack:
        those = ways.with_and_without(stack, arena, Offloads(), BareMptcp())
        for size, in_flight in cases:

            def measure(
                competitor: Competitor, where: Where, size: int = size, many: int = in_flight
            ) -> None:
                _measure(arena, those[competitor.title], where, size, many)

            planes = f"{arena.shape.planes} x {arena.shape.rate_mbps} Mb/s"
            case = f"{shown(size)}, {in_flight} in flight, {planes}, MTU {arena.mtu}"
            arena.take_turns("requests", case, measure, ways.competitors(those))


def _measure(arena: Arena, way: Way, where: Where, size: int, in_flight: int) -> None:
    wire.lay(way.lab, way.wire)
    processor, note = Processor(), arena.results.note
    longer = _LONGER if size * in_flight >= _MUCH else 1
    warm_s, seconds = longer * _WARM_S, longer * _SECONDS
    took = traffic.requests(
        way.lab, way.competitor, "h1", "h2", warm_s + seconds, size,
        in_flight=in_flight, warm_s=warm_s,
    )  # fmt: skip
    busy, stolen = processor.busy(), processor.stolen()
    if not len(took):
        raise BenchFailed("no request was answered")
    note(where, PER_S, "", len(took) / seconds, busy)
    for which, value in percentiles(took).items():
        if which in _SHOWN:
            note(where, f"p{which:g}", "us", None if value is None else value / 1e3, busy)
    ways.note_cpus(arena, where, busy, stolen)


def shown(size: int) -> str:
    """Return a size in bytes, or in KiB where it has some."""
    return f"{size >> 10} KiB" if size >> 10 else f"{size} B"
