# SPDX-License-Identifier: GPL-2.0-only
"""Test sealed sessions of a and b while a third host has b's key: three clocks, no I/O.

Hosts are in a network without a fabric, so a follows the owner of a key to another address.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mrcd.handshake import Ours, SendOffer, Session, State, StateChanged, decode
from mrcd.handshake.channel import DOUBT_NS, HEARD_NS, Channel, ChannelMemory, Drop
from mrcd.handshake.commands import ChannelCommand, Deliver, Seek, SendDatagram, SendKey, Twice
from mrcd.handshake.gate import Gate
from mrcd.handshake.sealing import INIT
from tests.unit.wire_double import MS, WALL_NS, Kernel, S, keys_of

DELAY_NS = 1 * MS
BACK_NS = 25 * S
"""The longest way: silence, new keys after some retries, silence of the other side, a session."""
HOURS_NS = 3 * 3600 * S


@dataclass(eq=False)
class Machine:
    """A host: its gate, its session and its place. Its clock is `ahead_ns` of the world's."""

    name: str
    address: str
    peer: str
    peer_at: str
    ahead_ns: int
    wall_ns: int
    seed: int
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    log: list[ChannelCommand] = field(default_factory=list)
    sought: str | None = None
    had_keys: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.start({})

    def start(self, memories: dict[str, ChannelMemory]) -> None:
        keys = keys_of(self.name, self.peer)
        self.gate = Gate(keys, self.rng, self.wall_ns - self.ahead_ns, memories=memories)
        self.gate.admits_strangers = True
        if not memories:
            self.kernel = Kernel()
        ours = Ours(self.name, self.rng.getrandbits(64), 8872, 2048, 16, 4)
        self.session = Session(ours, self.peer, 1, self.rng)
        self.session.start(now_ns=self.ahead_ns)

    @property
    def channel(self) -> Channel:
        return self.gate.channels[self.peer]

    def arrive(self, datagram: bytes, source: str, now_ns: int) -> None:
        now_ns += self.ahead_ns
        known = self.peer if source == self.peer_at else None
        commands = self.gate.receive(datagram, known, now_ns=now_ns)
        if known is None and any(isinstance(c, Deliver | SendDatagram) for c in commands):
            self.peer_at = source
        self._obey(commands, now_ns, source)

    @property
    def due_ns(self) -> int:
        """The world's time at which something is due."""
        return min(self.channel.deadline_ns, self.session.deadline_ns) - self.ahead_ns

    def look(self, now_ns: int) -> None:
        """Do what is due."""
        now_ns += self.ahead_ns
        if self.channel.deadline_ns <= now_ns:
            self._obey(self.channel.tick(now_ns=now_ns), now_ns)
        if self.session.deadline_ns <= now_ns:
            self._say(self.session.tick(now_ns=now_ns), now_ns)

    def _obey(self, commands: list[ChannelCommand], now_ns: int, source: str = "") -> None:
        """Do as mrcd/peers/channels.py does."""
        self.log += commands
        for command in commands:
            match command:
                case SendDatagram(_, datagram):
                    self.sent.append((self.peer_at, datagram))
                    if self.sought is not None and datagram[:4] == INIT:
                        self.sent.append((self.sought, datagram))
                case Deliver(_, plaintext):
                    offer = decode(plaintext)
                    self._say(self.session.receive(offer, now_ns=now_ns), now_ns)
                case Seek():
                    if self.sought is None:
                        self.channel.renew(now_ns=now_ns)
                    self.sought = source
                case Twice():
                    pass
                case _:
                    self.kernel.carry_out(command)
                    if isinstance(command, SendKey):
                        self.sought = None
                        if not self.had_keys:
                            self.had_keys = True
                            self._say(self.session.start(now_ns=now_ns), now_ns)

    def _say(self, commands: list[object], now_ns: int) -> None:
        """Do as mrcd/peers/peers.py does."""
        for command in commands:
            match command:
                case SendOffer(_, _, offer):
                    sealed = self.channel.seal(offer, now_ns=now_ns)
                    if sealed is not None:
                        self.sent.append((self.peer_at, sealed))
                    if self.session.state is not State.ESTABLISHED:
                        self.channel.doubt(now_ns=now_ns)
                case StateChanged(_, _, State.SILENT):
                    self.channel.renew(now_ns=now_ns)


