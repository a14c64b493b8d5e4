# SPDX-License-Identifier: GPL-2.0-only
"""The lab's trimming program on made packets: what it cuts, what it drops, and by which queue."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cli.lab import portprograms, trimming
from cli.lab.queues import MARK_ALL, TRIM_BYTES, Queue, Thresholds, TrimQueue
from mrcd.fabric.classes import Classes
from mrcd.linux import bpf
from mrcd.linux.netlink.queues import FIRST_QUEUE
from tests.bpf.test_marking import CE, ECT0, SECOND, UNSPEC, internet_checksum, ipv4, ipv6

KEY = struct.pack("=I", 0)  # a test run has no classid: port 0
SHOT, REDIRECT = 2, 7
CLASSES = Classes()
SIZE = 1400
NEVER = (1 << 63) - 1
_AT_PRIORITY, _AT_GSO_SIZE, _CONTEXT = 32, 176, 192


@dataclass(frozen=True, slots=True)
class Ran:
    """What the program did with a packet."""

    verdict: int
    packet: bytes
    priority: int


@dataclass(frozen=True, slots=True)
class Port:
    """The loaded program with the map of its port, for one IP version."""

    queues: int
    program: int
    version: int

    def run(self, packet: bytes, *, gso_size: int = 0) -> Ran:
        context = bytearray(_CONTEXT)
        struct.pack_into("=I", context, _AT_GSO_SIZE, gso_size)
        test = bpf.TestRun(
            self.program, packet, out_size=len(packet), context=bytes(context),
            context_out_size=_CONTEXT,
        )  # fmt: skip
        verdict = test.run()
        (priority,) = struct.unpack_from("=I", test.context_output, _AT_PRIORITY)
        return Ran(verdict, test.output, priority)

    def packet(self, dscp: int, ecn: int = ECT0, size: int = SIZE) -> bytes:
        return (ipv4 if self.version == 4 else ipv6)(dscp << 2 | ecn, size)

    def set(self, **held: int) -> None:
        """Set the port's queue; a microsecond a byte, and seconds of room."""
        usual = {
            "ps_per_byte": 1_000_000, "some": NEVER, "all": NEVER, "full": 4 * SECOND,
            "first_full": SECOND, "cut_as": CLASSES.trimmed,
        }  # fmt: skip
        bpf.update(self.queues, KEY, portprograms.entry(**(usual | held)))

    def fill(self, **held: int) -> None:
        self.set(busy_until=time.monotonic_ns() + 10 * SECOND, **held)

    def get(self) -> dict[str, int]:
        found = bpf.lookup(self.queues, KEY, portprograms.ENTRY.size)
        assert found is not None
        return portprograms.read(found)


