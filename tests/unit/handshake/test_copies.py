# SPDX-License-Identifier: GPL-2.0-only
"""Test sessions of a and b beside a copy of b, and after b has gone back to an earlier time.

What a knows of b may then be of the copy, and b knows nothing of it. Whatever has happened, a and b
find each other again.
"""

from __future__ import annotations

import copy
import random

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from mrcd.handshake import MS, Ours, SendOffer, Session, State, decode, encode
from mrcd.handshake.session import LAGGING_NS
from tests import stateful
from tests.unit.handshake.lossy import Lossy
from tests.unit.handshake.test_session import ALL_PLANES, SECOND, Node, Packet, World

BACK_NS = 12 * SECOND
"""The longest way: a does not hear the copy for 5 s, is bound to b in vain for 3 s, asks anew."""


class Copied(World):
    """Two nodes, and `c`: a host that has b's name and key. What a says to b goes to `route`."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.route = ("b",)

    def deliver(self, packet: Packet) -> None:
        for name in self.route if packet.to == "b" else ("a",):
            if name in self.nodes and (packet.to, packet.plane) not in self.dead:
                offer = decode(packet.datagram)
                self.obey(name, self.nodes[name].session.receive(offer, now_ns=self.now_ns))

    def _fresh(self) -> random.Random:
        return random.Random(self.rng.random())

    def start_copy(self, image: Node | None = None) -> None:
        """Start a copy of b that knows nothing, or what b had saved when it was as in an image."""
        memory = None if image is None else image.session.memory
        epoch = self.rng.getrandbits(64) if memory is None else memory.epoch
        ours = Ours("b", epoch, 8872, 2048, 16, self.qps["b"], ("trim", "b"))
        if image is None or memory is None:
            session = Session(ours, "a", self.planes, self._fresh())
            self.nodes["c"] = Node("c", "a", session)
        else:
            node = copy.deepcopy(image)
            node.name = "c"
            node.session = Session.resume(
                ours, "a", self.planes, self._fresh(), memory, now_ns=self.now_ns
            )
            self.nodes["c"] = node
        self.obey("c", self.nodes["c"].session.start(now_ns=self.now_ns))

    def image(self) -> Node:
        """Return b's whole memory, as an image of a virtual machine has it."""
        return copy.deepcopy(self.nodes["b"])

    def start_image(self, image: Node, name: str) -> None:
        """Go on from an image, as `b` in its place or as `c` beside it."""
        node = copy.deepcopy(image)
        node.name = name
        node.session._rng = self._fresh()
        self.nodes[name] = node

    def end_copy(self) -> None:
        self.nodes.pop("c", None)
        self.route = ("b",)

    def run_until_back(self, within_ns: int = BACK_NS) -> int:
        """Return after which time a and b are established with each other."""
        began = self.now_ns
        while self.now_ns < began + within_ns:
            self.run(100 * MS)
            if self.agree():
                break
        self.run(SECOND)
        self.assert_agreement()
        return self.now_ns - SECOND - began

    def agree(self) -> bool:
        a, b = self.nodes["a"], self.nodes["b"]
        if not (self.established() and a.sending and b.sending and a.receive and b.receive):
            return False
        mine = [(q.qpn, r.qpn) for q, r in a.receive.qps]
        return mine == [(r.qpn, q.qpn) for q, r in b.receive.qps]


def connected(seed: int = 1) -> Copied:
    world = Copied(seed)
    world.run(3 * SECOND)
    world.assert_agreement()
    return world


def begin(world: Copied, how: str) -> None:
    """Start a copy of b."""
    if how == "image":
        world.start_image(world.image(), "c")
    else:
        world.start_copy(world.image() if how == "memory" else None)


@pytest.mark.parametrize("how", ["nothing", "memory", "image"])
@pytest.mark.parametrize("time_s", [1, 4, 7, 15])
@pytest.mark.parametrize("route", [("c",), ("b", "c")])
def test_copy__when_it_is_gone_the_two_find_each_other(
    how: str, time_s: int, route: tuple[str, ...]
) -> None:
    world = connected()
    world.route = route
    begin(world, how)
    world.run(time_s * SECOND)
    world.end_copy()
    world.run(BACK_NS)
    world.assert_agreement()


@pytest.mark.parametrize("how", ["nothing", "memory", "image"])
def test_copy__both_have_been_silent_for_long(how: str) -> None:
    """The time from then on is that of two Offers and an exchange."""
    world = connected()
    world.route = ("c",)
    begin(world, how)
    world.run(15 * SECOND)
    del world.nodes["c"]
    world.dead = {("a", plane) for plane in range(4)}
    world.run(60 * SECOND)
    assert world.nodes["a"].session.state is State.SILENT
    world.dead.clear()
    world.route = ("b",)
    assert world.run_until_back() <= LAGGING_NS + 2 * SECOND


def test_copy__whose_numbers_are_ahead_is_the_last_that_a_silent_host_hears() -> None:
    world = connected()
    image = world.image()
    world.start_copy(image)
    world.run(MS)
    world.run(6 * SECOND, world.flight.clear)
    assert world.nodes["a"].session.state is State.SILENT
    world.start_copy(image)  # its first Offer is old, but far ahead of b's
    world.deliver_all()
    world.end_copy()
    assert world.run_until_back() <= 2 * LAGGING_NS + 2 * SECOND


