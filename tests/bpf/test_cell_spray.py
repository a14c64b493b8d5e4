# SPDX-License-Identifier: GPL-2.0-only
"""mrc_spray in a QP of cells: frames against the codec, byte for byte; what is cut or dropped."""

from __future__ import annotations

import time

import pytest

from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE
from rigs.packets import destination, ev_in, ip4, ip6, redirected
from rigs.rig import CELL_SLOTS, LINK_MAC, MPR, RING_SLOTS, T1S, TC_REDIRECT, TC_SHOT, Rig
from tests.bpf.cells import (
    ACK,
    IN_EACH_ENVELOPE,
    MSS,
    PSH,
    CellRig,
    body_of,
    ends_of,
    network,
    noise,
    tcp,
    udp,
)

FIRST = 1000
PATHS = 4 * T1S
OUTWARD = {"src": "10.99.0.1", "dst": "10.99.0.2"}
OUTWARD6 = {"src": "fd99::1", "dst": "fd99::2"}
EARLY_NEVER = 1 << 62
SECOND = 1_000_000_000


pytestmark = IN_EACH_ENVELOPE


def ipip(version: int) -> bytes:
    """Return a packet that an application's tunnel has put into another."""
    inner = tcp(b"inside", version=version)
    return network(
        inner, 4 if version == 4 else 41, ends_of(4, inward=False), ident=3, tos=0, options=b""
    )


SINGLES = {
    "udp4": ip4(b"four", **OUTWARD),
    "udp6": ip6(b"six", **OUTWARD6),
    "tcp4": tcp(noise(700), flags=ACK | PSH),
    "tcp6": tcp(noise(701), version=6),
    "shortest": network(b"", 1, ends_of(4, inward=False), ident=0, tos=0, options=b""),
    "4in4": ipip(4),
    "6in4": ipip(6),
    "vxlan": udp(bytes(8) + bytes(12) + b"\x08\x00" + tcp(b"inside"), summed=False),
}


