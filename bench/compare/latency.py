# SPDX-License-Identifier: GPL-2.0-only
"""Measure the time from a request to its answer, alone and with other traffic."""

from __future__ import annotations

import functools

import numpy as np

from bench.compare import traffic
from bench.compare.arena import Arena
from bench.compare.results import percentiles
from bench.compare.routes import Competitor
from bench.compare.traffic import Flow
from bench.instruments.metrics import Ints
from bench.instruments.processor import Processor

_BYTES = 64  # small enough that consecutive requests never fill a link
_LOAD = 0.3  # of the capacity of all planes
_LOADS = 4  # connections that make the load
_TAIL_S = 0.7  # the load outlasts the requests
_RARE = (99.9, 99.99)  # a round alone may have too few requests for them
_AT_LINE_RATE = 2  # times as long: an answer takes some 20 ms there, p99.9 takes 1,000

LINE_RATE = "at line rate"
TOGETHER = "rounds together"

CURVE = tuple(np.concatenate([np.linspace(0, 99, 100), 100 - np.logspace(0, -2, 41)]))
"""The percentiles in the pictures of latency."""

Where = tuple[str, str, str]


def latency(arena: Arena) -> None:
    """Send one request after another from h1 to h2, each with an answer of the same size."""
    pooled: dict[Where, list[Ints]] = {}
    seconds = 1.0 if arena.quick else 5.0

    def idle(competitor: Competitor, where: Where) -> None:
        processor = Processor()
        took = traffic.requests(arena.name, competitor, "h1", "h2", seconds, _BYTES)
        _note(arena, where, took, processor.busy())
        pooled.setdefault(where, []).append(took)

    def beside(competitor: Competitor, where: Where, load: float | None) -> None:
        flows = [Flow("h1", "h2", _LOADS)]
        rate_bps = arena.capacity_bps * load / _LOADS if load else 0
        lasts_s = seconds if load else _AT_LINE_RATE * seconds
        processor = Processor()
        with traffic.loaded(arena.name, competitor, flows, lasts_s + _TAIL_S, rate_bps) as run:
            took = traffic.requests(arena.name, competitor, "h1", "h2", lasts_s, _BYTES)
        _note(arena, where, took, processor.busy())
        arena.results.note(where, "load carried", "Mb/s", run[0].after(0.2) / 1e6, run[0].busy)
        pooled.setdefault(where, []).append(took)

    arena.take_turns("latency", f"idle, MTU {arena.mtu}", idle)
    for load in (_LOAD,) if arena.quick else (_LOAD, None):
        words = f"beside {load:.0%} load" if load else LINE_RATE
        measure = functools.partial(beside, load=load)
        arena.take_turns("latency", f"{words}, MTU {arena.mtu}", measure)
    for where, samples in pooled.items():
        every = np.concatenate(samples)
        arena.results.curves[where] = [float(np.percentile(every, at)) / 1e3 for at in CURVE]
        for which, value in percentiles(every).items():
            if which in _RARE:
                words = f"p{which:g}, {TOGETHER}"
                arena.results.note(where, words, "us", None if value is None else value / 1e3)


def _note(arena: Arena, where: Where, took: Ints, busy: float) -> None:
    note = arena.results.note
    for which, value in percentiles(took).items():
        note(where, f"p{which:g}", "us", None if value is None else value / 1e3, busy)
    note(where, "worst", "us", float(took.max()) / 1e3 if len(took) else None, busy)
    note(where, "requests", "", float(len(took)), busy)