class Place:
    """Time, and a network between a, b, and c, which has b's key."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.now_ns = 10 * S
        self.a = Machine("h1", "A", "h2", "B", 0, WALL_NS, self.rng.getrandbits(32))
        self.b = Machine("h2", "B", "h1", "A", 7 * S, WALL_NS, self.rng.getrandbits(32))
        self.c: Machine | None = None
        self.flying: list[tuple[int, str, str, bytes]] = []
        self.cut: set[str] = set()
        self.said: list[tuple[str, str, bytes]] = []

    def start_copy(self, *, wall_ns: int = WALL_NS, remember: bool = False) -> Machine:
        """Start a third host with b's key, and perhaps with what b has saved."""
        seed = self.rng.getrandbits(32)
        self.c = Machine("h2", "C", "h1", "A", 3600 * S, wall_ns, seed)
        if remember:
            self.c.kernel = copy.deepcopy(self.b.kernel)
            self.c.start(self.b.gate.memories)
        return self.c

    def run(self, span_ns: int, condition: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until a condition is true."""
        end = self.now_ns + span_ns
        while self.now_ns < end and not condition():
            hosts = [host for host in (self.a, self.b, self.c) if host is not None]
            for host in hosts:
                host.look(self.now_ns)
                for target, datagram in host.sent:
                    self.said.append((host.address, target, datagram))
                    if host.address not in self.cut:
                        at = self.now_ns + DELAY_NS
                        self.flying.append((at, host.address, target, datagram))
                host.sent.clear()
            due = [each for each in self.flying if each[0] <= self.now_ns]
            self.flying = [each for each in self.flying if each[0] > self.now_ns]
            for _, source, target, datagram in due:
                for host in hosts:
                    if host.address == target and target not in self.cut:
                        host.arrive(datagram, source, self.now_ns)
            times = [host.due_ns for host in hosts] + [each[0] for each in self.flying]
            busy = any(host.sent for host in hosts)
            self.now_ns = min(max(self.now_ns + DELAY_NS, 0 if busy else min(times)), end)

    def up(self) -> bool:
        """Return whether a and b are established, and each with the other."""
        one, other = self.a.session, self.b.session
        if (one.state, other.state) != (State.ESTABLISHED, State.ESTABLISHED):
            return False
        assert one.remote is not None
        assert other.remote is not None
        return (one.remote.sid, other.remote.sid) == (other.remote.ack_sid, one.remote.ack_sid)

    def assert_up(self) -> None:
        assert self.up(), (self.a.session.state, self.b.session.state)
        assert self.a.peer_at == "B"


def up(seed: int = 1) -> Place:
    place = Place(seed)
    place.run(3 * S)
    place.assert_up()
    return place


@pytest.mark.parametrize("wall_ns", [WALL_NS, WALL_NS + HOURS_NS, WALL_NS - HOURS_NS])
@pytest.mark.parametrize("remember", [False, True])
def test_copy__does_not_disturb_a_peer_that_is_heard(wall_ns: int, remember: bool) -> None:
    place = up()
    session, epoch = place.a.session.remote, place.a.channel.memory.epoch
    assert session is not None
    second = place.start_copy(wall_ns=wall_ns, remember=remember)
    for _ in range(150):
        place.run(100 * MS)
        place.assert_up()
    assert place.a.session.remote is not None
    assert place.a.session.remote.sid == session.sid
    assert place.a.channel.memory.epoch == epoch
    assert second.session.state is State.OFFERING
    told = any(isinstance(command, Twice) for command in place.a.log)
    assert told is (remember or wall_ns >= WALL_NS)  # an older stamp may be a recording
    place.c = None
    place.run(BACK_NS)
    place.assert_up()
    assert place.a.session.remote.sid == session.sid


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wall_ns", [WALL_NS, WALL_NS + HOURS_NS])
def test_copy__that_took_over_while_the_peer_was_away_gives_way(seed: int, wall_ns: int) -> None:
    """Host b's clock is hours behind the copy's, and a knows the copy's address only."""
    place = up(seed)
    place.cut = {"B"}
    place.run(7 * S)
    place.start_copy(wall_ns=wall_ns)
    place.run(15 * S)
    assert place.a.peer_at == "C"
    assert place.a.session.state is State.ESTABLISHED
    place.cut.clear()
    place.run(10 * S)
    place.c = None
    place.run(BACK_NS)
    place.assert_up()


def test_copy__comes_and_goes_while_the_peer_has_fresh_keys_and_is_silent() -> None:
    """It takes the keys away from b and is gone before there is a session with it."""
    place = up()
    place.cut = {"B"}
    place.run(HEARD_NS + S)
    epoch = place.a.channel.memory.epoch
    second = place.start_copy()
    place.run(3 * S, lambda: place.a.channel.memory.epoch > epoch)
    place.cut = {"B", second.address}
    place.c = None
    place.run(15 * S)
    place.cut.clear()
    place.run(BACK_NS)
    place.assert_up()


def test_doubt__asks_once_after_some_seconds_and_not_while_something_comes() -> None:
    place = up()
    place.run(15 * S)  # the first epoch is the only one by now
    channel = place.a.channel
    heard = place.now_ns
    assert channel._opened_ns is not None
    channel.doubt(now_ns=channel._opened_ns + DOUBT_NS - 1)
    assert channel.deadline_ns > heard + 60 * S
    channel.doubt(now_ns=channel._opened_ns + DOUBT_NS)
    due = channel.deadline_ns
    assert due <= channel._opened_ns + DOUBT_NS
    channel.doubt(now_ns=heard + 2 * DOUBT_NS)
    assert channel.deadline_ns == due


def test_peer_that_moves__is_followed_once_it_is_not_heard_any_more() -> None:
    """A restart with another address looks like a copy, for as long as the peer was heard."""
    place = up()
    place.b.start(place.b.gate.memories)
    place.b.had_keys = False
    place.b.address = "D"
    began = place.now_ns
    place.run(20 * S, lambda: place.up() and place.a.peer_at == "D")
    assert place.up()
    assert place.now_ns - began < HEARD_NS + 6 * S


def test_recorded_inits__from_elsewhere_move_nobody_and_are_not_answered() -> None:
    """A peer that is not heard is asked for there, at most; only its answer moves it."""
    place = up()
    inits = [d for source, _, d in place.said if source == "B" and d[:4] == INIT]
    place.b.channel.renew(now_ns=place.now_ns + place.b.ahead_ns)
    place.run(3 * S)
    inits = [d for source, _, d in place.said if source == "B" and d[:4] == INIT]
    assert inits
    place.cut = {"B"}
    place.run(8 * S)
    before, count = place.a.channel.memory.epoch, len(place.said)
    place.a.gate._taken.clear()  # as after a restart, or 4096 INITs later
    for _ in range(20):
        for init in inits:
            place.a.arrive(init, "X", place.now_ns)
            place.a.gate._taken.clear()
        place.run(100 * MS)
    assert place.a.peer_at == "B"
    assert place.a.channel.memory.epoch == before
    assert place.a.gate.dropped[Drop.REPLAY] >= 20
    there = [d for _, target, d in place.said[count:] if target == "X"]
    assert all(datagram[:4] == INIT for datagram in there)
    assert len(there) <= 5
    place.cut.clear()
    place.run(BACK_NS)
    place.assert_up()


class Keys(RuleBasedStateMachine):
    """Copies of b's key come and go, hosts restart and are cut off; then a and b are as before."""

    place: Place

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.place = up(seed)

    @rule(ms=st.sampled_from([50, 1000, 3000, 8000]))
    def run(self, ms: int) -> None:
        self.place.run(ms * MS)

    @rule(ahead=st.sampled_from([0, HOURS_NS, -HOURS_NS]), remember=st.booleans())
    def copy(self, ahead: int, remember: bool) -> None:
        self.place.start_copy(wall_ns=WALL_NS + ahead, remember=remember)

    @rule()
    def end_copy(self) -> None:
        self.place.c = None

    @rule(hosts=st.sets(st.sampled_from("ABC")))
    def cut(self, hosts: set[str]) -> None:
        self.place.cut = hosts

    @rule(name=st.sampled_from("ab"), remember=st.booleans())
    def restart(self, name: str, remember: bool) -> None:
        host = getattr(self.place, name)
        host.start(host.gate.memories if remember else {})
        host.had_keys = False

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.c = None
            self.place.cut = set()
            self.place.run(BACK_NS)
            self.place.assert_up()


Keys.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestKeys = Keys.TestCase
