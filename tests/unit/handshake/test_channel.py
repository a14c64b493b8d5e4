# SPDX-License-Identifier: GPL-2.0-only
"""Test the sealed channel between two hosts: over bad wires, in crossed exchanges, under attack."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrcd.handshake import channel as channels
from mrcd.handshake import sealing
from mrcd.handshake.channel import REKEY_AFTER_NS, VERSIONS, Rotation
from mrcd.handshake.commands import Forget, ReceiveKey, SendDatagram, SendKey
from mrcd.handshake.gate import LOAD_PER_S, SOURCE_PER_S
from mrcd.handshake.noise import Initiator, KeyPair
from mrcd.handshake.sealing import COOKIE, INIT, RESPONSE, SEALED, Asked, Window
from tests.unit.wire_double import MS, WALL_NS, Host, S, Wire, keys_of, pair, prompt

ROTATION = Rotation()
FORGET_AFTER_NS, REJECT_AFTER_NS = ROTATION.forget_ns, ROTATION.reject_ns
REKEY_JITTER_NS, RELIEVE_AFTER_NS = ROTATION.jitter_ns, ROTATION.relieve_ns
KINDS = (INIT, RESPONSE, COOKIE, SEALED)
SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def kinds(datagrams: list[bytes]) -> list[bytes]:
    return [datagram[:4] for datagram in datagrams]


def up(seed: int = 1) -> Wire:
    """Return two hosts that have keys; h1 asked for them."""
    wire = pair(seed)
    wire.b.channel._retry_ns = wire.now_ns + 1 * S
    wire.run(100 * MS)
    assert wire.agreed()
    return wire


# ---- how it should go


def test_exchange__in_the_order_that_loses_no_packet() -> None:
    wire = up()
    one, other = wire.a, wire.b
    assert kinds(one.sent) == [INIT, SEALED]
    # The second answers the empty message that every initiator sends to be confirmed.
    assert kinds(other.sent) == [RESPONSE, SEALED, SEALED]
    assert [type(command) for command in one.log] == [
        SendDatagram, ReceiveKey, SendKey, SendDatagram,
    ]  # fmt: skip
    assert [type(command) for command in other.log] == [
        ReceiveKey, SendDatagram, SendKey, SendDatagram, SendDatagram,
    ]  # fmt: skip
    assert one.kernel.sends is not None
    assert one.kernel.sends[0] == 1


def test_sealed__is_delivered_once_with_the_name_of_its_sender() -> None:
    wire = up()
    wire.fate = lambda datagram: [1 * MS, 2 * MS, 3 * MS]
    assert wire.say(wire.a, b"hello")
    assert wire.say(wire.b, b"world")
    wire.run(10 * MS)
    assert (wire.a.heard, wire.b.heard) == ([b"world"], [b"hello"])
    assert wire.a.dropped["COPY"] == 2


def test_datagrams__stay_within_the_planes() -> None:
    wire = up()
    sealed = wire.a.channel.seal(bytes(1200), now_ns=wire.now_ns)
    assert sealed is not None
    assert len(sealed) == sealing.SEALED_MAX_BYTES == 1232
    assert 40 + 40 + 8 + len(sealed) <= 1408  # MTU_MIN, with the headers of SRv6
    assert 40 + 8 + len(sealed) <= 1280  # in a fabric of its own, with one header
    assert sealing.INIT_BYTES == 146
    assert sealing.COOKIE_BYTES < sealing.INIT_BYTES


def test_epochs__follow_each_other_in_alternating_phases() -> None:
    wire = up()
    lost = []
    wire.check = lambda: lost.append(wire.now_ns) if not wire.accepted() else None
    seen = []
    for _ in range(100):
        wire.run(REKEY_AFTER_NS)
        assert wire.agreed()
        assert wire.a.kernel.sends is not None
        seen.append(wire.a.kernel.sends[0])
        assert len(wire.a.kernel.receive) == len(wire.b.kernel.receive) <= 2
    assert lost == []
    assert seen == sorted(seen)
    assert 100 <= seen[-1] <= 120
    assert wire.a.kernel.installed == wire.b.kernel.installed == seen[-1]


def test_old_epoch__is_accepted_for_some_seconds_and_then_forgotten() -> None:
    wire = up()
    wire.a.channel.renew(now_ns=wire.now_ns)
    late = wire.b.channel.seal(b"late", now_ns=wire.now_ns)
    assert late is not None
    wire.run(100 * MS)
    assert wire.a.kernel.sends is not None
    assert wire.a.kernel.sends[0] == 2
    assert set(wire.a.kernel.receive) == set(wire.b.kernel.receive) == {0, 1}
    wire.arrive(wire.a, late)
    assert wire.a.heard == [b"late"]
    wire.run(FORGET_AFTER_NS)
    assert set(wire.a.kernel.receive) == set(wire.b.kernel.receive) == {0}
    assert Forget("h2", 1) in wire.a.log


def test_rekey__by_the_initiator_and_else_by_the_responder() -> None:
    wire = up()
    asked_at = {}
    for host in (wire.a, wire.b):
        asked_at[host.name] = host.channel.deadline_ns - wire.now_ns
    wire.run(FORGET_AFTER_NS + 1 * S)
    for host, late in ((wire.a, 0), (wire.b, RELIEVE_AFTER_NS)):
        wait = host.channel.deadline_ns - 10 * S
        assert REKEY_AFTER_NS + late - REKEY_JITTER_NS <= wait <= REKEY_AFTER_NS + late + S
    # The initiator's INITs are lost: the responder asks, and the roles change.
    wire.fate = lambda datagram: [] if datagram[:4] == INIT else [1 * MS]
    wire.run(REKEY_AFTER_NS - 10 * S)
    wire.fate = lambda datagram: (
        [] if datagram[:4] == INIT and datagram in wire.a.sent else [1 * MS]
    )
    wire.run(RELIEVE_AFTER_NS + 10 * S)
    assert wire.agreed()
    assert kinds(wire.b.sent).count(INIT) >= 1


def test_old_keys__seal_and_open_nothing_but_packets_keep_theirs() -> None:
    wire = up()
    late = wire.b.channel.seal(b"late", now_ns=wire.now_ns)
    assert late is not None
    wire.fate = lambda datagram: []
    wire.run(REJECT_AFTER_NS)
    assert wire.a.channel.seal(b"x", now_ns=wire.now_ns) is None
    assert wire.a.channel.key_age_ns(wire.now_ns) is None
    wire.arrive(wire.a, late)
    assert wire.a.dropped["EXPIRED"] == 1
    assert wire.a.heard == []
    assert wire.agreed()
    wire.fate = prompt
    wire.run(10 * S)
    assert wire.a.channel.seal(b"x", now_ns=wire.now_ns) is not None
    assert wire.agreed()


def test_retries__back_off() -> None:
    wire = pair(fate=lambda datagram: [])
    times = []
    for _ in range(12):
        wire.run(max(0, wire.a.channel.deadline_ns - wire.now_ns))
        times.append(wire.now_ns)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] < 300 * MS
    assert all(3 * S < gap < 7 * S for gap in gaps[-4:])


def test_remove__forgets_every_key() -> None:
    wire = up()
    wire.a.carry_out(wire.a.gate.remove("h2"))
    assert wire.a.kernel.receive == {}
    assert wire.a.gate._indices == {}
    assert wire.a.gate.remove("h2") == []
    assert wire.b.channel.seal(b"x", now_ns=wire.now_ns) is not None
    wire.a.gate.receive(wire.b.sent[-1], "h2", now_ns=wire.now_ns)
    assert wire.a.dropped["UNKNOWN_INDEX"] == 1


# ---- both ask


@pytest.mark.parametrize("seed", range(1, 6))
def test_both_ask_at_once__one_exchange_results(seed: int) -> None:
    wire = pair(seed)
    lost = []
    wire.check = lambda: lost.append(1) if not wire.accepted() else None
    wire.run(150 * MS)
    assert wire.agreed()
    assert lost == []
    assert kinds(wire.a.sent + wire.b.sent).count(RESPONSE) == 1
    wins, gives_way = sorted((wire.a, wire.b), key=lambda host: host.keys.public, reverse=True)
    assert kinds(gives_way.sent).count(INIT) == 1
    assert [datagram for datagram in wins.sent if datagram[:4] == INIT] == [wins.sent[0]] * 2
    assert gives_way.dropped["COPY"] == 1


def test_both_ask_for_the_next_epoch_at_once() -> None:
    wire = up()
    lost = []
    wire.check = lambda: lost.append(1) if not wire.accepted() else None
    for _ in range(20):
        wire.run(11 * S)
        for host in (wire.a, wire.b):
            host.channel.renew(now_ns=wire.now_ns)
        wire.run(1 * S)
        assert wire.agreed()
    assert lost == []
    assert wire.a.kernel.sends is not None
    assert wire.a.kernel.sends[0] == 21


def test_peer_that_comes_up_later__has_keys_at_once() -> None:
    """Whichever side's INITs were sent in vain, and whichever key is the greater."""
    for early in (0, 1):
        wire = pair()
        hosts = [wire.a, wire.b]
        late = hosts[1 - early]
        late.channel._retry_ns = wire.now_ns + 60 * S
        wire.fate = lambda datagram: []
        wire.run(hosts[early].channel.deadline_ns - wire.now_ns + 1 * S)
        wire.run(hosts[early].channel.deadline_ns - wire.now_ns)  # another INIT has just left
        wire.fate = prompt
        late.restart(remember=False)
        wire.run(20 * MS)
        assert wire.agreed()


