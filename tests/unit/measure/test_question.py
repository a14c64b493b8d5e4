# SPDX-License-Identifier: GPL-2.0-only
"""Test the messages by which daemons ask what arrives."""

from __future__ import annotations

import msgspec
import pytest

from mrcd.handshake import datagram as frames
from mrcd.measure import question
from mrcd.measure.question import MAGIC, Arrived, Arrives, Message, QuestionError, decode, encode

BODIES = [Arrives(3), Arrived(3, 95.4, 99.0, 10_000, 0.25)]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_message_survives_the_wire(body: Arrives | Arrived) -> None:
    assert decode(encode("h1", body)) == Message(question.VERSION, "h1", body)


@pytest.mark.parametrize(
    "body",
    [
        Arrives(64), Arrives(-1), Arrived(64, 1.0, 1.0, 1, 0.0), Arrived(0, -1.0, 1.0, 1, 0.0),
        Arrived(0, float("nan"), 1.0, 1, 0.0), Arrived(0, 1.0, 1e9, 1, 0.0),
        Arrived(0, 1.0, 1.0, -1, 0.0), Arrived(0, 1.0, -1.0, 1, 0.0),
        Arrived(0, 1.0, 1.0, 1, 1.5),
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(body: Arrives | Arrived) -> None:
    with pytest.raises(QuestionError):
        decode(encode("h1", body))


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"MRCa",
        frames.encode(b"MRCm", Message(question.VERSION, "h1", BODIES[0])),
        frames.encode(MAGIC, Message(question.VERSION + 1, "h1", BODIES[0])),
        frames.encode(MAGIC, Message(question.VERSION, "", BODIES[0])),
        MAGIC + b"\0\1\xc1",
        encode("h1", BODIES[0])[:-1],
    ],
)
def test_what_is_no_message_is_refused(datagram: bytes) -> None:
    with pytest.raises(QuestionError):
        decode(datagram)


def test_a_message_has_a_kind() -> None:
    body = msgspec.msgpack.encode([question.VERSION, "h1", ["other", 1]])
    with pytest.raises(QuestionError):
        decode(MAGIC + len(body).to_bytes(2, "big") + body)
