# SPDX-License-Identifier: GPL-2.0-only
"""Tests that the disturbances of a mixed soak are repeatable and judged by what they may cost."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench.soak import cleared, disturb, judging, mix, schedule, soak
from bench.soak.disturb import Disturber, Record
from bench.soak.judging import Sessions
from bench.soak.mix import ATTACKERS, MIXED, SETTLE_S, Attack, Restart, Rotation, Slip
from bench.soak.schedule import KINDS, LEAD_S, Ground, Spell
from cli.lab import state
from mrcd.fabric import description
from rigs import mistakes, stranger

GROUND = Ground(planes=4, t0=3, t1=4, hosts=("h1", "h2", "h3"), rate_mbps=50)
SECONDS = 1200.0
S = 1_000_000_000
SETTINGS = soak.Settings(
    "soak", 20, 1, (*KINDS, *MIXED), 9000, 50, tcp_mbps=60, udp_mbps=4, stuck_s=5, framing=None
)


def plan(seed: int, *, kinds: tuple[str, ...] = (*KINDS, *MIXED), **more: Any) -> soak.Plan:
    return soak.Plan.of(replace(SETTINGS, seed=seed, kinds=kinds, **more))


# ---- the plan


def test_same_seed_gives_the_same_disturbances() -> None:
    assert plan(7) == plan(7)
    assert plan(7).disturbances != plan(8).disturbances


def test_without_new_kinds_the_faults_are_those_of_before() -> None:
    alone = plan(1, kinds=KINDS)
    assert alone.disturbances == []
    assert alone.episodes == plan(1).episodes == schedule.episodes(1, SECONDS, GROUND)


@pytest.mark.parametrize("kind", MIXED)
def test_leaving_kinds_out_does_not_change_the_others(kind: str) -> None:
    every = [d for d in plan(3).disturbances if mix.kind_of(d) == kind]
    assert plan(3, kinds=(*KINDS, kind)).disturbances == every != []


def test_kinds_without_faults_make_no_episodes() -> None:
    found = plan(1, kinds=("rotate",))
    assert found.episodes == []
    assert {type(each) for each in found.disturbances} == {Rotation}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_disturbances_begin_after_traffic_and_leave_time_to_heal(seed: int) -> None:
    times = [each.at_s for each in plan(seed).disturbances]
    assert times == sorted(times)
    assert times[0] >= LEAD_S
    assert times[-1] <= SECONDS - SETTLE_S


def test_daemons_are_left_dead_one_after_another() -> None:
    found = plan(1, dead_s=120.0).disturbances
    dead = [each for each in found if isinstance(each, Restart)]
    assert len(dead) > 5
    assert {(each.signal, each.away_s) for each in dead} == {("SIGKILL", 120.0)}
    assert dead[-1].at_s + 120 <= SECONDS - SETTLE_S
    assert [e for e in found if e not in dead] == [
        e for e in plan(1).disturbances if not isinstance(e, Restart)
    ]


def test_attacks_pose_as_the_other_host_from_a_third() -> None:
    found = [each for each in plan(1).disturbances if isinstance(each, Attack)]
    assert {each.host for each in found} == set(ATTACKERS)
    assert {kind for each in found for kind in each.packets} == set(stranger.KINDS)
    assert mistakes.HOST not in ATTACKERS
    for each in found:
        assert {each.host, each.target, each.posing} == set(GROUND.hosts)


def test_restarts_are_of_every_host_by_both_signals() -> None:
    found = [each for each in plan(1).disturbances if isinstance(each, Restart)]
    assert {(each.host, each.signal) for each in found} == {
        (host, signal) for host in GROUND.hosts for signal in ("SIGTERM", "SIGKILL")
    }


@pytest.mark.parametrize(("framing", "cells"), [(None, True), ("cell", True), ("mrc", False)])
def test_every_mistake_is_made_and_none_much_more_often(framing: str | None, cells: bool) -> None:
    found = [each for each in plan(2, framing=framing).disturbances if isinstance(each, Slip)]
    counts = {each.name: sum(e.name == each.name for e in found) for each in found}
    assert set(counts) == {each.name for each in mix.chosen(cells)}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_chosen_mistakes_are_put_right_or_undone() -> None:
    for each in mix.chosen(cells=True):
        assert each in mistakes.REPAIRED or (mix.cuts_plane(each.name) and each.undo)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mistakes_do_not_take_the_last_plane_away(seed: int) -> None:
    found = plan(seed)
    cuts = [e for e in found.disturbances if isinstance(e, Slip) and mix.cuts_plane(e.name)]
    assert cuts
    for each in cuts:
        assert each.seconds > 0
        away = {mix.PLANE}
        for other in found.episodes:
            together = other.start_s <= each.at_s + each.seconds and each.at_s <= other.end_s
            if together and (other.cuts or other.kind == "flap"):
                away |= other.planes
        assert len(away) < GROUND.planes


def test_file_of_the_plan_has_the_disturbances() -> None:
    found = plan(1)
    text = schedule.text(1, SECONDS, GROUND, found.episodes, found.disturbances)
    written = json.loads(text)["disturbances"]
    assert len(written) == len(found.disturbances)
    assert {each["kind"] for each in written} == {"attack", "restart", "rotation", "slip"}


@pytest.mark.parametrize(
    ("name", "loses", "planes"),
    [
        ("mrc0 deleted", True, ()),
        ("mrc0's addresses flushed", True, ()),
        ("program detached from mrc0p", True, ()),
        ("program detached from a plane NIC", False, ()),
        ("route to a peer deleted", False, ()),
        ("address of a plane NIC deleted", False, (1,)),
        ("plane NIC set down", False, (1,)),
    ],
)
def test_costs_of_mistakes(name: str, loses: bool, planes: tuple[int, ...]) -> None:
    assert mix.loses_datagrams(name) is loses
    assert mix.planes_of(name) == planes


# ---- verdicts


def record(what: mix.Disturbance, began_s: float, over_s: float, **more: Any) -> Record:
    return Record(what, int(began_s * S), int(over_s * S), **more)


DELETED = Slip(10, "mrc0 deleted")
RENAMED = Slip(20, "plane NIC renamed", 2)
KILLED = Restart(30, "h2", "SIGKILL", 0)
RECORDS = [record(DELETED, 10, 12), record(RENAMED, 20, 23), record(KILLED, 30, 34, pid=7)]


def test_traffic_may_stop_where_a_disturbance_stops_it() -> None:
    assert judging.spells_of(RECORDS, {"h1", "h3"}) == [Spell(10 * S, 14 * S)]


def test_dead_daemon_is_no_excuse_for_traffic() -> None:
    assert judging.spells_of(RECORDS, {"h2", "h3"}) == []


def test_only_mistakes_that_lose_datagrams_allow_for_some() -> None:
    assert judging.may_lose(RECORDS, per_s=100) == 250
    assert judging.may_lose(RECORDS[1:], per_s=100) == 0


@pytest.mark.parametrize(
    ("missing", "allowed", "good"), [(0, 0, True), (3, 0, None), (4, 0, False), (13, 10, None)]
)
def test_missing_datagrams(missing: int, allowed: int, good: bool | None) -> None:
    added = {"drop_backlog": 3, "TCP sent again": 1000}
    assert cleared.explained("UDP", missing, added, allowed).good is good


def test_nic_mistakes_count_as_cuts_beside_faults_of_the_same_link() -> None:
    disturber = Disturber(running=None, records=RECORDS)  # type: ignore[arg-type]
    faults = [
        (21 * S, 21 * S, {"p0": "down", "h1:p1": "down"}),
        (22 * S, 22 * S, {"h1:p1": "clear"}),
    ]
    applied = sorted([*faults, *disturber.cuts()], key=lambda each: each[0])
    assert schedule.spells(applied, planes=2) == [Spell(21 * S, 23 * S)]


def test_faults_of_now_are_noticed() -> None:
    disturber = Disturber(running=None)  # type: ignore[arg-type]
    disturber.notice({"p0": "down", "h1:p1": "loss=1%"})
    disturber.notice({"p0": "clear"})
    assert disturber.broken == {"h1:p1"}


@pytest.fixture
def disturber(monkeypatch: pytest.MonkeyPatch) -> Disturber:
    """Return the disturber of a lab that is described only."""
    fabric = description.generate(name="lab", hosts=3, planes=4, t1=2)
    monkeypatch.setattr(state, "read_fabric", lambda _name: fabric)
    return Disturber(running=SimpleNamespace(name="lab"))  # type: ignore[arg-type]


def test_nic_of_mistakes_is_left_alone_while_a_fault_is_made_there(disturber: Disturber) -> None:
    for element, held in (("h1:p1", True), ("p1t0-1", True), ("h1:p2", False), ("h2:p1", False)):
        with disturber.beside({"p3": "down", element: "loss=1%"}):
            assert disturber._nic.locked() is held, element
        assert not disturber._nic.locked()


def test_mistake_with_a_nic_waits_until_its_faults_are_cleared(
    disturber: Disturber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for mrcd is excused while a fault is there; in its turn it would not end."""
    looks = []

    def clear(_seconds: float) -> None:
        looks.append(sorted(disturber.at_nic))
        with disturber.beside({"h1:p1": "clear"}):
            assert disturber._nic.locked()

    monkeypatch.setattr(disturb.time, "sleep", clear)
    with disturber.beside({"h1:p1": "rate=5", "p2": "down"}):
        pass
    with disturber._whole_nic():
        assert disturber._nic.locked()
    assert looks == [["h1:p1"]]
    assert not disturber._nic.locked()


