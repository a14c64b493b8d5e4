# SPDX-License-Identifier: GPL-2.0-only
"""Cells at the receiver: order, copies, answers, and what is wrong with lies and damage."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace
from typing import TypeGuard

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrcd.wire.abi import ABI
from mrcd.wire.envelope import DecodeError
from mrcd.wire.packet import WIRE, Control, Peth, Sack, decode_frame
from tests.bpf.cells import (
    ACK,
    CELL,
    FIN,
    MSS,
    PSH,
    CellRig,
    body_of,
    is_cell,
    noise,
    piece,
    pieces,
    seq_of,
    tcp,
    udp,
)
from tests.bpf.packets import EV, QPN, ev_of, ip4, numbered
from tests.bpf.rig import (
    CELL_SLOTS,
    LINK_MAC,
    MPR,
    NEVER_NS,
    RING_SLOTS,
    TC_REDIRECT,
    TC_SHOT,
    WINDOW,
    Rig,
)
from tests.bpf.test_cell_resend import overdue, right

FIRST = 5000
BASE = 0x10000
ALL_FREE = (RING_SLOTS, CELL_SLOTS, RING_SLOTS, CELL_SLOTS)


def large(count: int, *, version: int = 4, mss: int = MSS, seq: int = BASE) -> bytes:
    """Return the TCP packet of a cell, the last packet of which is short."""
    return tcp(
        noise(count * mss - 7), seq=seq, version=version, inward=True, flags=ACK | PSH, partial=True
    )


def streamed(cells: CellRig, base: int = BASE) -> bytes:
    """Return the bytes of TCP that were delivered, which must be in order and without gaps."""
    out, expected = b"", base
    for packet in cells.delivered():
        body = body_of(packet)
        assert seq_of(packet) == expected
        if len(body) <= MSS:
            assert right(packet)
        expected += len(body)
        out += body
    return out


def question(cells: CellRig, sent: int = 77) -> Sack:
    """Return the answer to a question for a SACK."""
    ran = cells.rig.arrive(cells.far.probe(0, sent=sent, vendor=WIRE.MRC_PETH_SOLICIT))
    assert ran.verdict == TC_REDIRECT
    packet = decode_frame(ran.frame)
    assert isinstance(packet, Sack)
    return packet


def answer(frame: bytes) -> Sack:
    packet = decode_frame(frame)
    assert isinstance(packet, Sack)
    return packet


def changed(rig: Rig, before: dict[str, int]) -> set[str]:
    """Return what has changed of the receiver's half of the QP, but for what it saw when."""
    after = rig.rx()
    ignored = {"large_ns", "gap_ns", "gap_psn"}
    return {name for name in after if after[name] != before[name]} - ignored


def sacked(sack: Sack) -> set[int]:
    first = sack.body.cack + sack.body.sack_offset
    found = {first + i for i in range(64) if sack.body.bitmap >> i & 1}
    return {psn for psn in found if psn > sack.body.cack}


# ---- in order


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("count", "mss"), [(2, MSS), (5, MSS), (60, 1000), (127, 512)])
def test_whole_cell_is_delivered_as_it_came(
    cells: CellRig, rig: Rig, version: int, count: int, mss: int
) -> None:
    packet = large(count, version=version, mss=mss)
    cells.bring(cells.far.cell(FIRST, packet, mss=mss), mss)
    frames = [frame for frame in rig.mrc0.take() if frame[:12] == LINK_MAC * 2]
    assert [frame[14:] for frame in frames] == [packet]
    assert frames[0][12:14] == (b"\x08\x00" if version == 4 else b"\x86\xdd")
    assert rig.counted() == {"rx_packets": count, "rx_bytes": len(packet), "rx_cells": 1}
    rx = rig.rx()
    assert (rx["next"], rx["high"], rx["packets"]) == (FIRST + count, FIRST + count, count)
    assert (rx["pending_packets"], rx["pending_bytes"]) == (count, len(packet))
    assert (rx["waiting"], rx["busy"], rx["ev"]) == (0, 0, EV)
    assert rig.active()
    assert cells.slots() == ALL_FREE


@pytest.mark.parametrize("packet", [udp(b"four", inward=True), tcp(noise(900), version=6)])
def test_single_packet_is_delivered_as_it_came(cells: CellRig, rig: Rig, packet: bytes) -> None:
    assert cells.arrive(cells.far.cell(FIRST, packet)).verdict == TC_SHOT
    assert cells.delivered() == [packet]
    assert rig.counted() == {"rx_packets": 1, "rx_bytes": len(packet)}
    assert rig.rx()["next"] == FIRST + 1
    assert rig.active()


