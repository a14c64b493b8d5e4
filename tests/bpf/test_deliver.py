# SPDX-License-Identifier: GPL-2.0-only
"""The receive window delivers every packet once and in order, in whatever order they arrive."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Sack, decode_frame
from rigs.packets import EV, REMOTE_QPN, Far, ev_of, ip4, ip6, numbered
from rigs.rig import LINK_MAC, MPR, NEVER_NS, RING_SLOTS, TC_REDIRECT, TC_SHOT, WINDOW, Rig
from tests.bpf.test_refuse import BURST, GAP_NS

FIRST = 5000  # the PSN that the rig's QP expects
SECOND = 1_000_000_000


def arrive(rig: Rig, far: Far, *psns: int) -> None:
    for psn in psns:
        rig.arrive(far.data(psn, numbered(psn)))


def delivered(rig: Rig) -> list[int]:
    """Return the numbers of the packets that reached mrc0; each must be whole."""
    packets = rig.delivered()
    numbers = [int.from_bytes(packet[28:32], "big") for packet in packets]
    assert packets == [numbered(number) for number in numbers]
    return numbers


def answer(frame: bytes) -> Sack:
    packet = decode_frame(frame)
    assert isinstance(packet, Sack)
    return packet


def sacked(sack: Sack) -> set[int]:
    """Return the PSNs beyond the cumulative one that a SACK reports."""
    first = sack.body.cack + sack.body.sack_offset
    found = {first + i for i in range(64) if sack.body.bitmap >> i & 1}
    return {psn for psn in found if psn > sack.body.cack}


@pytest.mark.parametrize("packet", [ip4(b"four"), ip6(b"six"), ip4(bytes(1000))])
def test_packet_in_order_reaches_mrc0_unchanged(rig: Rig, far: Far, packet: bytes) -> None:
    ran = rig.arrive(far.data(FIRST, packet))
    (frame,) = rig.mrc0.take()
    assert frame[:12] == LINK_MAC * 2
    assert frame[12:14] == (b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00")
    assert frame[14:] == packet
    assert ran.verdict == TC_SHOT
    assert rig.counted() == {"rx_packets": 1, "rx_bytes": len(packet)}
    assert rig.active()  # the clock sends the SACK


@pytest.mark.parametrize(
    "order", [(1, 2, 3), (2, 3, 1), (3, 2, 1), (3, 1, 2), (2, 2, 3, 3, 1, 1), (1, 3, 3, 2)]
)
def test_release_is_in_order(rig: Rig, far: Far, order: tuple[int, ...]) -> None:
    arrive(rig, far, *(FIRST - 1 + n for n in order))
    assert delivered(rig) == [FIRST, FIRST + 1, FIRST + 2]
    assert rig.rx()["waiting"] == 0
    assert rig.free_slots("rx_free") == RING_SLOTS


def test_nothing_is_released_over_a_gap(rig: Rig, far: Far) -> None:
    arrive(rig, far, FIRST + 1, FIRST + 2, FIRST + 4)
    assert delivered(rig) == []
    assert rig.counted()["rx_held"] == 3
    arrive(rig, far, FIRST)
    assert delivered(rig) == [FIRST, FIRST + 1, FIRST + 2]
    assert rig.rx()["waiting"] == 1
    assert rig.free_slots("rx_free") == RING_SLOTS - 1


def test_more_packets_wait_than_one_run_releases(rig: Rig, far: Far) -> None:
    arrive(rig, far, *range(FIRST + 1, FIRST + 120))
    arrive(rig, far, FIRST)
    rig.tick(8)  # the clock releases what one run leaves
    assert delivered(rig) == list(range(FIRST, FIRST + 120))
    assert rig.free_slots("rx_free") == RING_SLOTS


@pytest.mark.parametrize("first", [0xFFFFF0, 0xFFFFFF, 0xFFFFFFF0, 0])
def test_psns_wrap(rig: Rig, far: Far, first: int) -> None:
    rig.reset()
    rig.connect(rx_psn=first)
    psns = [(first + i) & 0xFFFFFFFF for i in range(40)]
    arrive(rig, far, *(psns[i] for i in (1, 0, 3, 2, *range(5, 30), 4, *range(30, 40))))
    assert delivered(rig) == psns


def test_duplicate_is_dropped_and_answered(rig: Rig, far: Far) -> None:
    arrive(rig, far, FIRST)
    assert delivered(rig) == [FIRST]
    rig.counted()
    ran = rig.arrive(far.data(FIRST, numbered(FIRST)))
    assert delivered(rig) == []
    assert rig.counted() == {"rx_duplicate": 1, "sack_tx": 1}
    assert ran.verdict == TC_REDIRECT
    assert answer(ran.frame).body.cack == FIRST
    assert answer(ran.frame).body.cc_flags == WIRE.MRC_CC_FLAG_DUPLICATE


@pytest.mark.parametrize("wish", [{}, {"rtx": True, "ackreq": True, "ce": True}])
def test_repeated_packet_is_answered_within_a_budget(
    rig: Rig, far: Far, wish: dict[str, bool]
) -> None:
    """Anyone can repeat what a plane has carried; a SACK is longer than the shortest packet."""
    frame = far.data(FIRST, numbered(FIRST), **wish)
    rig.arrive(frame)
    rig.counted()
    begun = time.monotonic_ns()
    for _ in range(1000):
        rig.arrive(frame)
    most = BURST + (time.monotonic_ns() - begun) // GAP_NS + 1
    counted = rig.counted()
    assert counted["rx_duplicate"] == 1000
    assert counted["sack_tx"] <= most
    now = time.monotonic_ns()
    rig.edit("rxs", 0, "mrc_rx", copy_ns=now + 60 * SECOND, pending_packets=0)
    assert rig.arrive(frame).verdict == TC_SHOT
    rig.tick()  # the clock answers
    assert rig.counted()["sack_tx_clock"] == 1
    rig.edit("rxs", 0, "mrc_rx", copy_ns=now)
    assert [rig.arrive(frame).verdict for _ in range(BURST)] == [TC_REDIRECT] * BURST


@pytest.mark.parametrize(
    ("behind", "offset", "flags"),
    [
        (32_769, -32_768, WIRE.MRC_CC_FLAG_DUPLICATE),
        (32_770, 0, WIRE.MRC_CC_FLAG_DELAYED),
        (65_000, 0, WIRE.MRC_CC_FLAG_DELAYED),
        (65_535, 0, WIRE.MRC_CC_FLAG_DELAYED),
        (70_000, 0, WIRE.MRC_CC_FLAG_DELAYED),
    ],
)
def test_old_copy_is_not_named_as_another_packet(
    rig: Rig, far: Far, behind: int, offset: int, flags: int
) -> None:
    """The field has 16 bits. 65,000 behind would be 536 ahead, a packet that is on its way."""
    rig.edit("rxs", 0, "mrc_rx", next=FIRST + behind, high=FIRST + behind)
    sack = answer(rig.arrive(far.data(FIRST, numbered(FIRST))).frame)
    assert (sack.body.cack, sack.body.ack_psn_offset) == (FIRST + behind - 1, offset)
    assert sack.body.cc_flags == flags


@pytest.mark.parametrize("ahead", [MPR, MPR + 1, WINDOW, WINDOW + 3, 100_000, 0x7FFFFF])
def test_psn_beyond_the_window_is_refused(rig: Rig, far: Far, ahead: int) -> None:
    before = rig.state()
    assert rig.arrive(far.data(FIRST + ahead, numbered(1))).verdict == TC_REDIRECT
    assert rig.counted() == {"drop_psn": 1, "nack_tx_window": 1}
    rig.edit("rxs", 0, "mrc_rx", nack_ns=0)
    assert rig.state() == before
    assert rig.free_slots("rx_free") == RING_SLOTS


def test_last_psn_of_the_window_waits(rig: Rig, far: Far) -> None:
    arrive(rig, far, FIRST + MPR - 1)
    assert rig.counted()["rx_held"] == 1


def test_what_waits_is_released_when_its_entry_was_used_half_a_window_before(
    rig: Rig, far: Far
) -> None:
    for start in range(FIRST, FIRST + 4 * MPR, MPR - 1):
        last = start + MPR - 1
        arrive(rig, far, last, start + 1, *range(start, last))
        assert delivered(rig) == [*range(start, last + 1)][start > FIRST :]
        assert rig.free_slots("rx_free") == RING_SLOTS


@pytest.mark.parametrize("late", [1, 63, MPR, WINDOW - 1, WINDOW, WINDOW + 1, 100_000])
def test_late_duplicate_does_not_poison_the_window(rig: Rig, far: Far, late: int) -> None:
    """Taking a late copy for a new packet would stall or lose a packet one window later."""
    start = FIRST + WINDOW + 10
    arrive(rig, far, *range(FIRST, start))
    delivered(rig)
    rig.arrive(far.data(start - late, numbered(0)))
    rest = range(start, start + 2 * WINDOW)
    arrive(rig, far, *rest)
    assert delivered(rig) == list(rest)
    assert rig.counted()["rx_duplicate"] == 1
    assert rig.free_slots("rx_free") == RING_SLOTS


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1 << 32),
    loss=st.sampled_from([0.0, 0.05, 0.4]),
    reach=st.sampled_from([2, 20, 100]),
)
def test_any_order_with_losses_and_copies_is_delivered_once_and_in_order(
    rig: Rig, far: Far, seed: int, loss: float, reach: int
) -> None:
    """Packets arrive up to `reach` places late, some twice and some only after a retransmission."""
    rng = random.Random(seed)
    rig.reset()
    first = rng.choice((FIRST, 0xFFFFC0, 0))
    rig.connect(rx_psn=first)
    todo = sorted(range(150), key=lambda n: n + rng.uniform(0, reach))
    lost = [n for n in todo if rng.random() < loss]
    arrivals = [n for n in todo if n not in lost]
    for n in lost:  # retransmitted, so it arrives behind later packets
        arrivals.insert(rng.randrange(max(0, n), n + 1) if n < len(arrivals) else len(arrivals), n)
    for n in rng.sample(todo, 10):
        arrivals.insert(rng.randrange(len(arrivals)), n)
    backlog = list(arrivals)
    next_psn = 0
    while backlog:  # a packet beyond the window is dropped and arrives again later
        number = backlog.pop(0)
        if number - next_psn >= MPR:
            backlog.append(number)
            rig.arrive(far.data(first + number, numbered(number)))
            continue
        rig.arrive(far.data(first + number, numbered(number)))
        next_psn = (rig.rx()["next"] - first) & 0xFFFFFFFF
    rig.tick(8)
    assert delivered(rig) == list(range(150))
    assert rig.rx()["waiting"] == 0
    assert rig.free_slots("rx_free") == RING_SLOTS


def test_full_reorder_ring_drops_and_takes_the_packet_later(rig: Rig, far: Far) -> None:
    slots = rig.take_slots("rx_free")
    rig.edit("rxs", 0, "mrc_rx", nack_ns=time.monotonic_ns() + NEVER_NS)  # no NACK in its place
    ran = rig.arrive(far.data(FIRST + 2, numbered(FIRST + 2), ackreq=True))
    assert rig.counted()["drop_buffer"] == 1
    assert sacked(answer(ran.frame)) == set()  # otherwise the peer would never send it again
    assert answer(ran.frame).body.cc_flags == 0  # nor does it count as a duplicate
    rig.give_slots("rx_free", slots)
    arrive(rig, far, FIRST + 2, FIRST + 1, FIRST)
    assert delivered(rig) == [FIRST, FIRST + 1, FIRST + 2]
    assert rig.free_slots("rx_free") == RING_SLOTS


def test_packet_refused_by_mrc0_is_kept(rig: Rig, far: Far) -> None:
    rig.set_link("mrc0p", "down")
    try:
        arrive(rig, far, FIRST)
        assert rig.counted()["deliver_retry"] == 1
    finally:
        rig.set_link("mrc0p", "up")
    arrive(rig, far, FIRST + 1)
    assert delivered(rig) == [FIRST, FIRST + 1]
    assert rig.free_slots("rx_free") == RING_SLOTS


def test_what_mrc0_may_still_refuse_is_told_by_no_answer(rig: Rig, far: Far) -> None:
    """Its sender would forget it. Another CPU delivers FIRST and FIRST + 1 here."""
    bits = [0] * (ABI.MRC_WINDOW_WORDS)
    for psn in (FIRST, FIRST + 1):
        bits[psn % WINDOW // 64] |= 1 << psn % 64
    rig.edit("rxs", 0, "mrc_rx", busy=1 + 2, received=tuple(bits))
    ran = rig.arrive(far.data(FIRST + 3, numbered(3), ackreq=True))
    sack = answer(ran.frame)
    assert sack.body.cack == FIRST - 1
    assert sacked(sack) == {FIRST + 3}


def test_connections_do_not_mix(rig: Rig, far: Far) -> None:
    rig.connect("h2", 1, qpn=0x550000, remote_qpn=0x660001, rx_psn=70)
    rig.arrive(far.data(71, numbered(71), qpn=0x550001))
    arrive(rig, far, FIRST, FIRST + 1)
    assert delivered(rig) == [FIRST, FIRST + 1]
    rig.arrive(far.data(70, numbered(70), qpn=0x550001))
    assert delivered(rig) == [70, 71]


# ---- answers


@pytest.mark.parametrize("wish", [{"ackreq": True}, {"rtx": True}])
def test_wished_answer_comes_at_once_on_the_mirrored_path(
    rig: Rig, far: Far, wish: dict[str, bool]
) -> None:
    ev = ev_of(2, 3)
    ran = rig.arrive(far.data(FIRST, numbered(FIRST), ev, **wish), "plane2")
    assert delivered(rig) == [FIRST]
    sack = answer(ran.frame)
    assert ran.verdict == TC_REDIRECT
    assert sack.envelope == far.our_envelope(ev)
    assert sack.bth.dqpn == REMOTE_QPN
    body = sack.body
    assert (body.cack, body.entropy, body.ack_psn_offset) == (FIRST, ev, 0)
    assert (body.probe_reply, body.cc_flags, body.mpr) == (
        False, 0, WINDOW // 2 // WIRE.MRC_MPR_UNIT
    )  # fmt: skip


def test_answer_names_what_waits_and_what_is_missing(rig: Rig, far: Far) -> None:
    arrive(rig, far, FIRST, FIRST + 2, FIRST + 5)
    sack = answer(rig.arrive(far.data(FIRST + 7, numbered(1), ackreq=True)).frame)
    assert sack.body.cack == FIRST
    assert sacked(sack) == {FIRST + 2, FIRST + 5, FIRST + 7}
    assert sack.body.ack_psn_offset == 7
    assert sack.cc_state.ooo == 3


def test_answers_in_a_row_report_a_window_wider_than_one(rig: Rig, far: Far) -> None:
    arrive(rig, far, *range(FIRST + 1, FIRST + 100))
    reported: set[int] = set()
    for _ in range(2):
        sack = answer(rig.arrive(far.data(FIRST + 100, numbered(1), rtx=True)).frame)
        assert FIRST not in sacked(sack)
        reported |= sacked(sack)
    assert reported >= set(range(FIRST + 1, FIRST + 101))


def test_answers_come_after_so_many_packets(rig: Rig, far: Far) -> None:
    rig.tune(sack_packets=3)
    frames = [far.data(FIRST + i, numbered(i)) for i in range(7)]
    verdicts = [rig.arrive(frame).verdict for frame in frames]
    expected = [TC_SHOT, TC_SHOT, TC_REDIRECT] * 2 + [TC_SHOT]
    assert verdicts == expected
    assert rig.counted()["sack_tx"] == 2


def test_answers_come_after_so_many_bytes(rig: Rig, far: Far) -> None:
    rig.tune(sack_bytes=2500)
    frames = [far.data(FIRST + i, ip4(bytes(972))) for i in range(6)]
    verdicts = [rig.arrive(frame).verdict for frame in frames]
    assert verdicts == [TC_SHOT, TC_SHOT, TC_REDIRECT] * 2


def test_answers_keep_a_distance(rig: Rig, far: Far) -> None:
    rig.tune(sack_packets=2, sack_gap_ns=NEVER_NS)
    frames = [far.data(FIRST + i, numbered(i)) for i in range(20)]
    verdicts = [rig.arrive(frame).verdict for frame in frames]
    assert verdicts == [TC_SHOT, TC_REDIRECT] + [TC_SHOT] * 18  # no SACK preceded the first one
    rig.edit("rxs", 0, "mrc_rx", sacked_ns=time.monotonic_ns() - NEVER_NS)
    sack = answer(rig.arrive(far.data(FIRST + 20, numbered(20))).frame)
    assert sack.body.cack == FIRST + 20
    assert time.monotonic_ns() - rig.rx()["sacked_ns"] < NEVER_NS / 4


@pytest.mark.parametrize("asked", [{"rtx": True}, {"ackreq": True}, {"ce": True}])
def test_answers_that_are_asked_for_keep_none(rig: Rig, far: Far, asked: dict[str, bool]) -> None:
    rig.tune(sack_packets=1, sack_gap_ns=NEVER_NS)
    arrive(rig, far, FIRST)
    assert rig.arrive(far.data(FIRST + 1, numbered(1))).verdict == TC_SHOT
    assert rig.arrive(far.data(FIRST + 2, numbered(2), **asked)).verdict == TC_REDIRECT
    assert rig.arrive(far.data(FIRST + 2, numbered(2))).verdict == TC_REDIRECT  # a duplicate


def test_answers_are_not_put_off_for_ever(rig: Rig, far: Far) -> None:
    rig.tune(sack_packets=2, sack_gap_ns=NEVER_NS)
    verdicts = [rig.arrive(far.data(FIRST + i, numbered(i))).verdict for i in range(2 + MPR)]
    answered = [i for i, verdict in enumerate(verdicts) if verdict == TC_REDIRECT]
    assert answered == [1, *range(1 + MPR // 4, 2 + MPR, MPR // 4)]
    rig.edit("qps", 0, "mrc_qp", mpr=2048)
    verdicts = [rig.arrive(far.data(FIRST + 2 + MPR + i, numbered(i))).verdict for i in range(65)]
    assert [i for i, verdict in enumerate(verdicts) if verdict == TC_REDIRECT] == [63]


def test_a_window_wider_than_one_answer_is_told_at_once(rig: Rig, far: Far) -> None:
    rig.tune(sack_packets=2, sack_gap_ns=NEVER_NS)
    rig.edit("qps", 0, "mrc_qp", mpr=2048)
    verdicts = [rig.arrive(far.data(FIRST + 1 + i, numbered(i))).verdict for i in range(62)]
    assert verdicts.count(TC_REDIRECT) == 1
    verdicts = [rig.arrive(far.data(FIRST + 64 + i, numbered(i))).verdict for i in range(8)]
    assert verdicts == [TC_REDIRECT] + [TC_SHOT, TC_REDIRECT] * 3 + [TC_SHOT]


def test_answer_is_golden_but_for_its_numbers(rig: Rig, far: Far) -> None:
    """Compare the whole frame with the codec's, byte for byte."""
    ran = rig.arrive(far.data(FIRST, numbered(FIRST), ackreq=True))
    sack = answer(ran.frame)
    again = far.frame(replace(sack, envelope=sack.envelope))
    assert again[14:] == ran.frame[14:]
    assert sack.envelope.ev == EV