BEFORE = Sessions((("h1", "h2", 5, 6),), {("h1", "h2"): 1}, refused=10)


@pytest.mark.parametrize(
    ("after", "logged", "good"),
    [
        (BEFORE, {"h1": ["peer.established", "keys.agreed"]}, True),
        (replace(BEFORE, qpns=(("h1", "h2", 8, 6),)), {}, False),
        (replace(BEFORE, qpns=()), {}, False),
        (BEFORE, {"h1": ["peer.out_of_step"]}, False),
    ],
)
def test_resets_are_found(after: Sessions, logged: dict[str, list[str]], good: bool) -> None:
    assert judging.unreset(BEFORE, after, logged).good is good


def judged(records: list[Record], logged: dict[str, list[str]], refused: int = 0) -> dict[str, Any]:
    disturber = Disturber(running=None, records=records)  # type: ignore[arg-type]
    after = replace(BEFORE, refused=BEFORE.refused + refused)
    found = judging.verdicts(disturber, BEFORE, after, logged)
    return {verdict.what: verdict for verdict in found}


@pytest.mark.parametrize(
    ("problem", "adopted", "good"), [("", 1, True), ("not back", 1, False), ("", 0, False)]
)
def test_restarts_that_did_not_come_back_are_found(problem: str, adopted: int, good: bool) -> None:
    events = ["datapath.adopted"] * adopted + ["sessions.resumed"]
    verdict = judged([record(KILLED, 30, 34, pid=7, problem=problem)], {"h2": events})["restarts"]
    assert verdict.good is good


