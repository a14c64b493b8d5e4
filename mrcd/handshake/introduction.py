# SPDX-License-Identifier: GPL-2.0-only
"""What a host and a stranger say to each other, sealed, before the stranger is a peer (pure).

    Question      which host are you? to a stranger that has proved to know the secret
    Introduction  its entry in its fabric file, and the digest of the frame (mrcd/fabric/digest.py)
    Refusal       why it is not taken as a peer

A host that takes strangers asks; every host answers one that it has as a peer.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from mrcd.handshake import datagram as frames
from mrcd.handshake.offer import NAME_MAX, HandshakeError

QUESTION: Final = b"MRCw"
INTRODUCTION: Final = b"MRCi"
REFUSAL: Final = b"MRCn"
VERSION: Final = 1
ADDRESSES_MAX: Final = 8
REASON_MAX: Final = 400

Number = Annotated[int, Meta(ge=1, le=0xFFFF)]


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A question for the entry of its receiver."""

    version: int = VERSION


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """The entry of a host: its place, and its addresses of mrc0 with their prefix lengths."""

    version: int
    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
    t0: Number
    port: Number
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(min_length=1, max_length=ADDRESSES_MAX),
    ]
    frame: int


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a stranger is not taken as a peer."""

    version: int
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_MAX)]


_Kind = TypeVar("_Kind", Introduction, Refusal)


def question() -> bytes:
    """Return the message that asks for an Introduction."""
    return frames.encode(QUESTION, Question())


def introduction(name: str, t0: int, port: int, addresses: tuple[str, ...], frame: int) -> bytes:
    """Return the message that states a host's entry."""
    return frames.encode(INTRODUCTION, Introduction(VERSION, name, t0, port, addresses, frame))


def refusal(reason: str) -> bytes:
    """Return the message that says why a stranger is not taken."""
    return frames.encode(REFUSAL, Refusal(VERSION, reason[:REASON_MAX]))


def read_introduction(message: bytes) -> Introduction:
    """Return what an Introduction says; raise HandshakeError, with the reason, if it is none."""
    return _read(message, INTRODUCTION, Introduction)


def read_refusal(message: bytes) -> str:
    """Return why this host is not taken; raise HandshakeError if the message is no Refusal."""
    reason = _read(message, REFUSAL, Refusal).reason
    return "".join(char if char.isprintable() else "?" for char in reason)


def _read(message: bytes, magic: bytes, kind: type[_Kind]) -> _Kind:
    try:
        found = msgspec.msgpack.decode(frames.body_of(magic, message), type=kind)
    except frames.DatagramError as error:
        raise HandshakeError(str(error)) from None
    except frames.NO_MESSAGE as error:
        raise HandshakeError(f"not an {kind.__name__}: {error}") from None
    if found.version != VERSION:
        raise HandshakeError(f"an {kind.__name__} of another version")
    return found
