# SPDX-License-Identifier: GPL-2.0-only
"""Datagrams that are too old: stubs go in their places, and their receiver waits for nothing."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from mrcd.wire.cell import piece_psns
from mrcd.wire.envelope import checksum16
from mrcd.wire.packet import WIRE, Data, Sack, decode_frame
from rigs.oracle import icrc_of
from rigs.packets import UDP, Far, ip4, ip6
from rigs.rig import RING_SLOTS, TC_SHOT, Rig, clock_passes
from tests.bpf.cells import MSS, AnyCell, CellRig, network, noise, tcp, udp
from tests.bpf.test_cell_arrive import large
from tests.bpf.test_sack import FIRST, outgoing, resent, spray
from tests.bpf.test_window import hold, narrow, widen

MAX_MS = 1
OLD_NS = MAX_MS * 1_000_000


def icmp(version: int) -> bytes:
    """Return an echo request to the peer."""
    if version == 4:
        ends = IPv4Address("10.99.0.1").packed, IPv4Address("10.99.0.2").packed
        return network(b"\x08\x00" + bytes(30), 1, ends, ident=9, tos=0, options=b"")
    ends = IPv6Address("fd99::1").packed, IPv6Address("fd99::2").packed
    return network(b"\x80\x00" + bytes(30), 58, ends, ident=0, tos=0, options=b"")


def optional() -> bytes:
    """Return an IPv4 packet with options."""
    ends = IPv4Address("10.99.0.1").packed, IPv4Address("10.99.0.2").packed
    return network(bytes(40), 17, ends, ident=3, tos=0x10, options=b"\x01" * 8)


DATAGRAMS = {
    "udp4": udp(b"hello"),
    "udp6": udp(b"hello", version=6),
    "echo4": icmp(4),
    "echo6": icmp(6),
    "first fragment": udp(bytes(64), fragment=0x2000),
    "last fragment": udp(bytes(64), fragment=0x0040),
    "with options": optional(),
    "empty": ip4(src="10.99.0.1", dst="10.99.0.2")[:20].replace(b"\x00\x1c", b"\x00\x14", 1),
}


def stub_of(packet: bytes) -> bytes:
    """Return the stub of a packet."""
    if packet[0] >> 4 == 6:
        return packet[:4] + bytes(2) + b"\x3b" + packet[7:40]
    head = b"\x45" + packet[1:2] + b"\x00\x14" + packet[4:6] + bytes(2) + packet[8:9] + b"\x3b"
    return head + checksum16(head + packet[12:20]).to_bytes(2) + packet[12:20]


def bounded(rig: Rig, most_ms: int = MAX_MS) -> None:
    """Bound the age of datagrams; time-outs come at every tick."""
    rig.tune(rto_min_ns=1, datagram_max_ms=most_ms)


def overdue(rig: Rig) -> None:
    """Have what is outstanding sent again by the clock."""
    rig.edit("txs", 0, "mrc_tx", progress_ns=0, backoff=0, srtt_ns=0, rttvar_ns=0)
    rig.tick()


def sent_by_clock(rig: Rig) -> list[Data]:
    """Return the data in MRC's framing that the clock sends again."""
    overdue(rig)
    return [packet for each in resent(rig) if isinstance(packet := decode_frame(each.frame), Data)]


# ---- MRC's framing, the sender


@pytest.mark.parametrize("packet", DATAGRAMS.values(), ids=DATAGRAMS)
def test_old_datagram_is_sent_again_as_a_stub(rig: Rig, packet: bytes) -> None:
    bounded(rig)
    rig.spray(packet)
    clock_passes(OLD_NS)
    rig.counted()
    (stub,) = sent_by_clock(rig)
    assert stub.body.stub
    assert (stub.bth.psn, stub.bth.rtx) == (FIRST, True)
    assert stub.payload == stub_of(packet)
    counted = rig.counted()
    assert (counted["drop_expired"], counted["rtx_timeout"]) == (1, 1)
    (stub,) = sent_by_clock(rig)  # it is repeated until it is acknowledged, and counted once
    assert stub.payload == stub_of(packet)
    assert "drop_expired" not in rig.counted()