def test_short_rotation__keeps_every_packet_accepted() -> None:
    rotation = Rotation(after_ns=2 * S)
    wire = pair(rotation=rotation)
    lost = []
    wire.check = lambda: lost.append(wire.now_ns) if not wire.accepted() else None
    wire.run(60 * S)
    assert wire.agreed()
    assert lost == []
    assert wire.a.kernel.sends is not None
    assert 28 <= wire.a.kernel.sends[0] <= 34


def unconfirmed() -> Wire:
    """Return two hosts of which the initiator sends under epoch 2, and the other does not know."""
    wire = up()
    wire.run(FORGET_AFTER_NS)
    wire.a.channel.renew(now_ns=wire.now_ns)
    wire.fate = lambda datagram: [1 * MS] if datagram[:4] in (INIT, RESPONSE) else []
    wire.run(50 * MS)
    sends = wire.a.kernel.sends, wire.b.kernel.sends
    assert [epoch for epoch, _ in filter(None, sends)] == [2, 1]
    assert wire.accepted()
    return wire


@pytest.mark.parametrize("restarts", ["responder", "initiator", "both", "nobody"])
def test_epoch_that_was_not_confirmed__and_a_restart_lose_no_packet(restarts: str) -> None:
    """Both phases are in use; a third epoch would take the place of one."""
    wire = unconfirmed()
    lost = []
    wire.check = lambda: lost.append(wire.now_ns) if not wire.accepted() else None
    if restarts in ("responder", "both"):
        wire.b.restart()
    if restarts in ("initiator", "both"):
        wire.a.restart()
    wire.run(4 * S)  # only INITs and RESPONSEs arrive
    wire.fate = prompt
    wire.run(10 * S)
    assert lost == []
    assert wire.agreed()
    assert wire.say(wire.a, b"one")
    wire.run(5 * MS)
    assert wire.b.heard == [b"one"]


