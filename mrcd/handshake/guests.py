# SPDX-License-Identifier: GPL-2.0-only
"""Strangers that ask for keys, until they are peers or refused (pure).

A stranger's INIT proves that it has some key pair, not that it may be here. Its RESPONSE is made
with the pre-shared key, which follows from the secret of the fabric: only a host that knows the
secret can say anything under the epoch. So a Guest counts for nothing until it has said something.
Then it is asked which host it is (introduction.py), until it answers, and the caller judges the
answer. The data path knows of a Guest only the index of its epoch, and no packet is sealed with its
keys: a host that is taken as a peer agrees on others.

There are at most GUESTS_MAX. One that has proved nothing makes room for the next.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from mrcd.handshake import introduction, sealing
from mrcd.handshake.channel import (
    EPOCH_MAX,
    SECOND,
    VERSIONS,
    Drop,
    Dropped,
    Indices,
    opened,
)
from mrcd.handshake.commands import ChannelCommand, Introduced, Reply
from mrcd.handshake.noise import COUNTER_MAX, KEY_BYTES, Responder, Secrets
from mrcd.handshake.sealing import Answered, Window

GUESTS_MAX: Final = 64
UNPROVED_NS: Final = 10 * SECOND
"""How long a guest may be silent."""
PROVED_NS: Final = 180 * SECOND
"""How long a guest may stay that has spoken; its keys are too old then."""
ASK_GAP_NS: Final = 1 * SECOND
"""The least time between two questions to one guest, and between two answers that are heard."""
REFUSED_GAP_NS: Final = 10 * SECOND
"""The same after a refusal: what stood in the way may be gone."""

Place = tuple[int, int]
"""A T0 and a port on it."""


@dataclass(slots=True, repr=False, eq=False)
class Guest:
    """One stranger, known by its public key and the place from which it asks."""

    place: Place
    remote: bytes
    stamp: int
    index: int
    theirs: int
    secrets: Secrets
    began_ns: int
    window: Window
    counter: int = 0
    proved: bool = False
    ask_ns: int = 0  # it is asked again from then on
    hear_ns: int = 0  # what it says of itself is heard again from then on

    def fresh(self, now_ns: int) -> bool:
        """Return whether it may stay."""
        return now_ns - self.began_ns < (PROVED_NS if self.proved else UNPROVED_NS)

    def on_sealed(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Open what it has sealed, and ask which host it is unless it says so."""
        if not self.fresh(now_ns):
            raise Dropped(Drop.EXPIRED)
        plaintext = opened(self.secrets, self.window, datagram)
        self.proved = True
        if plaintext.startswith(introduction.INTRODUCTION):
            if now_ns < self.hear_ns:
                return []
            self.hear_ns = now_ns + ASK_GAP_NS
            return [Introduced(self, plaintext)]
        if now_ns < self.ask_ns:
            return []
        self.ask_ns = now_ns + ASK_GAP_NS
        return self._say(introduction.question())

    def on_cookie(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Drop the datagram: a guest is never asked for one."""
        raise Dropped(Drop.UNKNOWN_INDEX)

    def on_response(self, datagram: bytes, *, now_ns: int) -> list[ChannelCommand]:
        """Drop the datagram: a guest is never asked for one."""
        raise Dropped(Drop.UNKNOWN_INDEX)

    def refuse(self, reason: str, *, now_ns: int) -> list[ChannelCommand]:
        """Say why it is not taken, and ask nothing for a while."""
        self.ask_ns = now_ns + REFUSED_GAP_NS
        return self._say(introduction.refusal(reason))

    def _say(self, plaintext: bytes) -> list[ChannelCommand]:
        if self.counter >= COUNTER_MAX:
            return []
        counter, self.counter = self.counter, self.counter + 1
        sealed = sealing.seal(self.secrets.send, self.theirs, counter, plaintext)
        return [Reply(self.place, sealed)]


class Guests:
    """All strangers. `indices` is that of the gate."""

    def __init__(self, rng: random.Random, indices: Indices) -> None:
        self._rng = rng
        self._indices = indices
        self._known: dict[bytes, Guest] = {}  # by public key, the oldest first

    def __len__(self) -> int:
        return len(self._known)

    def on_init(
        self, asks: Responder, index: int, psk: bytes, place: Place, *, now_ns: int
    ) -> list[ChannelCommand]:
        """Answer the INIT of a stranger, whose key is in no file."""
        said = sealing.asked(asks.payload)
        former = self._known.get(asks.remote)
        if said.epoch > EPOCH_MAX:
            raise Dropped(Drop.HANDSHAKE)
        if former is not None and said.stamp <= former.stamp:
            raise Dropped(Drop.REPLAY)
        version = min(said.newest, VERSIONS[1])
        if version < max(said.oldest, VERSIONS[0]):
            raise Dropped(Drop.VERSION)
        self._make_room(asks.remote, now_ns)
        ours = 0
        while ours == 0 or ours in self._indices:
            ours = self._rng.getrandbits(sealing.INDEX_BITS)
        answer = Answered(ours, said.epoch + 1, version)
        ephemeral = self._rng.randbytes(KEY_BYTES)
        message, secrets = asks.write(psk, ephemeral, answer.pack())
        guest = Guest(place, asks.remote, said.stamp, ours, index, secrets, now_ns, Window())
        self._known[asks.remote] = guest
        self._indices[ours] = guest
        return [Reply(place, sealing.response(index, message, asks.remote))]

    def _make_room(self, remote: bytes, now_ns: int) -> None:
        self.forget(remote)
        for key, guest in list(self._known.items()):
            if not guest.fresh(now_ns):
                self.forget(key)
        if len(self._known) < GUESTS_MAX:
            return
        silent = next((key for key, guest in self._known.items() if not guest.proved), None)
        if silent is None:
            raise Dropped(Drop.RATE)
        self.forget(silent)

    def forget(self, remote: bytes) -> Guest | None:
        """Forget the guest with a public key, and return it."""
        guest = self._known.pop(remote, None)
        if guest is not None:
            self._indices.pop(guest.index, None)
        return guest

    def clear(self) -> None:
        """Forget all."""
        for remote in list(self._known):
            self.forget(remote)
