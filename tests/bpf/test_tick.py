# SPDX-License-Identifier: GPL-2.0-only
"""mrc_tick: the work that no arriving packet triggers."""

from __future__ import annotations

import time

import pytest

from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Data, Peth, Sack, decode_frame
from rigs.packets import QPN, REMOTE_QPN, Far, ev_of, ip4, numbered, sealed, sent_at
from rigs.rig import MPR, PLANES, RING_SLOTS, T1S, Rig, clock_passes

FIRST_TX = 1000
FIRST_RX = 5000
PACKET = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


def sent(rig: Rig) -> list[Data | Sack | Control]:
    return [decode_frame(frame) for _plane, frame in rig.sent()]


def sacks(rig: Rig) -> list[Sack]:
    return [packet for packet in sent(rig) if isinstance(packet, Sack)]


def probes(rig: Rig, ev: int | None = None) -> list[int]:
    """Return the ids of the probes sent since the last call, of one path or of all."""
    found = []
    for packet in sent(rig):
        if isinstance(packet.body, Peth) and ev in (None, packet.envelope.ev):
            found.append(packet.body.probe_id)
    return found


def test_idle_does_nothing(rig: Rig) -> None:
    before = rig.state()
    rig.tick(10)
    assert rig.sent() == []
    assert rig.counted() == {}
    assert rig.state() == before


# ---- time-outs


def test_lost_tail_is_sent_again(rig: Rig, far: Far) -> None:
    first = decode_frame(rig.spray(PACKET).frame)
    rig.tick()
    assert sent(rig) == []  # not yet
    rig.tune(rto_min_ns=1)
    rig.tick()
    again, *_probe = [one for one in rig.sent() if isinstance(decode_frame(one[1]), Data)]
    packet = decode_frame(again[1])
    assert again[1] == far.our_data(
        FIRST_TX, PACKET, packet.envelope.ev, sent_at(again[1]), rtx=True
    )
    assert packet.envelope.ev != first.envelope.ev
    counted = rig.counted()
    assert counted["rtx_timeout"] == 1
    assert counted["path_withdrawn"] == 1


def test_acknowledged_tail_is_not(rig: Rig, far: Far) -> None:
    rig.spray(PACKET)
    rig.arrive(far.sack(FIRST_TX))
    rig.tune(rto_min_ns=1)
    rig.tick(5)
    assert sent(rig) == []
    assert not rig.active()


def test_whole_lost_window_is_sent_again_in_several_runs(rig: Rig) -> None:
    for _ in range(MPR):
        rig.spray(PACKET)
    rig.tune(rto_min_ns=1)
    psns = set()
    for _ in range(200):
        clock_passes(300)  # beyond the first back-offs
        rig.tick()
        psns |= {packet.bth.psn for packet in sent(rig) if isinstance(packet, Data)}
        if len(psns) == MPR:
            break
    assert psns == set(range(FIRST_TX, FIRST_TX + MPR))
    assert rig.free_slots("tx_free") == RING_SLOTS - MPR


def test_time_outs_in_a_row_come_further_apart(rig: Rig) -> None:
    rig.spray(PACKET)
    rig.tune(rto_min_ns=2_000_000)
    resends = []
    for _ in range(400):
        rig.tick()
        if any(isinstance(packet, Data) for packet in sent(rig)):
            resends.append(rig.tx()["backoff"])
        if len(resends) == 4:
            break
        clock_passes(100_000)
    assert resends == [1, 2, 3, 4]


def test_back_off_ends_with_progress(rig: Rig, far: Far) -> None:
    rig.spray(PACKET)
    rig.tune(rto_min_ns=1)
    rig.tick()
    assert rig.tx()["backoff"] == 1
    rig.arrive(far.sack(FIRST_TX))
    assert rig.tx()["backoff"] == 0


# ---- answers by the clock


def test_delayed_sack_is_sent_once(rig: Rig, far: Far) -> None:
    ev = ev_of(2, 3)
    rig.arrive(far.data(FIRST_RX, numbered(1), ev), "plane2")
    rig.tick()
    (sack,) = sacks(rig)
    assert sack.envelope == far.our_envelope(ev)
    assert sack.body.cack == FIRST_RX
    assert sack.body.cc_flags & WIRE.MRC_CC_FLAG_DELAYED
    assert rig.counted()["sack_tx_clock"] == 1
    rig.tick(3)
    assert sent(rig) == []
    assert not rig.active()


