# SPDX-License-Identifier: GPL-2.0-only
"""Test the messages by which daemons agree on a measurement."""

from __future__ import annotations

import msgspec
import pytest

from mrcd.handshake import datagram as frames
from mrcd.measure import messages
from mrcd.measure.messages import (
    MAGIC,
    Ask,
    Body,
    End,
    MeasureError,
    Message,
    Ready,
    Refuse,
    Send,
    Sent,
    Tell,
    Told,
    decode,
    encode,
)

BODIES: list[Body] = [
    Ask(3, 40000),
    Ready(40001, 10000),
    Refuse("plane 3 is being measured"),
    Send(3, 79.5, 1000),
    Sent(3, 700_000, 1500, 1_000_000_000, 900_000_000),
    Tell(2),
    Told(2, 8000, 95.4, 20_000.5, 21_000.0, False),
    End(),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_message_survives_the_wire(body: Body) -> None:
    found = decode(encode("h1", (1 << 63) - 1, 7, body))
    assert found == Message(messages.VERSION, "h1", (1 << 63) - 1, 7, body)


def test_the_longest_reason_fits() -> None:
    refused = encode("h" * 64, 1, 7, Refuse("x" * messages.REASON_MAX))
    assert len(refused) < frames.MAX_BYTES


@pytest.mark.parametrize(
    "body",
    [
        Ask(64, 40000), Ask(0, 0), Ask(0, 1 << 16), Send(0, 1.0, 1000), Send(5, 1.0, 1000),
        Send(1, -1.0, 1000), Send(1, 1.0, 2001), Send(1, 1.0, 0), Send(1, float("nan"), 1000),
        Told(1, -1, 0.0, 0.0, 0.0, False), Refuse("x" * 501),
        Told(1, 1, float("inf"), 0.0, 0.0, False), Told(1, 1, 1.0, 0.0, float("inf"), False),
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(body: Body) -> None:
    with pytest.raises(MeasureError):
        decode(encode("h1", 1, 7, body))


def test_other_datagrams_and_versions_are_refused() -> None:
    good = encode("h1", 1, 7, Tell(1))
    for bad in (b"", b"MRCm", good[:-1], good + b"x", b"MRCf" + good[4:]):
        with pytest.raises(MeasureError):
            decode(bad)
    for body in (["ask"], [2, "h1", 1, 7, ["tell", 1]], [1, "", 1, 7, ["tell", 1]]):
        packed = msgspec.msgpack.encode(body)
        with pytest.raises(MeasureError):
            decode(MAGIC + len(packed).to_bytes(2, "big") + packed)
