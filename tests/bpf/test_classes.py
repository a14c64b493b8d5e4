# SPDX-License-Identifier: GPL-2.0-only
"""The class of each packet that leaves, by its DSCP, and packets that switches have trimmed."""

from __future__ import annotations

import time

import pytest

from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Neth, decode_frame
from rigs.packets import EV, OUTER, Far, ev_in, ip4, is_cell, numbered, summed, trimmed
from rigs.rig import DROPPED, SENT, TC_REDIRECT, TC_SHOT, WINDOW, Rig
from tests.bpf.cells import IN_EACH_ENVELOPE, MSS, CellRig, noise, piece, tcp
from tests.bpf.test_sack import FIRST, outgoing, resent, spray

CLASSES = {
    "data": 11, "again": 12, "whole": 13, "control": 14, "trimmed": 43, "lasthop": 47,
}  # fmt: skip
FIRST_RX = 5000
REASONS = {43: WIRE.MRC_NACK_TRIMMED, 47: WIRE.MRC_NACK_TRIMMED_LASTHOP}
OTHER_EV = 0x20010000
cut_by = pytest.mark.parametrize("dscp", REASONS)


def tclass(frame: bytes) -> int:
    """Return the traffic class of the outer header."""
    if frame[OUTER] >> 4 == 4:
        return frame[OUTER + 1]
    return int.from_bytes(frame[OUTER : OUTER + 2], "big") >> 4 & 0xFF


def classed(frame: bytes) -> tuple[str, int]:
    """Return the class of a frame of ours, and its ECN bits."""
    (name,) = (name for name, dscp in CLASSES.items() if dscp == tclass(frame) >> 2)
    return name, tclass(frame) & 3


@pytest.fixture
def with_classes(rig: Rig) -> Rig:
    """A rig with a number of its own for each class, whose way to the peer trims."""
    rig.tune(**{f"dscp_{name}": dscp for name, dscp in CLASSES.items()})
    rig.edit("qps", 0, "mrc_qp", trims=1)
    return rig


@pytest.fixture(params=["mrc", "cell"])
def sender(request: pytest.FixtureRequest, with_classes: Rig, cells: CellRig) -> Rig:
    """The same in both framings of data."""
    framing = ABI.MRC_FRAMING_CELL if request.param == "cell" else ABI.MRC_FRAMING_MRC
    with_classes.edit("qps", 0, "mrc_qp", framing=framing, trims=1)
    return with_classes


# ---- what leaves


@pytest.mark.parametrize("trims", [0, 1])
def test_data_may_be_trimmed_only_where_the_way_trims(sender: Rig, trims: int) -> None:
    sender.edit("qps", 0, "mrc_qp", trims=trims)
    frame = sender.spray(outgoing(0)).frame
    assert classed(frame) == ("data" if trims else "whole", WIRE.MRC_ECN_ECT0)


@pytest.mark.parametrize("trims", [0, 1])
def test_data_sent_again_has_a_class_of_its_own(sender: Rig, far: Far, trims: int) -> None:
    sender.edit("qps", 0, "mrc_qp", trims=trims)
    first = sender.spray(outgoing(0)).frame
    about = ev_of(first)
    sender.arrive(far.nack(FIRST, about=about))
    ((_plane, again),) = sender.sent()
    assert classed(again) == ("again" if trims else "whole", WIRE.MRC_ECN_ECT0)


def ev_of(frame: bytes) -> int:
    """Return the EV of a frame of ours in either framing."""
    return ev_in(frame) if is_cell(frame) else decode_frame(frame).envelope.ev


@IN_EACH_ENVELOPE
def test_a_large_cell_is_data_as_a_whole(with_classes: Rig, cells: CellRig) -> None:
    with_classes.edit("qps", 0, "mrc_qp", trims=1, framing=ABI.MRC_FRAMING_CELL)
    cells.send(tcp(noise(3 * MSS), partial=True), MSS)
    ((_cell, frame),) = cells.cells_sent()
    assert classed(frame) == ("data", WIRE.MRC_ECN_ECT0)


def test_answers_are_control(with_classes: Rig, far: Far) -> None:
    sack = with_classes.arrive(far.data(FIRST_RX, numbered(1), ackreq=True)).frame
    assert decode_frame(sack).bth.opcode == WIRE.MRC_OP_SACK
    probed = with_classes.receive(far.probe(0x123)).frame
    nack = with_classes.receive(trimmed(far.data(FIRST_RX + 5, ip4(bytes(1000))))).frame
    asked = with_classes.receive(far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 7)).frame
    assert [classed(frame) for frame in (sack, probed, nack, asked)] == [("control", 0)] * 4