@pytest.mark.parametrize("version", [4, 6])
def test_tcp_is_sent_again_at_any_age(rig: Rig, version: int) -> None:
    bounded(rig)
    packet = tcp(b"bytes", version=version)
    rig.spray(packet)
    clock_passes(OLD_NS)
    (again,) = sent_by_clock(rig)
    assert not again.body.stub
    assert again.payload == packet
    assert "drop_expired" not in rig.counted()


def test_young_datagram_is_sent_again_whole(rig: Rig) -> None:
    bounded(rig, 60_000)
    rig.spray(outgoing(1))
    assert [each.payload for each in sent_by_clock(rig)] == [outgoing(1)]


def test_no_bound_is_none(rig: Rig) -> None:
    bounded(rig, 0)
    rig.spray(outgoing(1))
    clock_passes(OLD_NS)
    assert [each.payload for each in sent_by_clock(rig)] == [outgoing(1)]


def test_the_age_counts_from_mrc0_and_not_from_the_last_sending(rig: Rig) -> None:
    bounded(rig, 300)
    taken = time.monotonic_ns()
    rig.spray(outgoing(1))
    for _ in range(3):
        assert [each.body.stub for each in sent_by_clock(rig)] == [False]
    clock_passes(taken + 301_000_000 - time.monotonic_ns())
    assert [each.body.stub for each in sent_by_clock(rig)] == [True]


def test_datagrams_that_wait_for_the_window_expire_there(rig: Rig, far: Far) -> None:
    """A held packet has no earlier sending: it is the first one that is a stub."""
    rig.tune(datagram_max_ms=MAX_MS)
    narrow(rig, 1)
    spray(rig, 1)
    hold(rig, 3, first=1)
    clock_passes(OLD_NS)
    widen(rig)
    rig.counted()
    rig.arrive(far.sack(FIRST))
    sent = [packet for each in resent(rig) if isinstance(packet := decode_frame(each.frame), Data)]
    assert [(each.bth.psn, each.bth.rtx, each.body.stub) for each in sent] == [
        (FIRST + 1 + i, False, True) for i in range(3)
    ]
    assert [each.payload for each in sent] == [stub_of(outgoing(1 + i)) for i in range(3)]
    assert rig.counted()["drop_expired"] == 3
    assert rig.tx()["held"] == 0


def test_time_that_a_packet_was_held_counts_after_its_release(rig: Rig, far: Far) -> None:
    rig.tune(datagram_max_ms=400)
    narrow(rig, 1)
    spray(rig, 1)
    taken = time.monotonic_ns()
    hold(rig, 1, first=1)
    widen(rig)
    clock_passes(250_000_000)
    rig.arrive(far.sack(FIRST))
    assert [each.payload for each in resent(rig)] == [outgoing(1)]  # it was released in time
    clock_passes(taken + 401_000_000 - time.monotonic_ns())
    rig.tune(rto_min_ns=1)
    assert [each.body.stub for each in sent_by_clock(rig)] == [True]


def test_sack_that_finds_it_lost_brings_a_stub_too(rig: Rig, far: Far) -> None:
    rig.tune(datagram_max_ms=MAX_MS, reo_min_ns=0, reo_max_ns=0)
    spray(rig, 3)
    clock_passes(OLD_NS)
    rig.arrive(far.sack(FIRST - 1, 0b110, offset=1))
    sent = [decode_frame(each.frame) for each in resent(rig)]
    assert [isinstance(each, Data) and each.body.stub for each in sent] == [True]
    free = rig.free_slots("tx_free")
    rig.arrive(far.sack(FIRST + 2))
    assert rig.free_slots("tx_free") == free + 1  # it is acknowledged as any packet
    assert rig.tx()["una"] == FIRST + 3


