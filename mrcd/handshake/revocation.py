# SPDX-License-Identifier: GPL-2.0-only
"""Revocations: the authority of a cluster says that a host is out (pure).

A revocation names a host and has a number. It ends each certificate of that name with a lower
number, so a host that is invited again later is not concerned. The list of a host has at most one
revocation for each name, the one with the highest number: lists that meet become one, in whatever
order. Each is signed by itself, and travels in messages of a few:

    Revocations   some of the list, sealed, from one peer to another
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mrcd.handshake import authority as authorities
from mrcd.handshake import datagram as frames
from mrcd.handshake.authority import STATEMENT_MAX, Authority
from mrcd.handshake.certificate import Certificate, Name, Number

MAGIC: Final = b"MRCv"
VERSION: Final = 1
REVOKED_MAX: Final = 256
"""The most names that can be revoked; another secret begins with none."""
DIGEST_BYTES: Final = 8
EACH: Final = 4
"""Revocations in one message."""
REVOKED: Final = "revoked"
REPLACED: Final = "replaced"
_CONTEXT: Final = b"mrcd 1 revocation\0"
_WHY_MAX: Final = 16

Statement = Annotated[bytes, Meta(max_length=STATEMENT_MAX)]


class BadRevocation(Exception):
    """A revocation is malformed, or the authority has not made it."""


class Full(Exception):
    """As many names are revoked as can be."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    version: int
    name: Name
    number: Number
    when_s: Annotated[int, Meta(ge=0, le=(1 << 40))]
    by: Name
    why: Annotated[str, Meta(max_length=_WHY_MAX)]


class _Some(msgspec.Struct, frozen=True, array_like=True):
    version: int
    statements: Annotated[tuple[Statement, ...], Meta(max_length=EACH)]


@dataclass(frozen=True, slots=True)
class Revocation:
    """That a host is out: since when (Unix time), and by a command on which host.

    why: REVOKED, or REPLACED where the host was invited again.
    """

    name: str
    number: int
    when_s: int
    by: str
    why: str
    statement: bytes = field(repr=False, compare=False)

    @property
    def told(self) -> str:
        """What has become of the host, for a sentence that begins with its name."""
        if self.why == REPLACED:
            return f"was invited again on {self.by}, which has ended its former key"
        return f"was revoked on {self.by}"

    def ends(self, certificate: Certificate) -> bool:
        """Return whether a certificate does not count any more."""
        return certificate.name == self.name and certificate.number < self.number


def read(authority: bytes, statement: bytes) -> Revocation:
    """Return the revocation in a statement; raise BadRevocation if it is none of ours."""
    try:
        found = authorities.message_of(authority, _CONTEXT, statement, _Body, VERSION)
    except authorities.Unsigned as error:
        raise BadRevocation(f"the authority has not made it: {error}") from None
    return Revocation(found.name, found.number, found.when_s, found.by, found.why, statement)


class Revocations:
    """The list of one host."""

    def __init__(self, known: Iterable[Revocation] = ()) -> None:
        self._by_name: dict[str, Revocation] = {}
        self._digest: bytes | None = None
        for each in known:
            self._take(each)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Revocation]:
        return iter(self._by_name.values())

    def _take(self, found: Revocation) -> bool:
        known = self._by_name.get(found.name)
        if known is None and len(self) >= REVOKED_MAX:
            return False
        if known is not None and known.number >= found.number:
            return False
        self._by_name[found.name] = found
        self._digest = None
        return True

    @property
    def number(self) -> int:
        """The highest number of all."""
        return max((each.number for each in self), default=0)

    @property
    def digest(self) -> bytes:
        """What tells two lists apart."""
        if self._digest is None:
            numbers = sorted((each.name, each.number) for each in self)
            said = msgspec.msgpack.encode(numbers)
            self._digest = hashlib.blake2s(said, digest_size=DIGEST_BYTES).digest()
        return self._digest

    def revoke(
        self, authority: Authority, name: str, *, now_s: int, by: str, why: str = REVOKED
    ) -> Revocation:
        """Add a revocation of a host as it is now; raise Full if there is no room."""
        if name not in self._by_name and len(self) >= REVOKED_MAX:
            raise Full(
                f"{REVOKED_MAX} names are revoked, as many as can be; change the secret, by which "
                "all begin anew"
            )
        body = msgspec.msgpack.encode(_Body(VERSION, name, self.number + 1, now_s, by, why))
        made = read(authority.public, authority.sign(_CONTEXT, body))
        self._take(made)
        return made

    def merge(self, authority: bytes, statements: Iterable[bytes]) -> list[Revocation]:
        """Take what the authority has said; return what is news."""
        given, news = [*statements], []
        known = {each.statement for each in self} if given else set()
        for statement in given:
            if statement in known:
                continue
            try:
                found = read(authority, statement)
            except BadRevocation:
                continue
            if self._take(found):
                news.append(found)
        return news

    def of(self, certificate: Certificate) -> Revocation | None:
        """Return what ends a certificate; None if it counts."""
        found = self._by_name.get(certificate.name)
        return found if found is not None and found.ends(certificate) else None

    def named(self, name: str) -> Revocation | None:
        """Return the revocation of a name."""
        return self._by_name.get(name)

    def messages(self) -> list[bytes]:
        """Return the list as messages to a peer."""
        return messages([each.statement for each in self])


def messages(statements: Sequence[bytes]) -> list[bytes]:
    """Return messages to a peer with these revocations in them."""
    parts = (statements[at : at + EACH] for at in range(0, len(statements), EACH))
    return [frames.encode(MAGIC, _Some(VERSION, tuple(part))) for part in parts]


def statements_of(message: bytes) -> tuple[bytes, ...]:
    """Return what a message holds; raise DatagramError, with the reason, if it is none."""
    return frames.message_of(MAGIC, message, _Some, VERSION).statements
