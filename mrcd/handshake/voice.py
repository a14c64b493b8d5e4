# SPDX-License-Identifier: GPL-2.0-only
"""Hellos with the certificate of their host, and signed by it (pure).

    "MRCh" | tag 16 | signature 64 | certificate, digest of the revocations, notices, Hello

The tag keeps those out that are no hosts of the cluster, at the price of a hash, and before
anything is read. The signature keeps a host, also one that was put out and knows the key of the
tags, from speaking for another. A notice is a revocation: a host that is out and does not know it
reads it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from mrcd.handshake import authority as authorities
from mrcd.handshake import certificate as certificates
from mrcd.handshake import hello as hellos
from mrcd.handshake.authority import SIGNATURE_BYTES, Authority, Signer
from mrcd.handshake.certificate import CERTIFICATE_MAX, BadCertificate, Certificate
from mrcd.handshake.datagram import NO_MESSAGE
from mrcd.handshake.hello import TAG_BYTES, BadHello, Hello
from mrcd.handshake.identity import Keyring, Member
from mrcd.handshake.revocation import DIGEST_BYTES, Revocation, Revocations, Statement

MAGIC: Final = b"MRCh"
NOTICES_MAX: Final = 4
KNOWN_MAX: Final = 1024
"""Certificates that were checked, and need not be again."""
REPEATED: Final = 16
"""A notice is in so many Hellos after the last one of the host that is out."""
_CONTEXT: Final = b"mrcd 1 hello\0"
_TAG_CONTEXT: Final = b"mrcd 1 hello tag\0"
_HEAD: Final = len(MAGIC) + TAG_BYTES
_NO_LIST: Final = Revocations().digest


class _Body(msgspec.Struct, frozen=True, array_like=True):
    certificate: Annotated[bytes, Meta(max_length=CERTIFICATE_MAX)]
    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    notices: Annotated[tuple[Statement, ...], Meta(max_length=NOTICES_MAX)]
    hello: bytes


class Out(BadHello):
    """The host that says Hello was revoked; `untold`: no Hello of ours tells it yet."""

    def __init__(self, name: str, told: str, *, untold: bool) -> None:
        super().__init__(f"{name} {told}")
        self.name = name
        self.untold = untold


@dataclass(frozen=True, slots=True)
class Heard:
    """What a Hello says, and who says so; without a certificate nobody vouches for it.

    digest: of the list of revocations that its host has.
    """

    hello: Hello
    certificate: Certificate | None = None
    digest: bytes = _NO_LIST


class Voice(Protocol):
    """How a host says and hears Hellos."""

    def say(self, hello: Hello) -> bytes:
        """Return a Hello as a datagram."""

    def hear(self, datagram: bytes) -> Heard:
        """Return the Hello in a datagram. Raises BadHello."""

    @property
    def out(self) -> Revocation | None:
        """What says that this host is out."""


class Insecure:
    """The voice of hosts without a secret."""

    out = None

    def say(self, hello: Hello) -> bytes:
        """Return a Hello as a datagram."""
        return hellos.encode(hello, b"")

    def hear(self, datagram: bytes) -> Heard:
        """Return the Hello in a datagram. Raises BadHello."""
        return Heard(hellos.decode(datagram, b""))


class Trusted:
    """The voice of a host with a certificate. What notices say is added to the revocations."""

    def __init__(self, member: Member, revocations: Revocations) -> None:
        self.authority = member.authority
        self.own = certificates.read(member.authority, member.certificate)
        self.revocations = revocations
        self._signer = Signer(member.signer)
        self._key = member.hello_key.reveal()
        self._known: dict[bytes, Certificate] = {}
        self._notices: dict[str, int] = {}  # names, and in how many more Hellos
        self._news: list[Revocation] = []

    @property
    def out(self) -> Revocation | None:
        """What says that this host is out."""
        return self.revocations.of(self.own)

    @property
    def state(self) -> bytes:
        """What the meaning of a Hello depends on, beside its bytes."""
        return self.authority + self.own.statement + self.revocations.digest

    def news(self) -> list[Revocation]:
        """Return the revocations that notices have told of since the last call."""
        news, self._news = self._news, []
        return news

    def say(self, hello: Hello) -> bytes:
        """Return a Hello as a datagram."""
        inner = hellos.encode(hello, self._key)
        said = _Body(self.own.statement, self.revocations.digest, self._noticed(), inner)
        statement = self._signer.sign(_CONTEXT, msgspec.msgpack.encode(said))
        return MAGIC + self._tag(statement) + statement

    def _tag(self, statement: bytes) -> bytes:
        return hmac.digest(self._key, _TAG_CONTEXT + statement, "blake2s")[:TAG_BYTES]

    def _noticed(self) -> tuple[bytes, ...]:
        found = []
        for name, left in list(self._notices.items()):
            known = self.revocations.named(name)
            if left <= 0 or known is None:
                del self._notices[name]
            else:
                self._notices[name] = left - 1
                found.append(known.statement)
        return tuple(found)

    def is_ours(self, datagram: bytes) -> bool:
        """Return whether a Hello is of a host that knows the key of the tags."""
        tag, statement = datagram[len(MAGIC) : _HEAD], datagram[_HEAD:]
        ours = hmac.compare_digest(tag, self._tag(statement))
        return ours and datagram.startswith(MAGIC)

    def hear(self, datagram: bytes) -> Heard:
        """Return the Hello in a datagram. Raises BadHello, and Out for a host that was revoked."""
        if not datagram.startswith(MAGIC):
            hellos.decode(datagram, self._key)  # says in most cases what is wrong
            raise BadHello("its host shows no certificate")
        if not self.is_ours(datagram):
            raise BadHello("its host has another secret, or none")
        statement = datagram[_HEAD:]
        try:
            said = msgspec.msgpack.decode(statement[SIGNATURE_BYTES:], type=_Body)
        except NO_MESSAGE as error:
            raise BadHello(f"it cannot be read: {error}") from None
        hello = hellos.decode(said.hello, self._key)
        try:
            shown = self.checked(said.certificate)
            if (found := self.revocations.of(shown)) is not None:
                raise Out(shown.name, found.told, untold=self._note(shown.name))
            authorities.read(shown.signing, _CONTEXT, statement)
        except (BadCertificate, authorities.Unsigned) as error:
            raise BadHello(str(error)) from None
        if shown.name != hello.name:
            raise BadHello(f"its host is {shown.name}, and says to be {hello.name}")
        self._news += self.revocations.merge(self.authority, said.notices)
        return Heard(hello, shown, said.digest)

    def _note(self, name: str) -> bool:
        """Tell a host in the next Hellos that it is out; return whether that is news."""
        untold = self._notices.pop(name, 0) == 0
        while len(self._notices) >= NOTICES_MAX:
            del self._notices[next(iter(self._notices))]
        self._notices[name] = REPEATED
        return untold

    def checked(self, statement: bytes) -> Certificate:
        """Return the certificate in a statement; raise BadCertificate if it is none of ours."""
        found = self._known.get(statement)
        if found is None:
            found = certificates.read(self.authority, statement)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[statement] = found
        return found


def authority_of(ring: Keyring) -> bytes | None:
    """Return the public key by which certificates are checked; None without one."""
    if ring.member is not None:
        return ring.member.authority
    return None if ring.secret is None else Authority(ring.secret).public


def of(ring: Keyring, host: str, revocations: Revocations) -> Trusted | None:
    """Return the voice of a host with these keys; None if it cannot speak."""
    if ring.member is not None:
        return Trusted(ring.member, revocations)
    if ring.secret is None:
        return None
    return Trusted(certificates.member_by_secret(Authority(ring.secret), host), revocations)
