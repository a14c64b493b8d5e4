# SPDX-License-Identifier: GPL-2.0-only
"""Cells at the receiver: order, copies and answers."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrcd.linux import kernel, netns
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Sack, decode_frame
from rigs.packets import EV, ev_of, numbered
from rigs.rig import (
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
from tests.bpf.cells import (
    ACK,
    IN_EACH_ENVELOPE,
    MSS,
    PSH,
    CellRig,
    body_of,
    noise,
    piece,
    pieces,
    seq_of,
    tcp,
    udp,
)
from tests.bpf.test_cell_resend import right
from tests.bpf.test_refuse import BURST

_TCP_REPAIR = 19  # missing in Python's socket module

FIRST = 5000
NOWHERE = 0x7FFFFFFF  # no interface has this index
PIECE = ABI.MRC_PIECE_BYTES // MSS
BASE = 0x10000
ALL_FREE = (RING_SLOTS, CELL_SLOTS, RING_SLOTS, CELL_SLOTS)


TWO_WAYS = pytest.mark.parametrize(
    "decap",
    [
        pytest.param(
            True,
            marks=pytest.mark.skipif(not kernel.has_decap(), reason="needs Linux 6.3"),
            id="decap",
        ),
        pytest.param(False, id="change_proto"),
    ],
)
"""With the flags that take the outer header off, and without."""


pytestmark = IN_EACH_ENVELOPE


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


@TWO_WAYS
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


@TWO_WAYS
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


def test_repeated_cell_is_answered_within_a_budget(cells: CellRig, rig: Rig) -> None:
    frame = cells.far.cell(FIRST, tcp(b"", inward=True), attempt=1, ackreq=True, ce=True)
    cells.arrive(frame)
    now = time.monotonic_ns()
    rig.edit("rxs", 0, "mrc_rx", copy_ns=now)
    assert [cells.arrive(frame).verdict for _ in range(BURST)] == [TC_REDIRECT] * BURST
    rig.edit("rxs", 0, "mrc_rx", copy_ns=now + 60_000_000_000, pending_packets=0)
    rig.counted()
    assert cells.arrive(frame).verdict == TC_SHOT
    rig.tick()  # the clock answers
    counted = rig.counted()
    assert (counted["rx_duplicate"], counted["sack_tx_clock"]) == (1, 1)


def test_old_copy_is_not_named_as_another_packet(cells: CellRig, rig: Rig) -> None:
    rig.edit("rxs", 0, "mrc_rx", next=FIRST + 65_000, high=FIRST + 65_000)
    sack = answer(cells.arrive(cells.far.cell(FIRST, tcp(b"", inward=True))).frame)
    assert (sack.body.cack, sack.body.ack_psn_offset) == (FIRST + 64_999, 0)
    assert sack.body.cc_flags == WIRE.MRC_CC_FLAG_DELAYED


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


@contextlib.contextmanager
def connected(rig: Rig, version: int) -> Iterator[None]:
    """Have a connection of this host to which cells belong; it has no other end (TCP_REPAIR)."""
    here, there = ("10.99.0.1", "10.99.0.2") if version == 4 else ("fd99::1", "fd99::2")
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    at_once = "nodad" if version == 6 else ""  # an address of IPv6 is tentative for a moment
    with netns.entered(rig.namespace), socket.socket(family, socket.SOCK_STREAM) as made:
        Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").write_text("0")
        for command in (
            "link set lo up",
            f"address add {here} dev lo {at_once}",
            f"route add {there} dev lo",
        ):
            subprocess.run(["ip", f"-{version}", *command.split()], check=True)
        try:
            made.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
            made.bind((here, 7))
            made.connect((there, 40000))
            yield
        finally:
            for command in (f"route del {there} dev lo", f"address del {here} dev lo"):
                subprocess.run(["ip", f"-{version}", *command.split()], check=True)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("release", RELEASES)
def test_held_piece_for_a_socket_of_this_host_is_released_in_few_large_packets(
    cells: CellRig, rig: Rig, release: str, version: int
) -> None:
    """What is forwarded must not grow, but a socket takes any size."""
    packet, count = large(40, version=version), 40
    with connected(rig, version):
        cells.take(FIRST, packet, MSS, 3, count)
        if release == "single":
            cells.take(FIRST, packet, MSS, 0, 2)
            cells.take(FIRST, packet, MSS, 2, 3)
        else:
            cells.take(FIRST, packet, MSS, 0, 3)
            if release == "question":
                assert question(cells).body.cack == FIRST + count - 1
            else:
                rig.tick(2)
    got = cells.delivered()
    assert b"".join(map(body_of, got)) == body_of(packet)
    waited = got[-math.ceil((count - 3) / PIECE) :]
    assert [len(body_of(each)) for each in waited[:-1]] == [PIECE * MSS] * (len(waited) - 1)
    assert all(right(each) for each in waited)
    assert rig.counted()["rx_held"] == count - 3
    assert (rig.rx()["next"], rig.rx()["waiting"]) == (FIRST + count, 0)
    assert cells.slots() == ALL_FREE


@pytest.mark.parametrize("version", [4, 6])
def test_socket_that_listens_has_no_connection(cells: CellRig, rig: Rig, version: int) -> None:
    """The port may be published, and its packets for a container, whose interface is narrower."""
    packet = large(40, version=version)
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with netns.entered(rig.namespace), socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(("", 7))
        server.listen()
        cells.take(FIRST, packet, MSS, 3, 40)
        cells.take(FIRST, packet, MSS, 0, 3)
        rig.tick(10)
    assert cells.delivered()[-37:] == pieces(packet, MSS)[3:]


@pytest.mark.parametrize("partial", [True, False])
def test_held_single_packet_gets_the_rest_of_its_checksum(
    cells: CellRig, rig: Rig, partial: bool
) -> None:
    packets = [tcp(noise(200 + n), inward=True, partial=partial) for n in range(3)]
    whole = [tcp(noise(200 + n), inward=True) for n in range(3)]
    for n in (2, 1):
        frame = cells.far.cell(FIRST + n, packets[n])
        if partial:
            cells.bring(frame, 0)
        else:
            cells.arrive(frame)
    cells.arrive(cells.far.cell(FIRST, packets[0]))
    assert cells.delivered() == packets[:1] + whole[1:]
    assert cells.slots() == ALL_FREE


def test_damage_that_looks_like_half_a_checksum_stays_damage(cells: CellRig, rig: Rig) -> None:
    """One of 65,536 damaged packets has the pseudo header's sum for a checksum."""
    packet = tcp(noise(200), inward=True, partial=True)
    cells.arrive(cells.far.cell(FIRST + 1, packet))
    cells.arrive(cells.far.cell(FIRST, numbered(1)))
    assert cells.delivered() == [numbered(1)]
    assert rig.counted()["drop_checksum"] == 1
    assert cells.slots() == ALL_FREE


