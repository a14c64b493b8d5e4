# SPDX-License-Identifier: GPL-2.0-only
"""SACKs at the sender: arrived packets free their slots, lost ones are sent again at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Data, Peth, decode_frame
from rigs.packets import Far, ip4, ip6, numbered, sent_at
from rigs.rig import MPR, PLANES, RING_SLOTS, T1S, TC_SHOT, WINDOW, Rig

FIRST = 1000
PATHS = PLANES * T1S


@dataclass(frozen=True, slots=True)
class Sent:
    """A data frame of ours."""

    psn: int
    ev: int
    frame: bytes
    payload: bytes
    rtx: bool


def read(frame: bytes) -> Sent:
    data = decode_frame(frame)
    assert isinstance(data, Data)
    return Sent(data.bth.psn, data.envelope.ev, frame, data.payload, data.bth.rtx)


def outgoing(number: int) -> bytes:
    return ip4(number.to_bytes(4, "big") + b"payload", src="10.99.0.1", dst="10.99.0.2")


def spray(rig: Rig, count: int, first: int = 0) -> list[Sent]:
    return [read(rig.spray(outgoing(first + i)).frame) for i in range(count)]


def resent(rig: Rig) -> list[Sent]:
    """Return the data sent by clones since the last call; each frame left by its EV's plane."""
    found = []
    for plane, frame in rig.sent():
        if isinstance(decode_frame(frame), Control):
            continue  # a probe of the clock's
        sent = read(frame)
        assert sent.ev >> WIRE.MRC_EV_PLANE_SHIFT == plane
        found.append(sent)
    return sorted(found, key=lambda sent: sent.psn)