def test_gap_is_reported_until_it_is_filled(rig: Rig, far: Far) -> None:
    rig.arrive(far.data(FIRST_RX + 1, numbered(2)))
    for _ in range(3):
        rig.tick()
        (sack,) = sacks(rig)
        assert sack.body.cack == FIRST_RX - 1
        assert sack.body.bitmap << sack.body.sack_offset & 1 << 2
    rig.arrive(far.data(FIRST_RX, numbered(1)))
    rig.tick()
    rig.sent()
    rig.tick(2)
    assert sent(rig) == []


def test_clock_reports_every_part_of_a_wide_window(rig: Rig, far: Far) -> None:
    """A SACK shows 64 PSNs. The clock's SACKs cover the window in turn, so one may be lost."""
    held = {FIRST_RX + n for n in range(1, 120) if n % 7}
    for psn in sorted(held):
        rig.arrive(far.data(psn, numbered(psn)))
    seen = set()
    for _ in range(6):
        rig.tick()
        for sack in sacks(rig):
            base = sack.body.cack + sack.body.sack_offset
            seen |= {base + i for i in range(64) if sack.body.bitmap >> i & 1}
    assert seen == held


# ---- gaps


def test_gap_that_nobody_fills_is_given_up(rig: Rig, far: Far) -> None:
    rig.arrive(far.data(FIRST_RX + 2, numbered(3)))
    rig.tick(3)
    assert rig.delivered() == []
    rig.tune(hole_timeout_ns=1)
    rig.tick(4)
    assert rig.delivered() == [numbered(3)]
    assert rig.counted()["hole_skipped"] == 2
    assert rig.rx()["next"] == FIRST_RX + 3
    assert rig.free_slots("rx_free") == RING_SLOTS
    # A packet that arrives after it was given up is late.
    rig.arrive(far.data(FIRST_RX, numbered(1)))
    assert rig.delivered() == []
    assert rig.counted()["rx_duplicate"] == 1


def test_gap_wider_than_a_word_is_given_up_in_steps(rig: Rig, far: Far) -> None:
    rig.arrive(far.data(FIRST_RX + MPR - 1, numbered(1)))
    rig.tune(hole_timeout_ns=1)
    rig.tick(12)
    assert rig.delivered() == [numbered(1)]
    assert rig.counted()["hole_skipped"] == MPR - 1


def test_wide_gap_is_given_up_in_one_time_out(rig: Rig, far: Far) -> None:
    """The wait does not start again for every 64 missing packets."""
    timeout_ns = 100_000_000
    rig.tune(hole_timeout_ns=timeout_ns)
    rig.arrive(far.data(FIRST_RX + MPR - 1, numbered(1)))
    rig.tick()
    clock_passes(timeout_ns)
    for _ in range(20):
        rig.tick()
        clock_passes(1_000_000)
    assert rig.delivered() == [numbered(1)]


def test_moving_gap_is_not_given_up(rig: Rig, far: Far) -> None:
    rig.tune(hole_timeout_ns=50_000_000)
    for n in range(0, 40, 2):
        rig.arrive(far.data(FIRST_RX + n + 1, numbered(n + 1)))
        rig.tick()
        clock_passes(5_000_000)
        rig.arrive(far.data(FIRST_RX + n, numbered(n)))
    assert "hole_skipped" not in rig.counted()
    assert rig.delivered() == [numbered(n) for n in range(40)]


# ---- probes


def withdrawn(rig: Rig, far: Far, srtt_ns: int = 50_000_000) -> int:
    """Lose a packet; return the EV of the path that is withdrawn for it.

    An answer to a probe may take twice `srtt_ns`.
    """
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    first = decode_frame(rig.spray(PACKET).frame)
    rig.spray(PACKET)
    rig.arrive(far.sack(FIRST_TX - 1, 2))
    rig.sent()
    rig.arrive(far.sack(FIRST_TX + 1))
    assert rig.path(first.envelope.ev)["state"] == ABI.MRC_PATH_ASSUMED_BAD
    rig.edit("txs", 0, "mrc_tx", srtt_ns=srtt_ns)
    return first.envelope.ev


