# SPDX-License-Identifier: GPL-2.0-only
"""Cells at the sender: what SACKs free, what is sent again and how, and questions for SACKs."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6

from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Peth, decode_frame
from rigs.packets import REMOTE_QPN, ev_in, is_cell, wire_time
from rigs.rig import CELL_SLOTS, MPR, RING_SLOTS, TC_SHOT, Rig
from tests.bpf.cells import (
    ACK,
    COPY_DATA,
    COPY_TAG,
    CWR,
    FIN,
    IN_EACH_ENVELOPE,
    MSS,
    PSH,
    AnyCell,
    CellRig,
    ends_of,
    network,
    noise,
    pieces,
    tcp,
    traffic_class,
    udp,
)

FIRST = 1000
SOLICITED = WIRE.MRC_CC_FLAG_SOLICITED


pytestmark = IN_EACH_ENVELOPE


def send(cells: CellRig, *counts: int, mss: int = 512, **wishes: int | bytes) -> list[AnyCell]:
    """Send a cell of each number of packets and return them."""
    sent, first = [], 0
    for count in counts:
        packet = tcp(noise(count * mss - 1), seq=1 + first, partial=True, **wishes)  # type: ignore[arg-type]
        first += count * mss
        if count > 1:
            cells.send(packet, mss)
            sent += [cell for cell, _frame in cells.cells_sent()]
        else:
            frame = cells.rig.spray(packet).frame
            sent.append(cells.decoded(frame))
    return sent


def overdue(rig: Rig) -> None:
    """Let the clock take everything outstanding for lost, each time that it looks."""
    rig.tune(rto_min_ns=1)
    rig.edit("txs", 0, "mrc_tx", progress_ns=0, backoff=0, srtt_ns=0, rttvar_ns=0)


def resent_by_clock(cells: CellRig) -> list[AnyCell]:
    """Return what one look of the clock's has sent again."""
    overdue(cells.rig)
    cells.rig.tick()
    return [cell for cell, _frame in cells.cells_sent()]


def right(packet: bytes) -> bool:
    """Return whether every length and checksum is what scapy computes."""
    kind = IP if packet[0] >> 4 == 4 else IPv6
    there = kind(packet)
    layer = there
    while layer:
        for name in ("chksum", "len", "plen"):
            if name in layer.fields:
                layer.delfieldval(name)
        layer = layer.payload
    return bytes(there) == packet