@pytest.mark.parametrize("cut", [(1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 3), (4, 1), (1, 4)])
def test_pieces_in_every_order(cells: CellRig, rig: Rig, cut: tuple[int, ...]) -> None:
    packet = large(5)
    ends = list(itertools.accumulate(cut))
    ranges = [(end - size, end) for end, size in zip(ends, cut, strict=True)]
    for order in itertools.permutations(ranges):
        first = rig.rx()["next"]
        for begin, end in order:
            cells.take(first, packet, MSS, begin, end)
        rig.tick(4)
        assert streamed(cells) == body_of(packet)
        assert rig.rx()["next"] == first + 5
        assert rig.rx()["waiting"] == 0
        assert cells.slots() == ALL_FREE


@pytest.mark.parametrize("seq", [0, 0xFF, 0x100, 0xFFFFFFFF, 0x7FFF01])
@pytest.mark.parametrize(("count", "mss"), [(127, 512), (60, 1001), (9, 1332)])
def test_every_piece_finds_its_place(
    cells: CellRig, rig: Rig, count: int, mss: int, seq: int
) -> None:
    packet = large(count, mss=mss, seq=seq)
    for index in range(count - 1, 0, -1):
        part = piece(packet, mss, index, index + 1)
        cells.arrive(cells.far.cell(FIRST, part, mss=mss, first=seq))
        assert rig.dp.read(
            "rx_entries", (FIRST + index) % MPR, ABI.structs["mrc_rx_entry"]
        )["psn"] == FIRST + index  # fmt: skip
    assert rig.counted()["rx_held"] == count - 1
    cells.arrive(cells.far.cell(FIRST, piece(packet, mss, 0, 1), mss=mss))
    rig.tick(10)
    assert cells.delivered() == pieces(packet, mss)


@pytest.mark.parametrize("first", [0xFFFFFE, 0xFFFFFFFE, 61, 126, 190])
def test_pieces_across_words_and_wraps(cells: CellRig, rig: Rig, first: int) -> None:
    rig.connect(rx_psn=first)
    cells.speak_cells()
    packet = large(120, mss=512)
    for begin, end in ((119, 120), (70, 119), (1, 68), (68, 70), (0, 1)):
        cells.take(first, packet, 512, begin, end)
    assert rig.rx()["waiting"] == 119 - 96  # as much as one program run releases
    rig.tick(10)
    assert streamed(cells) == body_of(packet)
    assert rig.rx()["next"] == (first + 120) & 0xFFFFFFFF
    assert cells.slots() == ALL_FREE


# ---- seen before


@pytest.mark.parametrize(
    ("again", "counter"),
    [
        ((0, 2), "rx_duplicate"),  # delivered
        ((1, 3), "rx_cells"),  # in part delivered, the rest is new: TCP sorts it out
        ((4, 6), "rx_duplicate"),  # held
        ((3, 5), "rx_overlap"),
        ((5, 7), "rx_overlap"),
        ((1, 5), "rx_overlap"),  # delivered, new and held
    ],
)
def test_copies_and_overlaps(
    cells: CellRig, rig: Rig, again: tuple[int, int], counter: str
) -> None:
    packet = large(8)
    cells.take(FIRST, packet, MSS, 0, 2)
    cells.take(FIRST, packet, MSS, 4, 6)
    cells.delivered()
    rig.counted()
    before = rig.rx()
    cells.take(FIRST, packet, MSS, *again)
    assert rig.counted()[counter] == 1
    new = counter == "rx_cells"
    assert [body_of(one) for one in cells.delivered()] == [noise(2 * MSS, MSS)] * new
    after = rig.rx()
    assert after["next"] == (FIRST + 3 if new else before["next"])
    assert (after["waiting"], after["high"]) == (2, FIRST + 6)
    assert cells.slots()[2:] == (RING_SLOTS, CELL_SLOTS - 1)


def test_copy_of_a_piece_is_answered_by_the_clock(cells: CellRig, rig: Rig) -> None:
    packet = large(3)
    cells.take(FIRST, packet, MSS, 0, 3)
    rig.tick(2)  # the SACK, then nothing more to watch
    cells.sent()
    assert not rig.active()
    cells.take(FIRST, packet, MSS, 0, 3)
    assert rig.active()
    rig.tick()
    told = [answer(frame) for _plane, frame in cells.sent() if not is_probe(frame)]
    assert [sack.body.cack for sack in told] == [FIRST + 2]


def test_whole_cell_behind_packets_that_were_sent_again(cells: CellRig, rig: Rig) -> None:
    packet = large(5)
    for index, part in enumerate(pieces(packet, MSS)[:2]):
        cells.arrive(cells.far.cell(FIRST + index, part, attempt=1))
    assert len(cells.delivered()) == 2
    cells.take(FIRST, packet, MSS, 0, 5)
    assert [body_of(one) for one in cells.delivered()] == [body_of(packet)]
    assert rig.rx()["next"] == FIRST + 5