def test_window_that_waits_is_sent_as_data(with_classes: Rig, far: Far) -> None:
    """A packet that waited for the window leaves for the first time."""
    with_classes.tune(cc_target_ns=1_000_000, cc_rate=25_000)
    with_classes.edit("txs", 0, "mrc_tx", cwnd=len(outgoing(0)))
    with_classes.spray(outgoing(0))
    with_classes.spray(outgoing(1))
    with_classes.edit("txs", 0, "mrc_tx", cwnd=1 << 20)
    with_classes.arrive(far.sack(FIRST))
    ((_plane, frame),) = with_classes.sent()
    assert classed(frame) == ("data", WIRE.MRC_ECN_ECT0)


# ---- trimmed packets in MRC's framing


@cut_by
def test_the_dscp_tells_where_a_packet_was_trimmed(rig: Rig, far: Far, dscp: int) -> None:
    frame = trimmed(far.data(FIRST_RX + 1, ip4(bytes(1000)), sent=0x1234), dscp=dscp)
    nack = decode_frame(rig.receive(frame).frame)
    assert isinstance(nack, Control)
    assert nack.body == Neth(REASONS[dscp], FIRST_RX + 1, EV, tx_timestamp=0x1234)
    name = "trim_rx" if dscp == 43 else "trim_rx_lasthop"
    assert rig.counted() == {"nack_tx": 1, name: 1}


def test_the_dscps_are_the_fabrics(rig: Rig, far: Far) -> None:
    rig.tune(dscp_trimmed=20, dscp_lasthop=21)
    cut = far.data(FIRST_RX, ip4(bytes(1000)))
    assert rig.receive(trimmed(cut, dscp=43)).verdict == DROPPED
    assert rig.counted() == {"drop_length": 1}
    assert rig.receive(trimmed(cut, dscp=20)).verdict == SENT
    assert rig.receive(trimmed(cut, dscp=21)).verdict == SENT


# ---- trimmed packets of cells


def cut(
    cells: CellRig, frame: bytes, dscp: int, left: int = 64, *, corrected: bool = False
) -> bytes:
    """Return a cell's packet as a switch has trimmed it to `left` bytes of the packet inside.

    A switch that corrects a length corrects that of the header by which it forwards.
    """
    out = bytearray(trimmed(frame, cells.places.inner + left, dscp))
    if not corrected:
        return bytes(out)
    if out[OUTER] >> 4 == 4:
        out[OUTER + 2 : OUTER + 4] = (len(out) - OUTER).to_bytes(2, "big")
        return summed(bytes(out))
    out[OUTER + 4 : OUTER + 6] = (len(out) - OUTER - WIRE.MRC_IP6_LEN).to_bytes(2, "big")
    return bytes(out)


@IN_EACH_ENVELOPE
@cut_by
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("version", [4, 6])
def test_trimmed_packet_of_a_cell_is_turned_round(
    cells: CellRig, rig: Rig, dscp: int, corrected: bool, version: int
) -> None:
    """The third packet of a cell: its PSN follows from its TCP sequence number."""
    whole = tcp(noise(4 * MSS), seq=0xFFFFFF00, version=version)
    frame = cells.far.cell(FIRST_RX, piece(whole, MSS, 2, 3), mss=MSS, first=0xFFFFFF00, attempt=2)
    before = rig.state()
    ran = cells.arrive(cut(cells, frame, dscp, corrected=corrected))
    assert ran.verdict == TC_REDIRECT
    nack = decode_frame(ran.frame)
    assert isinstance(nack, Control)
    assert nack.body == Neth(REASONS[dscp], FIRST_RX + 2, EV, tx_timestamp=2)
    assert nack.envelope == cells.far.our_envelope(EV)
    assert rig.state() == before
    name = "trim_rx" if dscp == 43 else "trim_rx_lasthop"
    assert rig.counted() == {"nack_tx": 1, name: 1}


@IN_EACH_ENVELOPE
def test_trimmed_cell_of_one_packet_needs_no_tcp(cells: CellRig, rig: Rig) -> None:
    frame = cells.far.cell(FIRST_RX + 9, ip4(bytes(1000)))
    nack = decode_frame(cells.arrive(cut(cells, frame, 43, 20)).frame)
    assert isinstance(nack, Control)
    assert nack.body == Neth(WIRE.MRC_NACK_TRIMMED, FIRST_RX + 9, EV)


