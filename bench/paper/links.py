# SPDX-License-Identifier: GPL-2.0-only
"""Experiments with links and switches in the fabric that lose packets, fail, flap and return."""

from __future__ import annotations

from collections.abc import Iterator

from bench.instruments import flow, simultaneous
from bench.instruments.counters import Interfaces, Watch
from bench.instruments.experiment import Experiment, Figures, Run, Setting, Shape
from bench.instruments.metrics import MS, S, outage
from bench.instruments.result import Line, at_least, at_most
from mrcd.fabric import naming

SIXTEEN = Shape(planes=8, t1=2, rate_mbps=125)
WIDE = Shape(planes=8, t1=8, rate_mbps=125)
FOUR = Shape(planes=4, t1=2, rate_mbps=250)
UPLINKS = Shape(planes=1, t1=4, rate_mbps=400)

_BEGIN_S = 4.0


def lossy_path(setting: Setting) -> Iterator[Line]:
    """Drop 20 % of the packets of one of 16 paths."""
    figures = Figures("lossy path", "20 % drop")
    link = "p0t0-1:p0t1-1"
    for _ in range(setting.rounds):
        uplinks = tuple(f"t1-{m}" for m in range(1, setting.shape.t1 + 1))
        with Watch(Interfaces(f"{setting.name}-p0t1-1", ("t0-1",))) as on_path:
            run = setting.record(12, [flow.fault(setting.name, link, "loss=20%", _BEGIN_S)])
        began, end = run.applied(0), run.recording.ended_ns
        figures.note("goodput before", "Mb/s", run.before() / 1e6)
        figures.note("goodput with loss, of before", "%", run.share(began, end), at_least(97))
        figures.note("lowest 200 ms with loss, of before", "%", run.lowest(began, end))
        figures.note("lowest 200 ms before", "%", run.lowest_before())
        took, carried = on_path.between(end - 3 * S, end)
        fair = run.before() / setting.shape.planes / len(uplinks)
        share = 100 * float(carried[0]) * 8 * S / took / fair if took else None
        figures.note("the path's load in the last 3 s, of a fair one", "%", share)
        figures.note("TCP retransmits", "", run.retransmits())
        figures.note("connections lost", "", run.lost(), at_most(0))
    return figures.lines()


def failing_links(setting: Setting) -> Iterator[Line]:
    """Take 20 T0-T1 links down one second apart; every plane keeps more than it needs."""
    figures = Figures("20 links fail", "1 s apart")
    links = _trunks(setting.shape.planes, 20)
    for _ in range(setting.rounds):
        steps = [
            flow.fault(setting.name, link, "down", _BEGIN_S + i) for i, link in enumerate(links)
        ]
        run = setting.record(_BEGIN_S + 22, steps)
        _unseen(figures, run, run.applied(0), run.recording.ended_ns)
    return figures.lines()


def flapping_links(setting: Setting) -> Iterator[Line]:
    """Take 8 T0-T1 links down together and bring them back, three times."""
    figures = Figures("8 links flap", "together")
    links = _trunks(setting.shape.planes, 8)
    for _ in range(setting.rounds):
        steps = [
            flow.faults(setting.name, dict.fromkeys(links, action), _BEGIN_S + at_s)
            for at_s, action in ((0, "down"), (1, "clear"), (3, "down"), (4, "clear"))
        ]
        run = setting.record(_BEGIN_S + 7, steps)
        _unseen(figures, run, run.applied(0), run.recording.ended_ns)
    return figures.lines()


