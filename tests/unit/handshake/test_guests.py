# SPDX-License-Identifier: GPL-2.0-only
"""Test strangers at the gate: who knows the secret is asked who he is, and nobody else."""

from __future__ import annotations

import random

import pytest

from mrcd.handshake import HandshakeError, guests, identity, introduction, sealing
from mrcd.handshake.commands import (
    ChannelCommand,
    Deliver,
    Elsewhere,
    Introduced,
    ReceiveKey,
    Reply,
    SendDatagram,
    SendKey,
)
from mrcd.handshake.gate import Gate
from mrcd.handshake.guests import GUESTS_MAX, PROVED_NS, REFUSED_GAP_NS, UNPROVED_NS
from mrcd.handshake.identity import Keyring, Secret
from tests.unit.wire_double import MS, SECRET, WALL_NS, S, keys_of

PLACE = (2, 7)
WHO = introduction.introduction("h3", 2, 7, ("10.99.0.3/24",), 42)


def gate(ring: Keyring, seed: int = 1, *, takes: bool = False) -> Gate:
    made = Gate(ring, random.Random(seed), WALL_NS)
    made.takes_guests = takes
    return made


def here() -> Gate:
    """Return the gate of h1, which knows h2 only and takes guests."""
    return gate(keys_of("h1", "h2"), 2, takes=True)


def datagrams(commands: list[ChannelCommand]) -> list[bytes]:
    return [each.datagram for each in commands if isinstance(each, Reply | SendDatagram)]


class Visitor:
    """A host at PLACE that has h1 as a peer."""

    def __init__(self, there: Gate, ring: Keyring | None = None, seed: int = 3) -> None:
        self.there = there
        self.gate = gate(keys_of("h3", "h1") if ring is None else ring, seed)
        self.now = 1 * S
        self.heard: list[bytes] = []
        self.got: list[ChannelCommand] = []

    @property
    def channel(self) -> guests.Guest:
        return self.gate.channels["h1"]  # type: ignore[return-value]

    def give(self, sent: list[bytes]) -> list[ChannelCommand]:
        """Carry datagrams to h1, and what it answers back, until nothing more is said."""
        found: list[ChannelCommand] = []
        while sent:
            commands = [
                command
                for each in sent
                for command in self.there.receive(each, None, now_ns=self.now, place=PLACE)
            ]
            found += commands
            sent = []
            for answer in datagrams(commands):
                said = self.gate.receive(answer, "h1", now_ns=self.now)
                self.heard += [each.plaintext for each in said if isinstance(each, Deliver)]
                sent += datagrams(said)
        self.got += found
        return found

    def ask(self) -> list[ChannelCommand]:
        return self.give(datagrams(self.gate.channels["h1"].tick(now_ns=self.now)))

    def say(self, text: bytes) -> list[ChannelCommand]:
        sealed = self.gate.channels["h1"].seal(text, now_ns=self.now)
        return [] if sealed is None else self.give([sealed])


def test_who_knows_the_secret_is_asked_and_heard() -> None:
    there = here()
    visitor = Visitor(there)
    visitor.ask()
    assert visitor.heard == [introduction.question()]
    (introduced,) = visitor.say(WHO)
    assert isinstance(introduced, Introduced)
    assert introduced.guest.place == PLACE
    assert introduced.guest.remote == identity.public_key(identity.host_key(SECRET, "h3"))
    said = introduction.read_introduction(introduced.plaintext)
    assert (said.name, said.t0, said.port, said.frame) == ("h3", 2, 7, 42)
    installs = [each for each in visitor.got if isinstance(each, ReceiveKey | SendKey)]
    assert installs == [], "no key of a guest is for packets"
    assert set(there.channels) == {"h2"}


def test_without_leave_no_stranger_is_computed() -> None:
    there = gate(keys_of("h1", "h2"), 2)
    visitor = Visitor(there)
    assert visitor.ask() == []
    assert len(there.guests) == 0
    assert {why.name: n for why, n in there.dropped.items()} == {"STRANGER": 1}


@pytest.mark.parametrize("place", [None])
def test_from_no_place_of_the_fabric_nobody_is_heard(place: None) -> None:
    there = here()
    visitor = Visitor(there)
    (asked,) = datagrams(visitor.gate.channels["h1"].tick(now_ns=visitor.now))
    assert there.receive(asked, None, now_ns=visitor.now, place=place) == []
    assert len(there.guests) == 0


def test_who_knows_the_public_key_only_gets_an_answer_that_does_not_open() -> None:
    there = here()
    private = identity.private_key(b"\x33" * 32)
    ring = identity.own_keys(private, {"h1": there.keys.public})
    visitor = Visitor(there, ring)
    (answer,) = visitor.ask()
    assert isinstance(answer, Reply)
    assert {why.name: n for why, n in visitor.gate.dropped.items()} == {"HANDSHAKE": 1}
    assert visitor.heard == []
    assert visitor.say(WHO) == []
    visitor.now += UNPROVED_NS
    ring = identity.own_keys(identity.private_key(b"\x34" * 32), {"h1": there.keys.public})
    Visitor(there, ring, 5).ask()
    assert len(there.guests) == 2, "time passes for h1 only by what it hears"


def test_who_has_another_secret_does_not_know_the_public_key() -> None:
    there = here()
    visitor = Visitor(there, identity.simple_keys(Secret(b"\x01" * 32), "h3", ["h1"]))
    assert visitor.ask() == []
    assert {why.name: n for why, n in there.dropped.items()} == {"MAC1": 1}


