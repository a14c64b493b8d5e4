# SPDX-License-Identifier: GPL-2.0-only
"""Black-hole one of four planes under full load and compare transports: ``make demo``.

The same fault, in the same lab, hits one TCP connection over mrc0, one over a plane with ECMP, and
MPTCP over all four planes. The ECMP connection uses the plane that dies, since a connection
elsewhere would not notice. MPTCP begins on a plane that survives.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.instruments import entry, flow, plot
from bench.instruments.flow import BenchFailed, Recording, Route
from bench.instruments.metrics import MS, Outage, S, last_at, outage
from bench.instruments.result import grid
from cli.lab.state import LabFailed

RATE_MBPS = 250
PLANES = 4
KILLED = 1
_WARM_S = 1.0
_FAULT_S = 3.5
_CLEAR_S = 5.0
_SECONDS = 7.0


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one flow through the fault. Rates are in bits per second."""

    outage: Outage
    while_dead_bps: float
    retransmits: int
    alive: bool
    fault_ns: int
    recording: Recording


Say = Callable[[str], None]


def main() -> None:
    """Run the demo; exit with status 1 if it could not be run."""
    parser = entry.parser(__doc__, name="demo", rounds=3, figures=False)
    parser.add_argument("--mtu", type=int, default=9000, help="MTU of the planes")
    parser.add_argument("--plot", type=Path, default=Path("demo.png"), help="the picture's file")
    args = parser.parse_args()
    entry.begin("demo")
    try:
        run(args.name, args.mtu, args.rounds, args.plot)
    except (BenchFailed, LabFailed) as problem:
        sys.exit(f"demo: {problem}")
    except KeyboardInterrupt:
        sys.exit("demo: stopped; the lab has been removed")


def run(name: str, mtu: int, rounds: int, target: Path) -> None:
    """Run the whole demo."""
    say = _clock()
    say(f"building a lab: 2 hosts, {PLANES} planes of {RATE_MBPS} Mb/s, MTU {mtu}")
    with flow.lab_up(name, mtu=mtu, rate_mbps=RATE_MBPS):
        mrc0 = flow.mrc0_route(name)
        steady = flow.iperf3(name, mrc0, 4)
        say(f"iperf3 over mrc0, one TCP connection: {steady / 1e6:.0f} Mb/s")
        routes = [mrc0, flow.plane_route(name, KILLED)]
        if flow.has_mptcp():
            flow.prepare_mptcp(name)
            routes.append(flow.mptcp_route(name))
        results: dict[str, list[Round]] = {route.name: [] for route in routes}
        for i in range(rounds):
            for route in routes:
                judged = measure(name, route)
                results[route.name].append(judged)
                say(f"round {i + 1} of {rounds}, {route.name:9}: {_summary(judged)}")
        say("taking the lab down")
    print()
    print(table(results, "MPTCP" in results))
    _notes(mtu, rounds)
    _write(results, steady, mtu, target)
    say(f"wrote {target} and {target.with_suffix('.json')}")


def _clock() -> Say:
    start = time.monotonic()

    def say(words: str) -> None:
        print(f"[{time.monotonic() - start:5.1f} s] {words}", flush=True)

    return say


