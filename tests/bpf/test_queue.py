# SPDX-License-Identifier: GPL-2.0-only
"""Signals to TCP about long queues: a CE mark, or an early drop if the flow lacks ECN."""

from __future__ import annotations

import struct
import time

import pytest

from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from mrcd.wire.packet import Data, decode_frame
from rigs.packets import Far, ip4, ip6
from rigs.rig import RING_SLOTS, TC_REDIRECT, TC_SHOT, Rig, clock_passes

TCP, UDP = 6, 17
GAP_NS = 10_000_000  # EARLY_DROP_GAP_NS of bpf/aqm.c
FRESH_NS = 100_000_000  # QUEUE_FRESH_NS
FAULTS_NS = 100_000_001  # beyond FAULTS_NS
FIRST = 1000
NOT_ECT, ECT1, ECT0, CE = range(4)


def checksum(header: bytes) -> int:
    """Return the checksum of RFC 1071; 0 for a header that contains the right one."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def v4(protocol: int, ecn: int, size: int = 1200) -> bytes:
    packet = bytearray(ip4(bytes(size), src="10.99.0.1", dst="10.99.0.2"))
    packet[1], packet[9] = 0x28 | ecn, protocol
    packet[10:12] = struct.pack("!H", checksum(bytes(packet[:20])))
    return bytes(packet)


def v6(protocol: int, ecn: int, size: int = 1200) -> bytes:
    packet = bytearray(ip6(bytes(size), src="fd99::1", dst="fd99::2"))
    packet[1], packet[6] = ecn << 4, protocol
    return bytes(packet)


def ecn_of(packet: bytes) -> int:
    return packet[1] & 3 if packet[0] >> 4 == 4 else packet[1] >> 4 & 3


def sprayed(rig: Rig, packet: bytes) -> bytes:
    ran = rig.spray(packet)
    assert ran.verdict == TC_REDIRECT
    data = decode_frame(ran.frame)
    assert isinstance(data, Data)
    return data.payload


@pytest.fixture
def queued(rig: Rig) -> Rig:
    """Return the rig after SACKs have measured queues of 5 ms, with a target of 1 ms."""
    rig.tune(queue_target_ns=1_000_000, cc_target_ns=0)
    kind = ABI.structs["mrc_tx"]
    raw = bytearray(rig.dp.read_raw("txs", 0, kind.size))
    now = time.monotonic_ns()
    measured = {"queue_ns": 5_000_000, "queue_at_ns": now}
    for name, value in measured.items():
        field = kind.fields[name]
        raw[field.offset : field.offset + field.size] = value.to_bytes(field.size, "little")
    bpf.update(rig.dp.maps["txs"], bytes(4), bytes(raw))
    return rig


@pytest.mark.parametrize("packet_of", [v4, v6])
@pytest.mark.parametrize("ecn", [ECT0, ECT1, CE])
def test_tcp_with_ecn_is_marked(queued: Rig, packet_of: type, ecn: int) -> None:
    packet = packet_of(TCP, ecn)
    out = sprayed(queued, packet)
    assert ecn_of(out) == CE
    assert out[0:1] + out[2:10] + out[12:] == packet[0:1] + packet[2:10] + packet[12:]
    if packet_of is v4:
        assert out[1] == 0x28 | CE
        assert checksum(out[:20]) == 0
    assert queued.counted()["tx_ce"] == 1


@pytest.mark.parametrize(("ago_ns", "mark"), [(0, ECT0), (FAULTS_NS, CE)])
def test_burst_behind_the_repair_of_a_fault_is_no_queue(rig: Rig, ago_ns: int, mark: int) -> None:
    """Order holds back what other planes deliver meanwhile, so TCP sends in bursts."""
    rig.tune(cc_target_ns=500_000)
    spray_one(rig)
    now = time.monotonic_ns()
    rig.edit("txs", 0, "mrc_tx", cwnd=100_000, inflight=120_000, fault_ns=now - ago_ns)
    assert ecn_of(sprayed(rig, v4(TCP, ECT0))) == mark


@pytest.mark.parametrize(("delay_ns", "fault"), [(0, True), (250_001, False)])
def test_loss_in_front_of_a_queue_is_no_fault(
    rig: Rig, far: Far, delay_ns: int, fault: bool
) -> None:
    rig.tune(cc_target_ns=500_000, reo_min_ns=0, reo_max_ns=0)
    spray_one(rig)
    spray_one(rig)
    rig.edit("txs", 0, "mrc_tx", delay_ns=delay_ns, target_ns=500_000)
    rig.arrive(far.sack(FIRST - 1, 0b10, delayed=True))
    assert rig.counted()["rtx_guard"] == 1
    assert bool(rig.tx()["fault_ns"]) is fault


def spray_one(rig: Rig) -> None:
    """Send a packet, so that the window has begun."""
    sprayed(rig, v4(TCP, ECT0))


@pytest.mark.parametrize("packet_of", [v4, v6])
def test_tcp_without_ecn_is_dropped_now_and_then(queued: Rig, packet_of: type) -> None:
    before = queued.tx()
    for _ in range(20):  # a busy machine may take longer for two packets than the gap between drops
        clock_passes(GAP_NS)
        began_ns = time.monotonic_ns()
        first = queued.spray(packet_of(TCP, NOT_ECT))
        second = queued.spray(packet_of(TCP, NOT_ECT))
        assert first.verdict == TC_SHOT
        if time.monotonic_ns() - began_ns < GAP_NS:
            break
    assert second.verdict == TC_REDIRECT
    data = decode_frame(second.frame)
    assert isinstance(data, Data)
    assert data.payload == packet_of(TCP, NOT_ECT)
    assert data.bth.psn == before["next"]  # dropped packets took no PSN
    assert queued.free_slots("tx_free") == RING_SLOTS - 1


def again(packet: bytes) -> bytes:
    """Return the packet as TCP retransmits it: without ECN."""
    return (v4 if packet[0] >> 4 == 4 else v6)(TCP, NOT_ECT)


@pytest.mark.parametrize("packet", [v4(TCP, ECT0), v6(TCP, ECT0)], ids=["v4", "v6"])
def test_what_a_marked_flow_sends_again_is_not_dropped(queued: Rig, packet: bytes) -> None:
    assert ecn_of(sprayed(queued, packet)) == CE
    for _ in range(3):
        clock_passes(GAP_NS)
        assert sprayed(queued, again(packet)) == again(packet)
    assert "drop_early" not in queued.counted()


@pytest.mark.parametrize("packet", [v4(TCP, ECT0), v6(TCP, ECT0)], ids=["v4", "v6"])
def test_a_queue_that_was_measured_long_ago_is_not_signalled(queued: Rig, packet: bytes) -> None:
    """Only traffic updates the estimate: a stale one would drop a lone retransmission for ever."""
    clock_passes(FRESH_NS)
    assert sprayed(queued, packet) == packet
    assert sprayed(queued, again(packet)) == again(packet)
    assert queued.counted().keys() & {"tx_ce", "drop_early"} == set()


def test_a_round_trip_says_when_the_queue_was_measured(rig: Rig, far: Far) -> None:
    sent = decode_frame(rig.spray(v4(UDP, NOT_ECT)).frame)
    assert isinstance(sent, Data)
    assert sent.body.timestamp is not None
    before = time.monotonic_ns()
    rig.arrive(far.sack(sent.bth.psn, trigger=sent.bth.psn, ts=sent.body.timestamp.tx_timestamp))
    tx = rig.tx()
    assert before <= tx["queue_at_ns"] <= time.monotonic_ns()


def test_a_queue_is_what_a_packet_takes_longer_than_the_quickest_of_its_size(
    rig: Rig, far: Far
) -> None:
    """Switches store and forward, so a long packet takes longer even without a queue."""

    def answered(length: int, after_ns: int) -> dict[str, int]:
        sent = decode_frame(rig.spray(v4(UDP, NOT_ECT, length)).frame)
        assert isinstance(sent, Data)
        assert sent.body.timestamp is not None
        clock_passes(after_ns)
        stamp = sent.body.timestamp.tx_timestamp
        rig.arrive(far.sack(sent.bth.psn, trigger=sent.bth.psn, ts=stamp))
        return rig.tx()

    short = answered(100, 0)["queue_ns"]
    first = answered(1200, 30_000_000)["queue_ns"]
    assert first <= short  # the quickest of its size so far
    again = answered(1200, 130_000_000)["queue_ns"]
    assert again > first + 5_000_000  # an eighth of some 100 ms


@pytest.mark.parametrize(
    "packet",
    [v4(UDP, NOT_ECT), v4(UDP, ECT0), v6(UDP, ECT0), v4(TCP, NOT_ECT, 40), v6(TCP, NOT_ECT, 40)],
    ids=["udp", "udp with ECN", "udp over IPv6", "a pure ACK", "a pure ACK over IPv6"],
)
def test_others_are_left_alone(queued: Rig, packet: bytes) -> None:
    assert sprayed(queued, packet) == packet
    assert queued.counted().keys() & {"tx_ce", "drop_early"} == set()


@pytest.mark.parametrize("packet", [v4(TCP, ECT0), v4(TCP, NOT_ECT), v6(TCP, ECT0)])
def test_short_queues_are_not_signalled(rig: Rig, packet: bytes) -> None:
    rig.tune(queue_target_ns=1_000_000, cc_target_ns=0)
    assert sprayed(rig, packet) == packet


def test_retransmission_carries_the_mark_too(queued: Rig) -> None:
    first = sprayed(queued, v4(TCP, ECT0))
    queued.tune(rto_min_ns=1)
    kind = ABI.structs["mrc_tx"]
    assert kind.unpack(queued.dp.read_raw("txs", 0, kind.size))["una"] == 1000
    for _ in range(2000):
        queued.tick()
        again = [decode_frame(frame) for _plane, frame in queued.sent()]
        if found := [packet for packet in again if isinstance(packet, Data)]:
            assert found[0].payload == first
            return
    pytest.fail("the packet was never sent again")