@pytest.mark.parametrize("framing", [ABI.MRC_FRAMING_CELL, ABI.MRC_FRAMING_MRC])
@pytest.mark.parametrize("kind", ["payload", "ip"])
def test_held_packet_does_not_lose_the_mark_of_its_damage(
    cells: CellRig, rig: Rig, kind: str, framing: int
) -> None:
    """It must not reach mrc0 as if it were right, or the application would take damaged data."""
    good = tcp(noise(300), inward=True)
    at = 250 if kind == "payload" else 8
    packet = good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :]
    rig.edit("qps", 0, "mrc_qp", framing=framing)
    for psn, one in ((FIRST + 1, packet), (FIRST, numbered(1))):
        if framing == ABI.MRC_FRAMING_CELL:
            cells.arrive(cells.far.cell(psn, one))
        else:
            rig.arrive(cells.far.data(psn, one))
    damaged = kind == "payload"  # the stack always looks at IPv4's own checksum
    assert cells.delivered() == [numbered(1), packet][: 1 if damaged else 2]
    assert rig.counted().get("drop_checksum", 0) == damaged
    assert rig.rx()["next"] == FIRST + 2
    assert cells.slots() == ALL_FREE


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
    rig.tune(lower_ifindex=NOWHERE)
    cells.take(FIRST, packet, MSS, 0, count)
    rig.tune(lower_ifindex=rig.ifindex["mrc0"])
    assert rig.counted() == {"deliver_retry": 1} | ({"nack_tx_resource": 1} if count == 1 else {})
    rx = rig.rx()
    assert (rx["next"], rx["busy"]) == (FIRST, 0)
    assert (rx["packets"], rx["pending_packets"], rx["high"]) == (0, 0, FIRST)
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


@pytest.mark.parametrize("attempt", [0, 2])
def test_answer_says_when_it_was_sent(cells: CellRig, rig: Rig, attempt: int) -> None:
    """To a host that has the capability. A copy's answer does so, too, but none to a question."""
    rig.edit("qps", 0, "mrc_qp", timed=1)
    frame = cells.far.cell(FIRST, numbered(1), attempt=attempt, ackreq=True)
    for _ in range(2):
        before = time.monotonic_ns() >> WIRE.MRC_CC_SENT_UNIT
        stamp = answer(cells.arrive(frame).frame).cc_state.tx_timestamp
        took = (stamp >> WIRE.MRC_CC_SENT_SHIFT) - before & 0x3FFF
        assert stamp & WIRE.MRC_CC_ATTEMPT == attempt
        assert took <= (time.monotonic_ns() >> WIRE.MRC_CC_SENT_UNIT) - before
    assert question(cells, sent=0x1234).cc_state.tx_timestamp == 0x1234


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


@pytest.mark.parametrize("ends", [(1,), (5,), (2, 5), (1, 2, 3, 4, 5)], ids=str)
def test_received_bytes_are_those_of_packets_with_their_outer_header(
    cells: CellRig, ends: tuple[int, ...]
) -> None:
    """It does not matter in which pieces they came."""
    count = ends[-1]
    whole = large(count)
    for first, last in itertools.pairwise((0, *ends)):
        cells.take(FIRST, whole, MSS, first, last)
    payload = count * MSS - 7
    total = payload + count * (len(whole) - payload + 40)
    assert question(cells).cc_state.received == (total + 255) >> 8


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
