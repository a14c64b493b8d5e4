# SPDX-License-Identifier: GPL-2.0-only
"""The sealed channel with one peer, and the epochs of its keys: datagrams in, commands out, no I/O.

Theory of operation
-------------------
Everything that two daemons say to each other travels in a channel, in the manner of WireGuard. One
side, the initiator, sends an INIT, the other a RESPONSE: the two messages of Noise IKpsk2
(noise.py). They give both sides an *epoch*: keys that seal what follows (SEALED), and a secret for
the tags of packets. Epochs are numbered, and the lowest bit of the number is the *phase*, which a
packet carries. A data path holds the keys of two epochs of a peer, one for each phase.

No packet may arrive under a key that its receiver does not have yet. Hence this order:

1. The responder installs the receive key of the new epoch (ReceiveKey), and then answers. It sends
   under the old epoch.
2. The RESPONSE proves this to the initiator, which installs its own receive key and sends under the
   new epoch (SendKey). It says something at once, an empty SEALED if there is nothing else, and
   repeats that until the responder has said something under the new epoch.
3. The first SEALED under the new epoch proves to the responder that the initiator has the receive
   key: it sends under the new epoch, too, and says so by an empty SEALED.

Each side forgets the old epoch some seconds after it knows that the other sends under the new one;
packets that are on their way may still arrive. So two epochs of the same phase never meet: the
responder numbers the new epoch one beyond what either side sends under. The initiator says in its
INIT what that is; if it names the epoch that the responder still waits to see confirmed, this is
the confirmation. While the two sides send under different epochs, both phases are in use, and a new
epoch would take the place of one. The responder of such an INIT therefore prepares none. Its
RESPONSE has no index, and only names the epoch that it sends under itself. The initiator follows,
since the responder has the receive key of both, and asks again. This happens when a daemon ends
between step 1 and step 3: its data path still has the keys of the new epoch.

Only the answer to the latest INIT counts, and from each peer only INITs with a newer stamp than all
before, so copies and recordings are ignored. A responder may be asked again, because its RESPONSE
was lost; the epoch that it prepared has not been sent under, so it prepares it again.

If both sides ask at the same time, the side with the greater public key does not answer the other's
INIT while its own is fresh. It repeats its own, which may have been sent before the other side was
there, and the other side drops its own and answers. A late INIT that crossed an exchange which has
just ended is ignored. Nobody depends on this being decided well: an
epoch that is not confirmed within seconds is asked for again.

The initiator of an epoch asks for the next one after two minutes (`Rotation`). If it does not, the
responder does so a little later. A key that is three minutes old seals and opens nothing any more.
The keys of packets, however, stay in use until others have replaced them: the data path does not
stop when a daemon does.

An INIT states the range of channel versions that its sender speaks, and the RESPONSE the one that
is used: the highest that both speak. Both are authenticated, so nobody on the way can talk two
hosts into an older version.

A key may be on two hosts, for instance on a copy of a virtual machine. A peer that is heard keeps
its channel: meanwhile an INIT of its key from another place changes nothing (`HEARD_NS`). A copy
may leave traces when it is gone. Its keys may have replaced those that the peer still uses: a
channel whose epoch brings nothing from the peer asks for another (`doubt`). Its stamps may be
ahead of the peer's, whose INITs then count as replays: we ask ourselves, also at the place from
which such an INIT came, and the answer to that proves who is there (gate.py).

Whatever is not authentic changes nothing and is not answered. The caller counts why (`Drop`).
"""

from __future__ import annotations

import random
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from mrcd.handshake import sealing, versions
from mrcd.handshake.commands import (
    ChannelCommand,
    Deliver,
    Forget,
    ReceiveKey,
    SendDatagram,
    SendKey,
)
from mrcd.handshake.noise import (
    COUNTER_MAX,
    KEY_BYTES,
    Initiator,
    KeyPair,
    NoiseError,
    Responder,
    Secrets,
)
from mrcd.handshake.pace import MS, Pace, spread
from mrcd.handshake.sealing import Answered, Asked, Window

