# SPDX-License-Identifier: GPL-2.0-only
"""The four messages of a channel as bytes, and the window against replays (pure).

All numbers are in network order. In bytes:

    INIT      "MRC1" | sender index 4 | message 1 of Noise, with stamp 8, epoch 8, oldest 1 and
              newest 1 | mac1 | mac2
    RESPONSE  "MRC2" | receiver index 4 | message 2 of Noise, with index 4, epoch 8 and version 1 |
              mac1
    COOKIE    "MRC3" | receiver index 4 | nonce 16 | cookie, sealed
    SEALED    "MRC4" | receiver index 4 | counter 8 | plaintext, sealed

mac1 has 8 bytes, mac2 16. mac1 shows that the sender knows the receiver's public key, which keeps
scanners out at the price of one hash: SipHash, because mrc_receive checks it (bpf/admit.c). mac2 is
made with a cookie, and shows that the sender can receive at its source address. Neither proves who
sent it; Noise does.

The header and the index of an INIT are part of Noise's prologue, those of a SEALED are bound by its
tag, and the index in a RESPONSE's payload is sealed: nobody can change one on the way.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

from mrcd.handshake.datagram import MAX_BYTES
from mrcd.handshake.noise import MESSAGE_1_BYTES, MESSAGE_2_BYTES, TAG_BYTES, Cipher, hash_of
from mrcd.wire.tag import padded, siphash

INIT: Final = b"MRC1"
RESPONSE: Final = b"MRC2"
COOKIE: Final = b"MRC3"
SEALED: Final = b"MRC4"
MAC1_BYTES: Final = 8
MAC_BYTES: Final = 16
NONCE_BYTES: Final = 16
INDEX_BITS: Final = 32
WINDOW: Final = 1024
"""Counters up to this far below the highest one are told apart; older ones count as replays."""

_PROLOGUE: Final = b"mrcd channel 1"
_HEAD: Final = struct.Struct("!4sI")
_SEALED_HEAD: Final = struct.Struct("!4sIQ")
_ASKED: Final = struct.Struct("!QQBB")
_ANSWERED: Final = struct.Struct("!IQB")
INIT_BYTES: Final = _HEAD.size + MESSAGE_1_BYTES + _ASKED.size + MAC1_BYTES + MAC_BYTES
RESPONSE_BYTES: Final = _HEAD.size + MESSAGE_2_BYTES + _ANSWERED.size + MAC1_BYTES
COOKIE_BYTES: Final = _HEAD.size + NONCE_BYTES + MAC_BYTES + TAG_BYTES
SEALED_OVERHEAD: Final = _SEALED_HEAD.size + TAG_BYTES
SEALED_MAX_BYTES: Final = MAX_BYTES + SEALED_OVERHEAD
"""The longest datagram: 1232 bytes. A plane carries 1408 or more, of which headers take 88."""
LENGTHS: Final = {
    INIT: (INIT_BYTES, INIT_BYTES),
    RESPONSE: (RESPONSE_BYTES, RESPONSE_BYTES),
    COOKIE: (COOKIE_BYTES, COOKIE_BYTES),
    SEALED: (SEALED_OVERHEAD, SEALED_MAX_BYTES),
}
"""Least and greatest length of each message."""


def kind_of(datagram: bytes) -> bytes | None:
    """Return which of the four messages a datagram may be by its first bytes and its length."""
    kind = datagram[:4]
    low, high = LENGTHS.get(kind, (1, 0))
    return kind if low <= len(datagram) <= high else None


def index_of(datagram: bytes) -> int:
    """Return the index in a message's header."""
    index: int = _HEAD.unpack_from(datagram)[1]
    return index


def prologue(index: int) -> bytes:
    """Return Noise's prologue of the exchange that an initiator numbers `index`."""
    return _PROLOGUE + _HEAD.pack(INIT, index)


# ---- INIT and RESPONSE


@dataclass(frozen=True, slots=True)
class Asked:
    """What an INIT says: when it was made, and the epoch that its sender sends under (0: none).

    `oldest` and `newest` are the versions of the channel that the sender speaks.
    """

    stamp: int
    epoch: int
    oldest: int
    newest: int

    def pack(self) -> bytes:
        """Return the payload of message 1."""
        return _ASKED.pack(self.stamp, self.epoch, self.oldest, self.newest)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a RESPONSE says: the responder's index, and the number of the new epoch.

    With index 0 there is no new epoch, and `epoch` is the one that the responder sends under.
    """

    index: int
    epoch: int
    version: int

    def pack(self) -> bytes:
        """Return the payload of message 2."""
        return _ANSWERED.pack(self.index, self.epoch, self.version)


def asked(payload: bytes) -> Asked:
    """Return what the payload of message 1 says; INIT_BYTES fixes its length."""
    return Asked(*_ASKED.unpack(payload))


def answered(payload: bytes) -> Answered:
    """Return what the payload of message 2 says; RESPONSE_BYTES fixes its length."""
    return Answered(*_ANSWERED.unpack(payload))


def init(index: int, message: bytes, receiver: bytes, cookie: bytes) -> bytes:
    """Return an INIT to the owner of the public key `receiver`; `cookie` may be empty."""
    body = _HEAD.pack(INIT, index) + message
    body += mac1(receiver, body)
    return body + (mac2(cookie, body) if cookie else bytes(MAC_BYTES))


def response(index: int, message: bytes, receiver: bytes) -> bytes:
    """Return a RESPONSE to the owner of the public key `receiver`."""
    body = _HEAD.pack(RESPONSE, index) + message
    return body + mac1(receiver, body)


def noise_of(datagram: bytes) -> bytes:
    """Return the message of Noise in an INIT or a RESPONSE."""
    macs = MAC1_BYTES + (MAC_BYTES if datagram[:4] == INIT else 0)
    return datagram[_HEAD.size : -macs]


# ---- MACs and cookies


def mac1(receiver: bytes, body: bytes) -> bytes:
    """Return the MAC that a sender needs the receiver's public key for."""
    return siphash(mac1_key(receiver), padded(body)).to_bytes(MAC1_BYTES, "little")


