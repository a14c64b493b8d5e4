# SPDX-License-Identifier: GPL-2.0-only
"""Invitations: how a host without the secret of a cluster becomes one of its hosts (pure).

An invitation is a line of text: a statement of the authority that a host of some name may join
until some time. It is shown to nobody but the host that made it, sealed, so the host that has the
line is the one that is meant. Both messages are those of Noise_IKpsk2, as in a hand-shake, and go
by multicast:

    Request  "MRCj" | mac 16 | message 1: the invitation, and the keys of the host
    Answer   "MRCk" | the request's mac 16 | message 2: a Grant, or the reason of a refusal

The mac is keyed by the authority's public key for exchanges, which is in invitations and nowhere
else. It keeps those off who have none at the price of a hash.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mrcd.handshake import authority as authorities
from mrcd.handshake.authority import SIGNATURE_BYTES, Authority
from mrcd.handshake.certificate import CERTIFICATE_MAX, KeyBytes, Name
from mrcd.handshake.datagram import NO_MESSAGE
from mrcd.handshake.identity import KEY_BYTES, NO_PSK
from mrcd.handshake.noise import Initiator, KeyPair, NoiseError, Responder

VERSION: Final = 1
REQUEST: Final = b"MRCj"
ANSWER: Final = b"MRCk"
PREFIX: Final = "mrcd-invitation-1:"
IDENT_BYTES: Final = 16
TEXT_MAX: Final = 512
REASON_MAX: Final = 300
DATAGRAM_MAX: Final = 1200
HOURS: Final = 1
HOURS_MAX: Final = 24 * 30
_MAC: Final = 16
_CONTEXT: Final = b"mrcd 1 invitation\0"
_MAC_CONTEXT: Final = b"mrcd 1 request mac"
_PROLOGUE: Final = b"mrcd 1 invitation exchange"


class BadInvitation(Exception):
    """A text is no invitation, or a damaged one; the message says which, and repeats none of it."""


class BadRequest(Exception):
    """A datagram is no request for this host; the message says why."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    version: int
    ident: Annotated[bytes, Meta(min_length=IDENT_BYTES, max_length=IDENT_BYTES)]
    name: Name
    issuer: Name
    end_s: Annotated[int, Meta(ge=0, le=1 << 40)]
    authority: KeyBytes
    exchange: KeyBytes


class _Request(msgspec.Struct, frozen=True, array_like=True):
    version: int
    invitation: Annotated[bytes, Meta(max_length=TEXT_MAX)]
    signing: KeyBytes


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    version: int
    refusal: Annotated[str, Meta(max_length=REASON_MAX)] = ""
    certificate: Annotated[bytes, Meta(max_length=CERTIFICATE_MAX)] = b""
    hello_key: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    psk: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What an invitation says: for a host of what name, made by which host, until when (Unix time).

    `authority` checks certificates; `exchange` is the key to which the request is sealed.
    """

    ident: bytes
    name: str
    issuer: str
    end_s: int
    authority: bytes
    exchange: bytes
    statement: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """The line of text. It is a secret."""
        return PREFIX + base64.urlsafe_b64encode(self.statement).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a host gets that joins."""

    certificate: bytes
    hello_key: bytes = field(repr=False)
    psk: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a host may not join."""

    reason: str


def make(authority: Authority, name: str, issuer: str, *, ident: bytes, end_s: int) -> Invitation:
    """Return a new invitation; `ident` are random bytes."""
    body = _Body(VERSION, ident, name, issuer, end_s, authority.public, authority.exchange.public)
    return _read(authority.sign(_CONTEXT, msgspec.msgpack.encode(body)))


def read(text: str) -> Invitation:
    """Return the invitation in a line of text; raise BadInvitation if there is none."""
    text = text.strip()
    if not text:
        raise BadInvitation("is empty; `mrcctl invite NAME` on a host with the secret makes one")
    if not text.startswith(PREFIX):
        raise BadInvitation(f"is no invitation: one begins with {PREFIX}")
    coded = text.removeprefix(PREFIX)
    if len(coded) > TEXT_MAX:
        raise BadInvitation("is too long for an invitation")
    try:
        statement = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadInvitation("is damaged: copy the whole line again") from None
    return _read(statement)


def _read(statement: bytes) -> Invitation:
    try:
        found = msgspec.msgpack.decode(statement[SIGNATURE_BYTES:], type=_Body)
        authorities.read(found.authority, _CONTEXT, statement)
    except (*NO_MESSAGE, authorities.Unsigned):
        raise BadInvitation("is damaged: copy the whole line again") from None
    if found.version != VERSION:
        raise BadInvitation("was made by another version of mrcd")
    return Invitation(
        found.ident,
        found.name,
        found.issuer,
        found.end_s,
        found.authority,
        found.exchange,
        statement,
    )


def remedy(name: str) -> str:
    """Return what to do where an invitation is of no use any more."""
    return f"ask for a new one by `mrcctl invite {name}`"


def ended(name: str, end_s: int, now_s: int) -> str | None:
    """Return that an invitation has ended; None if it has not."""
    if now_s < end_s:
        return None
    return f"the invitation for {name} ended {ago(now_s - end_s)} ago; {remedy(name)}"


def ago(seconds: int) -> str:
    """Return a time in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{max(0, seconds)} s"


