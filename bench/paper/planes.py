# SPDX-License-Identifier: GPL-2.0-only
"""Experiments with planes that lose links, become slow, die and return, and with their balance."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.instruments import counters, flow, shaping
from bench.instruments.counters import Interfaces, Watch
from bench.instruments.experiment import Experiment, Figures, Run, Setting, Shape
from bench.instruments.flow import Step
from bench.instruments.metrics import MS, S, imbalance, outage
from bench.instruments.result import Line, at_least, at_most
from cli.lab import state, topology

EIGHT = Shape(planes=8, t1=2, rate_mbps=125)
FOUR = Shape(planes=4, t1=2, rate_mbps=250)
MANY = Shape(planes=8, t1=16, rate_mbps=125)

_BEGIN_S = 4.0
_SETTLES_S = 2.0
_WINDOW_NS = 250 * MS
_SHARE_AGAIN = 90.0


def _nics(setting: Setting, host: str) -> Interfaces:
    names = tuple(f"plane{plane}" for plane in range(setting.shape.planes))
    return Interfaces(f"{setting.name}-{host}", names)


def _share_of(watch: Watch, plane: int, start_ns: int, end_ns: int) -> float:
    """Return the traffic of a plane in percent of a fair share."""
    _took, received = watch.between(start_ns, end_ns)
    total = float(received.sum())
    return 100 * float(received[plane]) * len(received) / total if total else 0.0


def _fair_after_ms(watch: Watch, plane: int, from_ns: int, end_ns: int) -> float | None:
    """Return the ms until a plane carries its share again, in windows of a quarter of a second."""
    for at_ns in range(from_ns, end_ns - _WINDOW_NS, 20 * MS):
        if _share_of(watch, plane, at_ns, at_ns + _WINDOW_NS) >= _SHARE_AGAIN:
            return (at_ns - from_ns) / MS
    return None


def half_the_nic_links(setting: Setting) -> Iterator[Line]:
    """Take half of a host's NIC links down together, and bring them back."""
    for host in ("h2", "h1"):
        side = "receiver's" if host == "h2" else "sender's"
        figures = Figures("half the NIC links", f"{side} side")
        links = [f"{host}:p{plane}" for plane in range(setting.shape.planes // 2)]
        for _ in range(setting.rounds):
            steps = [
                flow.faults(setting.name, dict.fromkeys(links, "down"), _BEGIN_S),
                flow.faults(setting.name, dict.fromkeys(links, "clear"), _BEGIN_S + 4),
            ]
            _halved(figures, setting.record(_BEGIN_S + 10, steps))
        yield from figures.lines()


def _halved(figures: Figures, run: Run) -> None:
    down, up, end = run.applied(0), run.applied(1), run.recording.ended_ns
    seen = outage(
        run.arrivals, steady_ns=down - S, fault_ns=down, until_ns=up, left=0.5,
        reference_bps=run.before(),
    )  # fmt: skip
    back = None if seen.back_ns is None else seen.back_ns / MS
    settled = run.share(down + S, up)
    figures.note("goodput when down, of half of before", "%", settled * 2, at_least(90))
    figures.note("at half the rate after (5 ms bins)", "ms", back, at_most(1000))
    figures.note("longest gap when they go", "ms", seen.gap_ns / MS)
    figures.note(
        "a second at 95 % of before begins after", "ms", run.reached_ms(up, end, 95), at_most(5000)
    )
    figures.note("goodput at the end, of before", "%", run.share(end - 2 * S, end), at_least(95))
    figures.note("TCP retransmits", "", run.retransmits())
    figures.note("connections lost", "", run.lost(), at_most(0))


def slow_plane(setting: Setting) -> Iterator[Line]:
    """Slow all ports of a plane's switches to a half and a tenth of their rate, without notice."""
    rate = setting.shape.rate_mbps
    planes = setting.shape.planes
    for share, words in ((0.5, "half"), (0.1, "a tenth")):
        figures = Figures("slow plane", f"at {words} of its rate")
        left = 100 * (planes - 1 + share) / planes
        for _ in range(setting.rounds):
            _slowed(figures, setting, rate * share, left)
        yield from figures.lines()


def _slowed(figures: Figures, setting: Setting, mbps: float, left: float) -> None:
    name, plane = setting.name, 1
    steps = [
        Step(_BEGIN_S, lambda: shaping.plane_rate(name, plane, mbps)),
        Step(_BEGIN_S + 6, lambda: shaping.plane_rate(name, plane, setting.shape.rate_mbps)),
    ]
    try:
        with Watch(_nics(setting, "h2")) as watch:
            run = setting.record(_BEGIN_S + 13, steps)
    finally:
        shaping.plane_rate(name, plane, setting.shape.rate_mbps)
    slow, healed, end = run.applied(0), run.applied(1), run.recording.ended_ns
    settled = run.share(slow + int(_SETTLES_S * S), healed)
    figures.note(f"goodput, of the {left:.3g} % that are left", "%", settled / left * 100,
                 at_least(90))  # fmt: skip
    after = run.reached_ms(slow, healed, left * 0.9)
    figures.note("a second at 90 % of that begins after", "ms", after)
    figures.note("lowest 200 ms while slow, of before", "%", run.lowest(slow, healed))
    figures.note("healed: carries its share after", "ms", _fair_after_ms(watch, plane, healed, end),
                 at_most(5000))  # fmt: skip
    figures.note("healed: goodput in the last 2 s, of before", "%", run.share(end - 2 * S, end),
                 at_least(97))  # fmt: skip
    _took, received = watch.between(end - 2 * S, end)
    uneven = 100 * imbalance([float(count) for count in received])
    figures.note("healed: largest deviation of a plane, last 2 s", "%", uneven, at_most(3))
    figures.note("TCP retransmits", "", run.retransmits())
    figures.note("connections lost", "", run.lost(), at_most(0))


def revived_plane(setting: Setting) -> Iterator[Line]:
    """Check that a plane black-holed once, or three times in a row, carries its share again."""
    for deaths in (1, 3):
        words = "once" if deaths == 1 else f"{deaths} times in {3 * deaths} s"
        figures = Figures("revived plane", f"dead {words}")
        for _ in range(setting.rounds):
            steps = [
                flow.fault(setting.name, "p1", action, _BEGIN_S + 3 * i + after)
                for i in range(deaths)
                for after, action in ((0, "blackhole"), (2, "clear"))
            ]
            with Watch(_nics(setting, "h2")) as watch:
                run = setting.record(_BEGIN_S + 3 * deaths + 8, steps)
            again, end = run.effective(-1), run.recording.ended_ns
            after = _fair_after_ms(watch, 1, again, end)
            figures.note("carries its share after", "ms", after, at_most(5000))
            share = _share_of(watch, 1, end - 2 * S, end)
            figures.note("share in the last 2 s, of a fair one", "%", share, at_least(97))
            figures.note("TCP retransmits", "", run.retransmits())
            figures.note("connections lost", "", run.lost(), at_most(0))
        yield from figures.lines()


def balance(setting: Setting) -> Iterator[Line]:
    """Count packets on every T0-T1 link during a steady flow, by the interfaces' counters."""
    figures = Figures("spray balance", f"{setting.shape.planes} x {setting.shape.t1} EVs")
    plan = topology.plan(state.read_fabric(setting.name))
    uplinks = tuple(f"t1-{m}" for m in range(1, setting.shape.t1 + 1))
    t0s = [plan.namespace(f"p{plane}t0-1") for plane in range(setting.shape.planes)]

    def sent() -> list[tuple[int, ...]]:
        return [counters.sent_packets(namespace, uplinks) for namespace in t0s]

    for _ in range(setting.rounds):
        before, began = sent(), time.monotonic()
        run = setting.record(20, ())
        after, took = sent(), time.monotonic() - began
        links = [
            float(now - was)
            for here, there in zip(before, after, strict=True)
            for was, now in zip(here, there, strict=True)
        ]
        per_plane = [sum(links[i : i + len(uplinks)]) for i in range(0, len(links), len(uplinks))]
        figures.note("links counted", "", float(len(links)))
        figures.note("packets on a link, mean", "", sum(links) / len(links))
        figures.note("packets a second, all links", "", sum(links) / took)
        figures.note("largest deviation of a plane", "%", 100 * imbalance(per_plane), at_most(3))
        figures.note("largest deviation of a link", "%", 100 * imbalance(links), at_most(3))
        figures.note("connections lost", "", run.lost(), at_most(0))
    return figures.lines()


EXPERIMENTS = (
    Experiment(
        "nic-links", "half of a host's NIC links down, then up (Fig 9b)",
        "settles at half the rate, full rate again afterwards", EIGHT, half_the_nic_links,
    ),
    Experiment(
        "slow-plane", "one plane at half and at a tenth of its rate",
        "the paper's planes stay equal and follow the worst one (section 4);"
        " aim: 90 % of what is left", FOUR, slow_plane,
    ),
    Experiment(
        "revived-plane", "a plane that comes back carries its share",
        "most failed links recover within a minute, then the plane is brought back;"
        " aim: within 5 s", FOUR, revived_plane,
    ),
    Experiment(
        "balance", "spray balance with 128 EVs",
        "exactly equal load on all planes (section 4); aim: planes and links within 3 %",
        MANY, balance, rounds=2,
    ),
)  # fmt: skip
