# SPDX-License-Identifier: GPL-2.0-only
"""Measure the effect of one slow path on the slowest of many requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from bench.instruments import flow, path_states, simultaneous
from bench.instruments.experiment import Experiment, Figures, Setting, Shape
from bench.instruments.flow import BenchFailed, UdpRecording
from bench.instruments.metrics import Ints
from bench.instruments.result import Line
from cli.lab import lab

FOUR = Shape(planes=4, t1=4, rate_mbps=250)

_SECONDS = 10.0
_REQUEST = 32_000  # four packets at MTU 9000, each of which may take another path
_LOAD = 0.3  # of the capacity, so that a path at a tenth of its rate cannot carry its fair share
_DATAGRAM = 8000
_PERCENTILES = (50, 99, 99.9)
_SLOW_T1 = "p0t1-1"


def tail(setting: Setting) -> Iterator[Line]:
    """Time requests during a steady load, with all paths fast and with the links of one T1 slow."""
    fast = Figures("tail latency", "all paths fast")
    slow = Figures("tail latency", "one T1's links at a tenth")
    for _ in range(setting.rounds):
        before = _note(fast, setting, None)
        lab.fault(setting.name, _SLOW_T1, f"rate={setting.shape.rate_mbps // 10}")
        try:
            _note(slow, setting, before)
        finally:
            simultaneous.clear_all(setting.name)
            path_states.wait_restored(setting.name)
    yield from fast.lines()
    yield from slow.lines()


def _note(figures: Figures, setting: Setting, before: list[float] | None) -> list[float]:
    took, load = _requests(setting)
    if not len(took):
        raise BenchFailed("no request was answered")
    found = [float(np.percentile(took, percentile)) / 1e3 for percentile in _PERCENTILES]
    for i, percentile in enumerate(_PERCENTILES):
        figures.note(f"p{percentile:g}", "us", found[i])
        if before is not None:
            figures.note(f"p{percentile:g}, of all fast", "x", found[i] / before[i])
    figures.note("requests", "", float(len(took)))
    figures.note("load beside them", "Mb/s", load.mbps)
    missing = 100 * (1 - len(np.unique(load.numbers)) / load.sent)
    figures.note("load lost", "%", missing)
    return found


def _requests(setting: Setting) -> tuple[Ints, UdpRecording]:
    """Send requests from h1 to h2 while datagrams go the same way."""
    name, route = setting.name, flow.mrc0_route(setting.name)
    mbps = setting.shape.planes * setting.shape.rate_mbps * _LOAD
    loads: list[UdpRecording] = []

    def load() -> None:
        loads.append(flow.run_udp(name, route, _SECONDS + 2, mbps, _DATAGRAM))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        took = flow.run_requests(name, route, _SECONDS, _REQUEST)
    finally:
        thread.join()
    if not loads:
        raise BenchFailed("the load beside the requests failed")
    return took, loads[0]


EXPERIMENTS = (
    Experiment(
        "tail", "requests of 32 KB beside 30 % load, one T1's links at a tenth of their rate",
        "not in the paper; aim: the tail follows the fastest paths", FOUR, tail,
    ),
)  # fmt: skip
