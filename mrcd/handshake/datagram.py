# SPDX-License-Identifier: GPL-2.0-only
"""The frame around every message of one daemon to another: magic, length, MessagePack (pure)."""

from __future__ import annotations

import struct
from typing import Final, Protocol, TypeVar

import msgspec

MAX_BYTES: Final = 1200
NO_MESSAGE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for a body that is not the message asked for."""
_HEADER: Final = struct.Struct("!4sH")  # magic, length of what follows


class Versioned(Protocol):
    """A message that says in which version it is."""

    @property
    def version(self) -> int: ...


_Kind = TypeVar("_Kind", bound=Versioned)


class DatagramError(Exception):
    """A datagram has no frame, or no message, of the kind asked for; the text says why."""


def encode(magic: bytes, message: msgspec.Struct) -> bytes:
    """Return the datagram of a message; raise ValueError if it does not fit into MAX_BYTES."""
    body = msgspec.msgpack.encode(message)
    if _HEADER.size + len(body) > MAX_BYTES:
        kind = type(message).__name__
        raise ValueError(f"{kind} of {len(body)} bytes does not fit into {MAX_BYTES}")
    return _HEADER.pack(magic, len(body)) + body


def body_of(magic: bytes, datagram: bytes) -> bytes:
    """Return the body of a datagram; raise DatagramError, with the reason, if there is none."""
    if len(datagram) > MAX_BYTES:
        raise DatagramError(f"{len(datagram)} bytes, more than {MAX_BYTES}")
    if len(datagram) < _HEADER.size:
        raise DatagramError(f"{len(datagram)} bytes, less than a header of {_HEADER.size}")
    found, length = _HEADER.unpack_from(datagram)
    if found != magic:
        raise DatagramError(f"magic {found.hex()}, not {magic.hex()}")
    body = datagram[_HEADER.size :]
    if length != len(body):
        raise DatagramError(f"header announces {length} bytes, {len(body)} follow")
    return body


def message_of(magic: bytes, datagram: bytes, kind: type[_Kind], version: int) -> _Kind:
    """Return the message in a datagram; raise DatagramError, with the reason, if there is none."""
    try:
        found = msgspec.msgpack.decode(body_of(magic, datagram), type=kind)
    except DatagramError as error:
        raise DatagramError(f"no message of this kind: {error}") from None
    except NO_MESSAGE as error:
        raise DatagramError(f"not a message: {error}") from None
    if found.version != version:
        raise DatagramError(f"version {found.version}, this daemon speaks {version}")
    return found