# ---- versions


@pytest.mark.parametrize(("theirs", "agreed"), [((1, 1), 1), ((1, 9), 1), ((2, 9), None)])
def test_versions__the_highest_that_both_speak(
    theirs: tuple[int, int], agreed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = pair()
    wire.b.channel._retry_ns = wire.now_ns + 60 * S
    monkeypatch.setattr(channels, "VERSIONS", theirs)
    asks = wire.a.carry_out(wire.a.channel.tick(now_ns=wire.now_ns))
    monkeypatch.setattr(channels, "VERSIONS", (1, 1))
    answers = wire.arrive(wire.b, asks[0])
    assert kinds(answers) == ([] if agreed is None else [RESPONSE])
    assert wire.b.dropped["VERSION"] == (agreed is None)
    if agreed is not None:
        wire.arrive(wire.a, answers[0])
        assert wire.a.kernel.sends is not None


def test_versions__an_answer_in_one_that_we_do_not_speak_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = pair()
    wire.b.channel._retry_ns = wire.now_ns + 60 * S
    monkeypatch.setattr(channels, "VERSIONS", (1, 2))
    asks = wire.a.carry_out(wire.a.channel.tick(now_ns=wire.now_ns))
    answers = wire.arrive(wire.b, asks[0])
    monkeypatch.setattr(channels, "VERSIONS", (1, 1))
    wire.arrive(wire.a, answers[0])
    assert wire.a.dropped["VERSION"] == 1
    assert wire.a.kernel.sends is None


# ---- bad wires


@SLOW
@given(seed=st.integers(0, 1 << 32), loss=st.floats(0, 0.7), copies=st.integers(1, 3))
def test_bad_wire__no_packet_key_is_used_before_the_peer_has_it(
    seed: int, loss: float, copies: int
) -> None:
    rng = random.Random(seed)

    def fate(datagram: bytes) -> list[int]:
        return [rng.randrange(200 * MS) for _ in range(copies) if rng.random() >= loss]

    wire = pair(seed, fate)
    lost = []
    wire.check = lambda: lost.append(wire.now_ns) if not wire.accepted() else None
    for _ in range(8):
        wire.run(rng.randrange(60 * S))
        if rng.random() < 0.5:
            rng.choice([wire.a, wire.b]).channel.renew(now_ns=wire.now_ns)
        for host in (wire.a, wire.b):
            wire.say(host, b"something")
    assert lost == []
    wire.fate = prompt
    wire.run(200 * S)
    assert wire.agreed()


@SLOW
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_restarts__both_agree_again(data: st.DataObject, seed: int) -> None:
    rng = random.Random(seed)
    wire = pair(seed, lambda _: [] if rng.random() < 0.2 else [rng.randrange(100 * MS)])
    wire.run(10 * S)
    for _ in range(data.draw(st.integers(1, 5))):
        host = data.draw(st.sampled_from([wire.a, wire.b]))
        host.wall_ns += data.draw(st.sampled_from([0, 3600, -3600])) * S
        host.restart(remember=data.draw(st.booleans()))
        wire.run(data.draw(st.integers(0, 150)) * S + rng.randrange(S))
    wire.fate = prompt
    wire.run(200 * S)
    assert wire.agreed()
    assert wire.say(wire.a, b"one")
    assert wire.say(wire.b, b"two")
    wire.run(1 * S)
    assert (wire.a.heard[-1], wire.b.heard[-1]) == (b"two", b"one")


def test_restart__replaces_no_key_that_packets_are_under() -> None:
    """The data path goes on while the daemon is down, and while the next one asks."""
    wire = up()
    wire.a.channel.renew(now_ns=wire.now_ns)
    wire.run(1 * S)  # epoch 2, with epoch 1 not forgotten yet
    lost = []
    wire.check = lambda: lost.append(1) if not wire.accepted() else None
    for host in (wire.a, wire.b, wire.a):
        host.restart()
        wire.run(15 * S)
        assert wire.agreed()
    assert lost == []
    assert wire.a.kernel.sends is not None
    assert wire.a.kernel.sends[0] == 5
    assert len(wire.a.kernel.receive) == len(wire.b.kernel.receive) == 1


def test_memory__holds_nothing_secret() -> None:
    wire = up()
    memory = wire.a.channel.memory
    assert (memory.epoch, memory.installed) == (1, (1,))
    assert memory.stamp >= WALL_NS
    assert all(isinstance(value, int | tuple) for value in (memory.epoch, memory.installed))


# ---- attacks without keys


def snapshot(host: Host) -> Any:
    """Return everything of a channel that a datagram may change."""
    channel = host.channel
    epochs = (channel._current, channel._next, *channel._old)
    return (
        channel.memory,
        channel.deadline_ns,
        channel._cookie,
        None if channel._attempt is None else channel._attempt.index,
        [
            None
            if epoch is None
            else (epoch.number, epoch.counter, epoch.window._next, epoch.window._bits)
            for epoch in epochs
        ],
        dict(host.kernel.receive),
        host.kernel.send,
        list(host.heard),
        sorted(host.gate._indices),
    )


@st.composite
def forgeries(draw: st.DrawFn, said: tuple[bytes, ...]) -> bytes:
    """Noise of the right shape, or something genuine that was changed, cut or lengthened."""
    if draw(st.booleans()):
        kind = draw(st.sampled_from(KINDS))
        low, high = sealing.LENGTHS[kind]
        length = draw(st.integers(low, min(high, low + 40)))
        return kind + random.Random(draw(st.integers(0, 1 << 32))).randbytes(length - 4)
    genuine = draw(st.sampled_from(said))
    how = draw(st.sampled_from(["flip", "cut", "more"]))
    if how == "cut":
        return genuine[: draw(st.integers(0, len(genuine) - 1))]
    if how == "more":
        return genuine + draw(st.binary(min_size=1, max_size=8))
    # Of an INIT, mac2 means nothing unless there is load.
    end = len(genuine) - (16 if genuine[:4] == INIT else 0)
    at = draw(st.integers(0, end - 1))
    changed = genuine[at] ^ (1 << draw(st.integers(0, 7)))
    return genuine[:at] + bytes([changed]) + genuine[at + 1 :]


def _situations() -> dict[str, tuple[Wire, tuple[bytes, ...]]]:
    """Return hosts in different states, and what was said that has not arrived."""
    idle = up()
    asking = pair(7)
    asking.fate = lambda datagram: []
    asking.run(50 * MS)
    waiting = up(9)
    waiting.a.channel.renew(now_ns=waiting.now_ns)
    waiting.fate = lambda datagram: [] if datagram[:4] == SEALED else [1 * MS]
    waiting.run(50 * MS)
    return {
        name: (wire, tuple(wire.a.sent + wire.b.sent))
        for name, wire in {"idle": idle, "asking": asking, "waiting": waiting}.items()
    }


SITUATIONS = _situations()


@pytest.mark.parametrize("name", SITUATIONS)
@SLOW
@given(data=st.data())
def test_forgery__changes_nothing_and_draws_no_answer(name: str, data: st.DataObject) -> None:
    wire, said = SITUATIONS[name]
    forged = data.draw(forgeries(said))
    for host in (wire.a, wire.b):
        before, dropped = snapshot(host), sum(host.dropped.values())
        assert host.gate.receive(forged, wire.other(host).name, now_ns=wire.now_ns) == []
        assert snapshot(host) == before
        assert sum(host.dropped.values()) == dropped + 1
        host.gate._inits = 0  # not under load


def test_replay__of_everything_that_was_ever_said_changes_nothing() -> None:
    wire = up()
    for _ in range(3):
        wire.run(REKEY_AFTER_NS)
    wire.say(wire.a, b"text")
    wire.run(20 * S)
    said = wire.a.sent + wire.b.sent
    for host in (wire.a, wire.b):
        before = snapshot(host)
        for datagram in said:
            wire.now_ns += 100 * MS  # slowly, so that there is no load
            assert wire.arrive(host, datagram) == []
        after = snapshot(host)
        assert after == before


def test_replay__to_the_next_daemon_changes_nothing() -> None:
    wire = up()
    said = wire.a.sent + wire.b.sent
    wire.b.restart()
    before = snapshot(wire.b)
    for datagram in said:
        assert wire.arrive(wire.b, datagram) == []
    assert snapshot(wire.b) == before
    assert wire.b.dropped["REPLAY"] == 1


def test_public_keys__are_not_enough() -> None:
    """An outsider knows every public key, and claims to be h1 to h2."""
    wire = up()
    mallory, target = KeyPair(b"\x66" * 32), keys_of("h2")
    claims = _Claims(mallory, wire.a.keys.public)
    for keys, reason in ((mallory, "UNKNOWN_KEY"), (claims, "HANDSHAKE")):
        noise = Initiator(keys, target.public, bytes(32), b"\x07" * 32, sealing.prologue(5))  # type: ignore[arg-type]
        message = noise.write(Asked(WALL_NS * 2, 0, *VERSIONS).pack())
        before = snapshot(wire.b)
        assert wire.arrive(wire.b, sealing.init(5, message, target.public, b"")) == []
        assert snapshot(wire.b) == before
        assert wire.b.dropped[reason] == 1


class _Claims:
    def __init__(self, own: KeyPair, public: bytes) -> None:
        self.public = public
        self.shared = own.shared


def test_wrong_psk__gives_no_keys() -> None:
    one, other = Host("h1", "h2", 1), Host("h2", "h1", 2)
    keys = other.keys
    other.keys = type(keys)(keys.private, keys.public, keys_of("x").private, keys.peers, True)
    other.start({})
    wire = Wire(one, other)
    wire.run(20 * S)
    assert one.kernel.sends is other.kernel.sends is None
    assert one.dropped["HANDSHAKE"] > 0


def test_stranger__gets_no_answer() -> None:
    wire = pair()
    wire.fate = lambda datagram: []
    wire.run(10 * MS)
    assert wire.b.gate.receive(wire.a.sent[0], None, now_ns=wire.now_ns) == []
    assert wire.b.dropped["STRANGER"] == 1


def test_epoch_beyond_all__is_refused() -> None:
    """Even from a peer: the numbers of epochs must not run out."""
    wire = up()
    keys = KeyPair(wire.a.keys.private.reveal())
    noise = Initiator(
        keys, wire.b.keys.public, wire.a.keys.psk.reveal(), b"\x07" * 32, sealing.prologue(5)
    )
    message = noise.write(Asked(WALL_NS * 2, (1 << 64) - 1, *VERSIONS).pack())
    before = snapshot(wire.b)
    assert wire.arrive(wire.b, sealing.init(5, message, wire.b.keys.public, b"")) == []
    assert snapshot(wire.b) == before


# ---- load


_FRESH = itertools.count(1)


def forged_init(host: Host) -> bytes:
    """Return a new INIT with a valid mac1, of nobody that is known, up to its mac2."""
    number = next(_FRESH)
    length = sealing.INIT_BYTES - 8 - sealing.MAC1_BYTES - sealing.MAC_BYTES
    body = struct.pack("!4sI", INIT, number) + random.Random(number).randbytes(length)
    return body + sealing.mac1(host.keys.public, body)


def flood(host: Host, count: int, now_ns: int, source: str = "h1") -> list[bytes]:
    """Send INITs with a valid mac1, of nobody that is known."""
    answers = []
    for _ in range(count):
        body = forged_init(host)
        answers += host.carry_out(host.gate.receive(body + bytes(16), source, now_ns=now_ns))
    return answers


def test_load__draws_cookies_and_nothing_else() -> None:
    wire = up()
    wire.run(2 * S)
    before = snapshot(wire.b)
    answers = flood(wire.b, LOAD_PER_S + 50, wire.now_ns)
    assert kinds(answers) == [COOKIE] * 50
    assert snapshot(wire.b) == before
    assert wire.b.dropped["HANDSHAKE"] == LOAD_PER_S
    assert wire.b.dropped["COOKIE"] == 50


def test_load__a_peer_comes_through_with_its_cookie() -> None:
    wire = pair()
    wire.b.channel._retry_ns = wire.now_ns + 60 * S
    flood(wire.b, LOAD_PER_S + 1, wire.now_ns)
    wire.b.sent.clear()
    wire.check = lambda: flood(wire.b, LOAD_PER_S + 1, wire.now_ns) and None
    wire.run(1 * S)
    assert wire.agreed()
    assert wire.a.channel._cookie


def test_load__a_cookie_of_another_place_or_time_is_worth_nothing() -> None:
    wire = pair()
    wire.b.channel._retry_ns = wire.now_ns + 600 * S
    flood(wire.b, LOAD_PER_S + 1, wire.now_ns)
    wire.run(5 * MS)
    channel = wire.a.channel
    assert channel._cookie
    channel._retry_ns = wire.now_ns
    (again,) = wire.a.carry_out(channel.tick(now_ns=wire.now_ns))
    flood(wire.b, LOAD_PER_S + 1, wire.now_ns)
    (answer,) = wire.b.gate.receive(again, "h3", now_ns=wire.now_ns)
    assert isinstance(answer, SendDatagram)
    assert answer.back
    later = wire.now_ns + 121 * S
    flood(wire.b, LOAD_PER_S + 1, later)
    assert kinds(wire.b.carry_out(wire.b.gate.receive(again, "h1", now_ns=later))) == [COOKIE]


def test_load__a_source_is_served_20_times_a_second() -> None:
    wire = up()
    flood(wire.b, LOAD_PER_S + 1, wire.now_ns)
    cookie = sealing.new_cookie(wire.b.gate._secret, "h1")
    dropped = wire.b.dropped
    for _ in range(SOURCE_PER_S + 15):
        body = forged_init(wire.b)
        datagram = body + sealing.mac2(cookie, body)
        assert wire.b.gate.receive(datagram, "h1", now_ns=wire.now_ns) == []
    assert wire.b.dropped["HANDSHAKE"] - dropped["HANDSHAKE"] == SOURCE_PER_S
    assert wire.b.dropped["RATE"] == 15


# ---- the window against replays


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ([0, 0], [True, False]),
        ([5, 3, 5, 3, 4], [True, True, False, False, True]),
        ([2000, 2000 - 1023, 2000 - 1024], [True, True, False]),
        ([1 << 63, 0, (1 << 63) - 1], [True, False, True]),
        ([0, 1024, 0, 1, 1024], [True, True, False, True, False]),
    ],
)
def test_window__table(counters: list[int], expected: list[bool]) -> None:
    window, found = Window(), []
    for counter in counters:
        new = window.is_new(counter)
        found.append(new)
        if new:
            window.add(counter)
    assert found == expected


@given(st.lists(st.integers(0, 3000), max_size=80))
def test_window__takes_each_counter_at_most_once(counters: list[int]) -> None:
    window: Window = Window()
    taken: list[int] = []
    for counter in counters:
        if window.is_new(counter):
            assert counter not in taken
            window.add(counter)
            taken.append(counter)
        else:
            assert counter in taken or counter <= max(taken) - sealing.WINDOW
