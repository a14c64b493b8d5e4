# SPDX-License-Identifier: GPL-2.0-only
"""Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, the key exchange under the hand-shake (pure).

Source: The Noise Protocol Framework, revision 34. The pattern is the one of WireGuard:

    <- s                     the initiator knows the responder's public key
    -> e, es, s, ss          message 1: a fresh key, and who is asking
    <- e, ee, se, psk        message 2: the responder's fresh key

Message 1 tells nobody but the responder who the initiator is, and only the owner of the initiator's
private key can make one. After message 2 both sides have the same secrets, which a third party
cannot compute even if it learns both private keys later, nor if it can compute discrete logarithms
but lacks the pre-shared key.

Ephemeral private keys are arguments: this module knows no randomness. A caller must never use one
twice. A method that raises NoiseError leaves its object as it was, so a forged answer does not
spoil the genuine one.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PROTOCOL: Final = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
MESSAGE_1_BYTES: Final = KEY_BYTES + KEY_BYTES + TAG_BYTES + TAG_BYTES
"""Length of message 1 with an empty payload."""
MESSAGE_2_BYTES: Final = KEY_BYTES + TAG_BYTES
"""Length of message 2 with an empty payload."""
COUNTER_MAX: Final = (1 << 64) - 2
"""Highest counter of a cipher: Noise reserves the one beyond."""
_NONCE: Final = struct.Struct("<4xQ")


class NoiseError(Exception):
    """A message is not authentic, or a public key is none; nothing has changed."""


class KeyPair:
    """An X25519 key pair. The private key never appears in its representation."""

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes) -> None:
        """Take a private key of 32 bytes; raise ValueError if the length is another."""
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def shared(self, public: bytes) -> bytes:
        """Return the secret shared with the owner of a public key; NoiseError if there is none."""
        try:
            found = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise NoiseError("not a usable public key: its order is low, or its length") from None
        if not any(found):
            raise NoiseError("not a usable public key: its order is low")
        return found


class Cipher:
    """ChaCha20-Poly1305 under one key, with a counter as the nonce."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        self._aead = ChaCha20Poly1305(key)

    def seal(self, counter: int, plaintext: bytes, bound: bytes = b"") -> bytes:
        """Return the ciphertext; `bound` is authenticated with it. Use no counter twice."""
        return self._aead.encrypt(_NONCE.pack(counter), plaintext, bound)

    def open(self, counter: int, ciphertext: bytes, bound: bytes = b"") -> bytes:
        """Return the plaintext; raise NoiseError if anything differs from what was sealed."""
        try:
            return self._aead.decrypt(_NONCE.pack(counter), ciphertext, bound)
        except (InvalidTag, ValueError):
            raise NoiseError("not authentic") from None


def hash_of(*parts: bytes) -> bytes:
    """Return BLAKE2s of the parts one after another: 32 bytes."""
    return hashlib.blake2s(b"".join(parts)).digest()


def _hmac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.blake2s).digest()


def hkdf(chaining: bytes, material: bytes, outputs: int) -> tuple[bytes, ...]:
    """Return Noise's HKDF: RFC 5869 with HMAC-BLAKE2s, `chaining` as salt and no info."""
    secret = _hmac(chaining, material)
    found: list[bytes] = []
    for number in range(1, outputs + 1):
        found.append(_hmac(secret, found[-1] if found else b"", bytes([number])))
    return tuple(found)


class _Symmetric:
    """Noise's SymmetricState as a value: each step returns the next state."""

    __slots__ = ("chaining", "hash", "key", "number")

    def __init__(self, chaining: bytes, digest: bytes, key: bytes = b"", number: int = 0) -> None:
        self.chaining = chaining
        self.hash = digest
        self.key = key
        self.number = number

    def mix_hash(self, data: bytes) -> _Symmetric:
        return _Symmetric(self.chaining, hash_of(self.hash, data), self.key, self.number)

    def mix_key(self, material: bytes) -> _Symmetric:
        chaining, key = hkdf(self.chaining, material, 2)
        return _Symmetric(chaining, self.hash, key)

    def mix_psk(self, psk: bytes) -> _Symmetric:
        chaining, mixed, key = hkdf(self.chaining, psk, 3)
        return _Symmetric(chaining, hash_of(self.hash, mixed), key)

    def mix_ephemeral(self, public: bytes) -> _Symmetric:
        """Process token "e"; patterns with a pre-shared key mix it into the key as well."""
        return self.mix_hash(public).mix_key(public)

    def seal(self, plaintext: bytes) -> tuple[_Symmetric, bytes]:
        ciphertext = Cipher(self.key).seal(self.number, plaintext, self.hash)
        return self._after(ciphertext), ciphertext

    def open(self, ciphertext: bytes) -> tuple[_Symmetric, bytes]:
        plaintext = Cipher(self.key).open(self.number, ciphertext, self.hash)
        return self._after(ciphertext), plaintext

    def _after(self, ciphertext: bytes) -> _Symmetric:
        return _Symmetric(self.chaining, hash_of(self.hash, ciphertext), self.key, self.number + 1)