def _mac(exchange: bytes, message: bytes) -> bytes:
    return hmac.digest(exchange, _MAC_CONTEXT + message, "blake2s")[:_MAC]


class Asking:
    """The side of the host that joins. `request` may be sent again and again."""

    def __init__(
        self, invited: Invitation, pair: KeyPair, signing: bytes, ephemeral: bytes
    ) -> None:
        """`pair` are its keys of the hand-shake, `ephemeral` a fresh private key."""
        self._noise = Initiator(pair, invited.exchange, NO_PSK.reveal(), ephemeral, _PROLOGUE)
        said = msgspec.msgpack.encode(_Request(VERSION, invited.statement, signing))
        message = self._noise.write(said)
        self._tag = _mac(invited.exchange, message)
        self.request = REQUEST + self._tag + message

    def read(self, datagram: bytes) -> Grant | Refusal | None:
        """Return what the authority answers; None if the datagram is no answer to this host."""
        head = ANSWER + self._tag
        if len(datagram) > DATAGRAM_MAX or not datagram.startswith(head):
            return None
        try:
            payload, _secrets = self._noise.read(datagram[len(head) :])
            said = msgspec.msgpack.decode(payload, type=_Answer)
        except (NoiseError, *NO_MESSAGE):
            return None
        if said.version != VERSION:
            return Refusal("the host that made the invitation has another version of mrcd")
        if said.refusal:
            return Refusal("".join(c if c.isprintable() else "?" for c in said.refusal))
        if not len(said.hello_key) == len(said.psk) == KEY_BYTES:
            return None
        return Grant(said.certificate, said.hello_key, said.psk)


def is_for(exchange: bytes, datagram: bytes) -> bool:
    """Return whether a datagram is a request to the owner of a key, at the price of a hash."""
    if len(datagram) > DATAGRAM_MAX or not datagram.startswith(REQUEST):
        return False
    tag, message = datagram[4 : 4 + _MAC], datagram[4 + _MAC :]
    return hmac.compare_digest(tag, _mac(exchange, message))


class Request:
    """A request as the authority has read it: the invitation, and the keys of the host."""

    def __init__(self, authority: Authority, datagram: bytes) -> None:
        """Read a datagram; raise BadRequest if it is none that this authority can answer."""
        if not is_for(authority.exchange.public, datagram):
            raise BadRequest("it is no request, or for another authority")
        tag, message = datagram[4 : 4 + _MAC], datagram[4 + _MAC :]
        try:
            self._noise = Responder(authority.exchange, message, _PROLOGUE)
            said = msgspec.msgpack.decode(self._noise.payload, type=_Request)
            self.invitation = _read(said.invitation)
        except (NoiseError, *NO_MESSAGE, BadInvitation) as error:
            raise BadRequest(f"it cannot be read: {error}") from None
        if said.version != VERSION:
            raise BadRequest("it is of another version")
        if not hmac.compare_digest(self.invitation.authority, authority.public):
            raise BadRequest("its invitation was made by another authority")
        self._tag = tag
        self.exchange = self._noise.remote
        self.signing = said.signing

    def grant(self, granted: Grant, ephemeral: bytes) -> bytes:
        """Return the answer that lets the host join; `ephemeral` is a fresh private key."""
        said = _Answer(VERSION, "", granted.certificate, granted.hello_key, granted.psk)
        return self._answer(said, ephemeral)

    def refuse(self, reason: str, ephemeral: bytes) -> bytes:
        """Return the answer that says why it may not."""
        return self._answer(_Answer(VERSION, reason[:REASON_MAX]), ephemeral)

    def _answer(self, said: _Answer, ephemeral: bytes) -> bytes:
        payload = msgspec.msgpack.encode(said)
        message, _secrets = self._noise.write(NO_PSK.reveal(), ephemeral, payload)
        return ANSWER + self._tag + message
