# SPDX-License-Identifier: GPL-2.0-only
"""Inject random faults of all kinds under traffic whose every byte is checked.

    python -m bench.soak [--minutes 20] [--seed N] [--mix] [--kinds down ...] [--framing mrc]

With --mix there are also floods of forged packets, restarts of daemons, rotations of keys, and
operators' mistakes. What is done is a pure function of --seed, --minutes, the kinds and the fabric,
and is written to a file before it begins. The exit status is 1 if anything was lost, stuck or
leaked, or if a state at the end contradicts the ground truth that nothing is broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.instruments import entry, flow, path_states, simultaneous
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import S
from bench.soak import cleared, judging, mix, schedule, traffic
from bench.soak.disturb import Disturber
from bench.soak.mix import MIXED, Disturbance
from bench.soak.schedule import KINDS, Change, Episode, Ground, Spell
from bench.soak.traffic import Flow, Verdict
from cli.console.exits import CommandError
from cli.lab import state
from cli.lab.multiqueue import ONE_QUEUE, HostNics
from mrcd.fabric import description
from rigs import mistakes
from rigs.running_lab import RunningLab, deep_backlog

HOSTS, PLANES, T1 = 3, 4, 4
_RESULTS = Path("build/results")
_HEAL_S = 30.0
_FORGET_S = 90.0
"""For a minute, status says of what was often put right that something keeps changing it."""
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
    nics: HostNics = ONE_QUEUE
    dead_s: float | None = None

    @property
    def ground(self) -> Ground:
        """Return what can break."""
        hosts = tuple(f"h{i}" for i in range(1, HOSTS + 1))
        return Ground(PLANES, HOSTS, T1, hosts, self.rate_mbps)

    @property
    def mixed(self) -> tuple[str, ...]:
        """Return the kinds that are not faults of the fabric."""
        return tuple(kind for kind in self.kinds if kind in MIXED)

    @property
    def udp_per_s(self) -> float:
        """Return the datagrams a second of a stream of them."""
        return self.udp_mbps * 1e6 / 8 / ((self.mtu - 28) // 2)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a soak does."""

    episodes: list[Episode]
    disturbances: list[Disturbance]
    seconds: float

    @classmethod
    def of(cls, settings: Settings) -> Plan:
        """Plan a soak of these settings."""
        seed, seconds, ground = settings.seed, settings.minutes * 60, settings.ground
        faults = [kind for kind in settings.kinds if kind in KINDS]
        found = schedule.episodes(seed, seconds, ground, faults) if faults else []
        cells = settings.framing != "mrc"
        return cls(
            found,
            mix.disturbances(
                *(seed, seconds, ground, settings.mixed, found),
                cells=cells,
                dead_s=settings.dead_s,
            ),
            seconds,
        )


def soak(settings: Settings) -> list[Verdict]:
    """Build the lab, run the soak, take the lab down; return the verdicts."""
    plan = Plan.of(settings)
    file = _RESULTS / f"soak-{settings.seed}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        schedule.text(
            settings.seed, plan.seconds, settings.ground, plan.episodes, plan.disturbances
        )
    )
    _announce(settings, plan, file)
    fabric = description.generate(
        name=settings.name,
        hosts=HOSTS,
        planes=PLANES,
        t1=T1,
        mtu=settings.mtu,
        rate_mbps=settings.rate_mbps,
    )
    configuration = flow.framed(settings.framing)
    if settings.mixed:
        configuration += '[service]\non_stop = "keep"\n'
    up = flow.fabric_up(fabric, settings=configuration, host_nics=settings.nics)
    with deep_backlog(), up:
        try:
            return _soak(settings, plan, RunningLab(fabric))
        finally:
            _keep_logs(settings)


def _keep_logs(settings: Settings) -> None:
    """Copy the log of each host's daemons: the lab's own go with it."""
    for host in path_states.hosts(settings.name):
        log = state.places(settings.name, host).log
        shutil.copyfile(log, _RESULTS / f"soak-{settings.seed}-{host}.log")