@pytest.mark.parametrize("back_s", [1, 30])
def test_earlier_image__goes_on_where_a_knows_more(back_s: int) -> None:
    """Host b goes back to an image of itself: it counts its Offers from a lower number."""
    world = connected()
    image = world.image()
    world.run(back_s * SECOND)
    world.start_image(image, "b")
    world.run(BACK_NS)
    world.assert_agreement()


def test_earlier_image__from_before_the_session() -> None:
    world = Copied()
    image = world.image()
    world.run(30 * SECOND)
    world.assert_agreement()
    world.start_image(image, "b")
    world.run_until_back()


def silent_for_a() -> Copied:
    """Return two that know each other, while a has not heard b for a while."""
    world = connected()
    world.dead = {("a", plane) for plane in range(4)}
    world.run(8 * SECOND)
    assert world.nodes["a"].session.state is State.SILENT
    world.dead.clear()
    world.flight.clear()
    return world


def test_old_offer__in_silence_draws_nothing_by_itself() -> None:
    world = silent_for_a()
    for packet in [p for p in world.history if p.to == "a"][:8]:
        world.deliver(packet)
        world.now_ns += 1
    assert [p for p in world.flight if not decode(p.datagram).bound] == []
    world.flight.clear()
    world.run(2 * SECOND)
    world.assert_agreement()
    assert world.nodes["a"].resets == 0


def test_old_offers__the_same_again_and_again_draw_nothing() -> None:
    world = silent_for_a()
    old = [p for p in world.history if p.to == "a"][-1]
    for _ in range(20):
        world.now_ns += SECOND
        world.deliver(old)
    assert world.flight == []


def test_recordings__in_silence_reset_nothing() -> None:
    """All that was ever said before is replayed to both while both are silent, then they talk."""
    world = Copied(3)
    for _ in range(4):
        world.run(2 * SECOND)
        world.boot("b")
    world.run(3 * SECOND)
    world.assert_agreement()
    recorded = list(world.history)
    world.dead = {(to, plane) for to in "ab" for plane in range(4)}
    world.run(8 * SECOND)
    assert {node.session.state for node in world.nodes.values()} == {State.SILENT}
    world.dead.clear()
    resets = [node.resets for node in world.nodes.values()]
    world.rng.shuffle(recorded)
    for packet in recorded:
        world.deliver(packet)
        world.deliver_all()
    world.run(2 * SECOND)
    world.assert_agreement()
    assert [node.resets for node in world.nodes.values()] == resets


def test_challenge__of_one_that_went_astray_asks_for_no_more_than_it_may() -> None:
    world = silent_for_a()
    a = world.nodes["a"].session
    remote = a.remote
    assert remote is not None
    fields = {"sid": 99, "ack_sid": 98, "want": False}
    astray = decode(_changed(world, **fields, bound=True))
    [answer] = a.receive(astray, now_ns=world.now_ns)
    assert isinstance(answer, SendOffer)
    said = decode(answer.datagram)
    assert (said.ack_sid, said.bound, said.want) == (99, False, True)
    unbound = decode(_changed(world, **fields, bound=False))
    assert a.receive(unbound, now_ns=world.now_ns) == []


def _changed(world: Copied, **fields: object) -> bytes:
    remote = world.nodes["a"].session.remote
    assert remote is not None
    return encode(msgspec.structs.replace(remote, **fields))


class Copies(Lossy):
    """Copies of b come and go, b goes back to images, packets get lost; then all is as it was."""

    world: Copied

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.world = connected(seed)
        self.images = [self.world.image()]

    @precondition(lambda self: self.world.flight)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.world.flight) - 1))
        self.world.deliver(self.world.flight.pop(at))

    @rule(route=st.sampled_from([("b",), ("c",), ("b", "c"), ()]))
    def lead(self, route: tuple[str, ...]) -> None:
        self.world.route = route

    @rule(ms=st.sampled_from([1, 50, 1000, 3000, 7000]))
    def run(self, ms: int) -> None:
        self.world.run(ms * MS)

    @rule(ms=st.sampled_from([50, 1000, 6000]))
    def cut(self, ms: int) -> None:
        self.world.run(ms * MS, self.world.flight.clear)

    @rule(name=st.sampled_from("ab"))
    def restart(self, name: str) -> None:
        self.world.boot(name)

    @rule()
    def save(self) -> None:
        self.images.append(self.world.image())

    @rule()
    def copy_that_knows_nothing(self) -> None:
        self.world.start_copy()

    @rule(data=st.data())
    def copy_from_memory(self, data: st.DataObject) -> None:
        self.world.start_copy(self.images[data.draw(st.integers(0, len(self.images) - 1))])

    @rule(data=st.data(), name=st.sampled_from("bc"))
    def image(self, data: st.DataObject, name: str) -> None:
        at = data.draw(st.integers(0, len(self.images) - 1))
        self.world.start_image(self.images[at], name)

    @rule()
    def end_copy(self) -> None:
        self.world.end_copy()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.end_copy()
        for name, node in world.nodes.items():
            world.obey(name, node.session.set_planes(ALL_PLANES, now_ns=world.now_ns))
        world.run(BACK_NS)
        world.assert_agreement()
        resets = [node.resets for node in world.nodes.values()]
        world.run(15 * SECOND)
        world.assert_agreement()
        assert [node.resets for node in world.nodes.values()] == resets


def test_copies_of_a_host_silence_nobody() -> None:
    stateful.run(Copies, examples=60, steps=25)