@pytest.fixture(params=[6, 4], ids=["ipv6", "ipv4"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    if os.geteuid() != 0:
        pytest.skip("loading BPF programs needs root")
    queues = portprograms.create_ports(1)
    program = trimming.load(queues, CLASSES, ipv4=request.param == 4)
    yield Port(queues, program, request.param)
    os.close(program)
    os.close(queues)


def dscp_of(packet: bytes) -> int:
    if packet[14] >> 4 == 4:
        return packet[15] >> 2
    return int.from_bytes(packet[14:16], "big") >> 6 & 63


def ecn_of(packet: bytes) -> int:
    return packet[15] & 3 if packet[14] >> 4 == 4 else packet[15] >> 4 & 3


def outer_length(packet: bytes) -> int:
    if packet[14] >> 4 == 4:
        return int.from_bytes(packet[16:18], "big")
    return int.from_bytes(packet[18:20], "big") + 40


@pytest.mark.parametrize("dscp", range(64))
def test_with_room_every_packet_passes_as_it_is(port: Port, dscp: int) -> None:
    port.set()
    ran = port.run(port.packet(dscp))
    first = dscp in (CLASSES.control, CLASSES.trimmed, CLASSES.trimmed_lasthop)
    assert ran == Ran(UNSPEC, port.packet(dscp), FIRST_QUEUE if first else 0)
    assert port.get()["busy_until"] > time.monotonic_ns() - SECOND


@pytest.mark.parametrize("dscp", [CLASSES.trimmable, CLASSES.retransmit])
@pytest.mark.parametrize("cut_as", [CLASSES.trimmed, CLASSES.trimmed_lasthop])
def test_without_room_data_is_cut_and_goes_first(port: Port, dscp: int, cut_as: int) -> None:
    port.fill(cut_as=cut_as)
    before = port.packet(dscp)
    ran = port.run(before)
    assert ran.verdict == REDIRECT
    assert len(ran.packet) == TRIM_BYTES
    assert (dscp_of(ran.packet), ecn_of(ran.packet)) == (cut_as, ECT0)
    assert outer_length(ran.packet) == TRIM_BYTES - 14
    mended = slice(14, 26) if port.version == 4 else slice(14, 20)
    assert ran.packet[: mended.start] == before[: mended.start]
    assert ran.packet[mended.stop :] == before[mended.stop : TRIM_BYTES]
    if port.version == 4:
        assert internet_checksum(ran.packet[14:34]) == 0
    else:  # version and flow label
        assert int.from_bytes(ran.packet[14:18], "big") & 0xF00FFFFF == 6 << 28
    assert (port.get()["trimmed"], port.get()["dropped"]) == (1, 0)
    assert port.run(ran.packet) == Ran(UNSPEC, ran.packet, FIRST_QUEUE)


def test_what_is_short_already_keeps_its_bytes(port: Port) -> None:
    port.fill()
    before = port.packet(CLASSES.trimmable, size=TRIM_BYTES - 14)
    ran = port.run(before)
    assert (ran.verdict, len(ran.packet)) == (REDIRECT, TRIM_BYTES)
    assert dscp_of(ran.packet) == CLASSES.trimmed
    assert ran.packet[34:] == before[34:]


@pytest.mark.parametrize("dscp", [CLASSES.no_trim, 1, 10])
def test_other_data_is_dropped(port: Port, dscp: int) -> None:
    port.fill()
    assert port.run(port.packet(dscp)).verdict == SHOT
    assert (port.get()["trimmed"], port.get()["dropped"]) == (0, 1)


def test_a_large_packet_is_dropped(port: Port) -> None:
    port.fill()
    assert port.run(port.packet(CLASSES.trimmable), gso_size=536).verdict == SHOT
    assert port.get()["dropped"] == 1


def test_the_other_ip_version_is_never_cut(port: Port) -> None:
    other = Port(port.queues, port.program, 10 - port.version)
    port.fill()
    assert port.run(other.packet(CLASSES.trimmable)).verdict == SHOT
    port.set()
    assert port.run(other.packet(CLASSES.control)).priority == 0


@pytest.mark.parametrize("dscp", [CLASSES.control, CLASSES.trimmed, CLASSES.trimmed_lasthop])
def test_the_first_queue_has_room_while_the_second_is_full(port: Port, dscp: int) -> None:
    port.fill()
    ran = port.run(port.packet(dscp))
    assert ran == Ran(UNSPEC, port.packet(dscp), FIRST_QUEUE)


@pytest.mark.parametrize("dscp", [CLASSES.control, CLASSES.trimmed])
def test_a_full_first_queue_drops(port: Port, dscp: int) -> None:
    port.fill(first_until=time.monotonic_ns() + 2 * SECOND)
    assert port.run(port.packet(dscp)).verdict == SHOT
    assert port.get()["dropped"] == 1


def test_a_packet_of_the_first_queue_occupies_half_of_the_link_twice_as_long(port: Port) -> None:
    start = time.monotonic_ns() + SECOND // 2
    port.set(first_until=start, busy_until=start)
    port.run(port.packet(CLASSES.control))
    took = (SIZE + 14) * 1000
    assert port.get()["first_until"] - start == pytest.approx(2 * took, abs=2 * 14_000)
    assert port.get()["busy_until"] - start == pytest.approx(took, abs=14_000)


def test_a_trimmed_packet_takes_no_time_before_it_comes_back(port: Port) -> None:
    busy = time.monotonic_ns() + 10 * SECOND
    port.set(busy_until=busy)
    cut = port.run(port.packet(CLASSES.trimmable)).packet
    assert port.get()["busy_until"] == busy
    port.run(cut)
    assert port.get()["busy_until"] - busy == pytest.approx(TRIM_BYTES * 1000, abs=14_000)


def test_long_queues_are_marked(port: Port) -> None:
    port.set(busy_until=time.monotonic_ns() + 3 * SECOND, some=SECOND, all=2 * SECOND)
    ran = port.run(port.packet(CLASSES.trimmable))
    assert (ran.verdict, ecn_of(ran.packet), dscp_of(ran.packet)) == (
        UNSPEC, CE, CLASSES.trimmable,
    )  # fmt: skip
    assert port.get()["marked"] == 1


def test_a_port_without_a_rate_does_nothing(port: Port) -> None:
    port.fill(ps_per_byte=0)
    packet = port.packet(CLASSES.trimmable)
    assert port.run(packet) == Ran(UNSPEC, packet, 0)


@pytest.mark.parametrize("rate_mbps", [1, 50, 250, 34_000])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_the_queues_are_those_of_a_link_that_drops(rate_mbps: int, mtu: int) -> None:
    """The program lets in what a tbf would, and the qdisc behind it holds more than that."""
    queue = Queue.of(rate_mbps, mtu)
    both, alone = TrimQueue.of(queue), Thresholds.of(queue)
    assert both.full_ns == alone.full_ns
    assert both.second_bytes >= 2 * (queue.burst_bytes + queue.limit_bytes)
    assert both.first_ns == 2 * both.full_ns
    assert alone.all_ns < both.full_ns * (MARK_ALL + 1) / 2 + 1