def reply(rig: Rig, far: Far, probe_id: int, ev: int) -> None:
    """Receive the peer's answer to a probe."""
    plane = ev >> WIRE.MRC_EV_PLANE_SHIFT
    rig.receive(far.probe_reply(probe_id, ev), f"plane{plane}")


def test_path_that_is_away_is_probed_and_restored(rig: Rig, far: Far) -> None:
    ev = withdrawn(rig, far)
    first = rig.tx()["next"]
    rig.tick(T1S)  # the clock checks the paths of a plane in turn
    frames = [packet for packet in sent(rig) if isinstance(packet.body, Peth)]
    (probe,) = [packet for packet in frames if packet.envelope.ev == ev]
    assert isinstance(probe, Control)
    assert isinstance(probe.body, Peth)
    assert probe.envelope == far.our_envelope(ev)
    assert probe.body.probe_id >> 9 == rig.path(ev)["slot"]  # the answer finds the path by its slot
    assert rig.counted()["probe_tx"] == len(frames)
    rig.tick(3 * T1S)
    assert probes(rig, ev) == []  # one is on its way
    assert rig.active()  # and the clock keeps running for it
    reply(rig, far, probe.body.probe_id, ev)
    assert rig.path(ev)["state"] == ABI.MRC_PATH_GOOD
    rig.tick(2)
    assert not rig.active()
    assert rig.tx()["next"] == first


def test_beside_a_path_that_is_away_others_of_its_plane_are_asked(rig: Rig, far: Far) -> None:
    """The fault may also affect its neighbours, of which nothing was heard lately."""
    ev = withdrawn(rig, far)
    rig.tick(2 * T1S)
    asked = {packet.envelope.ev for packet in sent(rig) if isinstance(packet.body, Peth)}
    assert {each >> 28 for each in asked} == {ev >> 28}
    assert asked == {ev_of(ev >> 28, t1) for t1 in range(1, T1S + 1)}


def test_reply_by_another_path_counts_for_the_one_probed(rig: Rig, far: Far) -> None:
    """SETH names the EV under test; the peer chooses the return path."""
    ev = withdrawn(rig, far)
    rig.tune(probe_interval_ns=1)
    rig.tick(T1S)
    (probe_id,) = probes(rig, ev)
    frame = bytearray(far.probe_reply(probe_id, ev_of(1, 4)))
    frame[118:122] = ev.to_bytes(4, "big")
    rig.receive(sealed(bytes(frame)))
    assert rig.path(ev)["state"] == ABI.MRC_PATH_GOOD


def missed(rig: Rig, ev: int, count: int, ticks: int = 1000) -> list[int]:
    """Let probes of a path be missed; return the ids of these, and of the next."""
    rig.tune(probe_interval_ns=1)
    ids: list[int] = []
    for _ in range(ticks):
        clock_passes(200_000)
        rig.tick()
        ids += probes(rig, ev)
        if len(ids) > count:
            break
    assert rig.path(ev)["misses"] == count
    return ids


def test_unanswered_probes_are_repeated_with_new_ids(rig: Rig, far: Far) -> None:
    ev = withdrawn(rig, far, srtt_ns=1)
    ids = missed(rig, ev, 3, ticks=300)
    assert len(set(ids)) == 4
    assert rig.counted()["probe_missed"] >= 3
    assert rig.path(ev)["misses"] == 3


@pytest.mark.parametrize("since", [1, 2, 3])
def test_answer_after_its_time_restores_a_path_and_lets_the_next_take_longer(
    rig: Rig, far: Far, since: int
) -> None:
    """A host without time answers late, and its paths are as good as before."""
    ev = withdrawn(rig, far, srtt_ns=1)
    ids = missed(rig, ev, since)
    rig.counted()
    reply(rig, far, ids[-1 - since], ev)
    assert rig.path(ev)["state"] == ABI.MRC_PATH_GOOD
    assert rig.counted() == {"path_restored": 1, "probe_stale": 1}
    assert rig.path(ev)["relapses"] == 0, "it was never dead"
    assert rig.path(ev)["srtt_ns"] > since * 4_000_000
    balance = rig.dp.read("balances", rig.table.peers.indices["h2"], ABI.structs["mrc_balance"])
    assert balance["probed_ns"] == 0, "it may have taken longer, so it is no shortest round trip"


