# SPDX-License-Identifier: GPL-2.0-only
"""Test the hand-shake: the Offer, the exchange, and two peers on the worst possible network."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from mrcd import handshake
from mrcd.handshake import (
    MS,
    Command,
    ConfigureReceive,
    HandshakeError,
    Memory,
    Offer,
    Ours,
    PeerPlanes,
    ReadyToSend,
    ResetQps,
    SendOffer,
    Session,
    State,
    StateChanged,
    decode,
    encode,
)
from tests.unit.handshake.lossy import Lossy

ALL_PLANES = 0b1111
SECOND = 1000 * MS


# ---- two peers in memory -------------------------------------------------------------------


@dataclass(frozen=True)
class Packet:
    to: str
    plane: int
    datagram: bytes


@dataclass
class Node:
    """A host: its session and the QPs as its commands have programmed them."""

    name: str
    peer: str
    session: Session
    receive: ConfigureReceive | None = None
    sending: bool = False
    resets: int = 0
    peer_mask: int | None = None
    log: list[Command] = field(default_factory=list)


class World:
    """Two nodes, a clock, and a network that delivers the packets that a test selects."""

    def __init__(
        self, seed: int = 1, qps: tuple[int, int] = (4, 4), planes: int = ALL_PLANES
    ) -> None:
        self.rng = random.Random(seed)
        self.planes = planes
        self.now_ns = 1_000_000_000
        self.qps = dict(zip(("a", "b"), qps, strict=True))
        self.flight: list[Packet] = []
        self.history: list[Packet] = []
        self.dead: set[tuple[str, int]] = set()
        self.ever_receiving: set[tuple[tuple[int, int], ...]] = set()
        self.nodes: dict[str, Node] = {}
        for name in ("a", "b"):
            self.boot(name)

    def boot(self, name: str) -> None:
        """(Re)start the daemon of a host without any saved state."""
        peer = "b" if name == "a" else "a"
        ours = Ours(name, self.rng.getrandbits(64), 8872, 2048, 16, self.qps[name], ("trim", name))
        session = Session(ours, peer, self.planes, random.Random(self.rng.random()))
        self.nodes[name] = Node(name, peer, session)
        self.obey(name, session.start(now_ns=self.now_ns))

    def obey(self, name: str, commands: list[Command]) -> None:
        node = self.nodes[name]
        node.log += commands
        for command in commands:
            match command:
                case SendOffer(_, planes, datagram):
                    assert planes
                    packets = [Packet(node.peer, plane, datagram) for plane in planes]
                    self.history += packets
                    self.flight += packets
                case ConfigureReceive():
                    assert node.receive is None, "QPs programmed twice without a reset"
                    assert not node.sending
                    node.receive = command
                    node.peer_mask = command.port_mask
                    self.ever_receiving.add(tuple((q.qpn, q.psn) for q, _ in command.qps))
                case ReadyToSend():
                    assert node.receive is not None
                    assert not node.sending
                    node.sending = True
                    # The receiver must have been programmed for these QPs at some time.
                    remote = tuple((r.qpn, r.psn) for _, r in node.receive.qps)
                    assert remote in self.ever_receiving
                case ResetQps():
                    assert node.receive is not None
                    node.receive, node.sending = None, False
                    node.resets += 1
                case PeerPlanes(_, mask):
                    node.peer_mask = mask
                case StateChanged(_, _, new):
                    assert node.session.state in (new, State.ESTABLISHED)

    def deliver(self, packet: Packet) -> None:
        if (packet.to, packet.plane) in self.dead:
            return
        session = self.nodes[packet.to].session
        offer = decode(packet.datagram)
        self.obey(packet.to, session.receive(offer, now_ns=self.now_ns))

    def deliver_all(self) -> None:
        """Deliver packets until none is left; this ends because answers are not answered."""
        for _ in range(10_000):
            if not self.flight:
                return
            self.deliver(self.flight.pop(0))
        raise AssertionError("the peers never stop answering each other")

    def tick(self) -> None:
        for node in list(self.nodes.values()):
            if self.now_ns >= node.session.deadline_ns:
                self.obey(node.name, node.session.tick(now_ns=self.now_ns))

    def run(self, duration_ns: int, each: Callable[[], None] | None = None) -> None:
        """Let time pass, calling `each` (default: deliver all) at every deadline."""
        end = self.now_ns + duration_ns
        while self.now_ns < end:
            (each or self.deliver_all)()
            due = min(node.session.deadline_ns for node in self.nodes.values())
            self.now_ns = min(max(due, self.now_ns + 1), end)
            self.tick()
        (each or self.deliver_all)()

    def established(self) -> bool:
        return all(node.session.state is State.ESTABLISHED for node in self.nodes.values())

    def assert_agreement(self) -> None:
        a, b = self.nodes["a"], self.nodes["b"]
        assert a.session.state is State.ESTABLISHED
        assert b.session.state is State.ESTABLISHED
        assert a.sending
        assert b.sending
        assert a.receive is not None
        assert b.receive is not None
        one = [((q.qpn, q.psn), (r.qpn, r.psn)) for q, r in a.receive.qps]
        other = [((r.qpn, r.psn), (q.qpn, q.psn)) for q, r in b.receive.qps]
        assert one == other
        assert len(one) == min(self.qps.values())
        assert a.receive.mpr == b.receive.mpr
        assert a.receive.capabilities == b.receive.capabilities == {"trim"}


def connected(seed: int = 1) -> World:
    world = World(seed)
    world.deliver_all()
    world.assert_agreement()
    return world


def half_open() -> World:
    """Return a world in which a is bound and b does not know it yet."""
    world = World()
    while world.nodes["a"].session.state is State.OFFERING:
        world.deliver(world.flight.pop(0))
        world.flight = [p for p in world.flight if p.to == "a" or not decode(p.datagram).bound]
    assert world.nodes["a"].session.state is State.BOUND
    assert world.nodes["b"].session.state is State.OFFERING
    return world


# ---- the message ---------------------------------------------------------------------------


def offer(**changes: object) -> Offer:
    values: dict[str, object] = {
        "version": 4, "host": "a", "target": "b", "epoch": 2**64 - 1, "sid": 7, "ack_sid": 0,
        "seq": 1, "bound": False, "want": True, "mtu": 8872, "mpr": 2048, "port_mask": 15,
        "capabilities": ("trim",), "qps": ((0x010001, 5), (0x010002, 0xFFFFFF)),
    }  # fmt: skip
    return Offer(**(values | changes))  # type: ignore[arg-type]


def test_encode__decode_gives_it_back() -> None:
    assert decode(encode(offer())) == offer()


def test_encode__sixteen_qps_and_all_capabilities_fit() -> None:
    big = offer(
        host="h" * 64,
        target="t" * 64,
        qps=tuple((0xFF0000 | i, 0xFFFFFF) for i in range(16)),
        capabilities=tuple(f"{i:024d}" for i in range(16)),
        sid=2**64 - 1, ack_sid=2**64 - 1, seq=2**64 - 1, mtu=65535, mpr=32640,
    )  # fmt: skip
    assert len(encode(big)) <= handshake.MAX_BYTES
    assert decode(encode(big)) == big


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 1}, "version 1"),
        ({"host": ""}, "not an Offer"),
        ({"target": "x" * 65}, "not an Offer"),
        ({"sid": 0}, "sid 0"),
        ({"sid": -1}, "sid -1"),
        ({"epoch": -5}, "epoch -5"),
        ({"bound": True}, "bound to no sid"),
        ({"mtu": 1279}, "not an Offer"),
        ({"mpr": 0}, "not an Offer"),
        ({"port_mask": 256}, "not an Offer"),
        ({"qps": ()}, "not an Offer"),
        ({"qps": ((0, 1),)}, "not an Offer"),
        ({"qps": ((1 << 24, 1),)}, "not an Offer"),
        ({"qps": ((1, 1 << 24),)}, "not an Offer"),
        ({"qps": ((1, 1), (1, 2))}, "twice"),
        ({"qps": tuple((i, 1) for i in range(1, 18))}, "not an Offer"),
        ({"capabilities": ("x" * 25,)}, "not an Offer"),
    ],
)
def test_decode__refuses_values_out_of_range(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(HandshakeError, match=reason):
        decode(encode(offer(**changes)))


def test_decode__newer_version_with_another_layout_is_named() -> None:
    body = msgspec.msgpack.encode([9, {"something": "else"}])
    with pytest.raises(HandshakeError, match="speaks version 9, this daemon 4"):
        decode(handshake.MAGIC + len(body).to_bytes(2, "big") + body)


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"", "0 bytes"),
        (b"MRCh", "4 bytes"),
        (b"MRCx" + encode(offer())[4:], "magic"),
        (encode(offer())[:-1], "announces"),
        (encode(offer()) + b"\0", "announces"),
        (b"MRCh" + bytes(2), "not an Offer"),
        (bytes(1201), "1201 bytes"),
    ],
)
def test_decode__refuses_broken_framing(datagram: bytes, reason: str) -> None:
    with pytest.raises(HandshakeError, match=reason):
        decode(datagram)


@given(st.binary(max_size=1300))
def test_decode__random_bytes_raise_nothing_else(data: bytes) -> None:
    for datagram in (data, handshake.MAGIC + len(data).to_bytes(2, "big") + data):
        with pytest.raises(HandshakeError):
            decode(datagram)


@given(st.data())
def test_decode__damaged_offers_raise_nothing_else(data: st.DataObject) -> None:
    datagram = bytearray(encode(offer()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(datagram) - 1))
        datagram[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(HandshakeError):
        assert len(encode(decode(bytes(datagram)))) <= handshake.MAX_BYTES


def test_decode__deep_nesting_is_refused() -> None:
    body = b"\x91" * 1100
    with pytest.raises(HandshakeError):
        decode(handshake.MAGIC + len(body).to_bytes(2, "big") + body)


# ---- the conversation ----------------------------------------------------------------------


def test_session__both_establish_and_agree() -> None:
    world = World()
    world.deliver_all()
    world.assert_agreement()
    assert world.nodes["a"].resets == world.nodes["b"].resets == 0


def test_session__begins_on_every_plane() -> None:
    world = World()
    assert [packet.plane for packet in world.flight if packet.to == "b"] == [0, 1, 2, 3]


def test_session__one_side_begins_later() -> None:
    world = World()
    world.flight.clear()
    world.run(60 * MS)
    world.assert_agreement()


def test_session__different_numbers_of_qps_use_the_smaller() -> None:
    world = World(qps=(4, 16))
    world.deliver_all()
    world.assert_agreement()


def test_session__configures_before_it_tells_the_peer_and_sends_only_when_told() -> None:
    world = World()
    world.flight.clear()
    a, b = world.nodes["a"].session, world.nodes["b"].session
    [hello] = b.start(now_ns=world.now_ns)
    assert isinstance(hello, SendOffer)
    [challenge] = a.receive(decode(hello.datagram), now_ns=world.now_ns)
    assert isinstance(challenge, SendOffer)
    assert challenge.planes == (0, 1, 2, 3)
    assert a.receive(decode(hello.datagram), now_ns=world.now_ns) == []
    assert not decode(challenge.datagram).bound
    bound = b.receive(decode(challenge.datagram), now_ns=world.now_ns)
    assert [type(command) for command in bound] == [ConfigureReceive, StateChanged, SendOffer]
    assert isinstance(bound[-1], SendOffer)
    assert bound[-1].planes == (0, 1, 2, 3)
    assert decode(bound[-1].datagram).bound
    kinds = [type(c) for c in a.receive(decode(bound[-1].datagram), now_ns=world.now_ns)]
    assert kinds == [ConfigureReceive, StateChanged, ReadyToSend, StateChanged, SendOffer]


def test_session__retries_double_to_a_second() -> None:
    world = World()
    times: list[int] = []
    start = world.now_ns
    session = world.nodes["a"].session
    while len(times) < 7:
        times.append((session.deadline_ns - start) // MS)
        assert len(session.tick(now_ns=session.deadline_ns)) == 1
    assert times == [50, 150, 350, 750, 1550, 2550, 3550]


def test_session__tick_before_the_deadline_does_nothing() -> None:
    session = connected().nodes["a"].session
    assert session.tick(now_ns=session.deadline_ns - 1) == []


def test_session__keepalives_rotate_over_the_planes() -> None:
    world = connected()
    seen = [set[int]() for _ in range(4)]
    for second in range(4):
        before = len(world.history)
        world.run(SECOND)
        seen[second] = {packet.plane for packet in world.history[before:] if packet.to == "b"}
    assert [len(planes) for planes in seen] == [1, 1, 1, 1]
    assert set().union(*seen) == {0, 1, 2, 3}


@pytest.mark.parametrize("survivor", range(4))
def test_session__one_live_plane_is_enough(survivor: int) -> None:
    world = World()
    world.dead = {(to, plane) for to in "ab" for plane in range(4) if plane != survivor}
    world.deliver_all()
    world.assert_agreement()
    world.run(60 * SECOND)
    world.assert_agreement()
    assert not any(
        isinstance(command, StateChanged) and command.new is State.SILENT
        for node in world.nodes.values()
        for command in node.log
    )


def test_session__planes_dead_in_different_directions() -> None:
    world = World()
    world.dead = {("a", 0), ("a", 1), ("b", 2), ("b", 3)}
    world.run(SECOND)
    world.assert_agreement()
    world.run(60 * SECOND)
    world.assert_agreement()


@pytest.mark.parametrize("towards", ["a", "b", "ab"])
def test_session__seven_of_eight_planes_black_do_not_make_it_silent(towards: str) -> None:
    world = World(planes=0xFF)
    world.deliver_all()
    world.dead = {(to, plane) for to in towards for plane in range(7)}
    world.run(60 * SECOND)
    world.assert_agreement()
    assert not any(
        isinstance(command, StateChanged) and command.new is State.SILENT
        for node in world.nodes.values()
        for command in node.log
    )


def test_session__silent_keeps_its_qps_and_comes_back() -> None:
    world = connected()
    before = world.nodes["a"].receive
    world.dead = {(to, plane) for to in "ab" for plane in range(4)}
    world.run(8 * SECOND)
    assert {node.session.state for node in world.nodes.values()} == {State.SILENT}
    assert world.nodes["a"].sending
    world.dead.clear()
    world.run(SECOND)
    world.assert_agreement()
    assert world.nodes["a"].receive == before
    assert world.nodes["a"].resets == 0


def test_session__restarted_peer_is_recognised_at_once() -> None:
    world = connected()
    old = world.nodes["a"].receive
    world.boot("b")
    world.deliver_all()
    world.assert_agreement()
    new = world.nodes["a"].receive
    assert old is not None
    assert new is not None
    assert new.epoch != old.epoch
    assert {q.qpn for q, _ in old.qps}.isdisjoint(q.qpn for q, _ in new.qps)
    reasons = [c.reason for c in world.nodes["a"].log if isinstance(c, ResetQps)]
    assert reasons == ["peer restarted"]


def test_session__peer_restarts_while_the_fabric_is_cut() -> None:
    world = connected()
    world.dead = {(to, plane) for to in "ab" for plane in range(4)}
    world.run(8 * SECOND)
    world.boot("b")
    world.run(SECOND)
    assert world.nodes["a"].session.state is State.SILENT
    world.dead.clear()
    world.run(2 * SECOND)
    world.assert_agreement()


def test_session__restarted_host_answers_its_peers_keepalive() -> None:
    world = connected()
    world.boot("b")
    world.flight.clear()
    a = world.nodes["a"].session
    world.now_ns += 5 * MS
    world.obey("a", a.set_planes(0b0111, now_ns=world.now_ns))
    world.deliver_all()
    world.assert_agreement()


def test_session__answers_a_stale_offer_only_when_asked_and_asks_nothing_back() -> None:
    world = connected()
    session = world.nodes["a"].session
    stale = offer(host="b", target="a", sid=99, ack_sid=98, want=False)
    assert session.receive(stale, now_ns=world.now_ns) == []
    stale = offer(host="b", target="a", sid=99, ack_sid=98, want=True)
    [answer] = session.receive(stale, now_ns=world.now_ns)
    assert isinstance(answer, SendOffer)
    said = decode(answer.datagram)
    remote = session.remote
    assert remote is not None
    assert (said.ack_sid, said.bound, said.want) == (remote.sid, True, False)
    assert world.nodes["a"].resets == 0


def test_session__bound_peer_that_offers_again_is_answered_at_once() -> None:
    world = half_open()
    world.flight.clear()
    world.now_ns = world.nodes["b"].session.deadline_ns
    world.obey("b", world.nodes["b"].session.tick(now_ns=world.now_ns))
    world.deliver_all()
    world.assert_agreement()
    assert world.nodes["a"].resets == 0


def test_session__both_restart_at_once() -> None:
    world = connected()
    world.boot("a")
    world.boot("b")
    world.deliver_all()
    world.assert_agreement()


def test_session__peer_restarts_while_we_are_half_open() -> None:
    world = half_open()
    world.flight.clear()
    world.boot("b")
    world.deliver_all()
    world.assert_agreement()
    assert world.nodes["a"].resets == 1


def test_session__peer_that_dies_half_open_is_given_up() -> None:
    world = half_open()
    world.dead = {(to, plane) for to in "ab" for plane in range(4)}
    world.run(4 * SECOND)
    assert world.nodes["a"].session.state is State.OFFERING
    assert world.nodes["a"].receive is None
    world.dead.clear()
    world.run(2 * SECOND)
    world.assert_agreement()


def test_session__plane_going_down_is_told_at_once() -> None:
    world = connected()
    world.obey("a", world.nodes["a"].session.set_planes(0b1011, now_ns=world.now_ns))
    assert {packet.plane for packet in world.flight} == {0, 1, 3}
    world.deliver_all()
    assert world.nodes["b"].peer_mask == 0b1011
    assert world.nodes["a"].session.set_planes(0b1011, now_ns=world.now_ns) == []


def test_session__without_planes_it_says_nothing_and_recovers() -> None:
    world = connected()
    world.obey("a", world.nodes["a"].session.set_planes(0, now_ns=world.now_ns))
    assert world.flight == []
    world.run(8 * SECOND, lambda: world.flight.clear())
    world.obey("a", world.nodes["a"].session.set_planes(0b1111, now_ns=world.now_ns))
    world.run(SECOND)
    world.assert_agreement()


def test_session__late_copy_does_not_bring_back_an_old_port_mask() -> None:
    world = connected()
    session = world.nodes["a"].session
    world.obey("a", session.set_planes(0b0001, now_ns=world.now_ns))
    late = list(world.flight)
    world.flight.clear()
    world.obey("a", session.set_planes(0b1110, now_ns=world.now_ns))
    world.deliver_all()
    world.flight += late
    world.deliver_all()
    assert world.nodes["b"].peer_mask == 0b1110


def test_session__refuses_what_is_meant_for_others() -> None:
    session = connected().nodes["a"].session
    for host, target in (("c", "a"), ("b", "c"), ("a", "b")):
        with pytest.raises(HandshakeError, match=f"from {host} to {target}"):
            session.receive(offer(host=host, target=target), now_ns=0)


def test_session__same_sid_under_another_epoch_is_a_stranger() -> None:
    world = connected()
    node = world.nodes["a"]
    remote = node.session.remote
    assert remote is not None
    forged = msgspec.structs.replace(remote, epoch=remote.epoch ^ 1, seq=remote.seq + 9)
    [answer] = node.session.receive(forged, now_ns=world.now_ns)
    assert isinstance(answer, SendOffer)
    assert not decode(answer.datagram).bound
    assert node.resets == 0


def test_session__qpns_name_the_index_and_change_with_every_incarnation() -> None:
    world = connected()
    qpns: list[int] = []
    for _ in range(20):
        configured = world.nodes["a"].receive
        assert configured is not None
        for position, (local, _) in enumerate(configured.qps):
            assert local.index == local.qpn & 0xFFFF == 16 + position
            assert 1 <= local.qpn >> 16 <= 255
            qpns.append(local.qpn)
        world.boot("b")
        world.deliver_all()
    assert len(set(qpns)) == len(qpns)


def test_session__answers_to_a_flood_of_strangers_are_limited() -> None:
    world = connected()
    session = world.nodes["a"].session
    sent = [
        command
        for sid in range(1, 1001)
        for command in session.receive(
            offer(host="b", target="a", sid=sid), now_ns=world.now_ns + sid * MS // 10
        )
    ]
    assert 32 <= len(sent) <= 32 + 11
    assert session.state is State.ESTABLISHED


# ---- recordings ----------------------------------------------------------------------------


def eventful(seed: int) -> World:
    """Return a pair with a recorded history of restarts, losses and silence."""
    world = World(seed)
    for _ in range(6):
        world.rng.shuffle(world.flight)
        del world.flight[: len(world.flight) // 3]
        world.boot(world.rng.choice("ab"))
        if world.rng.random() < 0.7:
            world.run(world.rng.choice([40 * MS, SECOND, 7 * SECOND]))
    world.run(10 * SECOND)
    world.assert_agreement()
    return world


@pytest.mark.parametrize("seed", range(20))
def test_session__recordings_change_nothing(seed: int) -> None:
    world = eventful(seed)
    resets = [node.resets for node in world.nodes.values()]
    for _ in range(3):
        recorded = list(world.history)
        world.rng.shuffle(recorded)
        for packet in recorded:
            world.now_ns += 20 * MS
            world.tick()
            world.deliver(packet)
            world.deliver_all()
    world.assert_agreement()
    assert [node.resets for node in world.nodes.values()] == resets


@pytest.mark.parametrize("seed", range(10))
def test_session__recordings_do_not_keep_a_restarted_peer_out(seed: int) -> None:
    world = eventful(seed)
    recorded = list(world.history)
    world.boot("b")

    def replay_and_deliver() -> None:
        world.flight += world.rng.choices(recorded, k=5)
        world.deliver_all()

    world.run(2 * SECOND, replay_and_deliver)
    world.assert_agreement()


# ---- a network that does its worst ---------------------------------------------------------


# ---- a daemon that is restarted and remembers ----------------------------------------------


def resume(world: World, name: str, memory: Memory) -> None:
    """Restart the daemon of a host from its memory; its QPs survive."""
    node = world.nodes[name]
    ours = Ours(name, memory.epoch, 8872, 2048, 16, world.qps[name], ("trim", name))
    node.session = Session.resume(
        ours, node.peer, world.planes, random.Random(world.rng.random()), memory,
        now_ns=world.now_ns,
    )  # fmt: skip
    node.log.clear()
    world.obey(name, node.session.start(now_ns=world.now_ns))


def remembered(world: World, name: str) -> Memory:
    memory = world.nodes[name].session.memory
    assert memory is not None
    return memory


def test_resume__neither_side_resets_anything() -> None:
    world = connected()
    memory = remembered(world, "a")
    before = {name: node.receive for name, node in world.nodes.items()}
    world.run(3 * SECOND)  # Offers sent after the memory was saved
    world.nodes["b"].log.clear()
    resume(world, "a", memory)
    world.run(20 * SECOND)
    world.assert_agreement()
    assert {name: node.receive for name, node in world.nodes.items()} == before
    for node in world.nodes.values():
        assert not [c for c in node.log if not isinstance(c, SendOffer)]


def test_resume__the_peer_hears_it_again_after_it_was_silent() -> None:
    world = connected()
    memory = remembered(world, "a")
    world.dead = {("b", plane) for plane in range(4)}  # nothing reaches b
    world.run(10 * SECOND)
    assert world.nodes["b"].session.state is State.SILENT
    world.dead.clear()
    resume(world, "a", memory)
    world.deliver_all()
    world.assert_agreement()
    assert world.nodes["b"].resets == 0


def test_resume__peer_that_restarted_meanwhile_is_recognised() -> None:
    world = connected()
    memory = remembered(world, "a")
    world.boot("b")
    world.flight.clear()
    resume(world, "a", memory)
    world.run(2 * SECOND)
    world.assert_agreement()
    assert world.nodes["a"].resets == 1


def test_resume__again_and_again_with_the_same_memory_of_each_time() -> None:
    world = connected()
    for _ in range(3):
        resume(world, "a", remembered(world, "a"))
        resume(world, "b", remembered(world, "b"))
        world.run(2 * SECOND)
        world.assert_agreement()
    assert [node.resets for node in world.nodes.values()] == [0, 0]


def test_memory__of_a_session_that_is_not_established_is_none() -> None:
    world = half_open()
    assert world.nodes["a"].session.memory is None
    assert world.nodes["b"].session.memory is None


class Network(Lossy):
    """A network that loses, reorders, duplicates and replays packets, then becomes reliable.

    In the meantime hosts restart and planes fail.
    """

    world: World

    @initialize(seed=st.integers(0, 2**32), qps=st.sampled_from([(1, 1), (4, 4), (2, 8)]))
    def begin(self, seed: int, qps: tuple[int, int]) -> None:
        self.world = World(seed, qps)

    @precondition(lambda self: self.world.flight)
    @rule(data=st.data(), times=st.integers(1, 2), keep=st.booleans())
    def deliver(self, data: st.DataObject, times: int, keep: bool) -> None:
        at = data.draw(st.integers(0, len(self.world.flight) - 1))
        packet = self.world.flight[at] if keep else self.world.flight.pop(at)
        for _ in range(times):
            self.world.deliver(packet)

    @rule()
    def be_kind_for_a_moment(self) -> None:
        self.world.deliver_all()

    @rule(ms=st.sampled_from([1, 49, 50, 400, 1000, 3000, 6000]))
    def wait(self, ms: int) -> None:
        self.world.now_ns += ms * MS
        self.world.tick()

    @rule(name=st.sampled_from("ab"))
    def restart(self, name: str) -> None:
        self.world.boot(name)

    @rule(name=st.sampled_from("ab"), mask=st.integers(0, 15))
    def change_planes(self, name: str, mask: int) -> None:
        world = self.world
        world.obey(name, world.nodes[name].session.set_planes(mask, now_ns=world.now_ns))

    @rule(dead=st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 3))))
    def kill_planes(self, dead: set[tuple[str, int]]) -> None:
        self.world.dead = dead

    @invariant()
    def deadlines_lie_ahead(self) -> None:
        if hasattr(self, "world"):
            for node in self.world.nodes.values():
                assert node.session.deadline_ns >= self.world.now_ns

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.dead.clear()
        for name, node in world.nodes.items():
            world.obey(name, node.session.set_planes(ALL_PLANES, now_ns=world.now_ns))
        world.run(10 * SECOND)
        world.assert_agreement()
        resets = sum(node.resets for node in world.nodes.values())
        for packet in world.history[-200:]:
            world.deliver(packet)
            world.deliver_all()
        world.run(10 * SECOND)
        world.assert_agreement()
        assert sum(node.resets for node in world.nodes.values()) == resets


Network.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestNetwork = Network.TestCase