def test_slot_of_an_expired_packet_keeps_nothing_of_it(rig: Rig, far: Far) -> None:
    bounded(rig)
    for number in range(RING_SLOTS // 2):
        rig.spray(outgoing(number))
        clock_passes(OLD_NS)
        assert [each.body.stub for each in sent_by_clock(rig)] == [True]
        rig.arrive(far.sack(FIRST + 2 * number))
        rig.spray(tcp(b"next"))  # in the slot that was freed last
        assert [each.body.stub for each in sent_by_clock(rig)] == [False]
        rig.arrive(far.sack(FIRST + 2 * number + 1))


# ---- MRC's framing, the receiver


def stub_frame(far: Far, psn: int, packet: bytes, **flags: bool) -> bytes:
    """Return the stub of a packet as it arrives."""
    frame = decode_frame(far.data(psn, stub_of(packet), **flags))
    assert isinstance(frame, Data)
    body = replace(frame.body, rkey=WIRE.MRC_RKEY_STUB, va=None)
    return far.frame(replace(frame, body=body), psn)


ARRIVING = {"v4": ip4(b"in"), "v6": ip6(b"in")}


@pytest.mark.parametrize("packet", ARRIVING.values(), ids=ARRIVING)
@pytest.mark.parametrize("at_xdp", [False, True], ids=["tc", "xdp"])
def test_stub_is_acknowledged_and_not_delivered(rig: Rig, far: Far, packet: bytes) -> None:
    sack = decode_frame(rig.arrive(stub_frame(far, 5000, packet, ackreq=True)).frame)
    assert isinstance(sack, Sack)
    assert sack.body.cack == 5000
    rig.arrive(far.data(5001, packet))
    assert rig.delivered() == [packet]
    counted = rig.counted()
    assert (counted["stub_rx"], counted["rx_packets"]) == (1, 1)
    assert not {name for name in counted if name.startswith("drop")}


@pytest.mark.parametrize("packet", ARRIVING.values(), ids=ARRIVING)
def test_stub_ahead_of_a_gap_waits_and_is_not_delivered(rig: Rig, far: Far, packet: bytes) -> None:
    free = rig.free_slots("rx_free")
    for psn in (5001, 5003):
        rig.arrive(stub_frame(far, psn, packet))
    rig.arrive(far.data(5002, packet))
    rig.arrive(far.data(5000, packet))
    rig.tick(4)
    assert rig.delivered() == [packet, packet]
    assert rig.counted()["stub_rx"] == 2
    assert (rig.rx()["next"], rig.rx()["waiting"]) == (5004, 0)
    assert rig.free_slots("rx_free") == free


def test_stub_fills_the_gap_for_what_waits(rig: Rig, far: Far) -> None:
    later = [ip4(bytes([i])) for i in range(3)]
    for i, packet in enumerate(later):
        rig.arrive(far.data(5001 + i, packet))
    rig.arrive(stub_frame(far, 5000, ip4(b"old"), rtx=True))
    rig.tick(4)
    assert rig.delivered() == later


def test_stub_of_a_packet_that_arrived_is_a_duplicate(rig: Rig, far: Far) -> None:
    rig.arrive(far.data(5000, ip4(b"in time")))
    rig.counted()
    sack = decode_frame(rig.arrive(stub_frame(far, 5000, ip4(b"in time"), rtx=True)).frame)
    assert isinstance(sack, Sack)
    assert sack.body.cack == 5000
    counted = rig.counted()
    assert counted["trial_rx"] == 1
    assert "stub_rx" not in counted


def test_packet_behind_its_stub_is_a_duplicate(rig: Rig, far: Far) -> None:
    rig.arrive(stub_frame(far, 5000, ip4(b"late")))
    rig.arrive(far.data(5000, ip4(b"late")))
    assert rig.delivered() == []
    assert rig.counted()["rx_duplicate"] == 1


def test_stub_without_the_tag_is_dropped(rig: Rig, far: Far) -> None:
    """A forger cannot have a PSN pass for received, nor make a stub of a packet."""
    frame = bytearray(far.data(5000, ip4(b"good")))
    before = rig.rx()["next"]
    at = frame.index(WIRE.MRC_RKEY_NETDEV.to_bytes(4))
    frame[at : at + 4] = WIRE.MRC_RKEY_STUB.to_bytes(4)
    rig.arrive(bytes(frame[:-4]) + icrc_of(bytes(frame), UDP).to_bytes(4))
    assert rig.counted() == {"drop_tag": 1}
    assert rig.rx()["next"] == before


def test_stub_needs_no_inner_address(rig: Rig, far: Far) -> None:
    """What is never delivered is not judged by its addresses."""
    rig.tune(inner=1)
    rig.arrive(stub_frame(far, 5000, ip4(b"x", src="192.0.2.1")))
    assert rig.counted() == {"stub_rx": 1}


# ---- cells


def cells_by_clock(cells: CellRig) -> list[AnyCell]:
    overdue(cells.rig)
    return [cell for cell, _frame in cells.cells_sent()]


@pytest.mark.parametrize("packet", DATAGRAMS.values(), ids=DATAGRAMS)
def test_cell__old_datagram_is_sent_again_as_a_stub(
    cells: CellRig, rig: Rig, packet: bytes
) -> None:
    bounded(rig)
    rig.spray(packet)
    clock_passes(OLD_NS)
    for attempt in (1, 2, 3, 3):
        (stub,) = cells_by_clock(cells)
        assert stub.cell.stub
        assert piece_psns(stub.cell, 0, 0) == (FIRST, 1)
        assert (stub.cell.seq, stub.cell.attempt) == (0, attempt)
        assert stub.payload == stub_of(packet)
    assert rig.counted()["drop_expired"] == 1


def test_cell__tcp_is_sent_again_at_any_age(cells: CellRig, rig: Rig) -> None:
    bounded(rig)
    cells.send(tcp(noise(3 * MSS), partial=True), MSS)
    rig.spray(tcp(b"one", seq=1 + 3 * MSS))
    cells.cells_sent()
    clock_passes(OLD_NS)
    assert [cell.cell.stub for cell in cells_by_clock(cells)] == [False] * 4
    assert "drop_expired" not in rig.counted()


def test_cell__datagrams_that_wait_for_the_window_expire_there(cells: CellRig, rig: Rig) -> None:
    rig.tune(datagram_max_ms=MAX_MS)
    narrow(rig, 1)
    rig.spray(outgoing(0))
    for number in (1, 2):
        rig.spray(outgoing(number))
    cells.cells_sent()
    clock_passes(OLD_NS)
    widen(rig)
    rig.arrive(cells.far.answer(FIRST))
    rig.tick()
    sent = [cell for cell, _frame in cells.cells_sent()]
    assert [(each.cell.psn, each.cell.stub, each.cell.attempt) for each in sent] == [
        (FIRST + 1, True, 0),
        (FIRST + 2, True, 0),
    ]
    assert [each.payload for each in sent] == [stub_of(outgoing(1)), stub_of(outgoing(2))]


@pytest.mark.parametrize("packet", ARRIVING.values(), ids=ARRIVING)
@pytest.mark.parametrize("early", [False, True], ids=["next", "early"])
def test_cell__stub_is_taken_and_not_delivered(
    cells: CellRig, rig: Rig, packet: bytes, early: bool
) -> None:
    stub = cells.far.cell(5001 if early else 5000, stub_of(packet), mss=WIRE.MRC_CELL_STUB, first=0)
    whole = cells.far.cell(5000 if early else 5001, packet)
    for frame in (stub, whole):
        cells.arrive(frame)
    rig.tick(4)
    assert rig.delivered() == [packet]
    counted = rig.counted()
    assert (counted["stub_rx"], counted["rx_packets"]) == (1, 1)
    assert (rig.rx()["next"], rig.rx()["waiting"]) == (5002, 0)


def test_cell__next_packet_on_the_cpu_is_no_stub(cells: CellRig, rig: Rig) -> None:
    """What is known of a packet is in memory of the CPU: nothing of it may stay."""
    for psn, kind in zip(range(5000, 5006), itertools.cycle((True, False)), strict=False):
        packet = ip4(bytes([psn & 0xFF]))
        if kind:
            cells.arrive(cells.far.cell(psn, stub_of(packet), mss=WIRE.MRC_CELL_STUB, first=0))
        else:
            cells.arrive(cells.far.cell(psn, packet))
    assert len(rig.delivered()) == 3
    assert rig.counted()["stub_rx"] == 3


def test_cell__large_stub_is_refused(cells: CellRig, rig: Rig) -> None:
    """Several packets cannot be a stub."""
    assert (
        cells.arrive(cells.far.cell(5000, large(3), mss=WIRE.MRC_CELL_STUB, first=0)).verdict
        == TC_SHOT
    )
    assert rig.counted() == {"drop_length": 1}
