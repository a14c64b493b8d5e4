# SPDX-License-Identifier: GPL-2.0-only
"""Replace the daemon of a host under checked traffic: restarts, crashes, upgrades, downgrades.

    python -m bench.faults.upgrade [--rounds 3] [--seconds 4] [--mtu 9000] [--json FILE]

The other build is a copy of this one with another counter, another program and a newer version of
the hand-shake, as an ordinary next release has them. Each step runs below TCP in both directions,
numbered UDP, and requests with answers, whose contents are checked byte by byte.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.instruments import counters, entry, path_states
from bench.instruments.flow import BenchFailed
from bench.instruments.result import Line, at_most, table
from bench.soak import traffic
from cli.console.exits import CommandError
from cli.lab import lab, processes, state
from mrcd.fabric import description
from rigs import builds

_RATE_MBPS = 250
_TCP_MBPS, _UDP_MBPS = 100, 40
_HOST, _PEER = "h1", "h2"
_SETTLED_S = 180.0
_BEFORE_S = 1.0
_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class Step:
    """A way to replace the daemon: how the old one ends, and which build follows."""

    name: str
    number: signal.Signals
    build: str


STEPS = (
    Step("restart", signal.SIGTERM, "this"),
    Step("kill and restart", signal.SIGKILL, "this"),
    Step("upgrade", signal.SIGTERM, "next"),
    Step("downgrade", signal.SIGTERM, "this"),
    Step("kill and upgrade", signal.SIGKILL, "next"),
    Step("kill and downgrade", signal.SIGKILL, "this"),
)
"""In this order each begins with the build that the one before has left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one replacement did to traffic and QPs."""

    away_s: float  # from the end of the old daemon to the answer of the next one
    ready_s: float  # the same until it is ok
    udp_sent: int
    udp_lost: int
    udp_late: int  # out of order, or twice
    failures: tuple[str, ...]  # flows with other than the right contents
    skipped: int  # packets of QPs that their receiver gave up
    drops: dict[str, int]  # by counter, both hosts
    resent: int  # by TCP
    qps: int
    qps_reset: int
    counts_lost: int  # counters that are lower than before
    slowest_ms: float  # the longest request, data there and answer back


def main() -> None:
    """Measure each step in each round, and print the figures."""
    parser = entry.parser(__doc__, name="upgrade", rounds=3, seconds=4)
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], metavar="STEP")
    args = parser.parse_args()
    entry.begin("bench.faults.upgrade")
    found: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "this": builds.build(Path(folder, "this"), []),
            "next": builds.build(Path(folder, "next"), builds.next_release()),
        }
        with builds.started_as(commands["this"]), _lab_up(args.name, args.mtu):
            wanted = [step for step in STEPS if args.only is None or step.name in args.only]
            for number, step in itertools.product(range(args.rounds), wanted):
                outcome = replaced(args.name, step, commands[step.build], number, args.seconds)
                found.setdefault(step.name, []).append(outcome)
                print(f"{step.name}: {described(outcome)}", flush=True)
    lines = [line for name, outcomes in found.items() for line in figures(name, outcomes)]
    print(table(lines))
    entry.save(args.json, entry.report(lines))


@contextlib.contextmanager
def _lab_up(name: str, mtu: int) -> Iterator[None]:
    """Build a lab whose daemons leave their data path in place when they stop."""
    if name in state.labs():  # a run that was killed has left it
        lab.down(name)
    lab.up(description.generate(name=name, mtu=mtu, rate_mbps=_RATE_MBPS), on_stop="keep")
    try:
        yield
    finally:
        lab.down(name)


def replaced(name: str, step: Step, command: Path, seed: int, seconds: float) -> Outcome:
    """Replace the daemon of a host below traffic, and return what happened."""
    mtu = path_states.status(name, _HOST).mrc0.mtu
    _until(lambda: _well(name), f"both hosts of {name} are ok")
    before, qps = _counts(name), _qps(name)
    resent = _resent(name)
    with traffic.flows(name, seed, _TCP_MBPS, _UDP_MBPS, mtu) as flows:
        time.sleep(_BEFORE_S)
        began = time.monotonic()
        _end(name, step.number)
        gone = time.monotonic()
        with builds.started_as(command):
            lab.start_daemon(name, _HOST)
        _until(lambda: _answers(name), f"{_HOST} answers")
        away_s = time.monotonic() - gone
        _until(lambda: _well(name), f"both hosts of {name} are ok")
        ready_s = time.monotonic() - began
        time.sleep(seconds)
        traffic.finish(flows)
    after = _counts(name)
    return _outcome(flows, before, after, qps, _qps(name), away_s, ready_s, _resent(name) - resent)


def _outcome(
    flows: Sequence[traffic.Flow],
    before: dict[tuple[str, str], int],
    after: dict[tuple[str, str], int],
    qps: list[tuple[int, int]],
    qps_after: list[tuple[int, int]],
    away_s: float,
    ready_s: float,
    resent: int,
) -> Outcome:
    verdicts = [traffic.verdict(each, corrupted=False) for each in flows]
    udp = [each for each in flows if each.kind == "udp"]
    asking = [each for each in flows if each.kind == "request"]
    ends = [each.near.result or {} for each in udp], [each.far.result or {} for each in udp]
    sent = sum(one.get("sent", 0) - one.get("refused", 0) for one in ends[0])
    rose = {key: after.get(key, 0) - count for key, count in before.items()}
    drops: dict[str, int] = {}
    for (_host, counter), more in rose.items():
        if counter.startswith("drop_") and more:
            drops[counter] = drops.get(counter, 0) + more
    return Outcome(
        away_s=away_s,
        ready_s=ready_s,
        udp_sent=sent,
        udp_lost=sent - sum(one.get("arrived", 0) for one in ends[1]),
        udp_late=sum(one.get("late", 0) + one.get("doubled", 0) for one in ends[1]),
        failures=tuple(str(verdict) for verdict in verdicts if verdict.good is False),
        skipped=sum(more for (_, counter), more in rose.items() if counter == "hole_skipped"),
        drops=drops,
        resent=resent,
        qps=len(qps),
        qps_reset=sum(one != other for one, other in zip(qps, qps_after, strict=True)),
        # A counter that only the other build has is not shown by this one, but goes on.
        counts_lost=sum(after[key] < count for key, count in before.items() if key in after),
        slowest_ms=max((each.near.result or {}).get("slowest_ns", 0) for each in asking) / 1e6,
    )


def described(outcome: Outcome) -> str:
    """Return an outcome in one line."""
    drops = ", ".join(f"{name} {count}" for name, count in outcome.drops.items()) or "none"
    return (
        f"{outcome.udp_lost} of {outcome.udp_sent} datagrams lost, {outcome.qps_reset} of "
        f"{outcome.qps} QPs reset, drops: {drops}, TCP resent {outcome.resent}, "
        f"away {outcome.away_s:.2f} s; {'; '.join(outcome.failures) or 'all contents right'}"
    )


def figures(name: str, outcomes: Sequence[Outcome]) -> Iterator[Line]:
    """Yield the figures of one step over all rounds."""
    none = at_most(0)

    def line(what: str, unit: str, get: Callable[[Outcome], float], zero: bool = True) -> Line:
        values = tuple(get(outcome) for outcome in outcomes)
        return Line("upgrade", name, what, unit, values, none if zero else None)

    yield line("datagrams sent", "", lambda one: one.udp_sent, zero=False)
    yield line("datagrams lost", "", lambda one: one.udp_lost)
    yield line("datagrams late or doubled", "", lambda one: one.udp_late)
    yield line("flows with wrong contents", "", lambda one: len(one.failures))
    yield line("packets given up by a receiver", "", lambda one: one.skipped)
    yield line("packets dropped", "", lambda one: sum(one.drops.values()))
    yield line("QPs reset", "", lambda one: one.qps_reset)
    yield line("counters that fell", "", lambda one: one.counts_lost)
    yield line("segments that TCP sent again", "", lambda one: one.resent, zero=False)
    yield line("slowest request", "ms", lambda one: one.slowest_ms, zero=False)
    yield line("no daemon answers", "s", lambda one: one.away_s, zero=False)
    yield line("from the signal to ok", "s", lambda one: one.ready_s, zero=False)


# ---- the lab


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SETTLED_S
    while not condition():
        if time.monotonic() > deadline:
            raise BenchFailed(f"not within {_SETTLED_S:.0f} s: {what}")
        time.sleep(_EVERY_S)


def _end(name: str, number: signal.Signals) -> None:
    """Signal the host's daemon, and wait for its end."""
    pid = lab.daemon_pid(name, _HOST)
    if pid is None:
        raise BenchFailed(f"no mrcd runs in {_HOST}")
    os.kill(pid, number)
    _until(lambda: not processes.runs_in(pid, f"{name}-{_HOST}"), f"mrcd of {_HOST} has ended")


def _answers(name: str) -> bool:
    try:
        path_states.status(name, _HOST)
    except CommandError:
        return False
    return True


def _well(name: str) -> bool:
    try:
        return all(path_states.status(name, host).state == "ok" for host in (_HOST, _PEER))
    except CommandError:
        return False


def _counts(name: str) -> dict[tuple[str, str], int]:
    return {
        (host, counter): count
        for host in (_HOST, _PEER)
        for counter, count in path_states.counters(name, host).items()
        if not counter.startswith("channel_")  # the daemon's own, which begin with it
    }


def _qps(name: str) -> list[tuple[int, int]]:
    """Return both QPNs of each QP: a reset changes them."""
    return [
        (conn.qpn, conn.remote_qpn)
        for host in (_HOST, _PEER)
        for conn in path_states.connections(name, host)
    ]


def _resent(name: str) -> int:
    return sum(counters.tcp_retransmits(f"{name}-{host}") for host in (_HOST, _PEER))


if __name__ == "__main__":
    main()
