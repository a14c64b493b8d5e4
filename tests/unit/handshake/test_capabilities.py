# SPDX-License-Identifier: GPL-2.0-only
"""Test what sessions make of capabilities."""

from __future__ import annotations

import random

import pytest

from mrcd.handshake import (
    CELL,
    ConfigureReceive,
    LacksCapability,
    Offer,
    Ours,
    SendOffer,
    Session,
    State,
    decode,
)

NOW_NS = 1_000_000_000


def session(name: str, *capabilities: str, required: tuple[str, ...] = ()) -> Session:
    ours = Ours(name, 1, 8960, 2048, 16, 4, capabilities, required)
    return Session(ours, "b" if name == "a" else "a", 0b11, random.Random(name))


def offers(commands: list[object]) -> list[Offer]:
    return [decode(each.datagram) for each in commands if isinstance(each, SendOffer)]


def agreed(one: Session, other: Session) -> list[frozenset[str]]:
    """Let two sessions talk; return the capabilities with which each has set up its QPs."""
    found = []
    waiting = [(other, offer) for offer in offers(one.start(now_ns=NOW_NS))]
    for _ in range(100):
        if not waiting:
            break
        to, offer = waiting.pop(0)
        commands = to.receive(offer, now_ns=NOW_NS)
        found += [c.capabilities for c in commands if isinstance(c, ConfigureReceive)]
        back = one if to is other else other
        waiting += [(back, answer) for answer in offers(commands)]
    assert one.state is other.state is State.ESTABLISHED
    return found


@pytest.mark.parametrize(
    ("one", "other", "both"), [((CELL,), (CELL,), {CELL}), ((CELL,), (), set()), ((), (), set())]
)
def test_cells_are_used_where_both_take_them(
    one: tuple[str, ...], other: tuple[str, ...], both: set[str]
) -> None:
    assert agreed(session("a", *one), session("b", *other)) == [both, both]


def test_digests_are_stated_and_may_change_within_a_session() -> None:
    one, other = session("a"), session("b")
    one.set_digests(7, 8)
    agreed(one, other)
    assert other.remote is not None
    assert (other.remote.frame, other.remote.hosts) == (7, 8)
    one.set_digests(7, 9)
    assert one.digests == (7, 9)
    (offer, *_) = offers(one.start(now_ns=NOW_NS + 1))
    assert (offer.frame, offer.hosts) == (7, 9)
    assert one.state is State.ESTABLISHED


def test_peer_without_a_required_capability_gets_no_session() -> None:
    strict = session("b", CELL, required=(CELL,))
    (offer,) = offers(session("a").start(now_ns=NOW_NS))
    with pytest.raises(LacksCapability, match="a lacks cell, which b insists on"):
        strict.receive(offer, now_ns=NOW_NS)
    assert strict.state is State.OFFERING
    assert agreed(session("a", CELL), strict) == [{CELL}, {CELL}]


def test_addresses_are_stated_and_a_peer_is_told_of_others_at_once() -> None:
    one, other = session("a"), session("b")
    here, there = (bytes(16),), (bytes([1] * 16),)
    assert one.set_endpoints(here, now_ns=NOW_NS) == [], "there is nobody to tell"
    agreed(one, other)
    assert other.remote is not None
    assert other.remote.endpoints == here
    assert one.set_endpoints(here, now_ns=NOW_NS + 1) == []
    (offer, *_) = offers(one.set_endpoints(there, now_ns=NOW_NS + 1))
    assert offer.endpoints == there