def _trunks(planes: int, count: int) -> list[str]:
    """Return `count` links of the first T0s, each in another plane than the one before."""
    return [naming.link(i % planes, 1, i // planes + 1) for i in range(count)]


def _unseen(figures: Figures, run: Run, start_ns: int, end_ns: int) -> None:
    """Note figures with targets which show that goodput is not affected."""
    figures.note("goodput before", "Mb/s", run.before() / 1e6)
    figures.note("goodput from the first on, of before", "%", run.share(start_ns, end_ns))
    figures.note("lowest 200 ms, of before", "%", run.lowest(start_ns, end_ns), at_least(90))
    figures.note("lowest 200 ms before", "%", run.lowest_before())
    gap = run.arrivals.longest_gap_ns(start_ns, end_ns) / MS
    figures.note("longest gap the application sees", "ms", gap)
    figures.note("TCP retransmits", "", run.retransmits())
    figures.note("connections lost", "", run.lost(), at_most(0))


def rebooted_t1(setting: Setting) -> Iterator[Line]:
    """Reboot a T1: it dies silently, its links go down, and two seconds later it is back."""
    figures = Figures("T1 reboots", "p0t1-1")
    t1 = "p0t1-1"
    for _ in range(setting.rounds):
        steps = [
            flow.fault(setting.name, t1, "blackhole", _BEGIN_S),
            flow.fault(setting.name, t1, "down", _BEGIN_S + 1),
            flow.fault(setting.name, t1, "clear", _BEGIN_S + 3),
        ]
        run = setting.record(_BEGIN_S + 8, steps)
        dies, returns = run.applied(0), run.applied(2)
        seen = outage(
            run.arrivals, steady_ns=dies - S, fault_ns=dies, until_ns=returns, left=1.0,
            reference_bps=run.before(),
        )  # fmt: skip
        figures.note("goodput before", "Mb/s", run.before() / 1e6)
        figures.note("dies: longest gap", "ms", seen.gap_ns / MS)
        figures.note("dies: time at full rate lost", "ms", seen.lost_ns / MS)
        lowest = run.lowest(dies, returns)
        figures.note("dies: lowest 200 ms, of before", "%", lowest)
        lowest = run.lowest(returns, run.recording.ended_ns)
        figures.note("returns: lowest 200 ms, of before", "%", lowest, at_least(90))
        figures.note("lowest 200 ms before", "%", run.lowest_before())
        gap = run.arrivals.longest_gap_ns(returns, run.recording.ended_ns) / MS
        figures.note("returns: longest gap", "ms", gap)
        figures.note("TCP retransmits", "", run.retransmits())
        figures.note("connections lost", "", run.lost(), at_most(0))
    return figures.lines()


def flapping_t1(setting: Setting) -> Iterator[Line]:
    """Take a T1 away for a quarter of a second twice a second, for ten seconds."""
    for action in ("down", "blackhole"):
        figures = Figures("T1 flaps", action)
        for _ in range(setting.rounds):
            steps = [
                flow.fault(
                    setting.name, "p0t1-1", "clear" if i % 2 else action, _BEGIN_S + i * 0.25
                )
                for i in range(40)
            ]
            run = setting.record(_BEGIN_S + 12, steps)
            cost = 100 - run.share(run.applied(0), run.applied(0) + 10 * S)
            figures.note("goodput lost in 10 s of it", "%", cost, at_most(3))
            lowest = run.lowest(run.applied(0), run.applied(0) + 10 * S)
            figures.note("lowest 200 ms, of before", "%", lowest)
            figures.note("TCP retransmits", "", run.retransmits())
            figures.note("connections lost", "", run.lost(), at_most(0))
        yield from figures.lines()


def removed_uplinks(setting: Setting) -> Iterator[Line]:
    """Remove 3 of 4 uplinks of a T0 one after another, with and without spare capacity."""
    uplinks = [f"p0t0-1:p0t1-{m}" for m in range(1, 5)]
    for rate in (0, setting.shape.rate_mbps // 4):
        words = f"each carries {rate} Mb/s" if rate else "each carries all"
        figures = Figures("3 of 4 uplinks go", words)
        for _ in range(setting.rounds):
            if rate:
                simultaneous.faults(setting.name, dict.fromkeys(uplinks, f"rate={rate}"))
            steps = [
                flow.fault(setting.name, link, "down", _BEGIN_S + 3 * i)
                for i, link in enumerate(uplinks[:3])
            ]
            _tracks(figures, setting.record(_BEGIN_S + 9, steps), spare=not rate)
        yield from figures.lines()


def _tracks(figures: Figures, run: Run, *, spare: bool) -> None:
    """Note the goodput after each removal, relative to the remaining capacity."""
    figures.note("goodput before", "Mb/s", run.before() / 1e6)
    ends = [run.applied(1), run.applied(2), run.recording.ended_ns]
    for i, end in enumerate(ends):
        carries = 1.0 if spare else (3 - i) / 4
        got = run.share(run.applied(i) + S, end) / carries
        figures.note(f"{i + 1} gone: goodput, of {carries:g} of before", "%", got, at_least(90))
    if spare:
        figures.note("lowest 200 ms, of before", "%", run.lowest(run.applied(0), ends[-1]))
        figures.note("lowest 200 ms before", "%", run.lowest_before())
    figures.note("TCP retransmits", "", run.retransmits())
    figures.note("connections lost", "", run.lost(), at_most(0))


EXPERIMENTS = (
    Experiment(
        "lossy-path", "20 % drop on one of 16 paths (Fig 12, 13)",
        "the EV is inactive at once, a backup takes its place, line rate is kept",
        SIXTEEN, lossy_path,
    ),
    Experiment(
        "failing-links", "20 T0-T1 links go down one second apart (Fig 9c)",
        "minimal impact, sampled every 200 ms", WIDE, failing_links, rounds=2,
    ),
    Experiment(
        "flapping-links", "8 T0-T1 links flap together (Fig 9d)",
        "negligible impact", WIDE, flapping_links,
    ),
    Experiment(
        "t1-reboot", "a T1 dies and returns (Fig 8, 11)",
        "a short dip on failure, none on return; no steady loss", WIDE, rebooted_t1,
    ),
    Experiment(
        "uplinks", "3 of 4 uplinks removed (Fig 19)",
        "tracks the capacity that is left; no dip when enough is left", UPLINKS, removed_uplinks,
    ),
    Experiment(
        "t1-flap", "a T1 flaps twice a second",
        "not in the paper; aim: less than 3 % of goodput", FOUR, flapping_t1,
    ),
)  # fmt: skip