def bits(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


# ---- acknowledgements


@pytest.mark.parametrize("first", [FIRST, 0, 62, 0xFFFFFA, 0xFFFFFFF0])
@pytest.mark.parametrize("seed", range(3))
def test_slot_is_free_when_every_packet_of_its_cell_has_arrived(
    cells: CellRig, rig: Rig, first: int, seed: int
) -> None:
    rng = random.Random(seed)
    rig.connect(tx_psn=first)
    cells.speak_cells()
    counts = [rng.choice((1, 2, 3, 5, 9, 20)) for _ in range(9)]
    while sum(counts) > MPR:
        counts.pop()
    # A window that is nearly full would cost TCP without ECN a packet.
    rig.edit("txs", 0, "mrc_tx", early_ns=1 << 62)
    sent = send(cells, *counts)
    members, at = [], 0
    for count in counts:
        members.append(set(range(at, at + count)))
        at += count
    arrived: set[int] = set()
    told: set[int] = set()
    while len(told) < at:
        arrived |= set(rng.sample(range(at), min(at, rng.randint(1, 25))))
        cack = next(n for n in range(at + 1) if n not in arrived) - 1
        base = cack + 1 + (rng.choice((0, 0, 64)) if at - cack > 64 else 0)
        bitmap = sum(1 << i for i in range(64) if base + i in arrived)
        rig.arrive(
            cells.far.answer(first + cack, bitmap, offset=base - cack, received=len(arrived))
        )
        told |= {n for n in arrived if n <= cack or base <= n < base + 64}
        left = [one for one in members if not one <= told]
        big = sum(len(one) > 1 for one in left)
        assert cells.slots()[:2] == (RING_SLOTS - (len(left) - big), CELL_SLOTS - big)
        assert rig.tx()["una"] == (first + cack + 1) & 0xFFFFFFFF
    assert cells.slots()[:2] == (RING_SLOTS, CELL_SLOTS)
    evs = {cell.cell.ev for cell in sent}
    assert sum(rig.path(ev)["sent"] for ev in evs) == len(counts)
    assert sum(rig.path(ev)["acked"] for ev in evs) == len(counts)
    assert sum(rig.sets()["acked"]) == len(counts)
    assert sum(rig.path(ev)["lost"] for ev in evs) == 0


def test_holes_within_a_cell(cells: CellRig, rig: Rig) -> None:
    send(cells, 5, 5)
    rig.arrive(cells.far.answer(FIRST - 1, bits(1, 3, 4, 5), offset=1, received=1))
    assert cells.slots()[1] == CELL_SLOTS - 2
    rig.arrive(cells.far.answer(FIRST + 1, bits(1, 2, 3, 4, 5), offset=2, received=2))
    assert cells.slots()[1] == CELL_SLOTS - 2
    assert rig.tx()["una"] == FIRST + 2
    rig.arrive(cells.far.answer(FIRST + 8, received=3))
    assert cells.slots()[1] == CELL_SLOTS - 1
    rig.arrive(cells.far.answer(FIRST + 9, received=4))
    assert cells.slots()[1] == CELL_SLOTS


def test_path_counts_a_cell_once(cells: CellRig, rig: Rig) -> None:
    ((cell),) = send(cells, 8)
    for told in range(8):
        rig.arrive(cells.far.answer(FIRST + told, received=told + 1))
        assert rig.path(cell.cell.ev)["acked"] == (told == 7)


def test_same_news_twice_frees_nothing_twice(cells: CellRig, rig: Rig) -> None:
    send(cells, 4, 4)
    for _ in range(3):
        rig.arrive(cells.far.answer(FIRST - 1, bits(4, 5, 6), offset=1))
    assert cells.slots()[1] == CELL_SLOTS - 2
    for _ in range(3):
        rig.arrive(cells.far.answer(FIRST + 3, bits(0), offset=4))
    assert cells.slots()[1] == CELL_SLOTS


# ---- sent again


TCP_OPTIONS = b"\x01\x01\x08\x0a" + bytes(range(8))
SHAPES = {
    "4": {},
    "6": {"version": 6},
    "4 with options": {"ip_options": b"\x94\x04\x00\x00", "options": TCP_OPTIONS},
    "6 with options": {"version": 6, "options": TCP_OPTIONS},
    "all options": {"ip_options": b"\x01" * 40, "options": b"\x01" * 40},
    "last ident": {"ident": 0xFFFE},
}


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_missing_packets_of_a_cell_leave_as_a_nic_would_have_cut_them(
    cells: CellRig, rig: Rig, shape: str, partial: bool
) -> None:
    flags = ACK | PSH | FIN | CWR
    packet = tcp(noise(3 * MSS + 5), seq=0xFFFFFC00, flags=flags, partial=True, **SHAPES[shape])  # type: ignore[arg-type]
    cells.send(packet, MSS)
    if not partial:
        whole = tcp(noise(3 * MSS + 5), seq=0xFFFFFC00, flags=flags, **SHAPES[shape])  # type: ignore[arg-type]
        cells.edit_copy(cells.entry(FIRST)["slot"], COPY_DATA, whole)
    ((cell, _frame),) = cells.cells_sent()
    again = resent_by_clock(cells)
    assert [one.payload for one in again] == pieces(packet, MSS)
    assert [one.cell.psn for one in again] == list(range(FIRST, FIRST + 4))
    assert all(right(one.payload) for one in again)
    for one in again:
        assert (one.cell.mss, one.cell.seq, one.cell.attempt) == (0, 0, 1)
        assert one.cell.ev >> 28 != cell.cell.ev >> 28
        assert traffic_class(one) == WIRE.MRC_ECN_ECT0
    assert rig.counted()["rtx_timeout"] == 4


# ---- AccECN, whose flags are a number that all packets of a segment have

BEGIN, WITH_CWR = 5, 2


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("version", [4, 6])
def test_packets_of_a_flow_with_accurate_ecn_have_all_its_flags(
    cells: CellRig, rig: Rig, version: int, single: bool
) -> None:
    """A packet alone does not tell: the flow has set AE before, which classic ECN never does."""
    seen = tcp(noise(3 * MSS), ace=BEGIN, version=version, partial=True)
    cells.send(
        *((tcp(b"", ace=BEGIN, version=version, partial=True), 0) if single else (seen, MSS))
    )
    resent_by_clock(cells)
    rig.arrive(cells.far.answer(rig.tx()["next"] - 1, received=1))
    packet = tcp(noise(3 * MSS + 5), ace=WITH_CWR, version=version, partial=True)
    cells.send(packet, MSS)
    cells.cells_sent()
    again = resent_by_clock(cells)
    assert [one.payload for one in again] == pieces(packet, MSS, accurate=True)
    assert all(right(one.payload) for one in again)


def test_flow_with_accurate_ecn_does_not_change_others(cells: CellRig, rig: Rig) -> None:
    cells.send(tcp(noise(3 * MSS), ace=BEGIN, partial=True), MSS)
    rig.arrive(cells.far.answer(FIRST + 2, received=1))
    cells.cells_sent()
    packet = tcp(noise(3 * MSS), flags=ACK | CWR, port=40001, partial=True)
    cells.send(packet, MSS)
    cells.cells_sent()
    assert [one.payload for one in resent_by_clock(cells)] == pieces(packet, MSS)


@pytest.mark.parametrize("accurate", [True, False])
def test_cell_that_waited_has_its_flags(cells: CellRig, rig: Rig, accurate: bool) -> None:
    if accurate:
        cells.send(tcp(noise(3 * MSS), ace=BEGIN, partial=True), MSS)
        rig.arrive(cells.far.answer(FIRST + 2, received=1))
        cells.cells_sent()
    rig.tune(cc_target_ns=1_000_000, cc_rate=25_000)
    rig.edit("txs", 0, "mrc_tx", cwnd=1, inflight=1)
    packet = tcp(noise(3 * MSS), ace=WITH_CWR, partial=True)
    cells.send(packet, MSS)
    rig.edit("txs", 0, "mrc_tx", cwnd=1 << 20)
    rig.tick()
    found = [cell.payload for cell, _frame in cells.cells_sent()]
    assert found == pieces(packet, MSS, accurate=accurate)


@pytest.mark.parametrize("accurate", [True, False])
def test_held_piece_is_delivered_with_its_flags(cells: CellRig, rig: Rig, accurate: bool) -> None:
    seen = tcp(noise(2 * MSS), ace=BEGIN if accurate else 0, inward=True, partial=True)
    cells.take(5000, seen, MSS, 0, 2)
    late = tcp(noise(3 * MSS), ace=WITH_CWR, inward=True, partial=True)
    cells.take(5003, late, MSS, 0, 3)
    cells.delivered()
    cells.arrive(cells.far.cell(5002, udp(noise(40), inward=True)))
    assert cells.delivered()[1:] == pieces(late, MSS, accurate=accurate)


@pytest.mark.parametrize("timed", [0, 1])
def test_way_back_of_sacks_is_known_where_they_tell_it(
    cells: CellRig, rig: Rig, timed: int
) -> None:
    """Of two SACKs the second has taken a millisecond longer; a clock's says nothing of it."""
    rig.edit("qps", 0, "mrc_qp", timed=timed)
    for index, longer in enumerate((0, 1_000_000)):
        send(cells, 1)
        cells.cells_sent()
        for flags, since in ((0, longer), (WIRE.MRC_CC_FLAG_DELAYED, 9_000_000)):
            sent = time.monotonic_ns() - since >> WIRE.MRC_CC_SENT_UNIT
            stamp = (sent << WIRE.MRC_CC_SENT_SHIFT & 0xFFFF) | 3
            psn = FIRST + index
            rig.arrive(
                cells.far.answer(psn, trigger=psn, ts=stamp, flags=flags, received=index + 1)
            )
    known = rig.dp.read("balances", 0, ABI.structs["mrc_balance"])["back_ns"]
    assert (known > 100_000) == bool(timed)
    assert known < 2_000_000


def test_only_what_a_sack_misses_is_sent_again(cells: CellRig, rig: Rig) -> None:
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    (cell,) = send(cells, 6)
    send(cells, 1)
    rig.arrive(cells.far.answer(FIRST, bits(1, 3, 5), offset=1, received=1))
    again = cells.cells_sent()
    expected = pieces(cell.payload, 512)
    assert [one.cell.psn - FIRST for one, _frame in again] == [1, 3, 5]
    assert [one.payload for one, _frame in again] == [expected[i] for i in (1, 3, 5)]
    for one, frame in again:
        assert frame == cells.far.our_cell(one.cell.psn, one.payload, one.cell.ev, attempt=1)
    assert cells.slots()[1] == CELL_SLOTS - 1
    rig.arrive(cells.far.answer(FIRST + 6, received=2))
    assert cells.slots()[:2] == (RING_SLOTS, CELL_SLOTS)


def test_attempts_are_numbered_up_to_three(cells: CellRig, rig: Rig) -> None:
    send(cells, 2)
    for attempt in (1, 2, 3, 3, 3):
        again = resent_by_clock(cells)
        assert [one.cell.attempt for one in again] == [attempt] * 2


@pytest.mark.parametrize("mss", [512, 601, 602, 603, None])
def test_payloads_of_any_length(cells: CellRig, rig: Rig, mss: int | None) -> None:
    """None fills mrc0's MTU. The sum takes 512 bytes at a time, then four."""
    mss = mss or rig.mtu - 40
    packet = tcp(noise(2 * mss + mss // 2), partial=True)
    cells.send(packet, mss)
    cells.cells_sent()
    again = resent_by_clock(cells)
    assert [one.payload for one in again] == pieces(packet, mss)
    assert all(right(one.payload) for one in again)
    assert max(len(one.payload) for one in again) == mss + 40


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 509, 510, 511, 512, 513, 1023, 1024, 1303])
@pytest.mark.parametrize("make", [tcp, udp])
def test_single_packet_gets_the_rest_of_its_checksum(
    cells: CellRig, rig: Rig, make: Callable[..., bytes], length: int, version: int
) -> None:
    rig.spray(make(noise(length), version=version, partial=True))
    (again,) = resent_by_clock(cells)
    assert again.payload == make(noise(length), version=version)
    assert right(again.payload)


def test_checksum_of_udp_is_never_sent_as_zero(cells: CellRig, rig: Rig) -> None:
    """0 would mean that there is none."""
    body = bytearray(noise(100))
    rest = int.from_bytes(udp(bytes(body))[26:28], "big")
    total = int.from_bytes(body[:2], "big") + rest
    body[:2] = struct.pack("!H", (total & 0xFFFF) + (total >> 16))
    assert udp(bytes(body))[26:28] == b"\xff\xff"
    rig.spray(udp(bytes(body), partial=True))
    (again,) = resent_by_clock(cells)
    assert again.payload == udp(bytes(body))


def damaged(packet: bytes) -> bytes:
    return packet[:-3] + bytes([packet[-3] ^ 0x40]) + packet[-2:]


def fragment(offset: int) -> bytes:
    """Return a fragment of UDP, in whose first bytes there may be a checksum of any kind."""
    return udp(noise(200), fragment=0x2000 | offset, partial=True)


ALONE = {
    "tcp": tcp(noise(300)),
    "udp": udp(noise(301)),
    "udp6": udp(noise(302), version=6),
    "damaged tcp": damaged(tcp(noise(300))),
    "damaged tcp6": damaged(tcp(noise(303), version=6)),
    "damaged udp": damaged(udp(noise(300))),
    "udp without": udp(noise(300), summed=False),
    "first fragment": fragment(0),
    "later fragment": fragment(64),
    "bytes behind udp": network(
        udp(noise(40))[20:] + b"options", 17, ends_of(4, inward=False), ident=7, tos=0, options=b""
    ),
    "icmp": network(noise(99), 1, ends_of(4, inward=False), ident=9, tos=0, options=b""),
    "other": network(noise(99), 132, ends_of(6, inward=False), ident=9, tos=0, options=b""),
    "no room for tcp": network(noise(19), 6, ends_of(4, inward=False), ident=9, tos=0, options=b""),
    "tcp without length": tcp(noise(30))[:32] + b"\x00" + tcp(noise(30))[33:],
    "wrong sum of ip": tcp(noise(30))[:10] + b"\x12\x34" + tcp(noise(30))[12:],
}


@pytest.mark.parametrize("framing", [ABI.MRC_FRAMING_CELL, ABI.MRC_FRAMING_MRC])
@pytest.mark.parametrize("name", ALONE)
def test_single_packet_is_otherwise_sent_again_as_it_is(
    cells: CellRig, rig: Rig, name: str, framing: int
) -> None:
    """Damage that its checksum tells of must stay visible."""
    rig.edit("qps", 0, "mrc_qp", framing=framing)
    rig.spray(ALONE[name])
    overdue(rig)
    rig.tick()
    frames = [frame for _plane, frame in cells.sent() if ALONE[name] in frame]
    assert len(frames) == 1
    assert rig.counted()["rtx_timeout"] == 1


def test_lost_cell_is_one_loss_of_its_path(cells: CellRig, rig: Rig) -> None:
    (cell,) = send(cells, 9)
    ev = cell.cell.ev
    resent_by_clock(cells)
    assert rig.counted()["rtx_timeout"] == 9
    assert rig.path(ev)["lost"] == 1
    assert rig.path(ev)["state"] == ABI.MRC_PATH_ASSUMED_BAD
    balance = rig.dp.read_raw("balances", 0, ABI.structs["mrc_balance"].size)
    lost = ABI.structs["mrc_balance"].unpack_array(balance, "lost")
    assert lost[ev >> WIRE.MRC_EV_PLANE_SHIFT] == 1
    assert sum(lost) == 1
    assert rig.tx()["retransmits"] == 9


def test_copy_of_a_slot_that_was_given_away_is_not_sent(cells: CellRig, rig: Rig) -> None:
    send(cells, 2)
    cells.edit_copy(cells.entry(FIRST)["slot"], COPY_TAG, bytes([255]) * 8)
    assert resent_by_clock(cells) == []


# ---- questions


def questions(cells: CellRig) -> list[tuple[int, Peth]]:
    """Return (EV, body) of the questions sent since the last call."""
    found = []
    for plane, frame in cells.sent():
        packet = None if is_cell(frame) else decode_frame(frame)
        if isinstance(packet, Control) and isinstance(packet.body, Peth):
            assert packet.bth.dqpn == REMOTE_QPN
            assert packet.envelope.ev >> 28 == plane
            if packet.body.vendor == WIRE.MRC_PETH_SOLICIT:
                # Over IPv6 without uSIDs the flow label repeats the high half in the low one.
                found.append((packet.envelope.ev & 0xFFFF0000, packet.body))
    return found


def test_arriving_sack_becomes_a_question(cells: CellRig, rig: Rig) -> None:
    send(cells, 3, 3)
    rig.counted()
    rig.arrive(cells.far.answer(FIRST, received=1))
    ((_ev, asked),) = questions(cells)
    assert asked.timestamp.tx_timestamp == wire_time(rig.tx()["solicit_ns"])
    assert rig.counted()["solicit_tx"] == 1


def test_questions_keep_a_distance(cells: CellRig, rig: Rig) -> None:
    send(cells, 3, 3)
    for told in range(3):
        rig.arrive(cells.far.answer(FIRST + told, received=told))
    assert len(questions(cells)) == 1
    rig.edit("txs", 0, "mrc_tx", solicit_ns=0)
    rig.arrive(cells.far.answer(FIRST + 3, received=4))
    assert len(questions(cells)) == 1


def test_nothing_outstanding_is_not_asked_about(cells: CellRig, rig: Rig) -> None:
    send(cells, 3)
    rig.arrive(cells.far.answer(FIRST + 2, received=1))
    assert questions(cells) == []
    assert rig.dp.read("balances", 0, ABI.structs["mrc_balance"])["wants"] == 0


def test_single_packets_are_not_asked_about(cells: CellRig, rig: Rig) -> None:
    """They are answered themselves."""
    send(cells, 1, 1)
    rig.arrive(cells.far.answer(FIRST, received=1))
    assert questions(cells) == []


def test_arriving_packet_becomes_a_question(cells: CellRig, rig: Rig) -> None:
    send(cells, 3)
    cells.arrive(cells.far.cell(5000, tcp(b"", inward=True)))
    assert len(cells.delivered()) == 1
    assert len(questions(cells)) == 1
    assert cells.arrive(cells.far.cell(5001, tcp(b"", inward=True))).verdict == TC_SHOT
    assert questions(cells) == []


def test_question_does_not_keep_lost_packets_from_being_sent(cells: CellRig, rig: Rig) -> None:
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    send(cells, 4)
    send(cells, 1)
    rig.arrive(cells.far.answer(FIRST - 1, bits(2, 3, 4), offset=1, received=1))
    frames = cells.sent()
    assert len(frames) == 3
    assert rig.counted()["rtx_guard"] == 2
    assert rig.tx()["solicit_ns"]


@pytest.mark.parametrize("stamp", ["right", "wrong"])
def test_answer_to_a_question_yields_a_round_trip(cells: CellRig, rig: Rig, stamp: str) -> None:
    send(cells, 3, 3)
    rig.arrive(cells.far.answer(FIRST, received=1))
    ((ev, asked),) = questions(cells)
    assert rig.tx()["srtt_ns"] == 0
    ts = asked.timestamp.tx_timestamp + (stamp == "wrong") & 0xFFFF
    rig.arrive(cells.far.answer(FIRST + 1, received=2, flags=SOLICITED, ts=ts))
    path = rig.path(ev)
    assert bool(rig.tx()["srtt_ns"]) == bool(path["srtt_ns"]) == (stamp == "right")
    if stamp == "right":
        assert path["srtt_ns"] <= time.monotonic_ns() - rig.tx()["solicit_ns"]


def test_question_is_a_short_packet(cells: CellRig, rig: Rig) -> None:
    frame = rig.spray(tcp(noise(1200))).frame
    rig.arrive(cells.far.answer(FIRST, trigger=FIRST, about=ev_in(frame), received=1, flags=0))
    assert [bool(ns) for ns in rig.sets()["least_ns"]] == [False, True]
    send(cells, 3, 3)
    rig.arrive(cells.far.answer(FIRST + 1, received=2))
    ((_ev, asked),) = questions(cells)
    long = rig.sets()["least_ns"][1]
    ts = asked.timestamp.tx_timestamp
    rig.arrive(cells.far.answer(FIRST + 2, received=3, flags=SOLICITED, ts=ts))
    assert rig.sets()["least_ns"][0]
    assert rig.sets()["least_ns"][1] == long


def test_answer_tells_of_a_mark_of_another_path(cells: CellRig, rig: Rig) -> None:
    """The round trip is that of the question's path, the mark that of the cell's."""
    (cell, _other) = send(cells, 3, 3)
    rig.arrive(cells.far.answer(FIRST, received=1))
    ((ev, asked),) = questions(cells)
    assert ev != cell.cell.ev
    rig.tune(slow_slack_ns=1)
    rig.edit("balances", 0, "mrc_balance", usual_ns=(1,) * 8)
    rig.edit_path(ev, srtt_ns=1 << 30, late=100)
    rig.arrive(
        cells.far.answer(
            FIRST + 1, received=2, flags=SOLICITED, ts=asked.timestamp.tx_timestamp,
            verdict=WIRE.MRC_SETH_M_SKIP_ONCE, about=cell.cell.ev, trigger=FIRST + 1,
        )
    )  # fmt: skip
    path = rig.path(cell.cell.ev)
    assert path["marked"] == 1
    assert path["state"] == ABI.MRC_PATH_SKIP
    counted = rig.counted()
    assert counted["echo_rx"] == 1
    assert "path_slow" not in counted


# ---- reset


def test_reset_gives_back_the_slots_of_cells(cells: CellRig, rig: Rig) -> None:
    send(cells, 5, 3, 1, 4)
    rig.arrive(cells.far.answer(FIRST - 1, bits(0, 2, 5, 6, 7), offset=1, received=1))
    part = tcp(noise(3 * MSS), inward=True)
    cells.arrive(cells.far.cell(5002, part, mss=MSS), mss=MSS)
    cells.arrive(cells.far.cell(5009, part, mss=MSS), mss=MSS)
    cells.arrive(cells.far.cell(5020, tcp(b"one", inward=True)))
    assert cells.slots() == (RING_SLOTS - 1, CELL_SLOTS - 2, RING_SLOTS - 1, CELL_SLOTS - 2)
    rig.table.reset((0,))
    assert cells.slots() == (RING_SLOTS, CELL_SLOTS, RING_SLOTS, CELL_SLOTS)
