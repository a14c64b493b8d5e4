# SPDX-License-Identifier: GPL-2.0-only
"""Messages by which two daemons agree on a measurement, encoded and decoded (pure).

One host asks, the other one answers each request with its number. A request that is not answered is
sent again, so the other side does what it asks for only once.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mrcd.handshake import datagram as frames

MAGIC: Final = b"MRCm"
VERSION: Final = 1
REASON_MAX: Final = 500
RUNS_MAX: Final = 4
"""The runs of a measurement: each way at full rate, and at less."""
SECONDS_MAX: Final = 2.0
"""The longest run that a host sends for another."""

Word63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Port = Annotated[int, Meta(ge=1, lt=1 << 16)]
Run = Annotated[int, Meta(ge=1, le=RUNS_MAX)]
_Count = Annotated[int, Meta(ge=0, lt=1 << 40)]
_Micros = Annotated[float, Meta(ge=0, le=1e16)]
_Mbps = Annotated[float, Meta(ge=0, le=1e9)]
"""Neither is infinite, which JSON cannot say."""


class MeasureError(Exception):
    """A datagram holds no acceptable message; the text says why. The sender is to blame."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Open a socket on a plane; the asker's has this UDP port."""

    plane: Annotated[int, Meta(ge=0, lt=64)]
    port: Port


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The answer: the UDP port, and the NIC's speed as it says in Mb/s, 0 if it says none."""

    port: Port
    nic_mbps: _Count


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse"):
    """The answer to anything that cannot be done."""

    reason: Annotated[str, Meta(max_length=REASON_MAX)]


class Send(msgspec.Struct, frozen=True, array_like=True, tag="send"):
    """Send for some milliseconds, at a rate in Mb/s; 0: as fast as possible."""

    run: Run
    mbps: Annotated[float, Meta(ge=0, le=1e7)]
    ms: Annotated[int, Meta(ge=1, le=int(1000 * SECONDS_MAX))]


class Sent(msgspec.Struct, frozen=True, array_like=True, tag="sent"):
    """The answer once the run is over.

    packets: what was sent. size: the length of each with its IP header, bytes. ns: the time that
    it took. cpu_ns: how much of that the sender was at work and did not wait for the link.
    """

    run: Run
    packets: _Count
    size: Annotated[int, Meta(ge=0, lt=1 << 16)]
    ns: _Count
    cpu_ns: _Count


class Tell(msgspec.Struct, frozen=True, array_like=True, tag="tell"):
    """Tell what has arrived of a run."""

    run: Run


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """The answer.

    packets: what arrived. mbps: the rate of their IP packets between the first and the last.
    median_us, p99_us: how long they waited in queues, microseconds. behind: whether the receiver
    could not read all that arrived.
    """

    run: Run
    packets: _Count
    mbps: _Mbps
    median_us: _Micros
    p99_us: _Micros
    behind: bool


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """Close the socket; the measurement is over. It is not answered."""


Body = Ask | Ready | Refuse | Send | Sent | Tell | Told | End


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message of `host`. nonce: of the measurement. number: of the request."""

    version: int
    host: Annotated[str, Meta(min_length=1, max_length=64)]
    nonce: Word63
    number: Annotated[int, Meta(ge=0, lt=1 << 32)]
    body: Body


def encode(host: str, nonce: int, number: int, body: Body) -> bytes:
    """Return the datagram of a message; raise ValueError if it does not fit into one."""
    return frames.encode(MAGIC, Message(VERSION, host, nonce, number, body))


def decode(datagram: bytes) -> Message:
    """Return the message in a datagram; raise MeasureError, with the reason, if there is none."""
    try:
        return frames.message_of(MAGIC, datagram, Message, VERSION)
    except frames.DatagramError as error:
        raise MeasureError(str(error)) from None
