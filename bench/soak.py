# SPDX-License-Identifier: GPL-2.0-only
"""Inject random faults of all kinds under traffic whose every byte is checked.

    python -m bench.soak [--minutes 20] [--seed N] [--kinds down blackhole ...] [--framing mrc]

The faults are a pure function of --seed, --minutes, --kinds and the fabric, and are written to a
file before they begin. The exit status is 1 if anything was lost, stuck or leaked, or if a state at
the end contradicts the ground truth that nothing is broken.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import entry, flow, path_states, simultaneous, soak_schedule, soak_state, soak_traffic
from bench.flow import FRAMINGS, BenchFailed
from bench.metrics import S
from bench.soak_schedule import Change, Episode, Ground, Spell
from bench.soak_traffic import Flow, Verdict
from mrcd.fabric import description

HOSTS, PLANES, T1 = 3, 4, 4
_RESULTS = Path("build/results")
_HEAL_S = 30.0
_REMEMBER_S = 10.0  # caches and pools are full after this time; leaks are relative to then
_SAY_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the command line."""

    name: str
    minutes: float
    seed: int
    kinds: tuple[str, ...]
    mtu: int
    rate_mbps: int
    tcp_mbps: float
    udp_mbps: float
    stuck_s: float
    framing: str | None

    @property
    def ground(self) -> Ground:
        """Return what can break."""
        hosts = tuple(f"h{i}" for i in range(1, HOSTS + 1))
        return Ground(PLANES, HOSTS, T1, hosts, self.rate_mbps)


def soak(settings: Settings) -> list[Verdict]:
    """Build the lab, run the soak, take the lab down; return the verdicts."""
    seconds = settings.minutes * 60
    planned = soak_schedule.episodes(settings.seed, seconds, settings.ground, settings.kinds)
    file = _RESULTS / f"soak-{settings.seed}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(soak_schedule.text(settings.seed, seconds, settings.ground, planned))
    _announce(settings, planned, file)
    fabric = description.generate(
        name=settings.name,
        hosts=HOSTS,
        planes=PLANES,
        t1=T1,
        mtu=settings.mtu,
        rate_mbps=settings.rate_mbps,
    )
    with flow.fabric_up(fabric, settings=flow.framed(settings.framing)):
        return _soak(settings, planned, seconds)


def _announce(settings: Settings, planned: Sequence[Episode], file: Path) -> None:
    kinds = Counter(episode.kind for episode in planned)
    together = sum(len(episode.elements) > 1 for episode in planned)
    blackouts = sum(episode.blackout for episode in planned)
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(
        f"soak: {settings.minutes:g} minutes, seed {settings.seed}, {HOSTS} hosts,"
        f" {PLANES} planes x {T1} T1, {settings.rate_mbps} Mb/s, MTU {settings.mtu}"
        f"{f', framing {settings.framing}' if settings.framing else ''}\n"
        f"soak: {len(planned)} episodes: {shown}; {together} of several elements at once,"
        f" {blackouts} blackouts of a host; {file}",
        flush=True,
    )


def _soak(settings: Settings, planned: Sequence[Episode], seconds: float) -> list[Verdict]:
    name, hosts = settings.name, path_states.hosts(settings.name)
    # Datagrams must fit mrc0's MTU, which is the same on all hosts.
    mtu = path_states.status(name, hosts[0]).mrc0.mtu
    verdicts: list[Verdict] = []
    before = soak_state.losses(name)
    with soak_traffic.flows(
        name, settings.seed, settings.tcp_mbps, settings.udp_mbps, mtu
    ) as flows:
        remembered: dict[str, soak_state.Memory | None] = {}
        remember = threading.Timer(
            min(_REMEMBER_S, seconds / 3),
            lambda: remembered.update({host: soak_state.memory(name, host) for host in hosts}),
        )
        remember.start()
        try:
            applied = list(_apply(name, soak_schedule.changes(planned), seconds, flows))
        finally:
            remember.cancel()
            simultaneous.clear_all(name)
        verdicts += soak_state.healed(name, _HEAL_S)
        verdicts += soak_state.even(name, PLANES, _HEAL_S)
        stop_ns = time.monotonic_ns()
        soak_traffic.finish(flows)
    without = soak_schedule.spells(applied, PLANES)
    corrupted = any(episode.kind == "corrupt" for episode in planned)
    verdicts += [soak_traffic.verdict(each, corrupted) for each in flows]
    verdicts += _stalls(flows, without, stop_ns, settings.stuck_s)
    verdicts.append(_lateness(planned, applied))
    verdicts.append(soak_state.explained(_missing(flows), soak_state.losses(name).since(before)))
    verdicts += [
        soak_state.kept(host, remembered.get(host), soak_state.memory(name, host)) for host in hosts
    ]
    verdicts += soak_state.rings(name, _HEAL_S)
    verdicts += soak_state.complaints(name)
    return verdicts