@pytest.mark.parametrize("psn", [FIRST - 3, FIRST - 60, FIRST + MPR - 1, FIRST + 100_000])
def test_piece_outside_the_window_is_dropped(cells: CellRig, rig: Rig, psn: int) -> None:
    before = rig.rx()
    assert cells.arrive(cells.far.cell(psn, large(3), mss=MSS), mss=MSS).verdict == TC_SHOT
    counter = "rx_duplicate" if psn < FIRST else "drop_psn"
    assert rig.counted() == {counter: 1}
    assert changed(rig, before) == ({"pending_packets"} if psn < FIRST else set())
    assert cells.slots() == ALL_FREE


def test_last_place_of_the_window_is_held(cells: CellRig, rig: Rig) -> None:
    cells.arrive(cells.far.cell(FIRST + MPR - 3, large(3), mss=MSS), mss=MSS)
    assert rig.counted() == {"rx_held": 3}


# ---- early


RELEASES = ("single", "question", "clock")


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("release", RELEASES)
def test_early_piece_is_held_and_released_packet_by_packet(
    cells: CellRig, rig: Rig, release: str, version: int
) -> None:
    packet = large(6, version=version)
    cells.take(FIRST, packet, MSS, 3, 6)
    assert rig.counted() == {"rx_held": 3}
    assert rig.rx()["waiting"] == 3
    assert cells.slots()[3] == CELL_SLOTS - 1
    cells.take(FIRST, packet, MSS, 0, 2)
    if release == "single":
        cells.take(FIRST, packet, MSS, 2, 3)
    else:
        cells.take(FIRST, packet, MSS, 1, 3)  # in part delivered; its skb cannot release others
        assert rig.rx()["waiting"] == 3
        if release == "question":
            assert question(cells).body.cack == FIRST + 5
        else:
            rig.tick(2)
    got = cells.delivered()
    assert got[-3:] == pieces(packet, MSS)[3:]
    assert rig.rx()["next"] == FIRST + 6
    assert rig.rx()["waiting"] == 0
    assert cells.slots() == ALL_FREE


@pytest.mark.parametrize("partial", [True, False])
def test_held_single_packet_gets_the_rest_of_its_checksum(
    cells: CellRig, rig: Rig, partial: bool
) -> None:
    packets = [tcp(noise(200 + n), inward=True, partial=partial) for n in range(3)]
    for n in (2, 1, 0):
        cells.arrive(cells.far.cell(FIRST + n, packets[n]))
    whole = [tcp(noise(200 + n), inward=True) for n in range(3)]
    assert cells.delivered() == packets[:1] + whole[1:]


@pytest.mark.parametrize("framing", [ABI.MRC_FRAMING_CELL, ABI.MRC_FRAMING_MRC])
@pytest.mark.parametrize("kind", ["payload", "ip"])
def test_held_packet_does_not_lose_the_mark_of_its_damage(
    cells: CellRig, rig: Rig, kind: str, framing: int
) -> None:
    """Its checksum must stay wrong, or the application would take damaged data."""
    good = tcp(noise(300), inward=True)
    at = 250 if kind == "payload" else 8
    packet = good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :]
    rig.edit("qps", 0, "mrc_qp", framing=framing)
    for psn, one in ((FIRST + 1, packet), (FIRST, numbered(1))):
        if framing == ABI.MRC_FRAMING_CELL:
            cells.arrive(cells.far.cell(psn, one))
        else:
            rig.arrive(cells.far.data(psn, one))
    assert cells.delivered() == [numbered(1), packet]


def gap_is_new(rig: Rig, age_ns: int = 0) -> None:
    """Let cells be early since `age_ns` ago only."""
    gap = {"gap_psn": rig.rx()["next"], "gap_ns": time.monotonic_ns() - age_ns}
    rig.edit("rxs", 0, "mrc_rx", **gap)


def test_early_piece_circles_while_its_turn_may_come(cells: CellRig, rig: Rig) -> None:
    rig.tune(circle_ns=NEVER_NS)
    frame = cells.far.cell(FIRST + 1, large(3), mss=MSS)
    before = rig.rx()
    ran = cells.arrive(frame, mss=MSS)
    assert (ran.verdict, ran.frame) == (TC_REDIRECT, frame)
    assert rig.counted() == {"rx_circled": 1}
    assert ran.mark
    assert changed(rig, before) == set()
    assert cells.slots() == ALL_FREE
    again = cells.arrive(frame, mss=MSS, mark=ran.mark)
    assert (again.verdict, again.mark) == (TC_REDIRECT, ran.mark)
    # Its time is over: the mark counts 64 ns.
    old = ran.mark - (NEVER_NS >> 6) - 1000 & 0xFFFFFFFF
    assert cells.arrive(frame, mss=MSS, mark=old).verdict == TC_SHOT
    assert rig.counted() == {"rx_circled": 1, "rx_held": 3}