@pytest.mark.parametrize(
    ("host", "count", "good"), [("h1", 0, True), ("h1", 1, None), ("h2", 1, False)]
)
def test_starts_may_fail_only_where_mistakes_are_made(
    host: str, count: int, good: bool | None
) -> None:
    restart = record(replace(KILLED, host=host), 30, 34, pid=7, count=count)
    assert judged([restart], {})["starts"].good is good
    assert judging.failed_starts([restart]) == {"h1": count if host == "h1" else 0}


class Ended:
    """A process that ends with a status at once."""

    def __init__(self, status: int | None) -> None:
        self.pid, self._status = id(self), status

    def poll(self) -> int | None:
        return self._status


@pytest.mark.parametrize(("status", "again"), [(1, True), (5, False)])
def test_failed_starts_are_repeated_as_systemd_does(
    status: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, started = [100.0], [Ended(status), Ended(None)]
    monkeypatch.setattr(disturb.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(disturb.lab, "start_daemon", lambda *_: started.pop(0))
    service = disturb.Service("soak", "h1")
    seen = []
    for _ in range(3):
        seen.append(service.runs())
        now[0] += 1.1
    assert seen == [False, False, again]
    assert service.failed == 1
    assert service.ended == ("" if again else ": it ended with status 5")


@pytest.mark.parametrize(
    ("refused", "problem", "good"), [(900, "", True), (20, "", False), (900, "no NIC", False)]
)
def test_attacks_must_arrive(refused: int, problem: str, good: bool) -> None:
    attack = record(Attack(5, 3, "h3", "h1", "h2", ("data",), 500, seed=1), 5, 8,
                    count=1000, problem=problem)  # fmt: skip
    assert judged([attack], {}, refused)["attacks"].good is good


@pytest.mark.parametrize("error", [AssertionError("exit 2"), OSError("no such device")])
def test_what_cannot_be_done_is_recorded(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(Disturber, "_slip", fails)
    disturber = Disturber(running=None)  # type: ignore[arg-type]
    disturber.begin(DELETED)
    disturber.finish()
    (found,) = disturber.records
    assert str(error) in found.problem
    assert found.over_ns >= found.began_ns > 0


@pytest.mark.parametrize(("count", "good"), [(2, True), (0, False)])
def test_rotations_must_happen(count: int, good: bool) -> None:
    assert judged([record(Rotation(5, "h1"), 5, 6, count=count)], {})["rotations"].good is good


@pytest.mark.parametrize(("problem", "left", "good"), [("", "", True), ("late", "mrc0", False)])
def test_mistakes_that_were_not_put_right_are_found(
    problem: str, left: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disturber, "different", lambda *_: left)
    found = judged([record(DELETED, 10, 12, problem=problem)], {})
    assert found["mistakes"].good is good
    assert found["h1 is as at first"].good is good