def test_answer_to_a_probe_of_long_ago_is_none(rig: Rig, far: Far) -> None:
    ev = withdrawn(rig, far, srtt_ns=1)
    first = missed(rig, ev, 4)[0]
    rig.counted()
    before = rig.state()
    reply(rig, far, first, ev)
    assert rig.state() == before
    assert rig.counted() == {"probe_stale": 1}


def test_missed_probes_cost_others_until_the_path_is_known_to_be_dead(rig: Rig, far: Far) -> None:
    ev = withdrawn(rig, far, srtt_ns=1)
    price, fresh, saved = 8, 3, 10_000
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], probe_credit=saved, paid_ns=1)
    rig.counted()
    missed(rig, ev, fresh + 2)
    plane = [rig.path(ev_of(ev >> 28, t1)) for t1 in range(1, T1S + 1)]
    paid = sum(min(path["misses"], fresh) for path in plane) * price
    assert rig.clock()["probe_credit"] == saved - paid - rig.counted()["probe_tx"]
    assert rig.clock()["paid_ns"] == 1


def test_missed_probe_is_paid_with_those_to_come(rig: Rig, far: Far) -> None:
    ev = withdrawn(rig, far, srtt_ns=1)
    gap_ns = 1_000_000_000
    rig.tune(probe_gap_ns=gap_ns)
    before_ns = time.monotonic_ns()
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], probe_credit=4, paid_ns=before_ns)
    missed(rig, ev, 1)
    paid_ns = rig.clock()["paid_ns"]
    assert rig.clock()["probe_credit"] == 0
    assert before_ns + 50_000_000 < paid_ns < time.monotonic_ns() + 50_000_000, "0.05 s at most"
    rig.beat()
    assert rig.clock()["probe_credit"] == 0


def test_replayed_reply_restores_nothing(rig: Rig, far: Far) -> None:
    ev = withdrawn(rig, far)
    rig.tune(probe_interval_ns=1)
    rig.tick(T1S)
    (probe_id,) = probes(rig, ev)
    before = rig.state()
    rig.counted()
    reply(rig, far, probe_id ^ 1, ev)  # the id of another probe of the same path
    assert rig.state() == before
    assert rig.counted() == {"probe_stale": 1}
    reply(rig, far, probe_id ^ 1 << 9, ev)  # the id of a probe of another path
    assert rig.state() == before
    reply(rig, far, probe_id, ev)
    restored = rig.state()
    assert restored != before
    rig.counted()
    reply(rig, far, probe_id, ev)  # a copy of the answer
    assert rig.state() == restored
    assert rig.counted() == {"probe_stale": 1}


def test_path_that_loses_more_than_others_stays_away_longer(rig: Rig, far: Far) -> None:
    rig.tune(hold_base_ns=400_000_000, hold_max_ns=4_000_000_000, reo_min_ns=0, reo_max_ns=0)
    rig.tune(probe_interval_ns=1)
    psn, bad = FIRST_TX, ev_of(0, 1)
    for _ in range(60):  # every packet of one path is lost, all others arrive
        packets = [decode_frame(rig.spray(PACKET).frame) for _ in range(PLANES * T1S)]
        lost = [i for i, packet in enumerate(packets) if packet.envelope.ev == bad]
        arrived = (1 << len(packets)) - 1 - sum(1 << i for i in lost)
        rig.arrive(far.sack(psn - 1, arrived, offset=1))
        rig.sent()
        psn += len(packets)
        rig.arrive(far.sack(psn - 1))
        rig.edit_path(bad, gone=0)  # it does not lose all data
        path = rig.path(bad)
        if path["hold_ns"] > path["withdrawn_ns"]:
            break
        assert path["probe_need"] == 1  # it may still be chance
        rig.tick(T1S)
        for packet in sent(rig):
            if isinstance(packet.body, Peth):
                reply(rig, far, packet.body.probe_id, packet.envelope.ev)
    assert path["hold_ns"] == path["withdrawn_ns"] + 800_000_000
    assert path["probe_need"] == 3
    rig.tick(3 * T1S)
    assert probes(rig, bad) == []  # it is not probed before its hold time is over


