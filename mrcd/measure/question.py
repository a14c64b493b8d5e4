# SPDX-License-Identifier: GPL-2.0-only
"""Messages by which a daemon asks another one what arrives on a plane (pure).

A question or an answer that is lost is not sent again: the next question comes soon enough.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mrcd.handshake import datagram as frames

MAGIC: Final = b"MRCa"
VERSION: Final = 1
_MBPS_MAX: Final = 1e7


class QuestionError(Exception):
    """A datagram holds no acceptable message; the text says why. The sender is to blame."""


class Arrives(msgspec.Struct, frozen=True, array_like=True, tag="arrives"):
    """Tell what arrives on a plane."""

    plane: Annotated[int, Meta(ge=0, lt=64)]


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """The answer, of the second since then.

    mbps: what the NIC received, Mb/s. peak_mbps: the most of it in a short time. says_mbps: what
    the NIC says that it carries, 0 if nothing. busy: the part of its time for which the busiest CPU
    worked for the kernel.
    """

    plane: Annotated[int, Meta(ge=0, lt=64)]
    mbps: Annotated[float, Meta(ge=0, le=_MBPS_MAX)]
    peak_mbps: Annotated[float, Meta(ge=0, le=_MBPS_MAX)]
    says_mbps: Annotated[int, Meta(ge=0, le=int(_MBPS_MAX))]
    busy: Annotated[float, Meta(ge=0, le=1)]


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message of `host`."""

    version: int
    host: Annotated[str, Meta(min_length=1, max_length=64)]
    body: Arrives | Arrived


def encode(host: str, body: Arrives | Arrived) -> bytes:
    """Return the datagram of a message."""
    return frames.encode(MAGIC, Message(VERSION, host, body))


def decode(datagram: bytes) -> Message:
    """Return the message in a datagram; raise QuestionError, with the reason, if there is none."""
    try:
        return frames.message_of(MAGIC, datagram, Message, VERSION)
    except frames.DatagramError as error:
        raise QuestionError(str(error)) from None