def test_early_piece_is_held_before_an_old_gap(cells: CellRig, rig: Rig) -> None:
    rig.tune(circle_ns=1_000_000_000)
    gap_is_new(rig, 2_000_000_000)
    assert cells.arrive(cells.far.cell(FIRST + 1, large(3), mss=MSS), mss=MSS).verdict == TC_SHOT
    assert rig.counted() == {"rx_held": 3}
    cells.take(FIRST, large(2), MSS, 0, 1)  # releases it; the next gap is another one
    assert rig.rx()["next"] == FIRST + 4
    assert cells.arrive(cells.far.cell(FIRST + 9, large(3), mss=MSS), mss=MSS).verdict == (
        TC_REDIRECT
    )


def test_without_a_time_nothing_circles(cells: CellRig, rig: Rig) -> None:
    assert cells.arrive(cells.far.cell(FIRST + 1, large(3), mss=MSS), mss=MSS).verdict == TC_SHOT
    assert rig.counted() == {"rx_held": 3}


@pytest.mark.parametrize("beside", ["nothing", "large cells", "old ones", "what is held"])
def test_single_packet_circles_beside_large_cells(cells: CellRig, rig: Rig, beside: str) -> None:
    rig.tune(circle_ns=NEVER_NS)
    lately = {"large cells": 0, "what is held": 0, "old ones": 1_000_000_000}
    if beside in lately:
        rig.edit("rxs", 0, "mrc_rx", large_ns=time.monotonic_ns() - lately[beside])
    if beside == "what is held":  # it waits for no predecessor, but for an skb like this one
        rig.edit("rxs", 0, "mrc_rx", received=bit_of(FIRST))
    cells.arrive(cells.far.cell(FIRST + 1, numbered(1)))
    counter = "rx_circled" if beside == "large cells" else "rx_held"
    assert rig.counted()[counter] == 1