SECOND: Final = 1000 * MS
VERSIONS: Final = (1, 1)
"""The oldest and the newest version of the channel that this daemon speaks."""
REKEY_AFTER_NS: Final = 120 * SECOND
"""How long the keys of an epoch are used, unless the configuration says otherwise."""
RETRY_MIN_NS: Final = 200 * MS
RETRY_MAX_NS: Final = 5 * SECOND
CONFIRM_MIN_NS: Final = 50 * MS
CONFIRM_MAX_NS: Final = 1 * SECOND
CROSSED_NS: Final = 500 * MS
"""An INIT of the peer may have crossed ours for this time."""
UNCONFIRMED_NS: Final = 3 * SECOND
"""After this time an answered INIT whose epoch was not confirmed no longer keeps us from asking."""
HEARD_NS: Final = 2500 * MS
"""A peer that has said something within this time, or 2.5 intervals of keepalives, is heard."""
DOUBT_NS: Final = 5 * SECOND
"""After this time, an epoch under which the peer has said nothing is in doubt."""
COOKIE_NS: Final = 115 * SECOND
"""A cookie is used for this time; its giver changes the secret behind it every 120 s."""
NEVER_NS: Final = 1 << 63
EPOCH_MAX: Final = 1 << 62
"""No host gets near this number by exchanges."""
_PACKETS: Final = b"mrcd packet keys 1"


class Drop(Enum):
    """Why a datagram was dropped without an answer; the values are shown by `mrcctl stats`."""

    MALFORMED = "is none of the channel's messages, or has no such length"
    STRANGER = "asks from an address that belongs to no peer"
    MAC1 = "was not made for this host's public key"
    COOKIE = "came under load without a valid cookie"
    RATE = "asked too often under load"
    COPY = "is a copy of a message that was taken, or of one older than can be remembered"
    HANDSHAKE = "fails the authentication of the key exchange"
    UNKNOWN_KEY = "is from the owner of a key that no peer has"
    REPLAY = "asks with a time stamp that is not newer than the last"
    TWICE = "asks in the name of a peer that is heard at another place: two hosts use its key"
    CROSSED = "crossed a message of ours that asks for the same"
    UNKNOWN_INDEX = "names no exchange or epoch of ours"
    UNAUTHENTIC = "fails authentication"
    EXPIRED = "is sealed under a key that is too old"
    VERSION = "speaks no version of the channel that this host speaks"


class Dropped(Exception):
    """A datagram was dropped, and nothing has changed."""

    def __init__(self, why: Drop) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(frozen=True, slots=True)
class ChannelMemory:
    """What a channel needs to know of its predecessor; there is nothing secret in it.

    epoch: the epoch that packets are sent under; installed: those that the data path has receive
    keys of; stamp: that of our latest INIT; heard: that of the peer's.
    """

    epoch: int = 0
    installed: tuple[int, ...] = ()
    stamp: int = 0
    heard: int = 0


@dataclass(frozen=True, slots=True)
class Rotation:
    """When keys are renewed and forgotten. All times follow from `after_ns`.

    The initiator of an epoch asks for the next one when this one is `after_ns` old, or earlier by
    up to `jitter_ns`, so that many peers do not ask together. The responder asks if the initiator
    is late by `relieve_ns`. Keys of the age `reject_ns` seal and open nothing. An old epoch is
    forgotten `forget_ns` after the new one was confirmed.
    """

    after_ns: int = REKEY_AFTER_NS

    @property
    def jitter_ns(self) -> int:
        """10 s of 120 s."""
        return self.after_ns // 12

    @property
    def relieve_ns(self) -> int:
        """20 s of 120 s."""
        return self.after_ns // 6

    @property
    def reject_ns(self) -> int:
        """180 s of 120 s."""
        return self.after_ns * 3 // 2

    @property
    def forget_ns(self) -> int:
        """10 s of 120 s."""
        return self.after_ns // 12


@dataclass(slots=True, repr=False)
class _Attempt:
    """An INIT of ours that was not answered yet."""

    index: int
    noise: Initiator
    sent_ns: int
    datagram: bytes

    @property
    def mac1(self) -> bytes:
        return sealing.mac1_of(self.datagram)


@dataclass(slots=True, repr=False)
class _Epoch:
    """The keys of one epoch."""

    number: int
    ours: int  # the index under which the peer writes to us
    theirs: int
    secrets: Secrets
    began_ns: int
    reject_ns: int  # the age at which the keys are too old
    initiator: bool
    counter: int = 0
    window: Window = field(default_factory=Window)

    def fresh(self, now_ns: int) -> bool:
        return now_ns - self.began_ns < self.reject_ns

    def seal(self, plaintext: bytes) -> bytes:
        counter, self.counter = self.counter, self.counter + 1
        return sealing.seal(self.secrets.send, self.theirs, counter, plaintext)