def mac1_key(receiver: bytes) -> bytes:
    """Return the key of mac1 that follows from the receiver's public key, 16 bytes."""
    return hash_of(b"mrcd mac1", receiver)[:MAC_BYTES]


def mac2(cookie: bytes, body: bytes) -> bytes:
    """Return the MAC that a sender needs the cookie for; `body` includes mac1."""
    return _mac(cookie, body)


def _mac(key: bytes, body: bytes) -> bytes:
    return hashlib.blake2s(body, key=key, digest_size=MAC_BYTES).digest()


def has_mac1(datagram: bytes, receiver: bytes) -> bool:
    """Return whether mac1 of an INIT or a RESPONSE is right."""
    end = len(datagram) - (MAC_BYTES if datagram[:4] == INIT else 0)
    found = datagram[end - MAC1_BYTES : end]
    return hmac.compare_digest(found, mac1(receiver, datagram[: end - MAC1_BYTES]))


def has_mac2(datagram: bytes, cookie: bytes) -> bool:
    """Return whether mac2 of an INIT was made with a cookie."""
    return hmac.compare_digest(datagram[-MAC_BYTES:], mac2(cookie, datagram[:-MAC_BYTES]))


def mac1_of(datagram: bytes) -> bytes:
    """Return mac1 of an INIT, which identifies it."""
    return datagram[-MAC1_BYTES - MAC_BYTES : -MAC_BYTES]


def new_cookie(secret: bytes, source: str) -> bytes:
    """Return the cookie for a source under the present secret."""
    return _mac(secret, source.encode())


def cookie_reply(index: int, receiver: bytes, nonce: bytes, cookie: bytes, to: bytes) -> bytes:
    """Return a COOKIE to the sender of an INIT with this index and the mac1 `to`.

    `receiver` is the public key that the INIT was for: who does not know it learns no cookie.
    """
    sealed = _cookie_cipher(receiver, nonce).seal(0, cookie, to)
    return _HEAD.pack(COOKIE, index) + nonce + sealed


def open_cookie(datagram: bytes, receiver: bytes, to: bytes) -> bytes:
    """Return the cookie in a COOKIE; NoiseError unless it answers the INIT with the mac1 `to`."""
    end = _HEAD.size + NONCE_BYTES
    cipher = _cookie_cipher(receiver, datagram[_HEAD.size : end])
    return cipher.open(0, datagram[end:], to)


def _cookie_cipher(receiver: bytes, nonce: bytes) -> Cipher:
    """Return a cipher for one use: its key is made of the nonce, which is too long for a nonce."""
    key = hash_of(b"mrcd cookie", receiver)
    return Cipher(hashlib.blake2s(nonce, key=key).digest())


# ---- SEALED


def seal(cipher: Cipher, index: int, counter: int, plaintext: bytes) -> bytes:
    """Return a SEALED."""
    head = _SEALED_HEAD.pack(SEALED, index, counter)
    return head + cipher.seal(counter, plaintext, head)


def counter_of(datagram: bytes) -> int:
    """Return the counter of a SEALED."""
    counter: int = _SEALED_HEAD.unpack_from(datagram)[2]
    return counter


def unseal(cipher: Cipher, datagram: bytes) -> bytes:
    """Return the plaintext of a SEALED; NoiseError if it is not authentic."""
    head, rest = datagram[: _SEALED_HEAD.size], datagram[_SEALED_HEAD.size :]
    return cipher.open(counter_of(datagram), rest, head)


class Window:
    """The counters that were received (RFC 6479 is the idea; a Python integer is the bitmap)."""

    __slots__ = ("_bits", "_next")

    def __init__(self) -> None:
        self._next = 0  # one beyond the highest counter
        self._bits = 0  # bit k: the counter _next - 1 - k was received

    def is_new(self, counter: int) -> bool:
        """Return whether a counter is neither known nor older than the window."""
        behind = self._next - 1 - counter
        return behind < 0 or (behind < WINDOW and not self._bits >> behind & 1)

    def add(self, counter: int) -> None:
        """Remember the counter of an authentic message that is new."""
        ahead = counter + 1 - self._next
        if ahead > 0:
            kept = self._bits << ahead if ahead < WINDOW else 0
            self._bits = (kept & ((1 << WINDOW) - 1)) | 1
            self._next = counter + 1
        else:
            self._bits |= 1 << -ahead