def bit_of(psn: int) -> tuple[int, ...]:
    """Return the bitmap of a window in which one packet has arrived."""
    words = [0] * ABI.MRC_WINDOW_WORDS
    words[psn % WINDOW // 64] = 1 << psn % 64
    return tuple(words)


def test_piece_that_circles_is_delivered_as_it_came(cells: CellRig, rig: Rig) -> None:
    """The real thing: it goes round through the backlog until its predecessor is there."""
    rig.tune(circle_ns=NEVER_NS)
    packet = large(6)
    cells.take(FIRST, packet, MSS, 3, 6)
    cells.take(FIRST, packet, MSS, 0, 3)
    end = time.monotonic() + 5
    got: list[bytes] = []
    while len(got) < 2 and time.monotonic() < end:
        got += cells.delivered()
    assert [body_of(one) for one in got] == [noise(3 * MSS), body_of(packet)[3 * MSS :]]
    counted = rig.counted()
    assert counted["rx_circled"] > 0
    assert "rx_held" not in counted
    assert rig.rx()["next"] == FIRST + 6


def test_full_reorder_ring_drops_the_piece(cells: CellRig, rig: Rig) -> None:
    slots = rig.take_slots("rx_cells_free")
    before = rig.rx()
    cells.arrive(cells.far.cell(FIRST + 1, large(3), mss=MSS), mss=MSS)
    assert rig.counted() == {"drop_buffer": 1}
    assert changed(rig, before) == set()
    rig.give_slots("rx_cells_free", slots)
    cells.arrive(cells.far.cell(FIRST + 1, large(3), mss=MSS), mss=MSS)
    assert rig.counted() == {"rx_held": 3}


@pytest.mark.parametrize("wish", [{"ce": True}, {"ackreq": True}, {}])
def test_clock_watches_a_cell_that_wants_an_answer(
    cells: CellRig, rig: Rig, wish: dict[str, bool]
) -> None:
    """The cell cannot become the answer, and its sender may have nothing to ask with."""
    rig.tune(sack_packets=1)
    cells.bring(cells.far.cell(FIRST, large(3), mss=MSS, **wish), MSS)
    assert rig.active()
    rig.tick()
    told = [answer(frame) for _plane, frame in cells.sent() if not is_probe(frame)]
    assert [sack.body.cack for sack in told] == [FIRST + 2]


@pytest.mark.parametrize("wish", ["ce", "due"])
@pytest.mark.parametrize("count", [1, 3])
def test_clock_watches_what_is_held(cells: CellRig, rig: Rig, count: int, wish: str) -> None:
    """Also if an answer is due at once: the gap may never be filled by a packet."""
    rig.tune(sack_packets=1 if wish == "due" else 1000)
    packet = large(count)
    mss = MSS if count > 1 else 0
    cells.arrive(cells.far.cell(FIRST + 1, packet, mss=mss, ce=wish == "ce"), mss=mss)
    assert rig.rx()["waiting"] == count
    assert rig.active()


@pytest.mark.parametrize("count", [1, 3])
def test_piece_refused_by_mrc0_is_taken_later(cells: CellRig, rig: Rig, count: int) -> None:
    packet = large(count)
    rig.set_link("mrc0p", "down")
    try:
        cells.take(FIRST, packet, MSS, 0, count)
    finally:
        rig.set_link("mrc0p", "up")
    assert rig.counted() == {"deliver_retry": 1}
    assert (rig.rx()["next"], rig.rx()["busy"]) == (FIRST, 0)
    sack = question(cells)
    assert (sack.body.cack, sacked(sack)) == (FIRST - 1, set())
    cells.take(FIRST, packet, MSS, 0, count)
    assert streamed(cells) == body_of(packet)
    assert rig.rx()["next"] == FIRST + count


@pytest.mark.parametrize(("psn", "count"), [(FIRST, 3), (FIRST - 1, 3), (FIRST, 1), (FIRST + 1, 3)])
def test_while_another_program_delivers_nothing_overtakes(
    cells: CellRig, rig: Rig, psn: int, count: int
) -> None:
    rig.edit("rxs", 0, "mrc_rx", busy=1)
    mss = MSS if count > 1 else 0
    cells.arrive(cells.far.cell(psn, large(count), mss=mss), mss=mss)
    old = psn < FIRST
    assert rig.counted() == {"rx_overlap" if old else "rx_held": 1 if old else count}
    assert cells.delivered() == []
    assert (rig.rx()["next"], rig.rx()["busy"]) == (FIRST, 1)


# ---- answers


@pytest.mark.parametrize(
    "wish", [{"attempt": 1}, {"attempt": 2}, {"attempt": 3}, {"ackreq": True}, {"ce": True}]
)
@pytest.mark.parametrize("early", [0, 1])
def test_single_packet_becomes_the_answer_that_it_wants(
    cells: CellRig, rig: Rig, wish: dict[str, int], early: int
) -> None:
    ev = ev_of(2, 3)
    ran = cells.arrive(cells.far.cell(FIRST + early, numbered(1), ev, **wish))  # type: ignore[arg-type]
    assert ran.verdict == TC_REDIRECT
    sack = answer(ran.frame)
    assert sack.envelope == cells.far.our_envelope(ev)
    assert sack.body.cack == FIRST - early
    assert sack.body.ack_psn_offset == early * 2
    assert sacked(sack) == ({FIRST + 1} if early else set())
    assert sack.body.entropy == ev
    assert sack.body.cc_flags == 0
    assert sack.cc_state.tx_timestamp == wish.get("attempt", 0)
    assert sack.body.verdict == (WIRE.MRC_SETH_M_SKIP_ONCE if "ce" in wish else 0)
    assert rig.counted()["sack_tx"] == 1
    assert rig.rx()["pending_packets"] == 0


def test_answer_comes_after_so_many_packets_of_cells(cells: CellRig, rig: Rig) -> None:
    rig.tune(sack_packets=4)
    cells.take(FIRST, large(3), MSS, 0, 3)
    ran = cells.arrive(cells.far.cell(FIRST + 3, numbered(1)))
    assert ran.verdict == TC_REDIRECT
    assert answer(ran.frame).body.cack == FIRST + 3


def test_copy_is_answered_at_once(cells: CellRig, rig: Rig) -> None:
    frame = cells.far.cell(FIRST, numbered(1))
    assert cells.arrive(frame).verdict == TC_SHOT
    ran = cells.arrive(frame)
    assert ran.verdict == TC_REDIRECT
    assert answer(ran.frame).body.cc_flags == WIRE.MRC_CC_FLAG_DUPLICATE
    assert len(cells.delivered()) == 1


def test_answer_to_a_question(cells: CellRig, rig: Rig) -> None:
    cells.take(FIRST, large(3), MSS, 0, 3)
    cells.arrive(cells.far.cell(FIRST + 5, large(2), mss=MSS), mss=MSS)
    rig.counted()
    sack = question(cells, sent=0x1234)
    assert (sack.body.cack, sacked(sack)) == (FIRST + 2, {FIRST + 5, FIRST + 6})
    assert sack.body.cc_flags == WIRE.MRC_CC_FLAG_SOLICITED
    assert sack.body.ack_psn_offset == 0
    assert sack.cc_state.tx_timestamp == 0x1234
    assert sack.cc_state.ooo == 2
    assert rig.counted() == {"solicit_rx": 1, "sack_tx": 1}
    assert rig.rx()["pending_packets"] == 0


@pytest.mark.parametrize("by", ["question", "clock"])
@pytest.mark.parametrize("early", [0, 1])
def test_mark_of_a_cell_is_told_once_by_the_next_answer(
    cells: CellRig, rig: Rig, by: str, early: int
) -> None:
    ev = ev_of(3, 1)
    cells.bring(cells.far.cell(FIRST + early, large(3), ev, mss=MSS, ce=True), MSS)
    if by == "question":
        told = [question(cells)]
    else:
        rig.tick()
        told = [answer(frame) for _plane, frame in cells.sent() if not is_probe(frame)]
    told.append(question(cells))
    assert [sack.body.verdict for sack in told] == [WIRE.MRC_SETH_M_SKIP_ONCE, 0]
    assert told[0].body.entropy == ev
    assert told[0].body.cack + told[0].body.ack_psn_offset == FIRST + early
    assert rig.counted()["echo_tx"] == 1


def is_probe(frame: bytes) -> bool:
    packet = decode_frame(frame)
    return isinstance(packet, Control)


def test_mark_of_a_single_packet_is_not_told_again(cells: CellRig, rig: Rig) -> None:
    ran = cells.arrive(cells.far.cell(FIRST, numbered(1), ce=True))
    assert answer(ran.frame).body.verdict == WIRE.MRC_SETH_M_SKIP_ONCE
    assert question(cells).body.verdict == 0
    assert rig.counted()["echo_tx"] == 1


# ---- lies and damage


def refused(cells: CellRig, rig: Rig, frame: bytes, mss: int = 0, **where: str) -> str:
    """Have a frame arrive that must be dropped and change nothing; return the counter."""
    before, slots = rig.state(), cells.slots()
    assert cells.arrive(frame, mss=mss, **where).verdict == TC_SHOT  # type: ignore[arg-type]
    assert rig.state() == before
    assert cells.slots() == slots
    ((name, times),) = rig.counted().items()
    assert times == 1
    return name


@pytest.mark.parametrize("count", [1, 3])
def test_every_bit_of_the_state_and_the_label_is_covered(
    cells: CellRig, rig: Rig, count: int
) -> None:
    """The first 32 bits are the block, by which mrc_receive knows a cell."""
    mss = MSS if count > 1 else 0
    frame = cells.far.cell(FIRST, large(count), mss=mss)
    label, state = range(14 * 8 + 12, 18 * 8), range((22 + 4) * 8, 38 * 8)
    found = set()
    for bit in [*label, *state]:
        bad = bytearray(frame)
        bad[bit // 8] ^= 0x80 >> bit % 8
        name = refused(cells, rig, bytes(bad), mss, interface="plane1")
        found.add(name)
        assert name in ("drop_cell", "drop_entropy", "drop_qpn", "drop_framing"), bit
    assert {"drop_cell", "drop_entropy"} <= found
    assert cells.arrive(frame, mss=mss).verdict == TC_SHOT
    assert "drop_cell" not in rig.counted()


@pytest.mark.parametrize("bit", range(8))
def test_cell_of_another_generation_is_refused(cells: CellRig, rig: Rig, bit: int) -> None:
    frame = cells.far.cell(FIRST, numbered(1), qpn=QPN ^ 1 << 16 + bit)
    assert refused(cells, rig, frame) == "drop_cell"


def fragmented(packet: bytes) -> bytes:
    return packet[:6] + b"\x20\x00" + packet[8:]


def test_lies_are_refused(cells: CellRig, rig: Rig) -> None:
    far, packet = cells.far, large(3)
    one, long = piece(packet, MSS, 2, 3), rig.mtu - 39

    def changed(frame: bytes, at: int, data: bytes) -> bytes:
        return frame[:at] + data + frame[at + len(data) :]

    single, whole = far.cell(FIRST, numbered(1)), far.cell(FIRST, packet, mss=MSS)
    v6 = far.cell(FIRST, large(1, version=6))
    lies = [
        ("too long outside", changed(single, 18, b"\xff\x00"), 0, "drop_length"),
        ("too long inside", changed(single, CELL + 2, b"\xff\x00"), 0, "drop_inner"),
        ("too long inside, 6", changed(v6, CELL + 4, b"\xff\x00"), 0, "drop_inner"),
        ("bytes behind", single + b"\0", 0, "drop_length"),
        ("cut short", single[:-1], 0, "drop_length"),
        ("not what the next header says", changed(single, 20, b"\x29"), 0, "drop_inner"),
        ("no version", changed(single, CELL, b"\x55"), 0, "drop_inner"),
        ("short header", changed(single, CELL, b"\x44"), 0, "drop_inner"),
        ("several packets as one", far.cell(FIRST, packet), MSS, "drop_length"),
        ("other segments", whole, MSS - 1, "drop_length"),
        ("not merged", whole, 0, "drop_length"),
        ("short segments", far.cell(FIRST, large(3, mss=511), mss=511), 511, "drop_inner"),
        ("no payload", far.cell(FIRST, tcp(b"", inward=True), mss=MSS), 0, "drop_length"),
        ("no TCP", far.cell(FIRST, udp(noise(MSS), inward=True), mss=MSS), 0, "drop_inner"),
        ("fragment", far.cell(FIRST, fragmented(one), mss=MSS), 0, "drop_inner"),
        ("no header", far.cell(FIRST, tcp_headed(packet, 0), mss=MSS), MSS, "drop_inner"),
        ("packets too long", far.cell(FIRST, large(2, mss=long), mss=long), long, "drop_length"),
        ("at no place", far.cell(FIRST, one, mss=MSS, first=BASE + 400), 0, "drop_length"),
    ]  # fmt: skip
    for what, frame, mss, counter in lies:
        assert refused(cells, rig, frame, mss) == counter, what
    other = far.cell(FIRST, numbered(1), ev_of(2, 1))
    assert refused(cells, rig, single, interface="plane2") == "drop_sid"
    assert refused(cells, rig, single, interface="mrc0p") == "drop_sid"
    assert refused(cells, rig, changed(single, 38, other[38:54]), interface="plane2") == (
        "drop_entropy"
    )
    assert refused(cells, rig, changed(single, 53, b"\x01")) == "drop_sid"
    assert refused(cells, rig, far.cell(FIRST, numbered(1), qpn=QPN | 0xFFFF)) == "drop_qpn"
    assert refused(cells, rig, far.cell(FIRST, numbered(1), qpn=QPN | 1)) == "drop_qpn"  # DOWN


def tcp_headed(packet: bytes, words: int) -> bytes:
    """Return a packet whose TCP header says that it has so many words."""
    return packet[:32] + bytes([words << 4]) + packet[33:]


def test_cell_to_a_qp_without_cells_is_refused(cells: CellRig, rig: Rig) -> None:
    rig.edit("qps", 0, "mrc_qp", framing=ABI.MRC_FRAMING_MRC)
    assert refused(cells, rig, cells.far.cell(FIRST, numbered(1))) == "drop_framing"


def test_packet_of_the_largest_size_is_taken(cells: CellRig, rig: Rig) -> None:
    packet = tcp(noise(rig.mtu - 40), inward=True)
    cells.arrive(cells.far.cell(FIRST, packet))
    assert cells.delivered() == [packet]
    rig.counted()
    longer = cells.far.cell(FIRST + 1, tcp(noise(rig.mtu - 39), inward=True))
    assert refused(cells, rig, longer) == "drop_length"


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_nothing_but_a_right_cell_changes_anything(
    cells: CellRig, rig: Rig, data: st.DataObject
) -> None:
    packet = large(data.draw(st.integers(1, 3)), version=data.draw(st.sampled_from((4, 6))))
    mss = data.draw(st.sampled_from((0, MSS)))
    first = rig.rx()["next"]
    frame = bytearray(cells.far.cell(first + data.draw(st.integers(-3, 200)), packet, mss=mss))
    places = [*range(15, 20), 21, *range(26, len(frame))]  # mrc_receive has looked at the others
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.one_of(st.sampled_from(places[:50]), st.sampled_from(places)))
        frame[at] = data.draw(st.integers(0, 255))
    if data.draw(st.integers(0, 3)) == 0:
        del frame[data.draw(st.integers(CELL + 20, len(frame) - 1)) :]
    before = rig.state()
    cells.arrive(bytes(frame), mss=data.draw(st.sampled_from((0, MSS))), interface="plane1")
    if rig.state() == before:
        return
    try:
        cells.decoded(bytes(frame), QPN)
    except DecodeError as error:
        pytest.fail(f"the codec refuses what the program takes: {error}")
    rx = rig.rx()
    assert rx["busy"] == 0
    assert (rx["high"] - rx["next"]) & 0xFFFFFFFF <= MPR
    assert (rx["next"] - first) & 0xFFFFFFFF <= MPR
    if rx["waiting"] > MPR // 2 or not cells.slots()[3]:
        rig.connect()
        cells.speak_cells()


# ---- both ends


def outward(number: int) -> bytes:
    return ip4(number.to_bytes(4, "big"), src="10.99.0.1", dst="10.99.0.2")


def is_question(packet: object) -> TypeGuard[Control]:
    return (
        isinstance(packet, Control)
        and isinstance(packet.body, Peth)
        and packet.body.vendor == WIRE.MRC_PETH_SOLICIT
    )


class Loop:
    """A QP that is its own peer: what it sends comes back to it, as far as a test lets it."""

    def __init__(self, cells: CellRig, rng: random.Random, first: int, loss: float) -> None:
        self.cells, self.rig, self.rng, self.loss = cells, cells.rig, rng, loss
        self.wire: list[tuple[bytes, int]] = []  # frames on their way, with the mss of pieces
        self.rig.connect(qpn=QPN, remote_qpn=QPN, tx_psn=first, rx_psn=first)
        cells.speak_cells()
        self.rig.tune(rto_min_ns=1, solicit_ns=1, reo_min_ns=0, sack_packets=8)
        self.rig.edit("txs", 0, "mrc_tx", early_ns=1 << 62)
        self.got: list[bytes] = []

    def collect(self) -> None:
        """Take what was sent: cut cells into pieces, lose some, put the rest on the wire."""
        for _plane, frame in self.cells.sent():
            self.put(frame)
        self.got += self.cells.delivered()

    def put(self, frame: bytes) -> None:
        if not is_cell(frame):
            self.back(frame)
            return
        cell = self.cells.decoded(frame, QPN)
        ev, state = cell.cell.ev, cell.cell
        wishes = {"attempt": state.attempt, "ackreq": state.ackreq}
        if not state.mss:
            self.lay(self.cells.far.cell(state.psn, cell.payload, ev, **wishes), 0)  # type: ignore[arg-type]
            return
        count = -(-len(body_of(cell.payload)) // state.mss)
        at = 0
        while at < count:
            end = min(count, at + self.rng.choice((1, 1, 2, 3, 5, count)))
            part = piece(cell.payload, state.mss, at, end, partial=True)
            marked = self.rng.random() < 0.05
            arriving = self.cells.far.cell(
                state.psn, part, ev, mss=state.mss, first=seq_of(cell.payload), ce=marked,
                ackreq=state.ackreq,
            )  # fmt: skip
            self.lay(arriving, state.mss if end - at > 1 else 0)
            at = end

    def lay(self, frame: bytes, mss: int) -> None:
        if self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < 0.1 else 1):
            self.wire.insert(
                self.rng.randint(max(0, len(self.wire) - 6), len(self.wire)), (frame, mss)
            )

    def back(self, frame: bytes) -> None:
        """A SACK or a question returns, unless it is lost."""
        if self.rng.random() < self.loss:
            return
        packet, far = decode_frame(frame), self.cells.far
        ev = packet.envelope.ev
        if isinstance(packet, Sack) and not packet.body.probe_reply:
            self.rig.arrive(
                far.frame(replace(packet, envelope=far.envelope(ev))), f"plane{ev >> 28}"
            )
        elif is_question(packet):
            sent = packet.body.timestamp.tx_timestamp
            asked = far.probe(0, ev, sent=sent, vendor=WIRE.MRC_PETH_SOLICIT)
            ran = self.rig.arrive(asked, f"plane{ev >> 28}")
            assert ran.verdict == TC_REDIRECT
            self.back(ran.frame)

    def step(self) -> None:
        """Let one frame arrive, or time pass if none is on its way."""
        if not self.wire:
            overdue(self.rig)
            self.rig.tick()
            self.collect()
            return
        frame, mss = self.wire.pop(0)
        if mss:
            self.cells.bring(frame, mss)
        else:
            ran = self.cells.arrive(frame)
            if ran.verdict == TC_REDIRECT:
                self.back(ran.frame)
        self.collect()


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1 << 32),
    loss=st.sampled_from([0.0, 0.05, 0.3]),
    first=st.sampled_from([FIRST, 0xFFFFC0, 0xFFFFFFE0, 0]),
)
def test_every_byte_arrives_once_and_in_order(
    cells: CellRig, rig: Rig, seed: int, loss: float, first: int
) -> None:
    """Cells and single packets of any size pass through losses, copies and wrong orders."""
    rng = random.Random(seed)
    rig.reset()
    loop = Loop(cells, rng, first, loss)
    sent, numbers = 0, 0
    for _ in range(25):
        # Without a slot or room in the window, a packet would never enter the loop.
        while rig.tx()["next"] - rig.tx()["una"] > 100 or cells.slots()[1] < 2:
            loop.step()
        if rng.random() < 0.4:
            loop.put(rig.spray(outward(numbers)).frame)
            numbers += 1
        else:
            count = rng.randint(2, 12)
            length = count * 600 - rng.randint(0, 599)
            flags = ACK | rng.choice((0, PSH, PSH | FIN))
            cells.send(tcp(noise(length, sent), seq=BASE + sent, flags=flags, partial=True), 600)
            sent += length
            loop.collect()
        while loop.wire and rng.random() < 0.7:
            loop.step()
    for _ in range(5000):
        if rig.tx()["una"] == rig.tx()["next"] and not loop.wire and not rig.rx()["waiting"]:
            break
        loop.step()
    assert rig.tx()["una"] == rig.tx()["next"] == rig.rx()["next"]
    stream, expected, numbered_got = b"", BASE, []
    for packet in loop.got:
        if packet[9] == 17:
            numbered_got.append(packet)
            continue
        seq, body = seq_of(packet), body_of(packet)
        assert seq <= expected, "a gap"
        assert body == noise(len(body), seq - BASE)
        stream += body[expected - seq :]
        expected = max(expected, seq + len(body))
    assert len(stream) == sent
    assert numbered_got == [outward(n) for n in range(numbers)]
    assert cells.slots() == ALL_FREE
    assert rig.rx()["waiting"] == 0