def test_silent_guests_make_room_and_proved_ones_stay() -> None:
    there = here()
    proved = Visitor(there)
    proved.ask()
    for number in range(GUESTS_MAX + 5):
        private = identity.private_key(number.to_bytes(32, "big"))
        ring = identity.own_keys(private, {"h1": there.keys.public})
        visitor = Visitor(there, ring, number)
        visitor.now += number * 20 * MS  # below what counts as load
        visitor.ask()
        assert len(there.guests) <= GUESTS_MAX
    proved.now += 2 * S
    assert isinstance(proved.say(WHO)[0], Introduced)


def test_proved_guests_fill_the_room() -> None:
    there = here()
    for number in range(GUESTS_MAX + 1):
        visitor = Visitor(there, keys_of(f"n{number}", "h1"), number)
        visitor.now += number * 20 * MS
        visitor.ask()
    assert len(there.guests) == GUESTS_MAX
    assert {why.name: n for why, n in there.dropped.items()} == {"RATE": 1}


def test_guests_leave_when_their_keys_are_too_old() -> None:
    there = here()
    visitor = Visitor(there)
    visitor.ask()
    sealed = visitor.gate.channels["h1"].seal(WHO, now_ns=visitor.now)
    assert sealed is not None
    assert there.receive(sealed, None, now_ns=visitor.now + PROVED_NS, place=PLACE) == []
    assert {why.name: n for why, n in there.dropped.items()} == {"EXPIRED": 1}


def test_copies_and_floods_of_a_guest_are_heard_once_a_second() -> None:
    visitor = Visitor(here())
    visitor.ask()
    assert len(visitor.say(WHO)) == 1
    assert visitor.say(WHO) == []
    assert visitor.say(b"MRCh an Offer") == [], "he was asked a moment ago"
    visitor.now += 1 * S
    assert len(visitor.say(WHO)) == 1
    visitor.heard.clear()
    visitor.say(b"MRCh an Offer")
    assert visitor.heard == [introduction.question()]


def test_refused_guest_is_told_why_and_asked_again_later() -> None:
    visitor = Visitor(here())
    visitor.ask()
    (introduced,) = visitor.say(WHO)
    assert isinstance(introduced, Introduced)
    visitor.heard.clear()
    for command in introduced.guest.refuse("the port is h9's", now_ns=visitor.now):
        assert isinstance(command, Reply)
        for each in visitor.gate.receive(command.datagram, "h1", now_ns=visitor.now):
            assert isinstance(each, Deliver)
            assert introduction.read_refusal(each.plaintext) == "the port is h9's"
    visitor.now += REFUSED_GAP_NS - 1
    assert visitor.say(b"MRCh an Offer") == []
    visitor.now += 1
    visitor.say(b"MRCh an Offer")
    assert visitor.heard == [introduction.question()]


def test_admitted_guest_is_a_peer_and_his_recorded_inits_are_refused() -> None:
    there = here()
    visitor = Visitor(there)
    (asked,) = datagrams(visitor.gate.channels["h1"].tick(now_ns=visitor.now))
    visitor.give([asked])
    there.keys = there.keys.with_peer("h3")
    there.add("h3")
    assert len(there.guests) == 0
    assert there.receive(asked, "h3", now_ns=visitor.now) == []
    there._taken.clear()  # as if it had been long ago
    assert there.receive(asked, "h3", now_ns=visitor.now) == []
    assert {why.name: n for why, n in there.dropped.items()} == {"COPY": 1, "REPLAY": 1}
    visitor.now += 1 * S
    (init,) = datagrams(there.channels["h3"].tick(now_ns=visitor.now))
    (response,) = datagrams(visitor.gate.receive(init, "h1", now_ns=visitor.now))
    commands = there.receive(response, "h3", now_ns=visitor.now)
    assert any(isinstance(each, SendKey) for each in commands), "new keys, for packets"


def test_owner_of_a_peers_key_elsewhere_is_reported_and_changes_nothing() -> None:
    there = gate(keys_of("h1", "h3"), 2, takes=True)
    visitor = Visitor(there)
    before = there.channels["h3"].memory
    assert visitor.ask() == [Elsewhere("h3", PLACE)]
    assert there.channels["h3"].memory == before
    assert len(there.guests) == 0


def test_guests_are_forgotten_with_the_keys_of_this_host() -> None:
    there = here()
    Visitor(there).ask()
    other = identity.simple_keys(Secret(b"\x02" * 32), "h1", ["h2"])
    assert there.reconfigure(other, there.rotation)
    assert len(there.guests) == 0


@pytest.mark.parametrize(
    "message",
    [
        b"MRCi\x00\x00",
        WHO[:-1],
        b"MRCw" + WHO[4:],
        introduction.frames.encode(
            introduction.INTRODUCTION, introduction.Introduction(2, "h3", 1, 1, ("10.0.0.1/24",), 0)
        ),
        introduction.frames.encode(
            introduction.INTRODUCTION, introduction.Introduction(1, "h3", 1, 1, (), 0)
        ),
        introduction.frames.encode(
            introduction.INTRODUCTION, introduction.Introduction(1, "h3", 0, 1, ("a",), 0)
        ),
        introduction.frames.encode(
            introduction.INTRODUCTION, introduction.Introduction(1, "h" * 65, 1, 1, ("a",), 0)
        ),
    ],
)
def test_malformed_introductions_are_refused(message: bytes) -> None:
    with pytest.raises(HandshakeError):
        introduction.read_introduction(message)


def test_messages_fit_into_what_a_plane_carries() -> None:
    longest = introduction.introduction("h" * 64, 2047, 2047, ("f" * 64,) * 8, (1 << 64) - 1)
    assert len(longest) + sealing.SEALED_OVERHEAD <= sealing.SEALED_MAX_BYTES
    assert len(introduction.refusal("é" * 1000)) <= 1200
