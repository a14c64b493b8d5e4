# SPDX-License-Identifier: GPL-2.0-only
"""What hosts without a fabric tell each other of the ways between them (pure).

A host tells totals, so a lost message costs only time: of each way from it, how many probes have
left, and what its data did; of each way to it, how many came. A message is about some peers only,
so that it fits into a datagram, and is sealed like all that daemons say to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mrcd.handshake import datagram as frames
from mrcd.survey.arrivals import PORTS, Kinds
from mrcd.survey.messages import EvidenceError

MAGIC: Final = b"MRCw"
VERSION: Final = 1
PLANES_MAX: Final = 8
REFUSED_MAX: Final = 4
"""Hosts whose mrcd does not run that one message names."""
_BYTES_OF_WAY = 64  # at most, about
_BYTES_OF_KINDS = 140

Word64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Small = Annotated[int, Meta(ge=0, lt=1 << 16)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Micros = Annotated[float, Meta(ge=-1e16, le=1e16)]
"""Between two clocks, which may be anything; infinity is not, and compares with nothing."""
Counts = Annotated[tuple[Small, ...], Meta(max_length=2 * (PORTS + 2) + 3)]


class Nic(msgspec.Struct, frozen=True, array_like=True):
    """What a host says of its NIC of a plane: name, MTU, carrier, and what the kernel counts."""

    name: Annotated[str, Meta(max_length=16)]
    mtu: Annotated[int, Meta(ge=0, lt=1 << 17)]
    up: bool
    downs: Word64
    errors: Word64


class Way(msgspec.Struct, frozen=True, array_like=True):
    """The ways between the host and a peer in a plane.

    sent: probes to it so far. data_ppm: packets of data to it that are lost, of a million. The rest
    is of what came from it: `run` of the peer, the highest number, how many came, were lost, and
    were lost in a full queue; the least time that one took of late, in microseconds, by two clocks;
    and what came of the last ones by kind, which is empty where nothing is wrong. `theirs` is the
    number that the peer gives the plane, -1 where it is not on it, None where both number alike.
    """

    sent: Word64
    data_ppm: Word64
    run: Word64
    top: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    received: Word64
    lost: Word64
    excused: Word64
    took_us: Micros | None
    kinds: Counts
    theirs: Annotated[int, Meta(ge=-1, lt=PLANES_MAX)] | None = None


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What a host says of itself, and of its ways to some peers, by plane.

    `refused` names hosts that answer probes with an error: they run, and mrcd does not.
    """

    version: int
    host: Name
    run: Word64
    token: Word64
    nics: Annotated[tuple[Nic, ...], Meta(max_length=PLANES_MAX)]
    ways: dict[Name, Annotated[tuple[Way, ...], Meta(max_length=PLANES_MAX)]]
    refused: Annotated[tuple[Name, ...], Meta(max_length=REFUSED_MAX)] = ()


@dataclass(frozen=True, slots=True)
class Self:
    """What a host says of itself in each message."""

    host: str
    run: int
    token: int
    nics: tuple[Nic, ...]
    refused: tuple[str, ...] = ()


def encode(own: Self, ways: Mapping[str, Sequence[Way]]) -> Iterator[bytes]:
    """Yield the datagrams that tell these ways."""
    part: dict[str, tuple[Way, ...]] = {}
    room = whole = frames.MAX_BYTES - 120 - 40 * len(own.nics) - 66 * len(own.refused)
    for name, each in ways.items():
        size = len(name) + sum(_BYTES_OF_WAY + _BYTES_OF_KINDS * bool(way.kinds) for way in each)
        if part and size > room:
            yield _encoded(own, part)
            part, room = {}, whole
        part[name] = tuple(each)
        room -= size
    yield _encoded(own, part)


def _encoded(own: Self, ways: dict[str, tuple[Way, ...]]) -> bytes:
    try:
        return frames.encode(MAGIC, message_of(own, ways))
    except ValueError:  # of one peer alone, with kinds on most of eight planes
        bare = {name: tuple(_bare(way) for way in each) for name, each in ways.items()}
        return frames.encode(MAGIC, message_of(own, bare))


def message_of(own: Self, ways: dict[str, tuple[Way, ...]]) -> Message:
    """Return a message of these ways."""
    return Message(VERSION, own.host, own.run, own.token, own.nics, ways, own.refused)


def _bare(way: Way) -> Way:
    return msgspec.structs.replace(way, kinds=())


def decode(datagram: bytes) -> Message:
    """Return the message in a datagram; raise EvidenceError, with the reason, if there is none."""
    try:
        return frames.message_of(MAGIC, datagram, Message, VERSION)
    except frames.DatagramError as error:
        raise EvidenceError(str(error)) from None


def counts_of(kinds: Kinds) -> tuple[int, ...]:
    """Return what came of the last probes as it is told; empty if nothing is odd."""
    odd = kinds.short[1] + kinds.long[1] + kinds.repeated + kinds.moved + kinds.damaged
    if odd < 1:
        return ()
    pairs = (kinds.short, kinds.long, *kinds.ports)
    flat = [*(part for pair in pairs for part in pair)]
    return tuple(map(round, (*flat, kinds.repeated, kinds.moved, kinds.damaged)))


_NOTHING_ODD: Final = Kinds()


def kinds_of(counts: Sequence[int]) -> Kinds:
    """Return the same of what was told, to be read only."""
    if len(counts) != 2 * (PORTS + 2) + 3:
        return _NOTHING_ODD
    pairs = [[float(counts[i]), float(counts[i + 1])] for i in range(0, 2 * (PORTS + 2), 2)]
    repeated, moved, damaged = map(float, counts[-3:])
    return Kinds(pairs[0], pairs[1], pairs[2:], repeated, moved, damaged)