def _announce(settings: Settings, plan: Plan, file: Path) -> None:
    kinds = Counter(episode.kind for episode in plan.episodes)
    together = sum(len(episode.elements) > 1 for episode in plan.episodes)
    blackouts = sum(episode.blackout for episode in plan.episodes)
    print(
        f"soak: {settings.minutes:g} minutes, seed {settings.seed}, {HOSTS} hosts,"
        f" {PLANES} planes x {T1} T1, {settings.rate_mbps} Mb/s, MTU {settings.mtu}"
        f"{f', framing {settings.framing}' if settings.framing else ''}"
        f"{f', {settings.nics}' if settings.nics != ONE_QUEUE else ''}\n"
        f"soak: {len(plan.episodes)} episodes: {_counted(kinds)}; {together} of several elements"
        f" at once, {blackouts} blackouts of a host; {file}",
        flush=True,
    )
    if settings.mixed:
        print(f"soak: {_counted(Counter(map(mix.kind_of, plan.disturbances)))}", flush=True)


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"


def _soak(settings: Settings, plan: Plan, running: RunningLab) -> list[Verdict]:
    name, hosts = settings.name, path_states.hosts(settings.name)
    # Datagrams must fit mrc0's MTU, which is the same on all hosts.
    mtu = path_states.status(name, hosts[0]).mrc0.mtu
    verdicts: list[Verdict] = []
    before = cleared.losses(name)
    disturber = Disturber(running)
    memories = cleared.Memories(name, min(_REMEMBER_S, plan.seconds / 3))
    if settings.mixed:
        disturber.look()
        disturber.on_return = memories.remember
        sessions = judging.sessions(name)
    with traffic.flows(name, settings.seed, settings.tcp_mbps, settings.udp_mbps, mtu) as flows:
        for host in hosts:
            memories.remember(host)
        try:
            applied = list(_apply(name, plan, flows, disturber))
            disturber.finish()
            _running(settings.name, disturber)
        finally:
            memories.stop()
            disturber.stop()
            simultaneous.clear_all(name)
        verdicts += cleared.healed(name, _FORGET_S if settings.mixed else _HEAL_S)
        if settings.mixed:
            verdicts += judging.rotated_again(name, sessions)
        verdicts += cleared.even(name, PLANES, _HEAL_S)
        stop_ns = time.monotonic_ns()
        traffic.finish(flows)
    corrupted = any(episode.kind == "corrupt" for episode in plan.episodes)
    verdicts += [traffic.verdict(each, corrupted) for each in flows]
    faults = sorted([*applied, *disturber.cuts()], key=lambda each: each[0])
    without = schedule.spells(faults, PLANES)
    verdicts += _stalls(flows, without, disturber, stop_ns, settings.stuck_s)
    verdicts.append(_lateness(plan.episodes, applied))
    added = cleared.losses(name).since(before)
    verdicts += _datagrams(flows, added, disturber, settings.udp_per_s)
    if settings.mixed:
        logged, after = judging.events(name), judging.sessions(name)
        verdicts += judging.verdicts(disturber, sessions, after, logged)
    verdicts += [memories.kept(host) for host in hosts]
    verdicts += cleared.rings(name, _HEAL_S)
    verdicts += cleared.complaints(name, judging.failed_starts(disturber.records))
    return verdicts


def _apply(
    name: str, plan: Plan, flows: Sequence[Flow], disturber: Disturber
) -> Iterator[tuple[int, int, dict[str, str]]]:
    """Make all changes at their times; yield when each began and was in effect, and what it was.

    Disturbances are begun in between, and go on beside them.
    """
    began_ns = time.monotonic_ns()
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    said_ns = began_ns
    todo = [*schedule.changes(plan.episodes), *plan.disturbances]
    for each in sorted(todo, key=lambda each: each.at_s):
        flow.wait_until(began_ns + int(each.at_s * S))
        if isinstance(each, Change):
            with disturber.beside(each.actions):
                done = simultaneous.faults(name, each.actions)
            disturber.notice(each.actions)
            yield done.began_ns, done.effective_ns, each.actions
        else:
            disturber.begin(each)
        if time.monotonic_ns() - said_ns > _SAY_S * S:
            said_ns = time.monotonic_ns()
            dead = [end.name for f in flows for end in (f.near, f.far) if end.result]
            moved = sum(end.progress[-1][1] for f in flows if f.kind == "tcp"
                        for end in f.watched if end.progress)  # fmt: skip
            print(f"soak: {each.at_s:.0f} s, {moved / 1e6:.0f} MB", *dead, flush=True)
    flow.wait_until(began_ns + int(plan.seconds * S))