class Secrets:
    """The result of a finished exchange, from this side's point of view.

    `digest` is the hash of everything that was said, the same on both sides.
    """

    __slots__ = ("_chaining", "digest", "receive", "send")

    def __init__(self, chaining: bytes, digest: bytes, send: Cipher, receive: Cipher) -> None:
        self._chaining = chaining
        self.digest = digest
        self.send = send
        self.receive = receive

    def export(self, label: bytes) -> bytes:
        """Return 32 more secret bytes, the same on both sides, independent of both ciphers."""
        (found,) = hkdf(self._chaining, label + self.digest, 1)
        return found


def _finished(state: _Symmetric, *, initiator: bool) -> Secrets:
    forth, back = (Cipher(key) for key in hkdf(state.chaining, b"", 2))
    send, receive = (forth, back) if initiator else (back, forth)
    return Secrets(state.chaining, state.hash, send, receive)


def _start(prologue: bytes, responder: bytes) -> _Symmetric:
    name = hash_of(PROTOCOL)
    return _Symmetric(name, name).mix_hash(prologue).mix_hash(responder)


class Initiator:
    """The side that asks. Call `write`, then `read`."""

    __slots__ = ("_ephemeral", "_psk", "_state", "_static", "remote")

    def __init__(
        self, static: KeyPair, remote: bytes, psk: bytes, ephemeral: bytes, prologue: bytes = b""
    ) -> None:
        """`remote` is the responder's public key, `ephemeral` a fresh private key."""
        self.remote = remote
        self._static = static
        self._psk = psk
        self._ephemeral = KeyPair(ephemeral)
        self._state = _start(prologue, remote)

    def write(self, payload: bytes) -> bytes:
        """Return message 1; NoiseError if the responder's public key is of low order."""
        state = self._state.mix_ephemeral(self._ephemeral.public)
        state = state.mix_key(self._ephemeral.shared(self.remote))
        state, static = state.seal(self._static.public)
        state = state.mix_key(self._static.shared(self.remote))
        self._state, sealed = state.seal(payload)
        return self._ephemeral.public + static + sealed

    def read(self, message: bytes) -> tuple[bytes, Secrets]:
        """Return the payload of message 2 and the secrets; NoiseError if it is not the answer."""
        if len(message) < MESSAGE_2_BYTES:
            raise NoiseError(f"{len(message)} bytes, less than {MESSAGE_2_BYTES}")
        ephemeral, sealed = message[:KEY_BYTES], message[KEY_BYTES:]
        state = self._state.mix_ephemeral(ephemeral)
        state = state.mix_key(self._ephemeral.shared(ephemeral))
        state = state.mix_key(self._static.shared(ephemeral)).mix_psk(self._psk)
        state, payload = state.open(sealed)
        return payload, _finished(state, initiator=True)


class Responder:
    """The side that was asked, after it has read message 1."""

    __slots__ = ("_remote_ephemeral", "_state", "payload", "remote")

    def __init__(self, static: KeyPair, message: bytes, prologue: bytes = b"") -> None:
        """Read message 1: `remote` is the initiator's public key, `payload` what it says.

        Raises NoiseError unless the owner of that key made the message, for this host.
        """
        if len(message) < MESSAGE_1_BYTES:
            raise NoiseError(f"{len(message)} bytes, less than {MESSAGE_1_BYTES}")
        end = KEY_BYTES + KEY_BYTES + TAG_BYTES
        ephemeral, sealed, rest = message[:KEY_BYTES], message[KEY_BYTES:end], message[end:]
        state = _start(prologue, static.public).mix_ephemeral(ephemeral)
        state, remote = state.mix_key(static.shared(ephemeral)).open(sealed)
        self._state, self.payload = state.mix_key(static.shared(remote)).open(rest)
        self.remote = remote
        self._remote_ephemeral = ephemeral

    def write(self, psk: bytes, ephemeral: bytes, payload: bytes) -> tuple[bytes, Secrets]:
        """Return message 2 and the secrets. `ephemeral` is a fresh private key."""
        ours = KeyPair(ephemeral)
        state = self._state.mix_ephemeral(ours.public)
        state = state.mix_key(ours.shared(self._remote_ephemeral))
        state = state.mix_key(ours.shared(self.remote)).mix_psk(psk)
        state, sealed = state.seal(payload)
        return ours.public + sealed, _finished(state, initiator=False)
