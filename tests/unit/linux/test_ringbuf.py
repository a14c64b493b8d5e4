# SPDX-License-Identifier: GPL-2.0-only
"""Test the ring buffer's reader against a hand-made ring, laid out as in kernel/bpf/ringbuf.c."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import pytest

from mrcd.linux import ringbuf
from mrcd.linux.ringbuf import RingBuffer
from rigs.ring_double import BUSY, DISCARD, PAGE, SIZE, Producer

LOOKS = 1_000_000


@pytest.fixture
def producer() -> Iterator[Producer]:
    made = Producer()
    yield made
    os.close(made.fd)


@pytest.fixture
def ring(producer: Producer) -> Iterator[RingBuffer]:
    made = RingBuffer(producer.fd, SIZE)
    yield made
    made.close()


def test_empty(ring: RingBuffer) -> None:
    assert ring.take() == []


def test_records_in_order_and_once(ring: RingBuffer, producer: Producer) -> None:
    records = [b"one", b"two" * 5, b"", b"x" * 24]
    for record in records:
        producer.put(record)
    assert ring.take() == records
    assert ring.take() == []
    assert producer.consumed == producer.position


def test_discarded_records_are_skipped(ring: RingBuffer, producer: Producer) -> None:
    producer.put(b"one")
    producer.put(b"never mind", DISCARD)
    producer.put(b"two")
    assert ring.take() == [b"one", b"two"]


def test_unfinished_record_holds_back_what_follows(ring: RingBuffer, producer: Producer) -> None:
    producer.put(b"one")
    at = producer.put(b"two", BUSY)
    producer.put(b"three")
    assert ring.take() == [b"one"]
    assert ring.take() == []
    producer.commit(at, 3)
    assert ring.take() == [b"two", b"three"]


def test_records_go_round_the_ring(ring: RingBuffer, producer: Producer) -> None:
    for number in range(1000):
        record = struct.pack("=I", number) * (1 + number % 9)
        producer.put(record)
        assert ring.take() == [record]
    assert producer.position > 5 * SIZE


def test_skipped_records_are_not_taken(ring: RingBuffer, producer: Producer) -> None:
    producer.put(b"one")
    ring.skip()
    producer.put(b"two")
    assert ring.take() == [b"two"]
    assert producer.consumed == producer.position


def test_position_is_written_at_once(ring: RingBuffer, producer: Producer) -> None:
    """The kernel reads the old position or the new one, never a partly written one."""
    producer.put(b"one")
    ring.take()
    page = mmap.mmap(producer.fd, PAGE)
    child = os.fork()
    if child == 0:
        position = memoryview(page).cast("Q")
        os._exit(any(position[0] != producer.position for _ in range(LOOKS)))
    gone = status = 0
    while not gone:
        for _ in range(1000):
            ring.take()
        gone, status = os.waitpid(child, os.WNOHANG)
    assert status == 0


def test_constants_are_those_of_the_kernel() -> None:
    assert (ringbuf._BUSY, ringbuf._DISCARD, ringbuf._HEADER) == (BUSY, DISCARD, 8)
