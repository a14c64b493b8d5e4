# SPDX-License-Identifier: GPL-2.0-only
"""Encode and decode the Offer, the only message of the hand-shake."""

from __future__ import annotations

from typing import Annotated, Final, NoReturn

import msgspec
from msgspec import Meta

from mrcd.handshake import datagram as frames
from mrcd.handshake import versions

MAGIC: Final = b"MRCh"
MAX_QPS: Final = 16
PACE_MAX_MS: Final = 3_600_000
CELL: Final = "cell"
"""The capability to send and take data in cells of IP in IPv6 (bpf/mrc_wire.h, MRC_CELL_IP6)."""
CELL_UDP: Final = "cell-udp"
"""The capability to send and take data in cells of VXLAN in UDP (MRC_CELL_UDP)."""
SACK_TIMES: Final = "sack-times"
"""The capability to say in SACKs of cells when they were sent, and to read it."""
CELLS_LOST: Final = "cells-lost"
"""The sender of the Offer could take cells, but on every plane to the other host they are lost."""
TRIM: Final = "trim"
"""Switches on the ways to the sender of the Offer trim data, and it answers what they trimmed."""

_WORDS64: Final = ("epoch", "sid", "ack_sid", "seq", "frame", "hosts")

RATE_MAX: Final = 0xFFFFFFFF
NAME_MAX: Final = 64
BUILD_MAX: Final = 64
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Nonzero24 = Annotated[int, Meta(ge=1, le=0xFFFFFF)]
Word24 = Annotated[int, Meta(ge=0, le=0xFFFFFF)]


class HandshakeError(Exception):
    """A datagram is not an acceptable Offer; the text states why. The fault is the sender's."""


class NoCommonVersion(HandshakeError):
    """An Offer speaks no version that this daemon speaks.

    host: who it says has sent it, "" if that cannot be read. versions: its oldest and newest.
    """

    def __init__(self, host: str, newest: int, oldest: int) -> None:
        self.host = host
        self.versions = (oldest or newest, newest)
        theirs, this = versions.span(*self.versions), versions.span(*versions.ours())
        super().__init__(f"speaks version {theirs}, this daemon {this}")


class LacksCapability(HandshakeError):
    """An Offer is valid, but its sender lacks a capability that this host insists on."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """One hand-shake message.

    `qps` holds the QPN of each QP and the first PSN that the sender will use on it. `pace_ms` is
    the longest time between two Offers of an established sender, jitter aside. The sender speaks
    the versions from `oldest` to `version`; an `oldest` of 0 means only `version`. A session uses
    the highest that both hosts speak. Later versions may only append members. `frame` and
    `hosts` are digests of the sender's fabric file (mrcd/fabric/digest.py); 0 says nothing.
    `endpoints` are the sender's addresses by its planes, of 4 or 16 bytes, where no fabric says
    them; one of zeros is not known. They tell which planes are the same network
    (mrcd/fabric/numbering.py). `rates` are what the sender's planes should carry,
    Mb/s; 0 is not known. `build` is the version of the sender's mrcd, for display only.
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
    oldest: Annotated[int, Meta(ge=0)] = 0
    frame: int = 0
    hosts: int = 0
    endpoints: Annotated[
        tuple[Annotated[bytes, Meta(min_length=4, max_length=16)], ...], Meta(max_length=8)
    ] = ()
    rates: Annotated[tuple[Annotated[int, Meta(ge=0, le=RATE_MAX)], ...], Meta(max_length=8)] = ()
    build: Annotated[str, Meta(max_length=BUILD_MAX, pattern=r"^[0-9A-Za-z.+]*\Z")] = ""


class _Head(msgspec.Struct, array_like=True):
    """The members that Offers of all versions begin with."""

    version: int
    host: object = None


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
    if versions.common(offer.version, offer.oldest) is None:
        raise NoCommonVersion(offer.host, offer.version, offer.oldest)
    # msgpack cannot encode more than 64 bits, so only the lower bound needs a check.
    for name in _WORDS64:
        if getattr(offer, name) >= 0:
            continue
        raise HandshakeError(f"{name} {getattr(offer, name)} is not 64 bits unsigned")
    if offer.sid == 0:
        raise HandshakeError("sid 0 names no session")
    if offer.bound and offer.ack_sid == 0:
        raise HandshakeError("bound to no sid")
    if any(len(address) not in (4, 16) for address in offer.endpoints):
        raise HandshakeError("an endpoint is no address of 4 or 16 bytes")
    if len({qpn for qpn, _ in offer.qps}) != len(offer.qps):
        raise HandshakeError("a QPN appears twice")
    return offer


def _refuse(body: bytes, error: Exception | None = None) -> NoReturn:
    """Raise HandshakeError with the reason; a body of another version may have any content."""
    try:
        head = msgspec.msgpack.decode(body, type=_Head)
    except frames.NO_MESSAGE as worse:
        raise HandshakeError(f"not an Offer: {worse}") from None
    if versions.common(head.version, 0) is None:
        host = head.host if isinstance(head.host, str) and len(head.host) <= NAME_MAX else ""
        raise NoCommonVersion(host, head.version, 0) from None
    raise HandshakeError(f"not an Offer: {error}") from None
