# SPDX-License-Identifier: GPL-2.0-only
"""What hosts on networks with routers between them send each other to find each other (pure).

    Parcel    "MRCu" | cookie 8 that the receiver gave | cookie 8 for the receiver | a Hello, or a
              request to join or its answer
    Cookie    "MRCc" | the cookie 8 of the parcel that is answered | cookie 8
    Refused   "MRCx" | the cookie 8 of the parcel that is answered | number 8 of the reason

A host gives each address a cookie of its own. A parcel that brings this cookie back comes from who
can receive at its source address, and gets an answer of any length. One that does not gets 20
bytes, and what is no parcel gets nothing: nobody can have a host send more than was sent to it. A
cookie proves nothing else; the Hello in the parcel does.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

PARCEL: Final = b"MRCu"
COOKIE: Final = b"MRCc"
REFUSED: Final = b"MRCx"
COOKIE_BYTES: Final = 8
NO_COOKIE: Final = bytes(COOKIE_BYTES)
PARCEL_MAX: Final = 1400
"""No parcel is longer, unless names and addresses are as long as they may be, or hosts were revoked
just now: with UDP and IPv6 around it, it fits into any Ethernet."""
OTHER_SECRET: Final = 1
TRANSLATED: Final = 2
SHORT_BYTES: Final = 4 + 2 * COOKIE_BYTES
"""The length of Cookie and Refused."""
_CONTEXT: Final = b"mrcd 1 cookie"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message with the cookie that its receiver has given, and one for the receiver."""

    given: bytes
    cookie: bytes
    content: bytes

    def pack(self) -> bytes:
        """Return the datagram."""
        return PARCEL + self.given + self.cookie + self.content


@dataclass(frozen=True, slots=True)
class Short:
    """A short answer to the parcel that had `answered` for its receiver.

    It has another cookie, or the number of a reason.
    """

    kind: bytes
    answered: bytes
    value: bytes

    def pack(self) -> bytes:
        """Return the datagram."""
        return self.kind + self.answered + self.value


def cookie(parcel: Parcel, value: bytes) -> bytes:
    """Return the datagram that gives the sender of a parcel its cookie."""
    return Short(COOKIE, parcel.cookie, value).pack()


def refused(parcel: Parcel, reason: int) -> bytes:
    """Return the datagram that tells the sender of a parcel why it is not heard."""
    return Short(REFUSED, parcel.cookie, reason.to_bytes(COOKIE_BYTES, "big")).pack()


def read(datagram: bytes) -> Parcel | Short | None:
    """Return what a datagram is; None if it is nothing of the kind."""
    kind, body = datagram[:4], datagram[4:]
    if kind == PARCEL and len(datagram) > SHORT_BYTES:
        one, two = body[:COOKIE_BYTES], body[COOKIE_BYTES : 2 * COOKIE_BYTES]
        return Parcel(one, two, body[2 * COOKIE_BYTES :])
    if kind in (COOKIE, REFUSED) and len(datagram) == SHORT_BYTES:
        return Short(kind, body[:COOKIE_BYTES], body[COOKIE_BYTES:])
    return None


class Cookies:
    """The cookies that one run of a host gives others, which it need not remember."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is random, and this run's only."""
        self._secret = secret

    def of(self, plane: int, address: str) -> bytes:
        """Return the cookie of an address as it is heard on a plane."""
        said = _CONTEXT + bytes([plane]) + address.encode()
        return hmac.digest(self._secret, said, "blake2s")[:COOKIE_BYTES]

    def is_of(self, given: bytes, plane: int, address: str) -> bool:
        """Return whether a cookie is that of an address on a plane."""
        return hmac.compare_digest(given, self.of(plane, address))