def _stalls(
    flows: Sequence[Flow],
    without: Sequence[Spell],
    disturber: Disturber,
    stop_ns: int,
    stuck_s: float,
) -> Iterator[Verdict]:
    """Judge whether every flow made progress whenever a plane was free of cuts.

    Time in which a disturbance may stop the traffic of its hosts does not count.
    """
    for each in flows:
        worst = 0
        hosts = judging.hosts_of(each)
        spells = [*without, *judging.spells_of(disturber.records, hosts)]
        spells.sort(key=lambda spell: spell.start_ns)
        for end in each.watched:
            stamps = end.stamps(stop_ns)
            worst = max(worst, schedule.longest_stall_ns(stamps, spells))
        good = worst <= stuck_s * S
        shown = f"longest time without progress while a plane was well: {worst / S:.2f} s"
        yield Verdict(good, f"{each.name} is never stuck", shown)


def _lateness(
    planned: Sequence[Episode], applied: Sequence[tuple[int, int, dict[str, str]]]
) -> Verdict:
    """Report how far a busy machine fell behind the schedule, counted from its first change."""
    if not applied:
        return Verdict(None, "schedule", "no faults")
    due_s = [change.at_s for change in schedule.changes(planned)]
    done_s = [began_ns / S for began_ns, _, _ in applied]
    late_s = [done - done_s[0] - (due - due_s[0]) for due, done in zip(due_s, done_s, strict=True)]
    return Verdict(None, "schedule", f"{len(done_s)} changes, late by {max(late_s):.2f} s at most")


def _running(name: str, disturber: Disturber) -> None:
    """Raise BenchFailed if a daemon does not answer: nothing more can be judged then."""
    problems = [f"{each.what}: {each.problem}" for each in disturber.records if each.problem]
    for host in path_states.hosts(name):
        try:
            path_states.status(name, host)
        except CommandError:
            problems.append(f"mrcd of {host} does not answer")
    if any("does not answer" in each for each in problems):
        raise BenchFailed("\n".join(problems))


def _datagrams(
    flows: Sequence[Flow], added: dict[str, int], disturber: Disturber, per_s: float
) -> Iterator[Verdict]:
    """Judge whether all missing datagrams are explained.

    Counters explain some of any flow, and mistakes some of those of their host.
    """
    allowed = judging.may_lose(disturber.records, per_s)
    ours = [each for each in flows if mistakes.HOST in judging.hosts_of(each)]
    if not allowed:
        yield cleared.explained("UDP datagrams", _missing(flows), added)
        return
    others = [each for each in flows if each not in ours]
    yield cleared.explained("UDP datagrams of other hosts", _missing(others), added)
    number = sum(each.kind == "udp" for each in ours)
    title = f"UDP datagrams of {mistakes.HOST}"
    yield cleared.explained(title, _missing(ours), added, number * allowed)


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
    every = KINDS + MIXED
    about = f"{', '.join(every)}; default: the {len(KINDS)} faults of the fabric"
    parser.add_argument("--kinds", nargs="+", metavar="KIND", choices=every, default=KINDS,
                        help=about)  # fmt: skip
    about = f"besides the kinds: {', '.join(MIXED)}"
    parser.add_argument("--mix", action="store_true", help=about)
    parser.add_argument("--mtu", type=int, default=9000, help="MTU of the planes")
    parser.add_argument("--rate", type=int, default=50, help="Mb/s of every link")
    parser.add_argument("--tcp", type=float, default=60, help="Mb/s of a connection, each way")
    parser.add_argument("--udp", type=float, default=4, help="Mb/s of a stream of datagrams")
    about = "S seconds without progress while a plane is healthy are a failure"
    parser.add_argument("--stuck", type=float, default=5, metavar="S", help=about)
    flow.framing_option(parser)
    about = "restarts are daemons that are killed and left dead for S seconds"
    parser.add_argument("--dead", type=float, metavar="S", help=about)
    flow.nic_options(parser)
    parser.add_argument("--name", default="soak", help="name of the lab")
    args = parser.parse_args()
    entry.begin("soak")
    kinds = tuple(dict.fromkeys([*args.kinds, *(MIXED if args.mix else ())]))
    settings = Settings(args.name, args.minutes, args.seed, kinds, args.mtu, args.rate,
                        args.tcp, args.udp, args.stuck, args.framing,
                        HostNics(args.queues, args.qdisc), args.dead)  # fmt: skip
    try:
        verdicts = soak(settings)
    except BenchFailed as problem:
        sys.exit(f"soak: {problem}")
    print("\n".join(map(str, verdicts)))
    failures = cleared.failed(verdicts)
    print(f"soak: {'FAILED, ' + str(failures) + ' of' if failures else 'passed,'} {len(verdicts)}")
    sys.exit(bool(failures))
