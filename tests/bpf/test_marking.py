# SPDX-License-Identifier: GPL-2.0-only
"""The lab's ECN program on made packets: which packets it marks, and how often."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cli.lab import marking, portprograms
from cli.lab.queues import MARK_ALL, MARK_FROM, Queue, Thresholds
from mrcd.linux import bpf

KEY = struct.pack("=I", 0)  # a test run has no classid: port 0
SECOND = 1_000_000_000
UNSPEC = 0xFFFFFFFF
NOT_ECT, ECT1, ECT0, CE = range(4)


@dataclass(frozen=True, slots=True)
class Marker:
    """The loaded program with its map."""

    queues: int
    program: int

    def run(self, packet: bytes, times: int = 1) -> bytes:
        """Run the program on a packet; return the packet afterwards."""
        # With a context the kernel sets wire_len.
        test = bpf.TestRun(self.program, packet, out_size=len(packet), context=bytes(192))
        assert test.run(times) == UNSPEC
        return test.output

    def set(self, *fields: int) -> None:
        names = portprograms.FIELDS
        values = dict(zip(names, fields, strict=False))
        bpf.update(self.queues, KEY, portprograms.entry(**values))

    def get(self) -> tuple[int, ...]:
        found = bpf.lookup(self.queues, KEY, portprograms.ENTRY.size)
        assert found is not None
        return tuple(portprograms.read(found).values())[:6]


@pytest.fixture
def marker() -> Iterator[Marker]:
    if os.geteuid() != 0:
        pytest.skip("loading BPF programs needs root")
    queues = portprograms.create_ports(1)
    program = marking.load(queues)
    yield Marker(queues, program)
    os.close(program)
    os.close(queues)


def internet_checksum(header: bytes) -> int:
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(tos: int, size: int = 100) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, tos, size, 7, 0, 64, 17, 0)
    header += bytes((10, 100, 1, 1, 10, 100, 2, 1))
    header = header[:10] + struct.pack("!H", internet_checksum(header)) + header[12:]
    return bytes(12) + b"\x08\x00" + header.ljust(size, b"\0")


def ipv6(tclass: int, size: int = 100) -> bytes:
    header = struct.pack("!IHBB", 6 << 28 | tclass << 20, size - 40, 17, 64)
    return bytes(12) + b"\x86\xdd" + header.ljust(size, b"\1")


def overloaded(marker: Marker) -> None:
    marker.set(time.monotonic_ns() + 3 * SECOND, 1, SECOND, 2 * SECOND, 4 * SECOND, 0)


@pytest.mark.parametrize("dscp", [0, 0x2E])
@pytest.mark.parametrize(
    ("before", "after"), [(NOT_ECT, NOT_ECT), (ECT0, CE), (ECT1, CE), (CE, CE)]
)
def test_a_long_queue_marks_what_is_ect(marker: Marker, dscp: int, before: int, after: int) -> None:
    overloaded(marker)
    for make in (ipv4, ipv6):
        assert marker.run(make(dscp << 2 | before)) == make(dscp << 2 | after), make.__name__


def test_marking_mends_the_ipv4_checksum(marker: Marker) -> None:
    overloaded(marker)
    header = marker.run(ipv4(ECT0))[14:34]
    assert header[1] == CE
    assert internet_checksum(header) == 0


def test_other_protocols_are_left_alone(marker: Marker) -> None:
    overloaded(marker)
    arp = bytes(12) + b"\x08\x06" + bytes((0, 1, 8, 0, 6, 4, 0, 1)).ljust(46, b"\2")
    assert marker.run(arp) == arp


def test_a_port_without_a_rate_marks_nothing(marker: Marker) -> None:
    marker.set(time.monotonic_ns() + 3 * SECOND, 0, SECOND, 2 * SECOND, 4 * SECOND, 0)
    assert marker.run(ipv6(ECT0)) == ipv6(ECT0)


@pytest.mark.parametrize(
    ("ahead_ns", "low", "high"),
    [(0, 0, 0), (SECOND // 2, 0, 0), (SECOND * 3 // 2, 400, 600), (SECOND * 5 // 2, 1000, 1000)],
)
def test_the_share_rises_between_the_thresholds(
    marker: Marker, ahead_ns: int, low: int, high: int
) -> None:
    """With thresholds of seconds, the 1,000 runs are over before the queue has changed.

    The third case marks half of them; the allowed 100 more or fewer are six standard deviations.
    """
    marker.set(time.monotonic_ns() + ahead_ns, 1, SECOND, 2 * SECOND, 4 * SECOND, 0)
    for _ in range(1000):
        marker.run(ipv6(ECT0))
    assert low <= marker.get()[5] <= high


def test_the_queue_grows_by_what_a_packet_takes(marker: Marker) -> None:
    """Send ten packets of 100 bytes and Ethernet's 14, at a microsecond a byte."""
    start = time.monotonic_ns() + SECOND
    marker.set(start, 1_000_000, 8 * SECOND, 9 * SECOND, 10 * SECOND, 0)
    marker.run(ipv6(ECT0), 10)
    grown = marker.get()[0] - start
    assert grown == pytest.approx(10 * 114_000, abs=10 * 14_000)


def test_the_queue_starts_from_now_when_the_link_was_idle(marker: Marker) -> None:
    marker.set(0, 1_000, 8 * SECOND, 9 * SECOND, 10 * SECOND, 0)
    before = time.monotonic_ns()
    marker.run(ipv6(ECT0))
    assert before < marker.get()[0] < time.monotonic_ns() + SECOND


def test_a_full_queue_grows_no_further(marker: Marker) -> None:
    busy = time.monotonic_ns() + 5 * SECOND
    marker.set(busy, 1_000_000, SECOND, 2 * SECOND, 4 * SECOND, 0)
    marker.run(ipv6(ECT0), 10)
    assert marker.get()[0] == busy
    assert marker.get()[5] == 10


@pytest.mark.parametrize("rate_mbps", [1, 250, 34_000])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_thresholds_are_shares_of_the_queue_behind_the_burst(rate_mbps: int, mtu: int) -> None:
    queue = Queue.of(rate_mbps, mtu)
    marks = Thresholds.of(queue)
    ns_per_byte = 8_000 / rate_mbps
    for ns, share in ((marks.some_ns, MARK_FROM), (marks.all_ns, MARK_ALL), (marks.full_ns, 1)):
        owed = queue.burst_bytes + queue.limit_bytes * share
        assert ns == pytest.approx(owed * ns_per_byte, rel=0.001)
    assert marks.ps_per_byte == pytest.approx(ns_per_byte * 1000, rel=0.01)
