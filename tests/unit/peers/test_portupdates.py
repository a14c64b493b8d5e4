# SPDX-License-Identifier: GPL-2.0-only
"""Test the updates that tell peers which planes are used."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mrcd.peers.portupdates import (
    AT_ONCE,
    BACKOFF_NS,
    ID_MASK,
    MS,
    NEVER_NS,
    PortUpdates,
    SendUpdate,
)


def updates(*peers: str, mask: int = 0b1111) -> PortUpdates:
    made = PortUpdates(mask)
    for peer in peers:
        made.established(peer)
    return made


def test_change_goes_to_each_peer_on_each_plane_at_once() -> None:
    assert updates("a", "b").set_mask(0b1011, now_ns=0) == [
        SendUpdate(peer, 1, 0b1011, (plane,)) for plane in (0, 1, 3) for peer in ("a", "b")
    ]


def test_no_change_says_nothing() -> None:
    made = updates("a")
    assert made.set_mask(0b1111, now_ns=0) == []
    assert made.deadline_ns == NEVER_NS
    assert made.tick(now_ns=10**12) == []


def test_only_peers_with_a_session_are_told() -> None:
    made = updates("a", "b")
    made.gone("b")
    assert {update.peer for update in made.set_mask(0b0111, now_ns=0)} == {"a"}


def test_repeats_with_growing_gaps_until_answered() -> None:
    made = updates("a")
    made.set_mask(0b0111, now_ns=0)
    gaps, now = [], 0
    for _ in range(len(BACKOFF_NS) + 3):
        assert made.tick(now_ns=made.deadline_ns - 1) == []
        gaps.append(made.deadline_ns - now)
        now = made.deadline_ns
        assert {(u.update_id, u.mask) for u in made.tick(now_ns=now)} == {(1, 0b0111)}
    assert gaps == [*BACKOFF_NS, *3 * [BACKOFF_NS[-1]]]
    assert made.answered("a", 1)
    assert made.deadline_ns == NEVER_NS
    assert made.unanswered == frozenset()


def test_answer_ends_the_series_of_that_peer_only() -> None:
    made = updates("a", "b")
    made.set_mask(0b0111, now_ns=0)
    assert made.answered("a", 1)
    assert not made.answered("a", 1)
    assert {update.peer for update in made.tick(now_ns=2 * MS)} == {"b"}


def test_answer_to_an_older_update_ends_nothing() -> None:
    made = updates("a")
    made.set_mask(0b0111, now_ns=0)
    made.set_mask(0b1111, now_ns=MS)
    assert not made.answered("a", 1)
    assert made.unanswered == {"a"}
    assert made.answered("a", 2)


def test_new_change_begins_the_series_afresh() -> None:
    made = updates("a")
    made.set_mask(0b0111, now_ns=0)
    for _ in range(9):
        made.tick(now_ns=made.deadline_ns)
    now = made.deadline_ns
    made.set_mask(0b0011, now_ns=now)
    assert made.deadline_ns == now + BACKOFF_NS[0]


def test_thousands_hear_in_turn_and_have_time_to_answer() -> None:
    names = [f"h{i:04}" for i in range(1000)]
    made = updates(*names)
    told: list[str] = []
    now, sent = 0, made.set_mask(0b0111, now_ns=0)
    for _ in range(7):
        assert len({update.peer for update in sent}) <= AT_ONCE
        told += dict.fromkeys(update.peer for update in sent)
        assert made.deadline_ns <= now  # the next peers do not wait
        now += MS
        sent = made.tick(now_ns=now)
    told += dict.fromkeys(update.peer for update in sent)
    assert told == names
    assert made.tick(now_ns=8 * BACKOFF_NS[0] - 1) == []  # eight times the peers and the time
    again = made.tick(now_ns=8 * BACKOFF_NS[0])
    assert {update.peer for update in again} == set(names[:AT_ONCE])
    for name in names:
        assert made.pending
        made.answered(name, made.update_id)
    assert not made.pending


def test_session_that_ends_is_told_no_more() -> None:
    made = updates("a")
    made.set_mask(0b0111, now_ns=0)
    made.gone("a")
    assert made.deadline_ns == NEVER_NS
    made.established("a")
    assert made.deadline_ns == NEVER_NS  # the Offers told the peer
    assert not made.answered("a", 1)


def test_that_no_plane_is_left_is_said_over_those_there_were() -> None:
    made = updates("a")
    made.set_mask(0b0110, now_ns=0)
    told = made.set_mask(0, now_ns=0)
    assert [(update.mask, update.planes) for update in told] == [(0, (1,)), (0, (2,))]
    again = made.tick(now_ns=made.deadline_ns)
    assert [update.planes for update in again] == [(1,), (2,)]
    assert made.answered("a", told[0].update_id)
    assert made.unanswered == frozenset()
    back = made.set_mask(0b1000, now_ns=MS * 20)
    assert [(update.mask, update.planes) for update in back] == [(0b1000, (3,))]


def test_ids_go_on_after_a_restart() -> None:
    made = PortUpdates(0b11, ID_MASK + 3)
    made.established("a")
    assert made.update_id == 2
    assert {update.update_id for update in made.set_mask(0b1, now_ns=0)} == {3}


def test_ids_wrap() -> None:
    made = updates("a")
    for number in range(ID_MASK + 3):
        made.set_mask(1 + number % 2, now_ns=0)
    assert made.update_id == 2


class Conversation(RuleBasedStateMachine):
    """A host, a peer that follows updates as bpf/endpoint.c does, and a fabric that loses,
    reorders and repeats packets. The peer never returns to an older mask, and learns the latest."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = updates("peer")
        self.now = 0
        self.rng = random.Random(4)
        self.requests: list[SendUpdate] = []
        self.old: list[SendUpdate] = []
        self.answers: list[int] = []
        self.known: tuple[int | None, int] = (None, 0b1111)
        self.history = {0: 0b1111}

    def _send(self, sent: list[SendUpdate]) -> None:
        self.requests += sent

    def _follow(self, update: SendUpdate) -> None:
        newest = self.known[0]
        if newest is None or 0 < (update.update_id - newest) & ID_MASK < 0x8000:
            self.known = (update.update_id, update.mask)
        self.answers.append(update.update_id)

    @rule(mask=st.integers(0, 15))
    def change(self, mask: int) -> None:
        self._send(self.ours.set_mask(mask, now_ns=self.now))
        self.history[self.ours.update_id] = self.ours.mask

    @rule(milliseconds=st.integers(1, 3000))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds * MS
        if self.now >= self.ours.deadline_ns:
            self._send(self.ours.tick(now_ns=self.now))

    @rule(keep=st.integers(0, 9))
    def lose(self, keep: int) -> None:
        self.rng.shuffle(self.requests)
        del self.requests[keep:]
        del self.answers[keep:]

    @rule(copies=st.integers(1, 3))
    def deliver(self, copies: int) -> None:
        self.rng.shuffle(self.requests)
        for update in self.requests[:copies]:
            self._follow(update)
        self.old += self.requests[:copies]
        del self.requests[:copies]

    @rule()
    def replay(self) -> None:
        for update in self.old[-50:]:
            self._follow(update)

    @rule()
    def answer(self) -> None:
        for number in self.answers:
            self.ours.answered("peer", number)
        self.answers.clear()

    @invariant()
    def peer_has_what_was_said_last_to_it(self) -> None:
        newest, mask = self.known
        assert mask == self.history[newest or 0]

    @invariant()
    def silence_means_agreement(self) -> None:
        if not self.ours.unanswered:
            assert self.known[1] == self.ours.mask

    def teardown(self) -> None:
        for _ in range(20):
            if not self.ours.unanswered:
                break
            for update in self.ours.tick(now_ns=max(self.now, self.ours.deadline_ns)):
                self._follow(update)
            self.answer()
        assert self.known[1] == self.ours.mask


TestConversation = Conversation.TestCase