def _apply(
    name: str, changes: Sequence[Change], seconds: float, flows: Sequence[Flow]
) -> Iterator[tuple[int, int, dict[str, str]]]:
    """Make all changes at their times; yield when each began and was in effect, and what it was."""
    began_ns = time.monotonic_ns()
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    said_ns = began_ns
    for change in changes:
        flow.wait_until(began_ns + int(change.at_s * S))
        done = simultaneous.faults(name, change.actions)
        yield done.began_ns, done.effective_ns, change.actions
        if time.monotonic_ns() - said_ns > _SAY_S * S:
            said_ns = time.monotonic_ns()
            dead = [each.name for f in flows for each in (f.near, f.far) if each.result]
            moved = sum(end.progress[-1][1] for f in flows if f.kind == "tcp"
                        for end in f.watched if end.progress)  # fmt: skip
            print(f"soak: {change.at_s:.0f} s, {moved / 1e6:.0f} MB", *dead, flush=True)
    flow.wait_until(began_ns + int(seconds * S))


def _stalls(
    flows: Sequence[Flow], without: Sequence[Spell], stop_ns: int, stuck_s: float
) -> Iterator[Verdict]:
    """Judge whether every flow made progress whenever a plane was free of cuts."""
    for each in flows:
        worst = 0
        for end in each.watched:
            stamps = end.stamps(stop_ns)
            worst = max(worst, soak_schedule.longest_stall_ns(stamps, without))
        good = worst <= stuck_s * S
        shown = f"longest time without progress while a plane was well: {worst / S:.2f} s"
        yield Verdict(good, f"{each.name} is never stuck", shown)


def _lateness(
    planned: Sequence[Episode], applied: Sequence[tuple[int, int, dict[str, str]]]
) -> Verdict:
    """Report how far a busy machine fell behind the schedule, counted from its first change."""
    due_s = [change.at_s for change in soak_schedule.changes(planned)]
    done_s = [began_ns / S for began_ns, _, _ in applied]
    late_s = [done - done_s[0] - (due - due_s[0]) for due, done in zip(due_s, done_s, strict=True)]
    return Verdict(None, "schedule", f"{len(done_s)} changes, late by {max(late_s):.2f} s at most")


def _missing(flows: Sequence[Flow]) -> int:
    missing = 0
    for each in flows:
        sent, got = each.near.result, each.far.result
        if each.kind == "udp" and sent is not None and got is not None:
            missing += sent["sent"] - sent["refused"] - got["arrived"]
    return missing


def main() -> None:
    """Soak and print the verdicts."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1, help="the same seed repeats the faults")
    every = soak_schedule.KINDS
    about = ", ".join(every)
    parser.add_argument("--kinds", nargs="+", metavar="KIND", choices=every, default=every,
                        help=about)  # fmt: skip
    parser.add_argument("--mtu", type=int, default=9000, help="MTU of the planes")
    parser.add_argument("--rate", type=int, default=50, help="Mb/s of every link")
    parser.add_argument("--tcp", type=float, default=60, help="Mb/s of a connection, each way")
    parser.add_argument("--udp", type=float, default=4, help="Mb/s of a stream of datagrams")
    about = "S seconds without progress while a plane is healthy are a failure"
    parser.add_argument("--stuck", type=float, default=5, metavar="S", help=about)
    parser.add_argument("--framing", choices=FRAMINGS, help="framing of mrcd's data")
    parser.add_argument("--name", default="soak", help="name of the lab")
    args = parser.parse_args()
    entry.begin("soak")
    settings = Settings(args.name, args.minutes, args.seed, tuple(args.kinds), args.mtu, args.rate,
                        args.tcp, args.udp, args.stuck, args.framing)  # fmt: skip
    try:
        verdicts = soak(settings)
    except BenchFailed as problem:
        sys.exit(f"soak: {problem}")
    print("\n".join(map(str, verdicts)))
    failures = soak_state.failed(verdicts)
    print(f"soak: {'FAILED, ' + str(failures) + ' of' if failures else 'passed,'} {len(verdicts)}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
