# SPDX-License-Identifier: GPL-2.0-only
"""What the holder of a cluster's secret can do, and others can check (pure).

The authority of a cluster is a signing key (Ed25519) that follows from the secret: each host that
knows the secret holds it. A statement is a signature and the body it is of. The context, another
one for each kind of statement, keeps one kind from being taken for another.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mrcd.handshake import identity
from mrcd.handshake.datagram import NO_MESSAGE, Versioned
from mrcd.handshake.identity import Secret
from mrcd.handshake.noise import KeyPair

SIGNATURE_BYTES: Final = 64
STATEMENT_MAX: Final = 256
"""The most bytes of a statement of the authority: a certificate, or a revocation."""
_AUTHORITY: Final = b"mrcd 1 authority"
_EXCHANGE: Final = b"mrcd 1 authority exchange"
_HELLO: Final = b"mrcd 1 hello key"
_SIGNER: Final = b"mrcd 1 hello signer "
_Kind = TypeVar("_Kind", bound=Versioned)


class Unsigned(Exception):
    """A statement is not of the authority; the message says why."""


class Signer:
    """A key that signs."""

    __slots__ = ("_private", "public")

    def __init__(self, seed: Secret) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed.reveal())
        self.public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, context: bytes, body: bytes) -> bytes:
        """Return the statement that says a body."""
        return self._private.sign(context + body) + body


class Authority(Signer):
    """The authority that belongs to a secret; `exchange` is for what is said to it alone."""

    __slots__ = ("_secret", "exchange")

    def __init__(self, secret: Secret) -> None:
        super().__init__(Secret(identity.derive(secret, _AUTHORITY)))
        self._secret = secret
        private = identity.private_key(identity.derive(secret, _EXCHANGE))
        self.exchange = KeyPair(private.reveal())

    @property
    def hello_key(self) -> Secret:
        """The key that tags Hellos."""
        return Secret(identity.derive(self._secret, _HELLO))

    @property
    def psk(self) -> Secret:
        """The pre-shared key of the hand-shake."""
        return identity.shared_psk(self._secret)

    def signer_of(self, host: str) -> Secret:
        """Return the seed of the key by which a host that knows the secret signs its Hellos."""
        return Secret(identity.derive(self._secret, _SIGNER + host.encode()))

    def exchange_of(self, host: str) -> bytes:
        """Return the public key, of the hand-shake, of a host that knows the secret."""
        return identity.public_key(identity.host_key(self._secret, host))


def read(public: bytes, context: bytes, statement: bytes) -> bytes:
    """Return the body of a statement; raise Unsigned unless the owner of `public` has said it."""
    signature, body = statement[:SIGNATURE_BYTES], statement[SIGNATURE_BYTES:]
    if not body:
        raise Unsigned("it is too short")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, context + body)
    except (InvalidSignature, ValueError):
        raise Unsigned("its signature is not good") from None
    return body


def message_of(
    public: bytes, context: bytes, statement: bytes, kind: type[_Kind], version: int
) -> _Kind:
    """Return the message in a statement; raise Unsigned, with the reason, if there is none."""
    if len(statement) > STATEMENT_MAX:
        raise Unsigned(f"{len(statement)} bytes, more than {STATEMENT_MAX}")
    try:
        found = msgspec.msgpack.decode(read(public, context, statement), type=kind)
    except NO_MESSAGE as error:
        raise Unsigned(f"it cannot be read: {error}") from None
    if found.version != version:
        raise Unsigned(f"version {found.version}, this daemon reads {version}")
    return found
