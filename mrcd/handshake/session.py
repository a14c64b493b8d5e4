# SPDX-License-Identifier: GPL-2.0-only
"""The hand-shake that gives two daemons their QPs: events in, commands out, no I/O.

Theory of operation
-------------------
Both daemons run the same `Session`, one for each peer, and send each other one kind of message,
the `Offer`. There is no client and no server, and any packet may be lost without harm.

An *incarnation* is a random 64-bit session id (sid) together with its QPNs and first PSNs. They are
chosen once and never change, so two sides that agree on a pair of sids agree on everything. A
session always holds one *free* incarnation, which is promised to no peer, and at most one *bound*
incarnation, which is promised to exactly one sid of the peer.

An Offer says "I am `sid`, and I address your `ack_sid` (0: I know none)". It proves nothing by
itself: it may be a delayed copy, or a recording of a peer that restarted long ago. A session
therefore never binds at once to the Offer of a stranger (a sid that it is not bound to). It answers
with its free incarnation and the stranger's sid: a *challenge*. Only a living peer that owns that
sid can send back our free sid as its `ack_sid`. The sid that does so gets the free incarnation, and
the session makes a new free one. Strangers are treated alike whether or not an incarnation is
bound, so a restart of the peer needs no further rules.

Recordings do no harm for the following reason. Let A (sid a) and B (sid b) be bound to each other.
To rebind, A must hear its free sid f from a stranger. A made f when it bound b, so f was only ever
sent in challenges, whose ack_sid was a stranger's. B repeats f only if it accepts such a challenge
as the Offer of a stranger that names b, B's free sid, or 0. The challenge does not name 0
(challenges never do) and does not name b (which is no stranger to A). B sends its free sid to A
only when A itself speaks with a sid other than a and names b or 0, which A does not. So recordings
cause answers, and nothing else.

Two steps lead to an established session, because packets that reach QPs not yet programmed are lost
and would count against their paths. A session is *bound* when the peer has echoed our sid: our QPs
are programmed to receive, and our Offers say so (`bound`). It is *established* when the peer's
Offers say so too: we may send. Later Offers make up for lost ones. Until the session is established
they go out on every usable plane, after 50 ms, doubling to 1 s. Afterwards one a second keeps the
session alive, on one plane in rotation. With many peers both intervals are longer (pace.py). `want`
asks for an answer at once; only a side that waits for something sets it. A session that stays bound
without becoming established (the peer died between the two steps) gives the incarnation up after
3 s. A session that hears nothing for 5 s, or for two and a half of the peer's announced intervals,
is `silent`: its QPs stay, the data path continues to try, and Offers go out on every plane again.

A third party may have come between the two: another host with the same key, or a copy of the peer
from an earlier time. Once it is gone, each side may be bound to a sid that the other does not have,
or know a `seq` that the other will not reach for years. Then no message of the two counts, so a
silent session asks anew. It challenges the sender of an Offer that is bound to a sid which we do
not have, and the bound sid if that is not bound to us. It also challenges the bound sid if only
Offers with growing numbers below the known `seq` have arrived for LAGGING_NS. The rest goes as with
a peer that restarted. Recordings of sids other than b still cause answers only: a silent B that is
challenged in the name of such a sid does not repeat f, since challenges are not bound. Recordings
of b draw a challenge that B repeats, if they are played in order for LAGGING_NS while nothing newer
of B gets through. That leads to a new session with the living B, and to nothing else.

`seq` grows with every Offer of a session. From the sid we are bound to, an Offer counts only if its
seq is greater than all before, so a late copy neither revives a dead peer nor restores an old port
mask.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from mrcd.handshake import versions
from mrcd.handshake.commands import (
    Command,
    ConfigureReceive,
    LocalQp,
    PeerPlanes,
    ReadyToSend,
    RemoteQp,
    ResetQps,
    SendOffer,
    State,
    StateChanged,
)
from mrcd.handshake.incarnation import SEQ_LEAP, Bound, Incarnation, Memory, Ours
from mrcd.handshake.offer import (
    MAX_QPS,
    TRIM,
    HandshakeError,
    LacksCapability,
    Offer,
    encode,
)
from mrcd.handshake.pace import (
    BEAT_MAX_NS,
    DEAD_AFTER_NS,
    KEEPALIVE_NS,
    MS,
    RETRY_MAX_NS,
    RETRY_MIN_NS,
    Pace,
    spread,
)
from mrcd.handshake.ratelimit import Answers

UNCONFIRMED_NS: Final = 3000 * MS
LAGGING_NS: Final = 2000 * MS
"""A silent peer from which only Offers older than a known one come for this time counts from lower
numbers. Two Offers are needed at least, and a peer that is alive sends one a second."""
NEVER_NS: Final = 1 << 63


class Event(Enum):
    """An event of a session: the class of a received Offer, or a timer."""

    STRANGER = "another sid, naming none of ours or the bound one: is it alive?"
    ECHO = "another sid that names our free one: it is alive"
    STALE = "another sid that names one we do not have (any more)"
    ASTRAY = "another sid that is bound to one we do not have (any more)"
    PEER_UNBOUND = "our peer, which has not programmed its QPs for us yet"
    PEER_BOUND = "our peer, which receives on its QPs"
    REPEAT = "our peer, but an Offer older than one we know"
    SEND_DUE = "time for the next Offer"
    UNHEARD = "the peer has not been heard for too long"


class Session:
    """The hand-shake with one peer. Every method returns the commands to carry out, in order.

    Not thread-safe; `now_ns` is a monotonic clock. Call `tick` at `deadline_ns` at the latest.
    """

    def __init__(
        self, ours: Ours, peer: str, planes: int, rng: random.Random, pace: Pace | None = None
    ) -> None:
        """Create a session that has sent nothing yet.

        `planes` is the bit mask of our usable planes. `rng` must be unpredictable in production.
        `pace` is shared by all sessions of a daemon; without it this session is the only one.
        """
        if not 1 <= ours.qps <= MAX_QPS:
            raise ValueError(f"{ours.qps} QPs, not 1 to {MAX_QPS}")
        self.peer = peer
        self.state = State.OFFERING
        self._ours = ours
        self._planes = planes
        self._usable = _bits(planes)
        self._rng = rng
        self._generation = rng.randint(1, 255)
        self._free = self._new_incarnation()
        self._bound: Bound | None = None
        self._seq = 0
        self._send_ns = 0
        self._sent_ns = 0
        self._interval_ns = RETRY_MIN_NS
        self._pace = Pace() if pace is None else pace
        self._keepalive_ns = KEEPALIVE_NS  # as announced to the peer
        self._rotation = 0
        self._answers = Answers()
        self._lagging: tuple[int, int, int] | None = None
        """Since when old Offers come, the seq of the latest, and when it came."""

    # -- across a restart

    @classmethod
    def resume(
        cls,
        ours: Ours,
        peer: str,
        planes: int,
        rng: random.Random,
        memory: Memory,
        *,
        now_ns: int,
        pace: Pace | None = None,
    ) -> Session:
        """Restore an established session from the `memory` of an earlier one.

        The peer notices nothing: sid, epoch and QPs are the same, and `seq` continues to grow. The
        free incarnation was promised to no peer, so a new one is made.
        """
        session = cls(ours, peer, planes, rng, pace)
        session._generation = memory.generation
        session._free = session._new_incarnation()
        session._seq = memory.seq + SEQ_LEAP
        bound = Incarnation(memory.sid, memory.qps)
        session._bound = Bound(bound, memory.offer, now_ns, now_ns, memory.agreed)
        session.state = State.ESTABLISHED
        return session

    @property
    def memory(self) -> Memory | None:
        """The state that `resume` needs; None while there is nothing to resume."""
        if self._bound is None or self.state not in (State.ESTABLISHED, State.SILENT):
            return None
        bound = self._bound
        return Memory(
            self._ours.epoch,
            bound.ours.sid,
            self._seq,
            self._generation,
            bound.ours.qps,
            bound.offer,
            bound.version,
        )

    # -- events in

    def start(self, *, now_ns: int) -> list[Command]:
        """Send the first Offers. May also be called after a change that may help the peer."""
        return self._offer_now(now_ns)

    def receive(self, offer: Offer, *, now_ns: int) -> list[Command]:
        """Process an Offer that arrived on any plane.

        Raises HandshakeError if it is not from our peer or not for this host, and LacksCapability
        if the peer cannot do what this host insists on.
        """
        if (offer.host, offer.target) != (self.peer, self._ours.host):
            raise HandshakeError(
                f"Offer from {offer.host} to {offer.target} on the session of {self._ours.host} "
                f"with {self.peer}"
            )
        lacking = [name for name in self._ours.required if name not in offer.capabilities]
        if lacking:
            raise LacksCapability(
                f"{self.peer} lacks {', '.join(lacking)}, which {self._ours.host} insists on"
            )
        return _ON_OFFER[self.state, self._classify(offer)](self, offer, now_ns)

    def tick(self, *, now_ns: int) -> list[Command]:
        """Carry out what is due at `now_ns`."""
        commands: list[Command] = []
        if now_ns >= self._unheard_ns:
            commands += _ON_CLOCK[self.state, Event.UNHEARD](self, now_ns)
        if now_ns >= self._due_ns:
            commands += _ON_CLOCK[self.state, Event.SEND_DUE](self, now_ns)
        return commands

    def set_planes(self, planes: int, *, now_ns: int) -> list[Command]:
        """Set our usable planes (a bit mask); a peer that answers is told at once.

        A peer that does not answer is asked again by the next `tick` if there is a new plane on
        which it may hear us.
        """
        if planes == self._planes:
            return []
        gained = planes & ~self._planes
        self._planes, self._usable = planes, _bits(planes)
        if self.state not in (State.OFFERING, State.SILENT):
            return self._offer_now(now_ns)
        if gained:
            self._interval_ns, self._send_ns = RETRY_MIN_NS, now_ns
        return []

    @property
    def digests(self) -> tuple[int, int]:
        """The digests of this host's fabric file: of the frame, and of the two hosts."""
        return self._ours.frame, self._ours.hosts

    def set_digests(self, frame: int, hosts: int) -> None:
        """State other digests of the fabric file from the next Offer on."""
        self._ours = replace(self._ours, frame=frame, hosts=hosts)

    def set_endpoints(self, endpoints: tuple[bytes, ...], *, now_ns: int) -> list[Command]:
        """State other addresses of ours by plane; a peer with a session is told at once."""
        if endpoints == self._ours.endpoints:
            return []
        self._ours = replace(self._ours, endpoints=endpoints)
        return self._offer_now(now_ns) if self.state is State.ESTABLISHED else []

    def set_rates(self, rates: tuple[int, ...]) -> None:
        """State other rates of our planes from the next Offer on, Mb/s."""
        self._ours = replace(self._ours, rates=rates)

    @property
    def deadline_ns(self) -> int:
        """The time at which `tick` must be called next."""
        return min(self._due_ns, self._unheard_ns)

    @property
    def _due_ns(self) -> int:
        """The time to send the next Offer; a quiet peer gets more of them than others."""
        if self._bound is None or self.state is not State.ESTABLISHED:
            return self._send_ns
        wait = self._bound.patience
        quiet_ns = self._bound.heard_ns + wait.quiet_ns + 1
        return min(self._send_ns, max(quiet_ns, self._sent_ns + wait.again_ns))

    @property
    def silent_after_ns(self) -> int:
        """The time without an Offer after which the peer counts as silent."""
        return DEAD_AFTER_NS if self._bound is None else self._bound.patience.dead_ns

    @property
    def heard_ns(self) -> int | None:
        """When the peer we are bound to was heard last; None while there is none."""
        return None if self._bound is None else self._bound.heard_ns

    @property
    def remote(self) -> Offer | None:
        """The latest Offer of the peer we are bound to, for display."""
        return self._bound.offer if self._bound else None

    @property
    def version(self) -> int | None:
        """The version that this session speaks; None while there is no peer."""
        return self._bound.version if self._bound else None

    @property
    def _unheard_ns(self) -> int:
        if self._bound is not None and self.state is State.BOUND:
            return self._bound.since_ns + UNCONFIRMED_NS
        if self._bound is not None and self.state is State.ESTABLISHED:
            return self._bound.heard_ns + self._bound.patience.dead_ns
        return NEVER_NS

    def _classify(self, offer: Offer) -> Event:
        bound = self._bound
        if bound is not None and bound.is_from(offer):
            if offer.seq <= bound.offer.seq:
                return Event.REPEAT
            confirmed = offer.bound and offer.ack_sid == bound.ours.sid
            return Event.PEER_BOUND if confirmed else Event.PEER_UNBOUND
        if offer.ack_sid == self._free.sid:
            return Event.ECHO
        if offer.ack_sid == 0 or (bound is not None and offer.ack_sid == bound.ours.sid):
            return Event.STRANGER
        return Event.ASTRAY if offer.bound else Event.STALE

    # -- actions on an Offer

    def _challenge(self, offer: Offer, now_ns: int) -> list[Command]:
        return self._answer(offer, now_ns, self._free, offer.sid, want=True)

    def _advertise(self, offer: Offer, now_ns: int) -> list[Command]:
        return self._answer(offer, now_ns, self._free, 0, want=True)

    def _correct(self, offer: Offer, now_ns: int) -> list[Command]:
        """Tell a peer that waits for one of our old sids the current pair; ask for no answer."""
        if not offer.want or self._bound is None:
            return []
        ack_sid = self._bound.offer.sid
        return self._answer(offer, now_ns, self._bound.ours, ack_sid, want=False)

    def _question(self, offer: Offer, now_ns: int) -> list[Command]:
        """Challenge the bound sid if all that it says is older than what we know of it."""
        since_ns, seq, grown_ns = self._lagging or (now_ns, 0, 0)
        if offer.seq <= seq:
            if now_ns - grown_ns >= LAGGING_NS:  # that number was of another copy
                self._lagging = now_ns, offer.seq, now_ns
            return []
        self._lagging = since_ns, offer.seq, now_ns
        return self._challenge(offer, now_ns) if now_ns - since_ns >= LAGGING_NS else []

    def _bind(self, offer: Offer, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        reason = "peer answered"
        if self._bound is not None:
            restarted = offer.epoch != self._bound.offer.epoch
            reason = "peer restarted" if restarted else "peer began a new session"
            commands.append(self._reset(reason))
        version = versions.common(offer.version, offer.oldest)
        assert version is not None, "decode() lets no other Offer pass"
        self._bound = Bound(self._free, offer, now_ns, now_ns, version)
        self._free = self._new_incarnation()
        commands.append(self._configure(self._bound))
        commands.append(self._enter(State.BOUND, reason))
        if offer.bound:
            commands += [ReadyToSend(self.peer), self._enter(State.ESTABLISHED, "peer is ready")]
        return commands + self._offer_now(now_ns)

    def _prompt(self, offer: Offer, now_ns: int) -> list[Command]:
        """Repeat that we are bound, so that the peer, which is not yet, can bind to us."""
        planes = self._note(offer)
        return planes + (self._offer_now(now_ns) if offer.want else [])

    def _establish(self, offer: Offer, now_ns: int) -> list[Command]:
        commands: list[Command] = [ReadyToSend(self.peer)]
        commands.append(self._enter(State.ESTABLISHED, "peer is ready"))
        return commands + self._hear(offer, now_ns)

    def _revive(self, offer: Offer, now_ns: int) -> list[Command]:
        commands: list[Command] = [self._enter(State.ESTABLISHED, "peer heard again")]
        return commands + self._hear(offer, now_ns)

    def _hear(self, offer: Offer, now_ns: int) -> list[Command]:
        assert self._bound is not None
        self._bound.heard_ns = now_ns
        commands = self._note(offer)
        if offer.want:
            return commands + self._offer_now(now_ns)
        self._send_ns = min(self._send_ns, now_ns + self._keepalive_ns)
        return commands

    def _ignore(self, offer: Offer, now_ns: int) -> list[Command]:
        return []

    # -- actions on the clock

    def _retry(self, now_ns: int) -> list[Command]:
        """Send on every plane.

        Where too many peers do not answer, repeats go out on only one plane each.
        """
        first = self._interval_ns == RETRY_MIN_NS
        due_ns = now_ns + spread(self._interval_ns, RETRY_MAX_NS, self._rng)
        stretched = self._interval_ns > RETRY_MAX_NS
        self._send_ns = self._pace.next(due_ns, BEAT_MAX_NS) if stretched else due_ns
        if self._interval_ns < RETRY_MAX_NS:
            self._interval_ns = min(2 * self._interval_ns, RETRY_MAX_NS)
        else:
            self._interval_ns = self._pace.retry_max_ns
        self._sent_ns = now_ns
        planes = self._usable
        if first or self.state is State.BOUND or not self._pace.crowded(len(planes)):
            return self._send(planes, now_ns)
        return self._send(self._next_plane(planes), now_ns)

    def _keep_alive(self, now_ns: int) -> list[Command]:
        """Send on one plane in rotation, or on all planes if the peer is quiet."""
        # The peer must learn of a longer interval before we use it, and may miss an Offer or two.
        self._keepalive_ns = min(self._pace.keepalive_ns, 2 * self._keepalive_ns)
        self._send_ns = now_ns + spread(self._keepalive_ns, KEEPALIVE_NS, self._rng)
        self._sent_ns = now_ns
        planes = self._usable
        return self._send(planes if self._quiet(now_ns) else self._next_plane(planes), now_ns)

    def _next_plane(self, planes: tuple[int, ...]) -> tuple[int, ...]:
        self._rotation += 1
        return planes and (planes[self._rotation % len(planes)],)

    def _fall_silent(self, now_ns: int) -> list[Command]:
        commands: list[Command] = [self._enter(State.SILENT, "peer not heard")]
        return commands + self._offer_now(now_ns)

    def _give_up(self, now_ns: int) -> list[Command]:
        reason = "peer did not confirm"
        reset = self._reset(reason)
        self._bound = None
        return [reset, self._enter(State.OFFERING, reason), *self._offer_now(now_ns)]

    def _wait(self, now_ns: int) -> list[Command]:
        return []

    # -- building blocks of the actions

    def _new_incarnation(self) -> Incarnation:
        """Make an incarnation.

        Its QPNs differ from those of the 254 before it, so that stale packets are discarded.
        """
        self._generation = self._generation % 255 + 1
        indices = range(self._ours.qp_base, self._ours.qp_base + self._ours.qps)
        qps = tuple(
            LocalQp(index, self._generation << 16 | index, self._rng.getrandbits(24))
            for index in indices
        )
        return Incarnation(self._rng.getrandbits(64) or 1, qps)

    def _enter(self, new: State, reason: str) -> StateChanged:
        old, self.state = self.state, new
        self._lagging = None
        return StateChanged(self.peer, old, new, reason)

    def _reset(self, reason: str) -> ResetQps:
        assert self._bound is not None
        return ResetQps(self.peer, tuple(qp.index for qp in self._bound.ours.qps), reason)

    def _configure(self, bound: Bound) -> ConfigureReceive:
        offer = bound.offer
        remote = [RemoteQp(qpn, psn) for qpn, psn in offer.qps]
        return ConfigureReceive(
            self.peer,
            offer.epoch,
            # The side with more QPs than the other leaves its surplus unused.
            tuple(zip(bound.ours.qps, remote, strict=False)),
            min(self._ours.mtu, offer.mtu),
            min(self._ours.mpr, offer.mpr),
            offer.port_mask,
            frozenset(self._ours.capabilities) & frozenset(offer.capabilities),
            TRIM in offer.capabilities,
        )

    def _note(self, offer: Offer) -> list[Command]:
        """Remember the peer's latest Offer and pass on what may change within a session."""
        assert self._bound is not None
        changed = offer.port_mask != self._bound.offer.port_mask
        self._bound.offer = offer
        return [PeerPlanes(self.peer, offer.port_mask)] if changed else []

    def _quiet(self, now_ns: int) -> bool:
        if self._bound is None:
            return True
        return now_ns - self._bound.heard_ns > self._bound.patience.quiet_ns

    def _offer_now(self, now_ns: int) -> list[Command]:
        """Send on every plane, and restart the series of retries."""
        self._interval_ns = RETRY_MIN_NS
        commands = self._retry(now_ns)
        if self.state is State.ESTABLISHED:
            self._send_ns = now_ns + self._keepalive_ns
        return commands

    def _send(self, planes: tuple[int, ...], now_ns: int) -> list[Command]:
        """Send the Offer that fits the current state."""
        if self._bound is None:
            return self._transmit(planes, self._free, 0, bound=False, want=True)
        want = self.state is not State.ESTABLISHED or self._quiet(now_ns)
        ack_sid = self._bound.offer.sid
        return self._transmit(planes, self._bound.ours, ack_sid, bound=True, want=want)

    def _answer(
        self, offer: Offer, now_ns: int, ours: Incarnation, ack_sid: int, *, want: bool
    ) -> list[Command]:
        """Answer a stranger within the rate limit.

        The answer goes out on every plane, since the one the Offer came on may be dead in our
        direction.
        """
        if not self._answers.take(offer.sid, offer.seq, now_ns=now_ns):
            return []
        bound = self._bound is not None and ours is self._bound.ours
        return self._transmit(self._usable, ours, ack_sid, bound=bound, want=want)

    def _transmit(
        self, planes: tuple[int, ...], ours: Incarnation, ack_sid: int, *, bound: bool, want: bool
    ) -> list[Command]:
        if not planes:
            return []
        self._seq += 1
        offer = Offer(
            version=versions.NEWEST,
            host=self._ours.host,
            target=self.peer,
            epoch=self._ours.epoch,
            sid=ours.sid,
            ack_sid=ack_sid,
            seq=self._seq,
            bound=bound,
            want=want,
            mtu=self._ours.mtu,
            mpr=self._ours.mpr,
            port_mask=self._planes,
            capabilities=self._ours.capabilities,
            qps=tuple((qp.qpn, qp.psn) for qp in ours.qps),
            pace_ms=self._keepalive_ns // MS,
            oldest=versions.OLDEST,
            frame=self._ours.frame,
            hosts=self._ours.hosts,
            endpoints=self._ours.endpoints,
            rates=self._ours.rates,
            build=self._ours.build,
        )
        return [SendOffer(self.peer, planes, encode(offer))]


def _bits(planes: int) -> tuple[int, ...]:
    return tuple(plane for plane in range(8) if planes >> plane & 1)


_OnOffer = Callable[[Session, Offer, int], list[Command]]
_OnClock = Callable[[Session, int], list[Command]]


def _row(event: Event, *actions: _OnOffer) -> dict[tuple[State, Event], _OnOffer]:
    return {(state, event): action for state, action in zip(State, actions, strict=True)}


def _clock_row(event: Event, *actions: _OnClock) -> dict[tuple[State, Event], _OnClock]:
    return {(state, event): action for state, action in zip(State, actions, strict=True)}


_S = Session
# fmt: off
_ON_OFFER: Final[dict[tuple[State, Event], _OnOffer]] = {
    #                          OFFERING       BOUND          ESTABLISHED    SILENT
    **_row(Event.STRANGER,     _S._challenge, _S._challenge, _S._challenge, _S._challenge),
    **_row(Event.ECHO,         _S._bind,      _S._bind,      _S._bind,      _S._bind),
    **_row(Event.STALE,        _S._advertise, _S._correct,   _S._correct,   _S._correct),
    **_row(Event.ASTRAY,       _S._advertise, _S._correct,   _S._correct,   _S._challenge),
    # Without a bound incarnation there is no peer. A peer that was bound to us never unbinds, but
    # an earlier copy of it may have taken its place.
    **_row(Event.PEER_UNBOUND, _S._ignore,    _S._prompt,    _S._ignore,    _S._challenge),
    **_row(Event.PEER_BOUND,   _S._ignore,    _S._establish, _S._hear,      _S._revive),
    **_row(Event.REPEAT,       _S._ignore,    _S._ignore,    _S._ignore,    _S._question),
}
_ON_CLOCK: Final[dict[tuple[State, Event], _OnClock]] = {
    **_clock_row(Event.SEND_DUE, _S._retry,   _S._retry,     _S._keep_alive, _S._retry),
    **_clock_row(Event.UNHEARD,  _S._wait,    _S._give_up,   _S._fall_silent, _S._wait),
}
# fmt: on
