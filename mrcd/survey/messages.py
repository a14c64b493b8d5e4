# SPDX-License-Identifier: GPL-2.0-only
"""Messages of the survey: running totals of a host's loops, encoded and decoded (pure).

A host tells its peers the running totals of its loops, so a lost message costs only time. Both
sides number a host's loops alike (mrcd/fabric/loops.py), provided that they have the same fabric.
Each message carries a digest of the fabric, which shows whether they do.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mrcd.fabric.description import Fabric
from mrcd.fabric.hosts import HostRange
from mrcd.handshake import datagram as frames

MAGIC: Final = b"MRCf"
VERSION: Final = 1
_PER_MESSAGE = 40  # entries of at most 27 bytes each

Word64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Index = Annotated[int, Meta(ge=0, lt=1 << 16)]


class EvidenceError(Exception):
    """A datagram holds no acceptable evidence; the text says why. The sender is to blame."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Totals of some loops: (number, sent, returned, round trip in us or 0 if it is not known)."""

    version: int
    host: Annotated[str, Meta(min_length=1, max_length=64)]
    epoch: Word64
    digest: int
    totals: Annotated[
        tuple[tuple[Index, Word64, Word64, Annotated[int, Meta(ge=0, lt=1 << 32)]], ...],
        Meta(max_length=_PER_MESSAGE),
    ]


@dataclass(frozen=True, slots=True)
class Total:
    """The probes of a loop, sent and returned since its host's daemon began; its recent round trip.

    `rtt_us` is None when no round trip is known.
    """

    sent: int
    returned: int
    rtt_us: float | None


def digest(fabric: Fabric) -> int:
    """Return a number of a fabric; two fabrics with the same number have the same loops.

    It is on the wire, so its text holds what loops depend on and nothing else.
    """
    hosts = fabric.hosts
    if isinstance(hosts, HostRange):  # it may stand for 100,000
        places = [f"{hosts.name}1 to {hosts.size}, {hosts.per_t0} on each T0"]
    else:
        places = [f"{host.name} {host.t0} {host.port}" for host in hosts]
    lines = [f"{fabric.planes} {fabric.t0} {fabric.t1}", *places]
    return zlib.crc32("\n".join(lines).encode())


def encode(host: str, epoch: int, digest: int, totals: Mapping[int, Total]) -> list[bytes]:
    """Return the datagrams that carry these totals."""
    entries = [
        (index, total.sent, total.returned, round(total.rtt_us or 0))
        for index, total in totals.items()
    ]
    return [
        frames.encode(
            MAGIC, Message(VERSION, host, epoch, digest, tuple(entries[at : at + _PER_MESSAGE]))
        )
        for at in range(0, len(entries), _PER_MESSAGE)
    ]


def decode(datagram: bytes) -> Message:
    """Return the message in a datagram; raise EvidenceError, with the reason, if there is none."""
    try:
        return frames.message_of(MAGIC, datagram, Message, VERSION)
    except frames.DatagramError as error:
        raise EvidenceError(str(error)) from None
