# SPDX-License-Identifier: GPL-2.0-only
"""Test the hand-shake of a daemon with very many peers: budgets and announced intervals."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from mrcd import handshake
from mrcd.handshake import (
    Command,
    HandshakeError,
    Ours,
    Pace,
    SendOffer,
    Session,
    State,
    StateChanged,
    decode,
    encode,
)
from mrcd.handshake.pace import BEAT_MAX_NS, FEW, JITTER, KEEPALIVES_PER_S, patience
from mrcd.peers.peers import REST_NS
from tests.unit.handshake.test_session import ALL_PLANES, SECOND, Packet, World, connected, offer


def test_offer__without_a_pace_is_one_of_before() -> None:
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(offer())[6:])[:-1])
    datagram = handshake.MAGIC + len(older).to_bytes(2, "big") + older
    assert decode(datagram) == offer(pace_ms=1000)


@pytest.mark.parametrize("pace_ms", [0, 3_600_001])
def test_offer__absurd_pace_is_refused(pace_ms: int) -> None:
    with pytest.raises(HandshakeError, match="not an Offer"):
        decode(encode(offer(pace_ms=pace_ms)))


def alone(pace: Pace, planes: int = ALL_PLANES, seed: int = 1) -> Session:
    ours = Ours("a", 7, 8872, 2048, 16, 4)
    return Session(ours, "b", planes, random.Random(seed), pace)


def offers_of(session: Session, duration_ns: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return when an unanswered session sends Offers, and on which planes."""
    now, said = 0, []
    session.start(now_ns=now)
    while (now := session.deadline_ns) < duration_ns:
        for command in session.tick(now_ns=now):
            assert isinstance(command, SendOffer)
            said.append((now, command.planes))
    return said


@pytest.mark.parametrize(("unanswered", "most_per_s"), [(100, 1.3), (1000, 0.13), (10_000, 0.013)])
def test_pace__all_who_do_not_answer_share_a_budget(unanswered: int, most_per_s: float) -> None:
    session = alone(Pace(unanswered=unanswered))
    late = [planes for at, planes in offers_of(session, 4000 * SECOND) if at > 400 * SECOND]
    assert sum(map(len, late)) <= 3600 * most_per_s
    assert {plane for planes in late for plane in planes} == {0, 1, 2, 3}


def test_pace__a_few_are_asked_every_second_on_every_plane() -> None:
    said = offers_of(alone(Pace(unanswered=25)), 20 * SECOND)
    assert {planes for _, planes in said} == {(0, 1, 2, 3)}
    assert {b - a for (a, _), (b, _) in itertools.pairwise(said[8:])} == {SECOND}


def test_pace__who_does_not_answer_for_long_is_asked_together_with_others() -> None:
    said = offers_of(alone(Pace(unanswered=1000, phase_ns=7)), 100 * SECOND)
    late = [at for at, _ in said if at > 20 * SECOND]
    assert {at % BEAT_MAX_NS for at in late} == {7}
    assert len({b - a for a, b in itertools.pairwise(late)}) > 1  # each at its own times


def test_pace__sessions_that_began_together_drift_apart() -> None:
    pace = Pace(unanswered=10_000)
    last = {offers_of(alone(pace, seed=seed), 3600 * SECOND)[-1][0] for seed in range(20)}
    assert len(last) == 20


def test_pace__first_offer_goes_on_every_plane_whatever_the_crowd() -> None:
    [hello] = alone(Pace(unanswered=10_000)).start(now_ns=0)
    assert isinstance(hello, SendOffer)
    assert hello.planes == (0, 1, 2, 3)


def test_pace__keepalives_of_many_come_less_often_and_nobody_falls_silent() -> None:
    world = connected()
    for node in world.nodes.values():
        node.session._pace.answering = 20 * KEEPALIVES_PER_S  # twenty seconds
    before = len(world.history)
    world.run(1000 * SECOND)
    world.assert_agreement()
    assert len(world.history) - before < 2 * 1000 / 20 * 1.5
    assert not silences(world)


def silences(world: World) -> list[Command]:
    return [
        command
        for node in world.nodes.values()
        for command in node.log
        if isinstance(command, StateChanged) and command.new is State.SILENT
    ]