def bits(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


def anything_later_is_a_loss(rig: Rig) -> None:
    """Remove the guard's grace: a packet sent before one that arrived counts as lost at once."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)


def same_path_only(rig: Rig) -> None:
    """Disable the guard: only the order within a path shows that a packet is lost."""
    rig.tune(fifo_slack_ns=0)


# ---- what arrived


def test_cumulative_ack_frees_the_ring(rig: Rig, far: Far) -> None:
    spray(rig, 10)
    assert rig.free_slots("tx_free") == RING_SLOTS - 10
    assert rig.arrive(far.sack(FIRST + 6)).verdict == TC_SHOT
    assert rig.free_slots("tx_free") == RING_SLOTS - 3
    assert rig.tx()["una"] == FIRST + 7
    rig.arrive(far.sack(FIRST + 9))
    assert rig.free_slots("tx_free") == RING_SLOTS
    assert rig.tx()["una"] == rig.tx()["next"] == FIRST + 10
    assert resent(rig) == []
    counted = rig.counted()
    assert counted["sack_rx"] == 2
    assert not {name for name in counted if "rtx" in name or "drop" in name}


def test_bitmap_frees_the_ring_and_leaves_the_gap(rig: Rig, far: Far) -> None:
    spray(rig, 10)
    rig.arrive(far.sack(FIRST - 1, bits(1, 2, 5), offset=1))
    assert rig.free_slots("tx_free") == RING_SLOTS - 7
    assert rig.tx()["una"] == FIRST
    rig.arrive(far.sack(FIRST + 2, bits(0), offset=3))  # 5 again
    assert rig.free_slots("tx_free") == RING_SLOTS - 6
    assert rig.tx()["una"] == FIRST + 3


def test_full_window_of_news_is_taken_by_repeated_sacks(rig: Rig, far: Far) -> None:
    spray(rig, MPR)
    for _ in range(3):
        rig.arrive(far.sack(FIRST + MPR - 1))
    assert rig.tx()["una"] == FIRST + MPR
    assert rig.free_slots("tx_free") == RING_SLOTS
    spray(rig, MPR)  # and the window is open again
    assert rig.free_slots("tx_free") == RING_SLOTS - MPR


@pytest.mark.parametrize("first", [0xFFFFF0, 0xFFFFFFF0])
def test_acks_cross_the_wrap(rig: Rig, far: Far, first: int) -> None:
    rig.connect(tx_psn=first)
    spray(rig, 40)
    rig.arrive(far.sack(first + 19, bits(3, 4)))
    assert rig.free_slots("tx_free") == RING_SLOTS - 18
    rig.arrive(far.sack(first + 39))
    assert rig.free_slots("tx_free") == RING_SLOTS
    assert rig.tx()["una"] == (first + 40) & 0xFFFFFFFF


@pytest.mark.parametrize("beyond", [0, 1, 500, 0x3FFFFF])
def test_sack_for_what_was_never_sent_is_dropped(rig: Rig, far: Far, beyond: int) -> None:
    spray(rig, 4)
    before = rig.state()
    rig.counted()
    assert rig.arrive(far.sack(FIRST + 4 + beyond, (1 << 64) - 1)).verdict == TC_SHOT
    assert rig.counted() == {"drop_sack": 1}
    assert rig.tx()["absurd"] == 1
    rig.edit("txs", 0, "mrc_tx", absurd=0)
    assert rig.state() == before
    assert rig.free_slots("tx_free") == RING_SLOTS - 4
    assert rig.sent() == []


def test_sack_that_makes_sense_ends_the_row_of_those_that_do_not(rig: Rig, far: Far) -> None:
    spray(rig, 4)
    for count in range(1, 4):
        rig.arrive(far.sack(FIRST + 100))
        assert rig.tx()["absurd"] == count
    rig.arrive(far.sack(FIRST))
    assert rig.tx()["absurd"] == 0


@pytest.mark.parametrize("offset", [5, 100, MPR, 300, 0x7FFF, -0x8000, -300])
def test_bitmap_beyond_what_was_sent_acknowledges_nothing(rig: Rig, far: Far, offset: int) -> None:
    anything_later_is_a_loss(rig)
    spray(rig, 4)
    rig.arrive(far.sack(FIRST - 1, (1 << 64) - 1, offset=offset))
    assert rig.free_slots("tx_free") == RING_SLOTS - 4
    assert (rig.tx()["una"], rig.tx()["next"]) == (FIRST, FIRST + 4)
    assert rig.sent() == []


def test_replayed_sack_changes_nothing(rig: Rig, far: Far) -> None:
    spray(rig, 20)
    frames = [far.sack(FIRST + 3), far.sack(FIRST + 7, bits(2, 4)), far.sack(FIRST + 15)]
    for frame in frames:
        rig.arrive(frame)
    before, free = rig.state(), rig.free_slots("tx_free")
    rig.counted()
    for frame in frames * 5:
        rig.arrive(frame)
    assert rig.state() == before
    assert rig.free_slots("tx_free") == free
    assert rig.sent() == []
    assert set(rig.counted()) <= {"sack_rx", "sack_stale"}


def test_sack_before_anything_was_sent(rig: Rig, far: Far) -> None:
    before = rig.state()
    rig.arrive(far.sack(FIRST - 1, 3))
    assert rig.state() == before
    assert rig.free_slots("tx_free") == RING_SLOTS


def test_sack_of_a_qp_that_may_not_send_is_ignored(rig: Rig, far: Far) -> None:
    spray(rig, 2)
    rig.set_state(ABI.MRC_QP_RECEIVE)
    rig.arrive(far.sack(FIRST + 1))
    assert rig.free_slots("tx_free") == RING_SLOTS - 2


def test_round_trip_is_measured_on_the_packet_that_caused_the_sack(rig: Rig, far: Far) -> None:
    stamps = [sent_at(sent.frame) for sent in spray(rig, 3)]
    rig.arrive(far.sack(FIRST, trigger=FIRST, delayed=True, ts=stamps[0]))
    assert rig.tx()["srtt_ns"] == 0  # the SACK came from a clock
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST + 1, ts=stamps[1] ^ 1))
    assert rig.tx()["srtt_ns"] == 0  # another transmission of the packet caused it
    rig.arrive(far.sack(FIRST + 2, trigger=FIRST + 2, ts=stamps[2]))
    assert 0 < rig.tx()["srtt_ns"] < 1_000_000_000


# ---- what is lost


def test_hole_is_sent_again_on_another_path(rig: Rig, far: Far) -> None:
    anything_later_is_a_loss(rig)
    first, *_rest = spray(rig, 8)
    rig.counted()
    rig.arrive(far.sack(FIRST - 1, bits(*range(1, 8))))
    (again,) = resent(rig)
    assert (again.psn, again.rtx, again.payload) == (FIRST, True, first.payload)
    assert again.ev != first.ev
    assert again.frame == far.our_data(
        FIRST, first.payload, again.ev, sent_at(again.frame), rtx=True
    )
    counted = rig.counted()
    assert counted["rtx_guard"] == 1
    assert counted["path_withdrawn"] == 1
    assert rig.path(first.ev)["state"] == ABI.MRC_PATH_ASSUMED_BAD
    assert rig.path(first.ev)["lost"] == 1
    assert rig.tx()["retransmits"] == 1


def test_nothing_is_sent_again_while_it_may_be_late(rig: Rig, far: Far) -> None:
    spray(rig, 8)
    rig.arrive(far.sack(FIRST - 1, bits(*range(1, 8))))
    assert resent(rig) == []
    assert rig.counted().keys() & {"path_withdrawn", "rtx_guard", "rtx_fifo"} == set()


@pytest.mark.parametrize("slow", [True, False])
def test_packet_is_late_by_the_round_trip_of_its_own_plane(rig: Rig, far: Far, slow: bool) -> None:
    """A plane with a long queue is not dead just because the others are faster."""
    anything_later_is_a_loss(rig)
    first, *_rest = spray(rig, 8)
    trips = [1] * 8
    trips[first.ev >> 28] = 4_000_000_000 if slow else 1
    rig.edit("balances", 0, "mrc_balance", now_ns=tuple(trips))
    rig.arrive(far.sack(FIRST - 1, bits(*range(1, 8)), delayed=True))
    assert len(resent(rig)) == (0 if slow else 1)


def test_later_packet_of_the_same_path_proves_a_loss(rig: Rig, far: Far) -> None:
    same_path_only(rig)
    sent = spray(rig, PATHS)  # each path once
    while sent[-1].ev != sent[0].ev:
        sent += spray(rig, 1, len(sent))
    later = {one.ev for one in sent[PATHS:]}
    alone = next(i for i, one in enumerate(sent[:PATHS]) if one.ev not in later)
    # Everything but 0 and `alone` arrived; nothing of the latter's path was sent after it.
    arrived = bits(*set(range(1, len(sent))) - {alone})
    rig.arrive(far.sack(FIRST - 1, arrived))
    assert [again.psn for again in resent(rig)] == [FIRST]
    assert rig.counted()["rtx_fifo"] == 1


def test_hole_is_sent_again_once_for_each_loss(rig: Rig, far: Far) -> None:
    anything_later_is_a_loss(rig)
    spray(rig, 8)
    sack = far.sack(FIRST - 1, bits(*range(1, 8)))
    for _ in range(4):
        rig.arrive(sack)
    assert len(resent(rig)) == 1
    # The arrival of a packet sent after the second copy shows that this copy is lost, too.
    spray(rig, 1)
    rig.arrive(far.sack(FIRST - 1, bits(*range(1, 9))))
    (again,) = resent(rig)
    assert again.psn == FIRST


def test_several_holes_and_sizes(rig: Rig, far: Far) -> None:
    anything_later_is_a_loss(rig)
    packets = [ip4(bytes([i]) * (i * 90), src="10.99.0.1", dst="10.99.0.2") for i in range(14)]
    packets[6] = ip6(b"v6" * 300, src="fd99::1", dst="fd99::2")
    for packet in packets:
        rig.spray(packet)
    rig.arrive(far.sack(FIRST - 1, bits(1, 3, 4, 5, 7, 9, 10, 11, 12, 13)))
    again = resent(rig)
    assert [sent.psn - FIRST for sent in again] == [0, 2, 6, 8]
    for sent in again:
        assert sent.frame == far.our_data(
            sent.psn, packets[sent.psn - FIRST], sent.ev, sent_at(sent.frame), rtx=True
        )


def test_more_holes_than_one_run_repairs(rig: Rig, far: Far) -> None:
    anything_later_is_a_loss(rig)
    spray(rig, 61)
    sack = far.sack(FIRST - 1, bits(60))
    for _ in range(12):
        rig.arrive(sack)
    assert [sent.psn for sent in resent(rig)] == list(range(FIRST, FIRST + 60))


def test_lost_packet_acknowledged_late_is_given_back_once(rig: Rig, far: Far) -> None:
    anything_later_is_a_loss(rig)
    spray(rig, 8)
    rig.arrive(far.sack(FIRST - 1, bits(*range(1, 8))))
    assert len(resent(rig)) == 1
    rig.arrive(far.sack(FIRST + 7))
    assert rig.free_slots("tx_free") == RING_SLOTS
    assert rig.tx()["una"] == FIRST + 8


def test_withdrawn_path_carries_nothing_until_it_is_back(rig: Rig, far: Far) -> None:
    anything_later_is_a_loss(rig)
    first, *_ = spray(rig, 8)
    rig.arrive(far.sack(FIRST - 1, bits(*range(1, 8))))
    assert first.ev not in {sent.ev for sent in spray(rig, 2 * PATHS)}


def test_answered_probe_brings_a_path_back(rig: Rig, far: Far) -> None:
    anything_later_is_a_loss(rig)
    first, *_ = spray(rig, 8)
    rig.arrive(far.sack(FIRST - 1, bits(*range(1, 8))))
    resent(rig)
    rig.tune(probe_interval_ns=0)
    rig.tick()
    (probe,) = [decode_frame(frame) for _plane, frame in rig.sent()]
    body, plane = probe.body, f"plane{first.ev >> WIRE.MRC_EV_PLANE_SHIFT}"
    assert isinstance(body, Peth)
    reply = far.probe_reply(body.probe_id, first.ev)
    rig.receive(far.probe_reply(body.probe_id + 1 & 0xFFFF, first.ev), plane)  # not this one
    assert rig.path(first.ev)["state"] == ABI.MRC_PATH_ASSUMED_BAD
    rig.counted()
    rig.receive(reply, plane)
    assert rig.path(first.ev)["state"] == ABI.MRC_PATH_GOOD
    assert rig.counted() == {"probe_reply": 1, "path_restored": 1}
    assert first.ev in {sent.ev for sent in spray(rig, 2 * PATHS)}


@pytest.mark.parametrize("seed", range(20))
def test_random_loss_loses_nothing(rig: Rig, far: Far, seed: int) -> None:
    """Lose a third of all frames to a receiver in Python: all packets must be acknowledged."""
    rng = random.Random(seed)
    anything_later_is_a_loss(rig)
    got: dict[int, bytes] = {}

    def take(sent: Sent) -> None:
        if rng.random() > 0.33:
            got.setdefault(sent.psn, sent.payload)

    sprayed = 0
    for _ in range(400):
        if sprayed < 100:
            for sent in spray(rig, 2, sprayed):
                take(sent)
            sprayed += 2
        else:
            rig.tune(rto_min_ns=1)
            rig.tick()
        for sent in resent(rig):
            assert sent.rtx
            assert sent.payload == outgoing(sent.psn - FIRST)
            take(sent)
        cack = FIRST - 1
        while cack + 1 in got:
            cack += 1
        base = rng.choice([cack + 1, max(cack + 1, max(got, default=0) - 63)])
        bitmap = sum(1 << i for i in range(64) if base + i in got)
        rig.arrive(far.sack(cack, bitmap, offset=base - cack, delayed=True))
        if len(got) == 100 and rig.tx()["una"] == FIRST + 100:
            break
    assert got == {FIRST + i: outgoing(i) for i in range(100)}
    assert rig.tx()["una"] == FIRST + 100
    assert rig.free_slots("tx_free") == RING_SLOTS


def test_receiving_and_sending_share_a_qp(rig: Rig, far: Far) -> None:
    spray(rig, 3)
    rig.arrive(far.data(5000, numbered(5000)))
    rig.arrive(far.sack(FIRST + 2))
    assert rig.delivered() == [numbered(5000)]
    assert rig.free_slots("tx_free") == RING_SLOTS


# ---- a receiver that is ahead, and SACKs that only say so


def out_of_step(rig: Rig) -> int:
    raws = rig.events.take()
    return sum(raw["kind"] == ABI.MRC_EVENT_OUT_OF_STEP for raw in map(as_event, raws))


def as_event(raw: bytes) -> dict[str, int]:
    return ABI.structs["mrc_event"].unpack(raw)


def test_sacks_alone_put_no_qp_out_of_step(rig: Rig, far: Far) -> None:
    """While what we send is acknowledged, the receiver is not ahead, whatever SACKs say."""
    spray(rig, 4)
    for _ in range(64):
        rig.arrive(far.sack(FIRST + 100))
    assert out_of_step(rig) == 0
    rig.edit("txs", 0, "mrc_tx", absurd=0, moved_ns=1)  # nothing was acknowledged for long
    for _ in range(16):
        rig.arrive(far.sack(FIRST + 100))
    assert out_of_step(rig) == 1


def test_idle_qp_is_never_out_of_step(rig: Rig, far: Far) -> None:
    rig.edit("txs", 0, "mrc_tx", moved_ns=1)
    for _ in range(64):
        rig.arrive(far.sack(FIRST + 100))
    assert out_of_step(rig) == 0


@pytest.mark.parametrize("behind", [WINDOW + 2, 5000, 1 << 22])
def test_sack_older_than_the_window_changes_nothing(rig: Rig, far: Far, behind: int) -> None:
    spray(rig, 4)
    before = rig.state()
    rig.arrive(far.sack(FIRST - behind, (1 << 64) - 1, down=0xFF, received=5000, mpr=0))
    assert rig.counted()["sack_stale"] == 1
    assert rig.state() == before
