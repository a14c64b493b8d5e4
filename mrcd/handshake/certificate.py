# SPDX-License-Identifier: GPL-2.0-only
"""Certificates: the authority of a cluster says which keys a host has (pure).

A host that knows the secret makes its own. One that was invited gets it for its invitation. A
certificate has the number of the newest revocation that its maker knew: a revocation of the same
name with a higher number ends it (revocation.py). Numbers need no clocks that agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from mrcd.handshake import authority as authorities
from mrcd.handshake.authority import Authority, Signer
from mrcd.handshake.identity import KEY_BYTES, Member
from mrcd.handshake.offer import NAME_MAX

VERSION: Final = 1
SERIAL_BYTES: Final = 8
CERTIFICATE_MAX: Final = authorities.STATEMENT_MAX
_CONTEXT: Final = b"mrcd 1 certificate\0"
NUMBER_MAX: Final = (1 << 63) - 1

How = Literal["secret", "invitation"]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
KeyBytes = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Serial = Annotated[bytes, Meta(min_length=SERIAL_BYTES, max_length=SERIAL_BYTES)]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


class BadCertificate(Exception):
    """A certificate is malformed, or the authority has not made it; the message says which."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    version: int
    name: Name
    exchange: KeyBytes
    signing: KeyBytes
    number: Number
    serial: Serial
    how: How


@dataclass(frozen=True, slots=True)
class Certificate:
    """Which keys a host has: `exchange` for the hand-shake, `signing` for its Hellos."""

    name: str
    exchange: bytes
    signing: bytes
    number: int
    serial: bytes
    how: How
    statement: bytes = field(repr=False, compare=False)


def issue(
    authority: Authority,
    name: str,
    exchange: bytes,
    signing: bytes,
    *,
    number: int,
    serial: bytes,
    how: How = "invitation",
) -> Certificate:
    """Return a new certificate."""
    body = msgspec.msgpack.encode(_Body(VERSION, name, exchange, signing, number, serial, how))
    statement = authority.sign(_CONTEXT, body)
    return Certificate(name, exchange, signing, number, serial, how, statement)


def read(authority: bytes, statement: bytes) -> Certificate:
    """Return the certificate in a statement; raise BadCertificate if it is none of ours."""
    try:
        found = authorities.message_of(authority, _CONTEXT, statement, _Body, VERSION)
    except authorities.Unsigned as error:
        raise BadCertificate(f"the authority has not made its certificate: {error}") from None
    return Certificate(
        found.name, found.exchange, found.signing, found.number, found.serial, found.how, statement
    )


def member_by_secret(authority: Authority, name: str) -> Member:
    """Return by what a host that knows the secret speaks; its keys follow from secret and name.

    Its certificate has number 0: any revocation of its name is for good.
    """
    seed = authority.signer_of(name)
    made = issue(
        authority,
        name,
        authority.exchange_of(name),
        Signer(seed).public,
        number=0,
        serial=bytes(SERIAL_BYTES),
        how="secret",
    )
    return Member(seed, made.statement, authority.public, authority.hello_key)
