# SPDX-License-Identifier: GPL-2.0-only
"""Who a host is: its key pair, those of its peers, and how people write keys (pure).

A key is 32 bytes, written in base64 as WireGuard writes it. There are two profiles:

* Each host has a private key of its own, and the fabric file lists every host's public key. A
  stolen host can speak for itself only.
* The simple profile: all hosts have one secret. Each host's private key follows from the secret and
  the host's name, so the peers' public keys need not be listed. A stolen host can speak for all.

A pre-shared key may be added to the first profile; in the second it follows from the secret. A host
that was invited (invitation.py) has a private key of its own, and knows the pre-shared key of the
second profile, but not the secret.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

KEY_BYTES: Final = 32
KEY_CHARS: Final = 44
_HOST: Final = b"mrcd 1 host key "
_PSK: Final = b"mrcd 1 pre-shared key"
_PROFILE: Final = b"mrcd 1 fabric secret"


class BadKey(ValueError):
    """A text or a number of bytes is no key. The message never repeats it."""


class Secret:
    """Secret bytes that no representation, log line or pickle shows. `reveal` returns them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the bytes. Never put them into a message."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not written anywhere")


NO_PSK: Final = Secret(bytes(KEY_BYTES))
"""What stands for the pre-shared key where there is none, as in WireGuard."""


def encode_key(key: bytes) -> str:
    """Return a key as people write it: 44 characters of base64."""
    return base64.b64encode(key).decode()


def decode_key(text: str) -> bytes:
    """Return the 32 bytes of a key; raise BadKey, with what is wrong, if the text is none."""
    text = text.strip()
    if not text:
        raise BadKey("is empty; a key is 44 characters of base64")
    if len(text) != KEY_CHARS:
        raise BadKey(f"has {len(text)} characters; a key is {KEY_CHARS} of base64")
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadKey(f"is not base64; a key is {KEY_CHARS} characters of it") from None
    if len(key) != KEY_BYTES or encode_key(key) != text:
        raise BadKey(f"is not the base64 of {KEY_BYTES} bytes")
    return key


def decode_public(text: str) -> bytes:
    """Return the bytes of a public key; raise BadKey if it is none, or nobody can have it."""
    from mrcd.handshake.noise import KeyPair, NoiseError  # noqa: PLC0415

    key = decode_key(text)
    try:
        KeyPair(b"\x40" * KEY_BYTES).shared(key)
    except NoiseError:
        raise BadKey("is not a public key: no private key belongs to it") from None
    return key


def private_key(random: bytes) -> Secret:
    """Return a private key made of 32 random bytes, with the fixed bits of X25519 set."""
    if len(random) != KEY_BYTES:
        raise BadKey(f"has {len(random)} bytes; a key is {KEY_BYTES}")
    return Secret(bytes([random[0] & 248]) + random[1:31] + bytes([random[31] & 127 | 64]))


def public_key(private: Secret) -> bytes:
    """Return the public key that belongs to a private one."""
    from mrcd.handshake.noise import KeyPair  # noqa: PLC0415

    return KeyPair(private.reveal()).public


def host_key(secret: Secret, host: str) -> Secret:
    """Return a host's private key in the simple profile: HKDF of the secret and the name."""
    return private_key(derive(secret, _HOST + host.encode()))


def shared_psk(secret: Secret) -> Secret:
    """Return the pre-shared key of the simple profile."""
    return Secret(derive(secret, _PSK))


def derive(secret: Secret, info: bytes) -> bytes:
    """Return 32 bytes that follow from a secret: HKDF (RFC 5869) with HMAC-BLAKE2s."""
    extracted = hmac.digest(_PROFILE, secret.reveal(), "blake2s")
    return hmac.digest(extracted, info + b"\x01", "blake2s")


@dataclass(frozen=True, slots=True)
class Member:
    """By what a host speaks among hosts that find each other (voice.py).

    `signer` is the seed of the key that signs its Hellos, `certificate` its certificate, and
    `authority` the public key by which it checks those of others. `hello_key` tags Hellos.
    """

    signer: Secret
    certificate: bytes
    authority: bytes
    hello_key: Secret


@dataclass(frozen=True, slots=True)
class Keyring:
    """This host's keys, and the public keys of its peers by name.

    invited: it is a host that has an invitation, which is the text `invitation` if it is still
    there. `member` is None until it has a certificate.
    """

    private: Secret
    public: bytes
    psk: Secret
    peers: Mapping[str, bytes]
    simple: bool  # whether all of them follow from one secret
    secret: Secret | None = None  # that one
    invited: bool = False
    invitation: Secret | None = None
    member: Member | None = None

    @property
    def admits(self) -> bool:
        """Whether the keys of hosts that no file lists can be known."""
        return self.secret is not None or self.member is not None

    def with_peer(self, name: str, public_key: str = "") -> Keyring:
        """Return the ring with one more peer; without a key its key follows from the secret."""
        key = decode_key(public_key) if public_key else self.derived(name)
        return replace(self, peers={**self.peers, name: key})

    def derived(self, name: str) -> bytes:
        """Return the public key that a host of this name has; only in the simple profile."""
        assert self.secret is not None, "each host has a key of its own"
        return public_key(host_key(self.secret, name))


def own_keys(private: Secret, peers: Mapping[str, bytes], psk: Secret = NO_PSK) -> Keyring:
    """Return the key ring of a host with a private key of its own."""
    return Keyring(private, public_key(private), psk, dict(peers), simple=False)


def invited_keys(
    private: Secret,
    invitation: Secret | None = None,
    psk: Secret = NO_PSK,
    member: Member | None = None,
) -> Keyring:
    """Return the key ring of a host that was invited; without a `member`, of one that asks."""
    public = public_key(private)
    return Keyring(
        private, public, psk, {}, simple=False, invited=True, invitation=invitation, member=member
    )


def simple_keys(secret: Secret, host: str, peers: Iterable[str]) -> Keyring:
    """Return the key ring of a host in the simple profile."""
    private = host_key(secret, host)
    public = {name: public_key(host_key(secret, name)) for name in peers}
    psk = shared_psk(secret)
    return Keyring(private, public_key(private), psk, public, simple=True, secret=secret)