def opened(secrets: Secrets, window: Window, datagram: bytes) -> bytes:
    """Return what the other end has sealed; raise Dropped for a copy and for what it has not."""
    counter = sealing.counter_of(datagram)
    if not window.is_new(counter):
        raise Dropped(Drop.COPY)
    try:
        plaintext = sealing.unseal(secrets.receive, datagram)
    except NoiseError:
        raise Dropped(Drop.UNAUTHENTIC) from None
    window.add(counter)
    return plaintext


class Party(Protocol):
    """Who is at the other end of an exchange or epoch: a channel, or a guest."""

    def on_sealed(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Open what the other end has sealed."""

    def on_cookie(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Keep a cookie."""

    def on_response(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Take the answer to an INIT."""


Indices = MutableMapping[int, Party]
"""Who is behind each index of this host. All channels and guests share one."""


class Channel:
    """The channel with one peer. Methods return the commands to carry out, in order.

    A method that gets a datagram raises Dropped if it is of no use. `now_ns` is a monotonic clock.
    Call `tick` at `deadline_ns` at the latest.
    """

    def __init__(
        self,
        peer: str,
        keys: KeyPair,
        remote: bytes,
        psk: bytes,
        rng: random.Random,
        indices: Indices,
        clock_ns: int,
        memory: ChannelMemory | None = None,
        pace: Pace | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """Create a channel without keys, which asks for some at its first `tick`.

        `remote` is the peer's public key. `rng` must be unpredictable in production. Wall time is
        `clock_ns` later than `now_ns`. `memory` is that of a channel before a restart.
        """
        self.peer = peer
        self.remote = remote
        self._keys = keys
        self._psk = psk
        self._rng = rng
        self._indices = indices
        self._clock_ns = clock_ns
        self._pace = Pace() if pace is None else pace
        self._rotation = Rotation() if rotation is None else rotation
        memory = ChannelMemory() if memory is None else memory
        self._sending = memory.epoch  # the epoch that packets are sent under, 0: none
        self._installed = {number & 1: number for number in memory.installed}
        self._stamp = memory.stamp
        self._heard_stamp = memory.heard
        self._attempt: _Attempt | None = None
        self._current: _Epoch | None = None  # we send under it
        self._next: _Epoch | None = None  # prepared for the peer, which has not used it yet
        self._old: list[_Epoch] = []  # the peer may still send under these
        self._ask_ns = 0  # a new epoch is wanted from then on
        self._retry_ns = 0
        self._interval_ns = RETRY_MIN_NS
        self._confirm_ns = NEVER_NS
        self._confirm_interval_ns = CONFIRM_MIN_NS
        self._forget_ns = NEVER_NS
        self._cookie = b""
        self._cookie_ns = 0
        self._opened_ns: int | None = None  # when the peer has last said something
        self.apart: str | None = None
        """Which versions the peer's latest INIT states, if we speak none of them."""

    # -- what others may know

    @property
    def memory(self) -> ChannelMemory:
        """What the next channel with this peer needs after a restart."""
        installed = tuple(sorted(self._installed.values()))
        return ChannelMemory(self._sending, installed, self._stamp, self._heard_stamp)

    def key_age_ns(self, now_ns: int) -> int | None:
        """Return the age of the keys that seal now; None if there are none."""
        if self._current is None or not self._current.fresh(now_ns):
            return None
        return now_ns - self._current.began_ns

    @property
    def deadline_ns(self) -> int:
        """The time at which `tick` must be called next."""
        return min(self._initiate_ns, self._confirm_ns, self._forget_ns)

    # -- events in

    def tick(self, *, now_ns: int) -> list[ChannelCommand]:
        """Carry out what is due at `now_ns`."""
        commands: list[ChannelCommand] = []
        if now_ns >= self._forget_ns:
            commands += self._forget_old()
        if now_ns >= self._confirm_ns:
            commands += self._confirm(now_ns)
        if now_ns >= self._initiate_ns:
            commands += self._initiate(now_ns)
        return commands

    def renew(self, *, now_ns: int) -> None:
        """Ask for a new epoch at the next `tick`: the peer may have lost its keys, or hear us now.

        If an INIT of ours waits for its answer already, the next one is sent at once.
        """
        self._ask_ns = min(self._ask_ns, now_ns)
        self._retry_ns, self._interval_ns = now_ns, RETRY_MIN_NS

    def doubt(self, *, now_ns: int) -> None:
        """Ask for a new epoch if nothing has come under this one; there is no session."""
        current = self._current
        if current is None or self._ask_ns <= now_ns:
            return  # it asks already
        heard_ns = max(current.began_ns, self._opened_ns or 0)
        if now_ns - heard_ns >= DOUBT_NS:
            self.renew(now_ns=now_ns)

    def hears(self, *, now_ns: int) -> bool:
        """Return whether the peer has said something lately."""
        lately_ns = max(HEARD_NS, self._pace.keepalive_ns * 5 // 2)
        return self._opened_ns is not None and now_ns - self._opened_ns < lately_ns

    @property
    def heard_stamp(self) -> int:
        """The stamp of the peer's latest INIT."""
        return self._heard_stamp

    def seal(self, plaintext: bytes, *, now_ns: int) -> bytes | None:
        """Return a datagram that only the peer can read; None while there are no keys."""
        epoch = self._current
        if epoch is None or not epoch.fresh(now_ns) or epoch.counter >= COUNTER_MAX:
            return None
        return epoch.seal(plaintext)

    def on_init(
        self, asks: Responder, index: int, *, now_ns: int, elsewhere: bool = False
    ) -> list[ChannelCommand]:
        """Answer an INIT of the peer, which Noise has authenticated.

        `elsewhere`: whether it came from a place that is not the peer's.
        """
        said = sealing.asked(asks.payload)
        if said.epoch > EPOCH_MAX:
            raise Dropped(Drop.HANDSHAKE)
        if said.stamp <= self._heard_stamp:
            raise Dropped(Drop.REPLAY)
        if elsewhere and self.hears(now_ns=now_ns):
            raise Dropped(Drop.TWICE)
        version = min(said.newest, VERSIONS[1])
        if version < max(said.oldest, VERSIONS[0]):
            theirs = (said.oldest, said.newest)
            self.apart = versions.apart(self.peer, theirs, VERSIONS, "channel version")
            raise Dropped(Drop.VERSION)
        self.apart = None
        if self._attempt is not None and self._wins(now_ns):
            self._heard_stamp = said.stamp
            return [SendDatagram(self.peer, self._attempt.datagram)]
        if self._just_agreed(now_ns):
            raise Dropped(Drop.CROSSED)
        self._heard_stamp = said.stamp
        commands = self._follow(said.epoch, now_ns)
        self._drop_attempt()
        if self._no_phase_is_free(said.epoch):
            return [*commands, self._respond(asks, index, Answered(0, self._sending, version))[0]]
        ours = self._new_index()
        number = self._number_after(said.epoch)
        answer, secrets = self._respond(asks, index, Answered(ours, number, version))
        self._release(self._next)
        self._next = self._epoch(number, ours, index, secrets, now_ns, initiator=False)
        return [*commands, *self._install(self._next), answer]

    def _respond(
        self, asks: Responder, index: int, answer: Answered
    ) -> tuple[SendDatagram, Secrets]:
        ephemeral = self._rng.randbytes(KEY_BYTES)
        message, secrets = asks.write(self._psk, ephemeral, answer.pack())
        datagram = sealing.response(index, message, self.remote)
        return SendDatagram(self.peer, datagram), secrets

    def on_response(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Take the answer to our latest INIT."""
        attempt = self._attempt
        if attempt is None or sealing.index_of(datagram) != attempt.index:
            raise Dropped(Drop.UNKNOWN_INDEX)
        try:
            payload, secrets = attempt.noise.read(sealing.noise_of(datagram))
        except NoiseError:
            raise Dropped(Drop.HANDSHAKE) from None
        said = sealing.answered(payload)
        if not VERSIONS[0] <= said.version <= VERSIONS[1]:
            raise Dropped(Drop.VERSION)
        if said.index == 0:
            return self._told(said.epoch, now_ns)
        if not self._sending < said.epoch <= EPOCH_MAX + 2:
            raise Dropped(Drop.HANDSHAKE)  # only a faulty peer says so
        self._attempt = None
        epoch = self._epoch(said.epoch, attempt.index, said.index, secrets, now_ns, initiator=True)
        self._keep_old(now_ns)
        self._forget_ns = NEVER_NS
        commands = self._install(epoch) + self._send_under(epoch, now_ns)
        self._confirm_interval_ns = CONFIRM_MIN_NS
        return commands + self._confirm(now_ns)

    def _told(self, number: int, now_ns: int) -> list[ChannelCommand]:
        """Take an answer without an epoch: the peer sends under the epoch `number` by now."""
        self._drop_attempt()
        commands = self._follow(number, now_ns)
        if self._sending != number:
            self._sending = 0  # the peer does not accept what we send: any number will do
        if self._current is None:
            self._retry_ns = now_ns
        return commands

    def on_cookie(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Keep the cookie that the peer wants to see, and ask again soon."""
        attempt = self._attempt
        if attempt is None or sealing.index_of(datagram) != attempt.index:
            raise Dropped(Drop.UNKNOWN_INDEX)
        try:
            cookie = sealing.open_cookie(datagram, self.remote, attempt.mac1)
        except NoiseError:
            raise Dropped(Drop.UNAUTHENTIC) from None
        if cookie == self._cookie:
            raise Dropped(Drop.COPY)
        self._cookie, self._cookie_ns = cookie, now_ns
        self._retry_ns = min(self._retry_ns, now_ns + RETRY_MIN_NS)
        return []

    def on_sealed(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Open what the peer has sealed."""
        epoch = self._epoch_at(sealing.index_of(datagram))
        if not epoch.fresh(now_ns):
            raise Dropped(Drop.EXPIRED)
        plaintext = opened(epoch.secrets, epoch.window, datagram)
        self._opened_ns = now_ns
        commands = self._confirmed_by(epoch, now_ns)
        if plaintext:
            commands.append(Deliver(self.peer, plaintext))
        elif epoch is self._current and not epoch.initiator:
            commands.append(SendDatagram(self.peer, epoch.seal(b"")))
        return commands

    def close(self) -> list[ChannelCommand]:
        """Forget all keys: the peer is gone, or has other keys."""
        self._drop_attempt()
        for epoch in (self._current, self._next, *self._old):
            self._release(epoch)
        self._current, self._next, self._old = None, None, []
        gone = sorted(self._installed.values())
        self._installed.clear()
        self._sending = 0
        return [Forget(self.peer, number) for number in gone]

    # -- asking

    @property
    def _initiate_ns(self) -> int:
        wanted = max(self._ask_ns, self._retry_ns)
        if self._next is not None:
            wanted = max(wanted, self._next.began_ns + UNCONFIRMED_NS)
        return wanted

    def _initiate(self, now_ns: int) -> list[ChannelCommand]:
        self._drop_attempt()
        index = self._new_index()
        ephemeral = self._rng.randbytes(KEY_BYTES)
        noise = Initiator(self._keys, self.remote, self._psk, ephemeral, sealing.prologue(index))
        self._stamp = max(self._stamp + 1, self._clock_ns + now_ns)
        message = noise.write(Asked(self._stamp, self._sending, *VERSIONS).pack())
        cookie = self._cookie if now_ns - self._cookie_ns < COOKIE_NS else b""
        datagram = sealing.init(index, message, self.remote, cookie)
        self._attempt = _Attempt(index, noise, now_ns, datagram)
        self._retry_ns = now_ns + spread(self._interval_ns, 0, self._rng)
        longest = max(RETRY_MAX_NS, self._pace.retry_max_ns)
        self._interval_ns = min(2 * self._interval_ns, longest)
        return [SendDatagram(self.peer, datagram)]

    def _wins(self, now_ns: int) -> bool:
        """Return whether our INIT, and not the one that arrives now, is the one to answer."""
        fresh = self._attempt is not None and now_ns - self._attempt.sent_ns < CROSSED_NS
        return fresh and self._keys.public > self.remote

    def _just_agreed(self, now_ns: int) -> bool:
        """Return whether an INIT that arrives now was sent before the peer answered ours."""
        if self._attempt is not None:
            return False
        current = self._current
        return current is not None and current.initiator and now_ns - current.began_ns < CROSSED_NS

    def _no_phase_is_free(self, theirs: int) -> bool:
        """Return whether the peer sends under an epoch whose keys we have, and we under another."""
        return theirs not in (0, self._sending) and theirs in self._installed.values()

    def _number_after(self, theirs: int) -> int:
        """Return the number of the next epoch: beyond both sides', in our other phase."""
        number = max(self._sending, theirs) + 1
        clash = self._sending and (number ^ self._sending) & 1 == 0
        return number + 1 if clash else number

    # -- epochs

    def _epoch(
        self, number: int, ours: int, theirs: int, secrets: Secrets, now_ns: int, *, initiator: bool
    ) -> _Epoch:
        reject_ns = self._rotation.reject_ns
        return _Epoch(number, ours, theirs, secrets, now_ns, reject_ns, initiator)

    def _follow(self, theirs: int, now_ns: int) -> list[ChannelCommand]:
        """Send under the epoch that the peer sends under, if it is a newer one that we have."""
        if self._next is not None and theirs == self._next.number:
            return self._promote(self._next, now_ns)
        if theirs <= self._sending or theirs not in self._installed.values():
            return []
        # A daemon before us prepared it. Its secrets are gone, but the data path has its keys.
        self._sending = theirs
        self._forget_ns = now_ns + self._rotation.forget_ns
        return [SendKey(self.peer, theirs, theirs & 1)]

    def _install(self, epoch: _Epoch) -> list[ChannelCommand]:
        phase = epoch.number & 1
        commands: list[ChannelCommand] = []
        replaced = self._installed.get(phase)
        if replaced is not None and replaced != epoch.number:
            commands.append(Forget(self.peer, replaced))
        self._installed[phase] = epoch.number
        secret = epoch.secrets.export(_PACKETS)
        return [*commands, ReceiveKey(self.peer, epoch.number, phase, secret)]

    def _send_under(self, epoch: _Epoch, now_ns: int) -> list[ChannelCommand]:
        self._current, self._sending = epoch, epoch.number
        rotation = self._rotation
        early = self._rng.randrange(rotation.jitter_ns)
        late = 0 if epoch.initiator else rotation.relieve_ns
        self._ask_ns = epoch.began_ns + rotation.after_ns - early + late
        self._retry_ns, self._interval_ns = now_ns, RETRY_MIN_NS
        return [SendKey(self.peer, epoch.number, epoch.number & 1)]

    def _confirm(self, now_ns: int) -> list[ChannelCommand]:
        """Say something under the new epoch, until the responder does."""
        epoch = self._current
        if epoch is None or not epoch.fresh(now_ns):
            self._confirm_ns = NEVER_NS
            return []
        self._confirm_ns = now_ns + self._confirm_interval_ns
        self._confirm_interval_ns = min(2 * self._confirm_interval_ns, CONFIRM_MAX_NS)
        return [SendDatagram(self.peer, epoch.seal(b""))]

    def _confirmed_by(self, epoch: _Epoch, now_ns: int) -> list[ChannelCommand]:
        """Draw conclusions from an authentic message under an epoch."""
        if epoch is self._next:
            return [
                *self._promote(epoch, now_ns),
                SendDatagram(self.peer, epoch.seal(b"")),
            ]
        if epoch is self._current and self._confirm_ns != NEVER_NS:
            self._confirm_ns = NEVER_NS
            self._forget_ns = now_ns + self._rotation.forget_ns
        return []

    def _keep_old(self, now_ns: int) -> None:
        """Go on opening what the peer sends under epochs that we do not send under."""
        known = [*self._old, self._current, self._next]
        self._old = []
        for epoch in known:
            if epoch is not None and epoch.fresh(now_ns):
                self._old.append(epoch)
            else:
                self._release(epoch)
        self._next = None

    def _promote(self, epoch: _Epoch, now_ns: int) -> list[ChannelCommand]:
        """Send under the epoch that we prepared: the peer does."""
        if self._current is not None:
            self._old.append(self._current)
        self._next = None
        self._drop_attempt()
        self._confirm_ns = NEVER_NS
        self._forget_ns = now_ns + self._rotation.forget_ns
        return self._send_under(epoch, now_ns)

    def _forget_old(self) -> list[ChannelCommand]:
        self._forget_ns = NEVER_NS
        for epoch in self._old:
            self._release(epoch)
        self._old = []
        kept = {self._sending} | ({self._next.number} if self._next is not None else set())
        gone = sorted(set(self._installed.values()) - kept)
        self._installed = {n & 1: n for n in self._installed.values() if n in kept}
        return [Forget(self.peer, number) for number in gone]

    # -- indices

    def _epoch_at(self, index: int) -> _Epoch:
        for epoch in (self._current, self._next, *self._old):
            if epoch is not None and epoch.ours == index:
                return epoch
        raise Dropped(Drop.UNKNOWN_INDEX)

    def _new_index(self) -> int:
        """Take a random index, which tells an outsider nothing and is hard to guess."""
        index = 0
        while index == 0 or index in self._indices:
            index = self._rng.getrandbits(sealing.INDEX_BITS)
        self._indices[index] = self
        return index

    def _release(self, epoch: _Epoch | None) -> None:
        if epoch is not None:
            self._indices.pop(epoch.ours, None)

    def _drop_attempt(self) -> None:
        if self._attempt is not None:
            self._indices.pop(self._attempt.index, None)
            self._attempt = None