@IN_EACH_ENVELOPE
def test_whole_packet_of_a_cell_with_that_dscp_is_data(cells: CellRig, rig: Rig) -> None:
    packet = numbered(1, 20)
    cells.arrive(cut(cells, cells.far.cell(FIRST_RX, packet), 43, len(packet)))
    assert rig.delivered() == [packet]
    assert "nack_tx" not in rig.counted()


@pytest.mark.parametrize(
    ("where", "at", "value", "counter"),
    [
        ("state", 1, b"\1", "drop_cell"),  # the state is damaged
        ("inner", 2, b"\xff\xff", "drop_length"),  # inside it is longer than a packet may be
        ("inner", 0, b"\x44", "drop_inner"),
        ("inner", 6, b"\x20", "drop_inner"),  # a fragment
        ("inner", 9, b"\x11", "drop_inner"),  # UDP, which is no part of a large cell
        ("inner", 20 + 4, b"\x7f\xff\xff\xff", "drop_length"),  # a place beyond the cell
    ],
)
@IN_EACH_ENVELOPE
def test_lies_of_trimmed_packets(
    cells: CellRig, rig: Rig, where: str, at: int, value: bytes, counter: str
) -> None:
    frame = bytearray(cut(cells, second_of_four(cells), 43))
    at += getattr(cells.places, where)
    frame[at : at + len(value)] = value
    before = rig.state()
    assert cells.arrive(bytes(frame)).verdict == TC_SHOT
    assert rig.counted() == {counter: 1}
    assert rig.state() == before


def second_of_four(cells: CellRig) -> bytes:
    """Return the second packet of a cell as it arrives alone."""
    part = piece(tcp(noise(4 * MSS), seq=1), MSS, 1, 2)
    return cells.far.cell(FIRST_RX, part, mss=MSS, first=1)


@IN_EACH_ENVELOPE
def test_packet_that_is_cut_short_by_nobody_who_trims(cells: CellRig, rig: Rig) -> None:
    """Its DSCP tells whether a switch has trimmed it."""
    assert cells.arrive(cut(cells, second_of_four(cells), 42)).verdict == TC_SHOT
    assert rig.counted() == {"drop_length": 1}


@IN_EACH_ENVELOPE
def test_trimmed_packet_whose_length_is_less_than_what_is_there(cells: CellRig, rig: Rig) -> None:
    frame = bytearray(cut(cells, second_of_four(cells), 43))
    at = cells.places.length
    frame[at : at + 2] = b"\0\x10"
    assert cells.arrive(bytes(frame)).verdict == TC_SHOT
    assert rig.counted() == {"drop_length": 1}


@pytest.mark.parametrize(("left", "counter"), [(19, "drop_short"), (39, "drop_inner")])
@IN_EACH_ENVELOPE
def test_too_little_left_of_a_cell(cells: CellRig, rig: Rig, left: int, counter: str) -> None:
    assert cells.arrive(cut(cells, second_of_four(cells), 43, left)).verdict == TC_SHOT
    assert rig.counted() == {counter: 1}


def test_trimmed_packet_claims_more_than_one(cells: CellRig, rig: Rig) -> None:
    """A switch trims packets, and a packet has one PSN."""
    frame = cells.far.cell(FIRST_RX, tcp(noise(2 * 512)), mss=512)
    assert cells.arrive(cut(cells, frame, 43)).verdict == TC_SHOT
    assert rig.counted() == {"drop_length": 1}
    assert cells.arrive(cut(cells, frame, 43), mss=512).verdict == TC_SHOT
    assert rig.counted() == {"drop_length": 1}