def measure(name: str, route: Route) -> Round:
    """Measure one flow; the plane dies half-way and comes back 1.5 s later."""
    plane = f"p{KILLED}"
    steps = [
        flow.fault(name, plane, "blackhole", _FAULT_S),
        flow.fault(name, plane, "clear", _CLEAR_S),
    ]
    recording = flow.run(name, route, _SECONDS, steps)
    died, cleared = (applied.began_ns for applied in recording.applied)
    arrivals, counts = recording.arrivals, recording.retransmits
    return Round(
        outage=outage(
            arrivals,
            steady_ns=recording.began_ns + int(_WARM_S * S),
            fault_ns=died,
            until_ns=cleared,
            left=(PLANES - 1) / PLANES,
        ),
        while_dead_bps=arrivals.bps(cleared - S // 2, cleared),
        retransmits=last_at(counts, cleared) - last_at(counts, died),
        alive=recording.alive,
        fault_ns=died,
        recording=recording,
    )


def _summary(judged: Round) -> str:
    cost = judged.outage
    return (
        f"{cost.before_bps / 1e6:.0f} Mb/s, plane {KILLED} black-holed: longest gap"
        f" {cost.gap_ns / MS:.0f} ms, then {judged.while_dead_bps / 1e6:.0f} Mb/s"
    )


HEADINGS = (
    "",
    "goodput before",
    "plane dead",
    "longest gap",
    "capacity lost",
    "TCP retransmits",
    "connection",
)


def table(results: dict[str, list[Round]], mptcp: bool) -> str:
    """Return the comparison as a table: medians, with the range where it matters."""
    rows = [HEADINGS]
    for name, rounds in results.items():
        rows.append(
            (
                name,
                _figure([r.outage.before_bps / 1e6 for r in rounds], "Mb/s", ranged=False),
                _figure([r.while_dead_bps / 1e6 for r in rounds], "Mb/s", ranged=False),
                _figure([r.outage.gap_ns / MS for r in rounds], "ms"),
                _figure([r.outage.lost_ns / MS for r in rounds], "ms"),
                _figure([float(r.retransmits) for r in rounds], ""),
                "survived" if all(r.alive for r in rounds) else "BROKE",
            )
        )
    if not mptcp:
        rows.append(("MPTCP", "not in this kernel", "", "", "", "", ""))
    return grid(rows)


def _figure(values: Sequence[float], unit: str, *, ranged: bool = True) -> str:
    words = f"{statistics.median(values):.0f} {unit}".strip()
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{words} ({low}-{high})" if ranged and low != high else words


def _notes(mtu: int, rounds: int) -> None:
    print(
        f"""
Plane {KILLED} was black-holed at both hosts' switches, links up, for {_CLEAR_S - _FAULT_S:.1f} s.
Medians of {rounds} rounds (lowest-highest); cubic; MTU {mtu}. "Longest gap": no byte reached the
application. "Capacity lost": (3/4 of the rate before - goodput), summed from the fault until
goodput is within 5 % of it again, as time at that rate. "TCP retransmits": by the application's
TCP (MPTCP: all subflows) while the plane was dead. The ECMP connection rides on plane {KILLED},
the one that dies; MPTCP has {PLANES} subflows, its first one on a plane that lives.
"""
    )


def _write(results: dict[str, list[Round]], steady: float, mtu: int, target: Path) -> None:
    panels = []
    for name, rounds in results.items():
        shown = sorted(rounds, key=lambda r: r.outage.gap_ns)[(len(rounds) - 1) // 2]
        cost = shown.outage
        verdict = (
            f"longest gap {cost.gap_ns / MS:.0f} ms, "
            + (
                f"{cost.lost_ns / MS:.0f} ms of capacity lost"
                if cost.back_ns is not None
                else "dead until the plane is back"
            )
            + f", {shown.retransmits} TCP retransmits"
        )
        panels.append(
            plot.Panel(_TITLES[name], verdict, shown.recording.arrivals, shown.fault_ns, cost)
        )
    plot.draw(
        panels,
        PLANES * RATE_MBPS * 1e6,
        f"One of {PLANES} planes of {RATE_MBPS} Mb/s dies without a word (MTU {mtu})",
        target,
    )
    report = {
        "mtu": mtu,
        "rate_mbps": RATE_MBPS,
        "iperf3_bps": steady,
        "rounds": {name: [_plain(r) for r in rounds] for name, rounds in results.items()},
    }
    target.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")


_TITLES = {
    "mrcd": "mrcd: TCP over mrc0",
    "TCP, ECMP": "TCP on the plane that dies (ECMP)",
    "MPTCP": "MPTCP over the four planes",
}


def _plain(judged: Round) -> dict[str, object]:
    recording = judged.recording
    around = recording.arrivals.bins_bps(judged.fault_ns - S, judged.fault_ns + 3 * S, MS)
    return {
        **asdict(judged.outage),
        "while_dead_bps": judged.while_dead_bps,
        "retransmits_while_dead": judged.retransmits,
        "retransmits_total": recording.retransmits[-1][1] if recording.retransmits else 0,
        "subflows": recording.subflows,
        "alive": judged.alive,
        "sent": recording.sent,
        "received": recording.received,
        "bps_each_ms_from_1000_ms_before_the_fault": [int(rate) for rate in around],
    }


if __name__ == "__main__":
    main()