@pytest.mark.parametrize("bare", [0, 1])
@pytest.mark.parametrize("name", SINGLES)
def test_single_packet_is_a_cell_of_one_on_every_path(
    cells: CellRig, rig: Rig, name: str, bare: int
) -> None:
    packet, evs = SINGLES[name], set()
    for plane in range(4):
        rig.edit("planes", plane, "mrc_plane", bare=bare)
    for psn in range(FIRST, FIRST + 2 * PATHS):
        ran = rig.spray(packet)
        assert ran.verdict == TC_REDIRECT
        ev = ev_in(ran.frame)
        assert ran.frame == cells.far.our_cell(psn, packet, ev)
        evs.add(ev)
    # Where switches hash there are more EVs than packets here.
    assert len(evs) == (PATHS if rig.fabric.routing.mode == "srv6" else 2 * PATHS)
    assert rig.counted() == {
        "tx_packets": 2 * PATHS, "tx_bytes": 2 * PATHS * len(packet)
    }  # fmt: skip
    assert cells.slots()[:2] == (RING_SLOTS - 2 * PATHS, CELL_SLOTS)
    assert rig.dp.read("balances", 0, ABI.structs["mrc_balance"])["wants"] == 0


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(
    ("length", "mss", "base"),
    [
        (2 * MSS, MSS, 0x10000),
        (2 * MSS + 1, MSS, 0xFFFFFF80),
        (4 * MSS - 1, MSS, 0xABCD),
        (3 * 512, 512, 0xFF),
        (100 * 600 + 7, 600, 0x1234567),
        (126 * 512, 512, 0xFFFFFFFF),
    ],
)
def test_large_packet_is_one_cell(
    cells: CellRig, rig: Rig, version: int, length: int, mss: int, base: int
) -> None:
    packet = tcp(noise(length), version=version, seq=base, flags=ACK | PSH, partial=True)
    cells.send(packet, mss)
    ((cell, frame),) = cells.cells_sent()
    assert frame == cells.far.our_cell(FIRST, packet, cell.cell.ev, mss=mss)
    count = -(-length // mss)
    assert rig.counted() == {"tx_packets": count, "tx_bytes": len(packet), "tx_cells": 1}
    assert rig.tx()["next"] == FIRST + count
    assert rig.tx()["packets"] == count
    assert cells.slots()[:2] == (RING_SLOTS, CELL_SLOTS - 1)
    assert rig.path(cell.cell.ev)["sent"] == 1
    assert rig.active()
    head = len(packet) - length
    there = [cells.entry(FIRST + i) for i in range(count)]
    assert {one["slot"] & ~(0x7F << ABI.MRC_SLOT_AT_SHIFT) for one in there} == {there[0]["slot"]}
    assert there[0]["slot"] & ABI.MRC_SLOT_BIG
    assert [one["slot"] >> ABI.MRC_SLOT_AT_SHIFT & 0x7F for one in there] == list(range(count))
    assert [one["len"] - head for one in there] == [mss] * (count - 1) + [
        length - mss * (count - 1)
    ]
    assert {one["path"] for one in there} == {there[0]["path"]}
    assert {one["sends"] for one in there} == {1}
    assert [one["psn"] for one in there] == list(range(FIRST, FIRST + count))


def test_cells_and_single_packets_follow_each_other(cells: CellRig, rig: Rig) -> None:
    psn, evs = FIRST, []
    for count in (3, 1, 5, 2, 1, 4):
        packet = tcp(noise(count * MSS), seq=psn, partial=count > 1)
        if count > 1:
            cells.send(packet, MSS)
            ((cell, _frame),) = cells.cells_sent()
            evs.append(cell.cell.ev)
            assert (cell.cell.psn, cell.payload) == (psn, packet)
        else:
            frame = rig.spray(packet).frame
            evs.append(ev_in(frame))
            assert frame == cells.far.our_cell(psn, packet, evs[-1])
        psn += count
    assert rig.tx()["next"] == psn
    assert len({ev >> WIRE.MRC_EV_PLANE_SHIFT for ev in evs[:4]}) == 4  # a plane each


def test_psns_wrap_within_a_cell(cells: CellRig, rig: Rig) -> None:
    rig.connect(tx_psn=0xFFFFFE)
    cells.speak_cells()
    packet = tcp(noise(5 * MSS), partial=True)
    cells.send(packet, MSS)
    ((cell, frame),) = cells.cells_sent()
    assert frame == cells.far.our_cell(0xFFFFFE, packet, cell.cell.ev, mss=MSS)
    assert rig.tx()["next"] == 0x1000003


def test_cell_wants_an_answer(cells: CellRig, rig: Rig) -> None:
    cells.send(tcp(noise(2 * MSS), partial=True), MSS)
    assert rig.dp.read("balances", 0, ABI.structs["mrc_balance"])["wants"] == 1


def test_slow_path_asks_for_an_answer(cells: CellRig, rig: Rig) -> None:
    rig.edit("txs", 0, "mrc_tx", slow=rig.sets()["use"])
    packet = SINGLES["udp4"]
    frame = rig.spray(packet).frame
    assert frame == cells.far.our_cell(FIRST, packet, ev_in(frame), ackreq=True)


@pytest.mark.parametrize("room", [3, 2])
def test_whole_cell_fits_into_the_window_or_none_of_it(cells: CellRig, rig: Rig, room: int) -> None:
    # A window that is nearly full is a queue, which TCP without ECN hears of by a loss. Its last
    # eighth is for connections with nothing on their way.
    end = FIRST + MPR - MPR // 8
    rig.edit("txs", 0, "mrc_tx", next=end - room, early_ns=EARLY_NEVER)
    packet = tcp(noise(3 * MSS), partial=True)
    if room == 3:
        cells.send(packet, MSS)
        assert len(cells.cells_sent()) == 1
        assert rig.tx()["next"] == end
        return
    with pytest.raises(OSError, match="No buffer space"):  # the sender learns of it
        cells.send(packet, MSS)
    assert cells.sent() == []
    assert rig.counted() == {"drop_window": 1}
    assert rig.tx()["next"] == end - room
    assert cells.slots()[:2] == (RING_SLOTS, CELL_SLOTS)


def test_no_path_gives_the_slot_back(cells: CellRig, rig: Rig) -> None:
    rig.edit("txs", 0, "mrc_tx", plane_use=0, plane_open=0)
    with pytest.raises(OSError, match="No buffer space"):
        cells.send(tcp(noise(3 * MSS), partial=True), MSS)
    assert rig.counted() == {"drop_no_path": 1}
    assert cells.slots()[:2] == (RING_SLOTS, CELL_SLOTS)


# ---- what goes round to be cut


def forget_cut(rig: Rig) -> None:
    rig.edit("txs", 0, "mrc_tx", cut_flows=0, cut_ns=0, cut_pending=0, flows=0)


def assert_cut(cells: CellRig, rig: Rig, before: tuple[bytes, ...], packet: bytes) -> None:
    assert [frame[14:] for frame in rig.back.take()] == [packet]
    assert cells.sent() == []
    assert rig.counted() == {"tx_cut": 1}
    assert rig.tx()["cut_flows"].bit_count() == 1
    forget_cut(rig)
    assert rig.state() == before
    assert cells.slots()[:2] == (RING_SLOTS, CELL_SLOTS)


def test_without_a_slot_a_large_packet_is_cut(cells: CellRig, rig: Rig) -> None:
    slots = rig.take_slots("tx_cells_free")
    before = rig.state()
    packet = tcp(noise(3 * MSS), partial=True)
    cells.send(packet, MSS)
    rig.give_slots("tx_cells_free", slots)
    assert_cut(cells, rig, before, packet)


@pytest.mark.parametrize(
    ("length", "mss", "cell_bytes"),
    [
        (3 * 511, 511, 65000),  # too short segments
        (128 * 500, 500, 65000),
        (30000, 1000, 30039),  # longer than the dial allows
        (3 * 1430, 1430, 65000),  # packets longer than mrc0's MTU
    ],
)
def test_what_makes_no_cell_is_cut(
    cells: CellRig, rig: Rig, length: int, mss: int, cell_bytes: int
) -> None:
    rig.tune(cell_bytes=cell_bytes)
    before = rig.state()
    packet = tcp(noise(length), partial=True)
    cells.send(packet, mss)
    assert_cut(cells, rig, before, packet)


def test_dial_allows_as_much_as_it_says(cells: CellRig, rig: Rig) -> None:
    rig.tune(cell_bytes=30040)
    cells.send(tcp(noise(30000), partial=True), 1000)
    assert rig.counted()["tx_cells"] == 1


def test_large_packet_of_a_qp_without_cells_is_cut(cells: CellRig, rig: Rig) -> None:
    rig.edit("qps", 0, "mrc_qp", framing=ABI.MRC_FRAMING_MRC)
    before = rig.state()
    packet = tcp(noise(3 * MSS), partial=True)
    cells.send(packet, MSS)
    assert_cut(cells, rig, before, packet)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("kind", ["udp", "vxlan", "tunnel"])
def test_large_packet_without_tcp_is_cut(cells: CellRig, rig: Rig, kind: str, version: int) -> None:
    packet = {
        "udp": udp(noise(3 * MSS), version=version, partial=True),
        "vxlan": udp(bytes(22) + tcp(noise(3 * MSS)), version=version, summed=False),
        "tunnel": network(
            tcp(noise(3 * MSS)), 4, ends_of(version, inward=False), ident=1, tos=0, options=b""
        ),
    }[kind]
    before = rig.state()
    assert cells.spray_on(packet, MSS) == TC_REDIRECT
    assert rig.counted() == {"tx_cut": 1}
    assert rig.tx()["cut_flows"].bit_count() == 1
    forget_cut(rig)
    assert rig.state() == before
    assert cells.slots()[:2] == (RING_SLOTS, CELL_SLOTS)


def test_large_packet_that_was_inside_another_is_cut(cells: CellRig, rig: Rig) -> None:
    """The kernel refuses to put it into another once more."""
    before = rig.state()
    packet = tcp(noise(3 * MSS), partial=True)
    cells.send_tunnelled(packet, MSS)
    assert_cut(cells, rig, before, packet)


def test_small_packets_follow_larger_ones_of_their_flow_that_are_cut(
    cells: CellRig, rig: Rig
) -> None:
    """What is cut comes back by a CPU's backlog, and they would overtake it."""
    small, ever, every = tcp(b"small"), time.monotonic_ns() + 1000 * SECOND, (1 << 64) - 1
    rig.edit("txs", 0, "mrc_tx", cut_flows=every, cut_ns=ever, cut_pending=1)
    ran = rig.spray(small)
    assert (ran.verdict, ran.frame[14:]) == (TC_REDIRECT, small)
    assert (rig.counted(), rig.tx()["cut_pending"]) == ({}, 2)
    for left in (1, 0):  # they come back
        assert cells.spray_on(small, 0, "back") == TC_REDIRECT
        assert (rig.counted()["tx_packets"], rig.tx()["cut_pending"]) == (1, left)
    assert rig.spray(small).verdict == TC_REDIRECT
    assert (rig.counted()["tx_packets"], rig.tx()["cut_pending"]) == (1, 0)


def test_what_was_lost_while_it_was_cut_is_not_waited_for(cells: CellRig, rig: Rig) -> None:
    long_ago = time.monotonic_ns() - SECOND
    rig.edit("txs", 0, "mrc_tx", cut_flows=(1 << 64) - 1, cut_ns=long_ago, cut_pending=1)
    assert rig.spray(tcp(b"small")).verdict == TC_REDIRECT
    assert rig.counted()["tx_packets"] == 1
    assert (rig.tx()["cut_flows"], rig.tx()["cut_pending"]) == (0, 0)


def test_without_the_cutting_interface_large_packets_are_dropped(cells: CellRig, rig: Rig) -> None:
    rig.tune(cut_ifindex=0)
    assert cells.spray_on(udp(noise(3 * MSS), partial=True), MSS) == TC_SHOT
    assert rig.counted() == {"drop_too_big": 1}


def test_packet_longer_than_the_mtu_is_dropped(cells: CellRig, rig: Rig) -> None:
    largest = rig.spray(tcp(noise(rig.mtu - 40)))
    assert largest.verdict == TC_REDIRECT
    assert len(largest.frame) == WIRE.MRC_ETH_LEN + rig.fabric.mtu
    assert rig.spray(tcp(noise(rig.mtu - 39))).verdict == TC_SHOT
    assert rig.counted()["drop_too_big"] == 1


# ---- congestion


@pytest.mark.parametrize("count", [1, 4])
def test_long_queue_is_told_to_tcp_with_ecn(cells: CellRig, rig: Rig, count: int) -> None:
    rig.tune(queue_target_ns=1)
    rig.edit("txs", 0, "mrc_tx", queue_ns=1000, queue_at_ns=time.monotonic_ns())
    packet = tcp(noise(count * MSS), tos=WIRE.MRC_ECN_ECT0, partial=True)
    marked = tcp(noise(count * MSS), tos=WIRE.MRC_ECN_CE, partial=True)
    if count > 1:
        cells.send(packet, MSS)
        ((cell, frame),) = cells.cells_sent()
        assert frame == cells.far.our_cell(FIRST, marked, cell.cell.ev, mss=MSS)
    else:
        frame = rig.spray(packet).frame
        assert frame == cells.far.our_cell(FIRST, marked, ev_in(frame))
    assert rig.counted()["tx_ce"] == 1


def test_sprayed_cell_is_what_arrives_as_a_cell(cells: CellRig, rig: Rig) -> None:
    """Both ends of the data path agree, not only each with the codec."""
    rig.connect(remote_qpn=0x770000, tx_psn=7, rx_psn=7)
    cells.speak_cells()
    packet = tcp(noise(5 * MSS), partial=True)
    cells.send(packet, MSS)
    ((cell, frame),) = cells.cells_sent(0x770000)
    there = cells.far.cell(7, packet, cell.cell.ev, mss=MSS)
    _length, label, state, inner = cells.places
    assert frame[inner:] == there[inner:]
    assert frame[state : state + 12] == there[state : state + 12]
    assert int.from_bytes(frame[label : label + 3], "big") & 0xFFFFF == cell.cell.label
    cells.bring(redirected(frame, destination(there)), MSS)
    assert [body_of(one) for one in cells.delivered()] == [noise(5 * MSS)]
    assert LINK_MAC not in frame[:14]