@pytest.mark.parametrize("what", ["tx", "rx", "probe"])
def test_qp_that_went_down_is_left_alone(rig: Rig, far: Far, what: str) -> None:
    if what == "tx":
        rig.spray(PACKET)
    elif what == "rx":
        rig.arrive(far.data(FIRST_RX + 1, numbered(1)))
    else:
        withdrawn(rig, far)
    rig.set_state(ABI.MRC_QP_DOWN)
    rig.tune(rto_min_ns=1, hole_timeout_ns=1, probe_interval_ns=1)
    rig.tick(3)
    assert sent(rig) == []
    assert rig.delivered() == []
    assert not rig.active()


def test_every_active_qp_has_its_turn(rig: Rig, far: Far) -> None:
    for index in (1, 7, 30):
        rig.connect("h2", index, qpn=0x100000, remote_qpn=0x200000 | index)
        rig.arrive(far.data(FIRST_RX, numbered(index), qpn=0x100000 | index))
    rig.arrive(far.data(FIRST_RX, numbered(0)))
    rig.tick(4)
    qpns = sorted(packet.bth.dqpn for packet in sacks(rig))
    assert qpns == [0x200001, 0x200007, 0x20001E, 0x880003]


@pytest.mark.parametrize("said_by", ["host", "offers", "updates", "sacks"])
def test_plane_that_is_down_is_not_probed_until_it_is_back(
    rig: Rig, far: Far, said_by: str
) -> None:
    ev = withdrawn(rig, far)
    plane = ev >> WIRE.MRC_EV_PLANE_SHIFT
    peer = rig.table.peers.indices["h2"]
    rig.tune(probe_interval_ns=1)

    def say(mask: int) -> None:
        if said_by == "host":
            rig.tune(plane_mask=mask)
        elif said_by == "offers":
            rig.spread("h2", 0, 1, planes=mask)
        else:
            member = "ports" if said_by == "updates" else "heard_ports"
            rig.edit("balances", peer, "mrc_balance", **{member: mask})

    say(0xFF & ~(1 << plane))
    rig.tick(4 * T1S)
    assert sent(rig) == []
    assert rig.active()  # the clock is awake for it
    say(0xFF)
    rig.tick(T1S)
    (probe_id,) = probes(rig, ev)
    reply(rig, far, probe_id, ev)
    assert rig.path(ev)["state"] == ABI.MRC_PATH_GOOD


def test_probes_stop_when_the_budget_is_spent(rig: Rig, far: Far) -> None:
    ev = withdrawn(rig, far)
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], probe_credit=0)
    rig.counted()
    rig.tick(T1S)
    assert probes(rig) == []
    assert rig.counted()["probe_put_off"] > 0
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], probe_credit=1)
    rig.tick(2 * T1S)
    asked = [packet.envelope.ev for packet in sent(rig) if isinstance(packet.body, Peth)]
    assert [each >> 28 for each in asked] == [ev >> 28]


def test_each_qp_that_only_receives_asks_on_every_plane(rig: Rig, far: Far) -> None:
    """Also if all QPs have the clock's turn one after another: each counts its own SACKs."""
    qpns = (REMOTE_QPN, REMOTE_QPN + 1)
    rig.connect(index=1, qpn=QPN, remote_qpn=qpns[1])
    rig.tune(probe_interval_ns=1)
    asked = set()
    for n in range(4 * PLANES):
        for qp in range(2):
            rig.arrive(far.data(FIRST_RX + n, numbered(n), qpn=QPN | qp))
        rig.tick(2)
        asked |= {
            (packet.bth.dqpn, packet.envelope.ev >> WIRE.MRC_EV_PLANE_SHIFT)
            for packet in sent(rig)
            if isinstance(packet.body, Peth)
        }
    assert asked == {(qpn, plane) for qpn in qpns for plane in range(PLANES)}
