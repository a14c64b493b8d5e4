# SPDX-License-Identifier: GPL-2.0-only
"""Refusals: what finds no room or no place becomes a NACK, at a bounded rate, and is sent again."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from mrcd.wire.packet import WIRE, Control, Neth, decode_frame
from rigs.packets import BODY, BTH, EV, REMOTE_QPN, Far, numbered, sealed
from rigs.rig import DROPPED, MPR, NEVER_NS, SENT, TC_REDIRECT, TC_SHOT, WINDOW, Ran, Rig
from tests.bpf.cells import MSS, CellRig, noise, tcp
from tests.bpf.test_sack import FIRST as FIRST_TX
from tests.bpf.test_sack import resent, spray

FIRST = 5000
NOWHERE = 0x7FFFFFFF  # no interface has this index
SOURCE = (Path(__file__).parents[2] / "bpf" / "refuse.c").read_text()
BURST = int(re.findall(r"^#define ANSWER_BURST (\d+)", SOURCE, re.M)[0])
GAP_NS = int(re.findall(r"^#define ANSWER_GAP_NS (\d+)ull", SOURCE, re.M)[0])
SHORT = [WIRE.MRC_NACK_NO_BITMAP, WIRE.MRC_NACK_NO_PKT_BUFFER, WIRE.MRC_NACK_NO_RESOURCE]


def neth(ran: Ran) -> Neth:
    """Return the body of the NACK that a packet became."""
    nack = decode_frame(ran.frame)
    assert isinstance(nack, Control)
    assert isinstance(nack.body, Neth)
    assert (nack.bth.dqpn, nack.bth.psn) == (REMOTE_QPN, 0)
    assert nack.envelope.ev >> 28 == nack.body.entropy >> 28
    return nack.body


# ---- the receiver's side


@pytest.mark.parametrize("wish", [{}, {"ackreq": True}, {"rtx": True}, {"ce": True}])
def test_full_reorder_ring_is_told(rig: Rig, far: Far, wish: dict[str, bool]) -> None:
    rig.take_slots("rx_free")
    before = rig.rx()
    ran = rig.arrive(far.data(FIRST + 2, numbered(2), sent=0xBEEF, **wish))
    assert ran.verdict == TC_REDIRECT
    assert neth(ran) == Neth(WIRE.MRC_NACK_NO_PKT_BUFFER, FIRST + 2, EV, tx_timestamp=0xBEEF)
    assert rig.counted() == {"drop_buffer": 1, "nack_tx_buffer": 1}
    after = rig.rx()
    assert {**after, "nack_ns": 0} == {**before, "nack_ns": 0}
    assert rig.delivered() == []


@pytest.mark.parametrize("ahead", [MPR, MPR + 1, WINDOW, 0x7FFFFF])
def test_psn_outside_the_window_is_told(rig: Rig, far: Far, ahead: int) -> None:
    psn = FIRST + ahead & 0xFFFFFF
    ran = rig.arrive(far.data(psn, numbered(2), sent=0xBEEF))
    assert neth(ran) == Neth(WIRE.MRC_NACK_PSN_OOR_WINDOW, psn, EV, tx_timestamp=0xBEEF)
    assert rig.counted() == {"drop_psn": 1, "nack_tx_window": 1}


def test_the_last_psn_of_the_window_is_not(rig: Rig, far: Far) -> None:
    assert rig.arrive(far.data(FIRST + MPR - 1, numbered(2))).verdict == TC_SHOT
    assert rig.counted() == {"rx_held": 1}


def outside(rig: Rig, far: Far, count: int) -> int:
    """Return how many of so many packets outside the window were answered."""
    frames = [far.data(FIRST + MPR + i, numbered(i)) for i in range(count)]
    return sum(rig.arrive(frame).verdict == TC_REDIRECT for frame in frames)


def test_refusals_have_a_bounded_rate(rig: Rig, far: Far) -> None:
    rig.edit("rxs", 0, "mrc_rx", nack_ns=time.monotonic_ns() + NEVER_NS)
    assert outside(rig, far, 20) == 0
    assert rig.counted() == {"drop_psn": 20}


def test_refusals_come_in_bursts_of_so_many(rig: Rig, far: Far) -> None:
    """Fill all but one place of a burst with time that is still to come."""
    rig.edit("rxs", 0, "mrc_rx", nack_ns=time.monotonic_ns() + 10 * GAP_NS * BURST)
    assert outside(rig, far, 1) == 0
    began = time.monotonic_ns()
    rig.edit("rxs", 0, "mrc_rx", nack_ns=0)
    told = outside(rig, far, 4 * BURST)
    passed = time.monotonic_ns() - began
    assert BURST <= told <= BURST + passed // GAP_NS
    assert rig.rx()["nack_ns"] <= time.monotonic_ns() + BURST * GAP_NS


def test_rate_is_that_of_each_qp(rig: Rig, far: Far) -> None:
    rig.connect("h2", 1, qpn=0x550000, remote_qpn=0x660001, rx_psn=70)
    rig.edit("rxs", 0, "mrc_rx", nack_ns=time.monotonic_ns() + NEVER_NS)
    assert rig.arrive(far.data(70 + MPR, numbered(1), qpn=0x550001)).verdict == TC_REDIRECT


def test_without_a_nack_a_wish_is_answered_by_a_sack(rig: Rig, far: Far) -> None:
    rig.take_slots("rx_free")
    rig.edit("rxs", 0, "mrc_rx", nack_ns=time.monotonic_ns() + NEVER_NS)
    ran = rig.arrive(far.data(FIRST + 2, numbered(2), ackreq=True))
    assert ran.verdict == TC_REDIRECT
    assert rig.counted() == {"drop_buffer": 1, "sack_tx": 1}


@pytest.mark.parametrize(
    ("psn", "reason", "counter"),
    [
        (FIRST + 2, WIRE.MRC_NACK_NO_PKT_BUFFER, "nack_tx_buffer"),
        (FIRST + MPR, WIRE.MRC_NACK_PSN_OOR_WINDOW, "nack_tx_window"),
    ],
)
def test_cell_of_one_packet_is_refused(
    cells: CellRig, rig: Rig, psn: int, reason: int, counter: str
) -> None:
    rig.take_slots("rx_free")
    ran = cells.arrive(cells.far.cell(psn, numbered(2), attempt=2))
    assert ran.verdict == TC_REDIRECT
    nack = decode_frame(ran.frame)
    assert isinstance(nack, Control)
    assert nack.body == Neth(reason, psn, EV, tx_timestamp=2)
    assert rig.counted()[counter] == 1


def test_cell_that_mrc0_does_not_take_is_refused(cells: CellRig, rig: Rig) -> None:
    rig.tune(lower_ifindex=NOWHERE)
    ran = cells.arrive(cells.far.cell(FIRST, numbered(2)))
    nack = decode_frame(ran.frame)
    assert isinstance(nack, Control)
    assert nack.body == Neth(WIRE.MRC_NACK_NO_RESOURCE, FIRST, EV)
    assert rig.counted() == {"deliver_retry": 1, "nack_tx_resource": 1}
    assert rig.rx()["next"] == FIRST


def test_piece_of_several_packets_is_dropped_without_a_word(cells: CellRig, rig: Rig) -> None:
    slots = rig.take_slots("rx_cells_free")
    packet = tcp(noise(3 * MSS), inward=True)
    cells.arrive(cells.far.cell(FIRST + 1, packet, mss=MSS), mss=MSS)
    rig.give_slots("rx_cells_free", slots)
    assert rig.counted() == {"drop_buffer": 1}


def write(far: Far, opcode: int, *, stamped: bool = True) -> bytes:
    """Return a write into memory of the peer, with 24 bytes behind its headers."""
    frame = bytearray(far.data(FIRST, bytes(24), sent=0xBEEF))
    frame[BTH] = opcode
    if not stamped:
        frame[BTH + 8] &= ~WIRE.MRC_BTH_TS
    return sealed(bytes(frame))


WRITES = [0xC6, 0xC7, 0xC8, 0xC9, 0xCB]


@pytest.mark.parametrize("opcode", WRITES)
@pytest.mark.parametrize("stamped", [True, False])
def test_unexpected_opcode_is_told(rig: Rig, far: Far, opcode: int, stamped: bool) -> None:
    before = rig.state()
    ran = rig.receive(write(far, opcode, stamped=stamped))
    assert ran.verdict == SENT
    stamp = 0xBEEF if stamped else 0
    assert neth(ran) == Neth(WIRE.MRC_NACK_UNEXP_EVENT, FIRST, EV, tx_timestamp=stamp)
    which = "drop_immediate" if opcode == 0xCB else "drop_multi_packet"
    assert rig.counted() == {which: 1, "nack_tx_event": 1}
    rig.edit("rxs", 0, "mrc_rx", nack_ns=0)
    assert rig.state() == before


@pytest.mark.parametrize("opcode", WRITES)
@pytest.mark.parametrize("at", [BTH + 6, BTH + 11, BODY + 1, BODY + 5, BODY + 20])
def test_damaged_or_foreign_packet_ends_no_qp(rig: Rig, far: Far, opcode: int, at: int) -> None:
    frame = bytearray(write(far, opcode))
    frame[at] ^= 4
    assert rig.receive(bytes(frame)).verdict == DROPPED
    assert "nack_tx_event" not in rig.counted()


def test_data_whose_opcode_was_damaged_ends_no_qp(rig: Rig, far: Far) -> None:
    for bit in range(8):
        frame = bytearray(far.data(FIRST, numbered(1)))
        frame[BTH] ^= 1 << bit
        assert rig.receive(bytes(frame)).verdict == DROPPED
    assert "nack_tx_event" not in rig.counted()


def test_write_of_a_stranger_ends_no_qp(rig: Rig) -> None:
    fabric = rig.fabric
    other = Far(fabric, fabric.host("h1"), fabric.host("h3"))
    assert rig.receive(write(other, 0xC6)).verdict == DROPPED
    assert rig.counted() == {"drop_multi_packet": 1}


def test_unexpected_opcodes_have_a_bounded_rate(rig: Rig, far: Far) -> None:
    rig.edit("rxs", 0, "mrc_rx", nack_ns=time.monotonic_ns() + NEVER_NS)
    assert rig.receive(write(far, 0xC6)).verdict == DROPPED


# ---- the sender's side


@pytest.mark.parametrize("reason", SHORT)
def test_packet_for_which_there_was_no_room_is_sent_again_later(
    rig: Rig, far: Far, reason: int
) -> None:
    (sent,) = spray(rig, 1)
    rig.arrive(far.nack(FIRST_TX, about=sent.ev, reason=reason))
    assert resent(rig) == []
    assert rig.counted().items() >= {"nack_rx": 1, "nack_rx_short": 1}.items()
    rig.tune(rto_min_ns=1)
    rig.edit("txs", 0, "mrc_tx", progress_ns=0)
    rig.tick()
    assert [(each.psn, each.rtx) for each in resent(rig)] == [(FIRST_TX, True)]
    assert rig.counted()["rtx_nack"] == 1
    path = rig.path(sent.ev)
    assert (path["lost"], path["use"]) == (0, True)  # the path is not to blame
    rig.arrive(far.sack(FIRST_TX))
    assert rig.tx()["una"] == FIRST_TX + 1


def test_refused_packet_waits_for_one_that_was_sent_later(rig: Rig, far: Far) -> None:
    """What was on its way when the NACK came proves nothing about the packet that was refused."""
    rig.tune(reo_min_ns=0, reo_max_ns=0, fifo_slack_ns=0)
    sent = spray(rig, 3)
    rig.arrive(far.nack(FIRST_TX, about=sent[0].ev, reason=SHORT[1]))
    rig.arrive(far.sack(FIRST_TX - 1, 0b110, received=1))
    assert resent(rig) == []
    spray(rig, 1, first=3)
    rig.arrive(far.sack(FIRST_TX - 1, 0b1110, received=2))
    assert [each.psn for each in resent(rig)] == [FIRST_TX]
    assert rig.path(sent[0].ev)["lost"] == 0


def test_refused_packet_teaches_no_round_trip(rig: Rig, far: Far) -> None:
    (sent,) = spray(rig, 1)
    rig.arrive(far.nack(FIRST_TX, about=sent.ev, reason=SHORT[1]))
    rig.arrive(far.sack(FIRST_TX, trigger=FIRST_TX, ts=1))
    assert (rig.tx()["srtt_ns"], rig.tx()["una"]) == (0, FIRST_TX + 1)


@pytest.mark.parametrize(
    ("reason", "counter"),
    [(WIRE.MRC_NACK_PSN_OOR_WINDOW, "nack_rx_window"), (0x55, None)],
)
def test_other_reasons_are_counted_only(
    rig: Rig, far: Far, reason: int, counter: str | None
) -> None:
    spray(rig, 1)
    rig.counted()
    before = rig.state()
    rig.arrive(far.nack(FIRST_TX, reason=reason))
    assert rig.state() == before
    assert resent(rig) == []
    assert rig.counted() == {"nack_rx": 1} | ({counter: 1} if counter else {})


@pytest.mark.parametrize("reason", [*SHORT, WIRE.MRC_NACK_PSN_OOR_WINDOW, 0x19])
@pytest.mark.parametrize("psn", [FIRST_TX - 1, FIRST_TX + 1, FIRST_TX + 2, FIRST_TX + 0x700000])
def test_nack_of_what_is_not_outstanding_is_none(rig: Rig, far: Far, reason: int, psn: int) -> None:
    spray(rig, 2)
    rig.arrive(far.sack(FIRST_TX - 1, 0b10))
    rig.counted()
    before = rig.state()
    rig.arrive(far.nack(psn, reason=reason))
    assert rig.state() == before
    assert rig.counted() == {"nack_rx": 1}