@pytest.mark.parametrize(
    ("psn", "counter"), [(FIRST_RX - 1, "rx_duplicate"), (FIRST_RX + WINDOW // 2, "drop_psn")]
)
def test_trimmed_packet_outside_the_window(
    cells: CellRig, rig: Rig, psn: int, counter: str
) -> None:
    before = rig.state()
    assert cells.arrive(cut(cells, cells.far.cell(psn, ip4(bytes(1000))), 43)).verdict == TC_SHOT
    assert rig.counted() == {counter: 1}
    assert rig.state() == before


def test_trimmed_copy_of_a_held_packet_is_not_asked_for_and_leaves_it(
    cells: CellRig, rig: Rig
) -> None:
    held = tcp(noise(700), seq=900)
    cells.arrive(cells.far.cell(FIRST_RX + 1, held))
    assert rig.rx()["waiting"] == 1
    rig.counted()
    before = rig.state()
    assert cells.arrive(cut(cells, cells.far.cell(FIRST_RX + 1, held), 43)).verdict == TC_SHOT
    assert rig.counted() == {"rx_duplicate": 1}
    assert rig.state() == before
    # An early one that is missing is asked for; neither its bit nor the window moves.
    assert cells.arrive(cut(cells, cells.far.cell(FIRST_RX + 3, held), 43)).verdict == TC_REDIRECT
    assert rig.state() == before


# ---- at the sender


def no_adapt() -> dict[str, int]:
    """Return members of a QP by which QuickAdapt is not due yet."""
    return {"srtt_ns": 1_000_000_000, "epoch_ns": time.monotonic_ns()}


@pytest.mark.parametrize(
    ("reason", "state", "name"),
    [
        (WIRE.MRC_NACK_TRIMMED, State.SKIP, "nack_trimmed"),
        (WIRE.MRC_NACK_TRIMMED_LASTHOP, State.GOOD, "nack_lasthop"),
    ],
)
def test_what_was_trimmed_is_sent_again_at_once_and_stays_in_flight(
    sender: Rig, far: Far, reason: int, state: State, name: str
) -> None:
    sender.tune(cc_target_ns=1_000_000, cc_rate=25_000)
    first = sender.spray(outgoing(0)).frame
    ev = ev_of(first)
    sender.edit("txs", 0, "mrc_tx", cwnd=100_000, **no_adapt())
    before = sender.tx()
    sender.arrive(far.nack(FIRST, about=ev, reason=reason))
    assert len(sender.sent()) == 1
    after = sender.tx()
    assert after["inflight"] == before["inflight"] == len(outgoing(0))
    assert after["cwnd"] == 100_000 - len(outgoing(0))
    assert State(sender.path(ev)["state"]) is state
    assert sender.path(ev)["lost"] == 0
    counted = sender.counted()
    assert (counted["rtx_nack"], counted[name]) == (1, 1)
    sender.arrive(far.sack(FIRST))
    assert sender.tx()["inflight"] == 0


def test_nack_of_an_earlier_sending_changes_nothing(rig: Rig, far: Far) -> None:
    """The packet was sent again by another path meanwhile, and that copy is on its way."""
    ev = decode_frame(rig.spray(outgoing(0)).frame).envelope.ev
    rig.arrive(far.nack(FIRST, about=ev))
    ((_plane, again),) = rig.sent()
    rig.counted()
    before = rig.state()
    rig.arrive(far.nack(FIRST, about=ev))
    assert rig.sent() == []
    assert rig.state() == before
    assert rig.counted() == {"nack_rx": 1, "nack_trimmed": 1, "nack_stale": 1}
    rig.arrive(far.nack(FIRST, about=ev_of(again)))
    assert len(rig.sent()) == 1


def test_trims_shrink_the_window_without_any_delay(rig: Rig, far: Far) -> None:
    """A full queue that drops nothing leaves no delay behind in SACKs of other paths."""
    rig.tune(cc_target_ns=1_000_000, cc_rate=25_000)
    sent = spray(rig, 8)
    rig.edit("txs", 0, "mrc_tx", cwnd=50_000, **no_adapt())
    for one in sent:
        rig.arrive(far.nack(one.psn, about=one.ev, reason=WIRE.MRC_NACK_TRIMMED_LASTHOP))
    assert len(resent(rig)) == 8
    assert rig.tx()["cwnd"] == 50_000 - 8 * len(outgoing(0))


def test_quickadapt_follows_a_storm_of_trims(rig: Rig, far: Far) -> None:
    """Less than an eighth of the window arrived in a round trip: the window becomes that."""
    rig.tune(cc_target_ns=1_000_000, cc_rate=25_000)
    sent = spray(rig, 2)
    rig.edit("txs", 0, "mrc_tx", cwnd=500_000, srtt_ns=10**9, got=9_000)
    rig.arrive(far.nack(sent[0].psn, about=sent[0].ev))
    assert rig.tx()["cwnd"] == 9_000
    rig.arrive(far.nack(sent[1].psn, about=sent[1].ev))
    assert rig.tx()["cwnd"] == 9_000 - len(outgoing(1))