@pytest.mark.parametrize("seed", range(5))
def test_pace__becomes_long_while_one_offer_in_four_is_lost(seed: int) -> None:
    world = connected(seed)
    world.nodes["a"].session._pace.answering = 5000  # b has one peer, so keeps its second

    def lossy() -> None:
        while world.flight:
            packet = world.flight.pop(0)
            if world.rng.random() < 0.75:
                world.deliver(packet)

    world.run(2000 * SECOND, lossy)
    assert len(silences(world)) <= 2
    world.run(100 * SECOND)
    world.assert_agreement()


def test_pace__silence_of_a_slow_peer_is_noticed_after_two_and_a_half_of_its_intervals() -> None:
    world = connected()
    for node in world.nodes.values():
        node.session._pace.answering = 40 * KEEPALIVES_PER_S  # forty seconds
    world.run(400 * SECOND)
    session = world.nodes["a"].session
    assert session.silent_after_ns == 100 * SECOND
    world.dead = {("a", plane) for plane in range(4)}
    world.run(40 * SECOND)  # the last Offer may be 50 seconds old
    assert session.state is State.ESTABLISHED
    asked: list[bool] = []
    while session.state is State.ESTABLISHED:
        before = len(world.history)
        world.run(SECOND)
        if session.state is State.ESTABLISHED:
            asked += [packet.to == "b" for packet in world.history[before:] if wants(packet)]
    assert world.now_ns - session._bound.heard_ns == pytest.approx(100 * SECOND, abs=SECOND)
    assert all(asked)
    assert len(asked) in (4 * 4, 5 * 4)  # on four planes; a keepalive may have been due as well


def wants(packet: Packet) -> bool:
    return decode(packet.datagram).want


@pytest.mark.parametrize(
    ("pace_ms", "quiet_s", "again_s", "dead_s"),
    [(1, 2.5, 1, 5), (1000, 2.5, 1, 5), (2000, 3, 1, 5), (4000, 6, 1, 10), (40_000, 60, 10, 100)],
)
def test_patience__is_that_with_one_a_second_at_least(
    pace_ms: int, quiet_s: float, again_s: float, dead_s: float
) -> None:
    found = patience(pace_ms)
    assert found.quiet_ns == quiet_s * SECOND
    assert found.again_ns == again_s * SECOND
    assert found.dead_ns == dead_s * SECOND


def test_patience__with_a_keepalive_that_is_late_is_left() -> None:
    """Keepalives vary and are sent and read in batches, so a late one triggers no request."""
    for answering in (1, 26, 64, 65, 250, 1000, 10_000):
        pace = Pace(answering=answering)
        pace_ns = pace.keepalive_ns
        latest = pace_ns if pace_ns == SECOND else round(pace_ns * (1 + JITTER))
        assert pace.beat(latest) + REST_NS < patience(pace_ns // 1_000_000).quiet_ns


def test_pace__keepalives_of_a_few_leave_when_they_are_due() -> None:
    assert {Pace(answering=FEW).beat(due) for due in (0, 1, 12345)} == {0, 1, 12345}


@pytest.mark.parametrize(
    ("answering", "beat_ms"), [(FEW + 1, 300), (80, 400), (100, 500), (10_000, 500)]
)
def test_pace__keepalives_of_a_crowd_leave_together_a_little_late(
    answering: int, beat_ms: int
) -> None:
    pace, beat = Pace(answering=answering, phase_ns=7), beat_ms * 1_000_000
    assert beat <= pace.keepalive_ns / 10
    for due in (1, beat - 1, beat, 7 * beat + 3):
        left = pace.beat(due)
        assert left % beat == 7
        assert due <= left < due + beat


@pytest.mark.parametrize("state", [State.OFFERING, State.SILENT])
def test_session__plane_that_comes_up_is_tried_when_its_turn_comes(state: State) -> None:
    if state is State.SILENT:
        world = connected()
        world.dead = {(to, plane) for to in "ab" for plane in range(4)}
        world.run(8 * SECOND)
        session, now = world.nodes["a"].session, world.now_ns
        assert session.set_planes(0b0111, now_ns=now) == []
    else:
        session, now = alone(Pace(unanswered=1000), planes=0b0111), 0
        session.start(now_ns=now)
    assert session.state is state
    before = session.deadline_ns
    assert before > now
    assert session.set_planes(0b0011, now_ns=now) == []
    assert session.deadline_ns == before  # losing a plane is no reason to ask again
    assert session.set_planes(0b1011, now_ns=now) == []
    assert session.deadline_ns == now
    [again] = session.tick(now_ns=now)
    assert isinstance(again, SendOffer)
    assert again.planes == (0, 1, 3)
