# SPDX-License-Identifier: GPL-2.0-only
"""Encode and decode the Offer, the only message of the hand-shake."""

from __future__ import annotations

from typing import Annotated, Final, NoReturn

import msgspec
from msgspec import Meta

from mrcd.handshake import datagram as frames

MAGIC: Final = b"MRCh"
VERSION: Final = 3
MAX_QPS: Final = 16
PACE_MAX_MS: Final = 3_600_000
CELL: Final = "cell"
"""The capability to send and take data in cells (bpf/mrc_wire.h)."""
TRIM: Final = "trim"
"""Switches on the ways to the sender of the Offer trim data, and it answers what they trimmed."""

Name = Annotated[str, Meta(min_length=1, max_length=64)]
Nonzero24 = Annotated[int, Meta(ge=1, le=0xFFFFFF)]
Word24 = Annotated[int, Meta(ge=0, le=0xFFFFFF)]


class HandshakeError(Exception):
    """A datagram is not an acceptable Offer; the text states why. The fault is the sender's."""


class LacksCapability(HandshakeError):
    """An Offer is valid, but its sender lacks a capability that this host insists on."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """One hand-shake message.

    `qps` holds the QPN of each QP and the first PSN that the sender will use on it. `pace_ms` is
    the longest time between two Offers of an established sender, jitter aside.
    """

    version: int
    host: Name
    target: Name
    epoch: int
    sid: int
    ack_sid: int
    seq: int
    bound: bool
    want: bool
    mtu: Annotated[int, Meta(ge=1280, le=65535)]
    mpr: Annotated[int, Meta(ge=1, le=32640)]
    port_mask: Annotated[int, Meta(ge=0, le=0xFF)]
    capabilities: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=24)], ...], Meta(max_length=16)
    ]
    qps: Annotated[tuple[tuple[Nonzero24, Word24], ...], Meta(min_length=1, max_length=MAX_QPS)]
    # Last, and with a default: daemons that predate this field neither send nor read it.
    pace_ms: Annotated[int, Meta(ge=1, le=PACE_MAX_MS)] = 1000


class _VersionOnly(msgspec.Struct, array_like=True):
    version: int


def encode(offer: Offer) -> bytes:
    """Encode an Offer as a datagram; raises ValueError if it does not fit into MAX_BYTES."""
    return frames.encode(MAGIC, offer)


def decode(datagram: bytes) -> Offer:
    """Decode the Offer in a datagram; raises HandshakeError with the reason if it is invalid."""
    try:
        body = frames.body_of(MAGIC, datagram)
    except frames.DatagramError as error:
        raise HandshakeError(str(error)) from None
    try:
        offer = msgspec.msgpack.decode(body, type=Offer)
    except frames.NO_MESSAGE as error:
        _refuse(body, error)
    if offer.version != VERSION:
        _refuse(body)
    # msgpack cannot encode more than 64 bits, so only the lower bound needs a check.
    if min(offer.epoch, offer.sid, offer.ack_sid, offer.seq) < 0:
        names = (name for name in ("epoch", "sid", "ack_sid", "seq") if getattr(offer, name) < 0)
        name = next(names)
        raise HandshakeError(f"{name} {getattr(offer, name)} is not 64 bits unsigned")
    if offer.sid == 0:
        raise HandshakeError("sid 0 names no session")
    if offer.bound and offer.ack_sid == 0:
        raise HandshakeError("bound to no sid")
    if len({qpn for qpn, _ in offer.qps}) != len(offer.qps):
        raise HandshakeError("a QPN appears twice")
    return offer


def _refuse(body: bytes, error: Exception | None = None) -> NoReturn:
    """Raise HandshakeError with the reason; a body of another version may have any content."""
    try:
        version = msgspec.msgpack.decode(body, type=_VersionOnly).version
    except frames.NO_MESSAGE as worse:
        error, version = worse, VERSION
    if version != VERSION:
        raise HandshakeError(f"version {version}, this daemon speaks {VERSION}") from None
    raise HandshakeError(f"not an Offer: {error}") from None
