# SPDX-License-Identifier: GPL-2.0-only
"""The gate before the channels: find the one that a datagram is for, keep floods out (pure).

Answering an INIT costs six multiplications on the curve, about half a millisecond. So before any,
mac1 must show that the sender knows our public key, and a copy of an INIT that came by another
plane is recognised. When more than LOAD_PER_S of them arrive in a second, the gate is under load:
it computes only for senders that prove by a cookie (mac2) to be where they say, and for
each of them at most SOURCE_PER_S times a second. Others get a cookie, which costs two hashes and is
shorter than what they sent. The secret behind cookies changes every two minutes.

A source is a host by its place in the fabric, whatever the plane: an INIT goes out on all planes,
and its cookie must be good on all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mrcd.handshake import sealing
from mrcd.handshake.channel import (
    SECOND,
    Channel,
    ChannelMemory,
    Drop,
    Dropped,
    Indices,
    Rotation,
)
from mrcd.handshake.commands import ChannelCommand, Elsewhere, Seek, SendDatagram, Twice
from mrcd.handshake.guests import Guests, Place
from mrcd.handshake.identity import Keyring
from mrcd.handshake.noise import KEY_BYTES, KeyPair, NoiseError, Responder
from mrcd.handshake.pace import Pace

LOAD_PER_S: Final = 100
"""More INITs with a valid mac1 than this in a second are load."""
SOURCE_PER_S: Final = 20
"""INITs a second that are computed for one source under load; as many may come at once."""
COOKIE_SECRET_NS: Final = 120 * SECOND
COPIES: Final = 4096
"""So many INITs are remembered, to recognise their copies."""


@dataclass(slots=True)
class _Allowance:
    """How many INITs of a source may still be computed."""

    left: float
    since_ns: int

    def take(self, now_ns: int) -> bool:
        gained = (now_ns - self.since_ns) * SOURCE_PER_S / SECOND
        self.left = min(SOURCE_PER_S, self.left + gained)
        self.since_ns = now_ns
        if self.left < 1:
            return False
        self.left -= 1
        return True


class Gate:
    """All channels of a host. Methods return commands in order; `now_ns` is monotonic.

    With `admits_strangers`, an INIT from nobody's place is computed, too, unless there is load: a
    peer may have moved. Its key tells who it is; a peer that is heard has not moved. With
    `takes_guests`, it is computed as well, but only for a key that no peer has: its sender may
    become a peer (guests.py).
    """

    def __init__(
        self,
        keys: Keyring,
        rng: random.Random,
        clock_ns: int,
        pace: Pace | None = None,
        memories: Mapping[str, ChannelMemory] | None = None,
        rotation: Rotation | None = None,
        on_dropped: Callable[[Drop, str | None], None] = lambda _why, _source: None,
        indices: Indices | None = None,
    ) -> None:
        """Create a channel for each peer of the key ring. For `clock_ns` and `rng` see Channel.

        `on_dropped` is called with the reason and the source of each datagram that is dropped.
        `indices` will hold the number of each exchange and epoch; it is empty.
        """
        self.keys = keys
        self.dropped: Counter[Drop] = Counter()
        self.channels: dict[str, Channel] = {}
        self._pair = KeyPair(keys.private.reveal())
        self._rng = rng
        self._clock_ns = clock_ns
        self._pace = pace
        self.rotation = Rotation() if rotation is None else rotation
        self._on_dropped = on_dropped
        self._memories = dict(memories or {})
        self._by_key: dict[bytes, Channel] = {}
        self._indices: Indices = {} if indices is None else indices
        self._taken: dict[bytes, None] = {}  # mac1 of INITs, the oldest first
        self._second_ns = 0  # the present second began
        self._inits = 0  # INITs in it
        self._loaded_until_ns = 0
        self._allowances: dict[str, _Allowance] = {}
        self._secret = b""
        self._secret_ns = 0
        self.admits_strangers = False
        self.takes_guests = False
        self.guests = Guests(rng, self._indices)
        for name in keys.peers:
            self.add(name)

    # -- peers

    def add(self, name: str) -> None:
        """Create the channel with a peer of the key ring."""
        channel = Channel(
            name,
            self._pair,
            self.keys.peers[name],
            self.keys.psk.reveal(),
            self._rng,
            self._indices,
            self._clock_ns,
            self._memories.pop(name, None) or self._memory_of_guest(self.keys.peers[name]),
            self._pace,
            self.rotation,
        )
        self.channels[name] = channel
        self._by_key[channel.remote] = channel

    def _memory_of_guest(self, remote: bytes) -> ChannelMemory | None:
        """Forget a guest that is a peer from now on; recordings of its INITs stay useless."""
        guest = self.guests.forget(remote)
        return None if guest is None else ChannelMemory(heard=guest.stamp)

    def reconfigure(self, keys: Keyring, rotation: Rotation) -> bool:
        """Use these keys and times from now on; peers are added and removed separately.

        If this host's own keys or the times changed, all channels begin anew, with the memory of
        the former ones. Returns whether they do.
        """
        before = (self.keys.private, self.keys.psk, self.rotation)
        self.keys, self.rotation = keys, rotation
        if before == (keys.private, keys.psk, rotation):
            return False
        self._pair = KeyPair(keys.private.reveal())
        self._memories = self.memories
        self._by_key.clear()
        self.guests.clear()
        self._indices.clear()
        for name in self.channels:
            self.add(name)
        return True

    def remove(self, name: str) -> list[ChannelCommand]:
        """Forget the channel with a peer and all its keys."""
        channel = self.channels.pop(name, None)
        if channel is None:
            return []
        if self._by_key.get(channel.remote) is channel:
            del self._by_key[channel.remote]
        self._allowances.pop(name, None)
        return channel.close()

    @property
    def memories(self) -> dict[str, ChannelMemory]:
        """What the channels of the next daemon need to know, by peer."""
        return {name: channel.memory for name, channel in self.channels.items()}

    # -- datagrams

    def receive(
        self, datagram: bytes, source: str | None, *, now_ns: int, place: Place | None = None
    ) -> list[ChannelCommand]:
        """Process a datagram from the place of the peer `source`; None: from nobody's.

        `place` is where nobody's place is in the fabric. Counts in `dropped` what is of no use.
        """
        try:
            return self._receive(datagram, source, place, now_ns)
        except Dropped as dropped:
            self._drop(dropped.why, source)
            return []

    def _drop(self, why: Drop, source: str | None) -> None:
        self.dropped[why] += 1
        self._on_dropped(why, source)

    def _receive(
        self, datagram: bytes, source: str | None, place: Place | None, now_ns: int
    ) -> list[ChannelCommand]:
        kind = sealing.kind_of(datagram)
        if kind is None:
            raise Dropped(Drop.MALFORMED)
        if kind == sealing.INIT:
            return self._on_init(datagram, source, place, now_ns)
        channel = self._indices.get(sealing.index_of(datagram))
        if channel is None:
            raise Dropped(Drop.UNKNOWN_INDEX)
        if kind == sealing.SEALED:
            return channel.on_sealed(datagram, now_ns=now_ns)
        if kind == sealing.COOKIE:
            return channel.on_cookie(datagram, now_ns=now_ns)
        if not sealing.has_mac1(datagram, self._pair.public):
            raise Dropped(Drop.MAC1)
        return channel.on_response(datagram, now_ns=now_ns)

    def _on_init(
        self, datagram: bytes, source: str | None, place: Place | None, now_ns: int
    ) -> list[ChannelCommand]:
        guest = source is None and not self.admits_strangers
        if guest and (place is None or not self.takes_guests):
            raise Dropped(Drop.STRANGER)
        if not sealing.has_mac1(datagram, self._pair.public):
            raise Dropped(Drop.MAC1)
        identity = sealing.mac1_of(datagram)
        if identity in self._taken:
            raise Dropped(Drop.COPY)
        if self._under_load(now_ns):
            if source is None:
                raise Dropped(Drop.RATE)
            cookie = sealing.new_cookie(self._cookie_secret(now_ns), source)
            if not sealing.has_mac2(datagram, cookie):
                self._drop(Drop.COOKIE, source)
                reply = self._cookie_reply(datagram, identity, cookie)
                return [SendDatagram(source, reply, back=True)]
            allowance = self._allowances.setdefault(source, _Allowance(SOURCE_PER_S, now_ns))
            if not allowance.take(now_ns):
                raise Dropped(Drop.RATE)
        self._remember(identity)
        index = sealing.index_of(datagram)
        try:
            asks = Responder(self._pair, sealing.noise_of(datagram), sealing.prologue(index))
        except NoiseError:
            raise Dropped(Drop.HANDSHAKE) from None
        channel = self._by_key.get(asks.remote)
        if guest and place is not None:
            return self._on_guest(asks, index, channel, place, now_ns)
        if channel is None:
            raise Dropped(Drop.UNKNOWN_KEY)
        if source == channel.peer:
            return channel.on_init(asks, index, now_ns=now_ns)
        return self._on_elsewhere(channel, asks, index, identity, source, now_ns)

    def _on_elsewhere(
        self,
        channel: Channel,
        asks: Responder,
        index: int,
        identity: bytes,
        source: str | None,
        now_ns: int,
    ) -> list[ChannelCommand]:
        """Process an INIT of a peer's key from a place that is not the peer's."""
        try:
            return channel.on_init(asks, index, now_ns=now_ns, elsewhere=True)
        except Dropped as dropped:
            if dropped.why is Drop.TWICE:
                del self._taken[identity]  # a copy of it may come from the peer's own place
                self._drop(dropped.why, source)
                return [Twice(channel.peer)]
            lost = self.admits_strangers and not channel.hears(now_ns=now_ns)
            if lost and dropped.why is Drop.REPLAY:
                self._drop(dropped.why, source)
                return [Seek(channel.peer)]
            raise

    def _on_guest(
        self, asks: Responder, index: int, channel: Channel | None, place: Place, now_ns: int
    ) -> list[ChannelCommand]:
        """Process an INIT that Noise has authenticated, from a place that is no peer's."""
        if channel is None:
            psk = self.keys.psk.reveal()
            return self.guests.on_init(asks, index, psk, place, now_ns=now_ns)
        if sealing.asked(asks.payload).stamp <= channel.heard_stamp:
            raise Dropped(Drop.REPLAY)
        self._drop(Drop.STRANGER, None)
        return [Elsewhere(channel.peer, place)]

    def _remember(self, identity: bytes) -> None:
        self._taken[identity] = None
        if len(self._taken) > COPIES:
            del self._taken[next(iter(self._taken))]

    # -- load

    def _under_load(self, now_ns: int) -> bool:
        """Count an INIT, and return whether there are too many to compute for each."""
        if now_ns - self._second_ns >= SECOND:
            self._second_ns, self._inits = now_ns, 0
        self._inits += 1
        if self._inits > LOAD_PER_S:
            self._loaded_until_ns = now_ns + SECOND
        return now_ns < self._loaded_until_ns

    def _cookie_secret(self, now_ns: int) -> bytes:
        if not self._secret or now_ns - self._secret_ns >= COOKIE_SECRET_NS:
            self._secret, self._secret_ns = self._rng.randbytes(KEY_BYTES), now_ns
        return self._secret

    def _cookie_reply(self, datagram: bytes, identity: bytes, cookie: bytes) -> bytes:
        nonce = self._rng.randbytes(sealing.NONCE_BYTES)
        index = sealing.index_of(datagram)
        return sealing.cookie_reply(index, self._pair.public, nonce, cookie, identity)
