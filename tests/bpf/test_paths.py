# SPDX-License-Identifier: GPL-2.0-only
"""The influences on a path, one at a time: loss, marks, delay, NACKs, probes, planes.

Every sequence of these is tested in test_path_model.py.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import Counter

import pytest

from mrcd.datapath import loader
from mrcd.datapath.clock import CARRIER
from mrcd.linux import bpf, bpfmap
from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Data, Peth, Sack, decode_frame
from rigs.packets import Far, ev_of, ip4, numbered, sent_at
from rigs.rig import PLANES, T1S, TC_REDIRECT, TC_SHOT, Rig, clock_passes

FIRST = 1000
FIRST_RX = 5000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")
EVS = [ev_of(plane, t1) for plane in range(PLANES) for t1 in range(1, T1S + 1)]
SKIP_ONCE, ALWAYS_SKIP = WIRE.MRC_SETH_M_SKIP_ONCE, WIRE.MRC_SETH_M_ALWAYS_SKIP


def spray(rig: Rig) -> Data:
    """Send one packet and return it."""
    ran = rig.spray(OUT)
    assert ran.verdict == TC_REDIRECT
    data = decode_frame(ran.frame)
    assert isinstance(data, Data)
    return data


def state(rig: Rig, ev: int) -> State:
    return State(rig.path(ev)["state"])


def in_use(rig: Rig) -> set[int]:
    return {path.ev for path in rig.paths(0) if path.use}


@pytest.fixture
def spare(rig: Rig) -> Rig:
    """Return the rig with two paths of each plane in use and two backups."""
    rig.reset(evs=2 * PLANES)
    rig.connect()
    rig.counted()
    return rig


# ---- loss


def test_backup_of_the_same_plane_takes_the_place_of_a_lost_path(spare: Rig, far: Far) -> None:
    spare.tune(reo_min_ns=0, reo_max_ns=0)
    before = in_use(spare)
    lost = spray(spare).envelope.ev
    spray(spare)
    spare.arrive(far.sack(FIRST - 1, 0b10))
    assert state(spare, lost) is State.ASSUMED_BAD
    (new,) = in_use(spare) - before
    assert new >> 28 == lost >> 28
    assert spare.tx()["used_all"] == 2 * PLANES


def test_path_that_comes_back_is_a_backup_while_its_place_is_taken(spare: Rig, far: Far) -> None:
    lost = lose_first(spare, far)
    used = in_use(spare)
    answer_probe(spare, far, lost)
    assert state(spare, lost) is State.GOOD
    assert in_use(spare) == used
    assert spare.path(lost)["spare"]


def lose_first(rig: Rig, far: Far) -> int:
    """Lose the first of two packets, and return its EV, whose path is away then."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    lost = spray(rig).envelope.ev
    spray(rig)
    rig.arrive(far.sack(FIRST - 1, 0b10))
    rig.sent()
    return lost


def answer_probe(rig: Rig, far: Far, ev: int, verdict: int = WIRE.MRC_SETH_M_NONE) -> None:
    """Let the clock probe a path, and answer it."""
    rig.tune(probe_interval_ns=1)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        rig.tick()
        for plane, frame in rig.sent():
            packet = decode_frame(frame)
            if isinstance(packet.body, Peth) and packet.envelope.ev == ev:
                rig.receive(
                    far.probe_reply(packet.body.probe_id, ev, verdict=verdict), f"plane{plane}"
                )
                return
    raise AssertionError(f"no probe of {ev:#x}")


def test_shortest_round_trip_of_probes_is_kept(spare: Rig, far: Far) -> None:
    """Congestion control takes it for the way without a queue."""
    lost = lose_first(spare, far)
    assert probed(spare) == 0
    answer_probe(spare, far, lost)
    shortest = probed(spare)
    assert 0 < shortest < 10_000_000_000
    spare.edit("balances", 0, "mrc_balance", probed_ns=1)
    answer_probe(spare, far, lost)
    assert probed(spare) == 1


def probed(rig: Rig) -> int:
    return rig.dp.read("balances", 0, ABI.structs["mrc_balance"])["probed_ns"]


def test_loss_on_every_path_does_not_empty_the_set(rig: Rig, far: Far) -> None:
    """Every path loses a packet in each round and delivers the next: a quarter stays in use."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    floor, psn = rig.tx()["floor"], FIRST
    assert floor == len(EVS) // 4
    for _ in range(12):
        count = 2 * max(1, len(in_use(rig)))
        paths = [spray(rig).envelope.ev for _ in range(count)]
        seen: Counter[int] = Counter()
        arrived = 0
        for i, ev in enumerate(paths):
            seen[ev] += 1
            arrived |= (seen[ev] > 1) << i
        rig.arrive(far.sack(psn - 1, arrived))
        psn += count
        rig.arrive(far.sack(psn - 1))
        rig.sent()
        assert rig.tx()["used_all"] >= floor
        assert len(in_use(rig)) == rig.tx()["used_all"]
    assert rig.tx()["used_all"] == floor


def test_path_that_delivers_nothing_leaves_even_below_the_floor(rig: Rig, far: Far) -> None:
    """The floor protects from chance losses; a dead path leaves nevertheless."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    for _ in range(2 * len(EVS)):
        spray(rig)
    last = spray(rig).envelope.ev
    sack = far.sack(FIRST - 1, 1 << 2 * len(EVS))
    for _ in range(4):  # 16 losses a run
        rig.arrive(sack)
    assert in_use(rig) <= {last}


# ---- planes by which nothing arrives


def planes_of_next(rig: Rig, count: int) -> Counter[int]:
    """Send `count` packets, and return how many took each plane."""
    return Counter(spray(rig).envelope.ev >> 28 for _ in range(count))


def lose_a_plane(rig: Rig, far: Far) -> int:
    """Lose the first of one packet on each plane, and return its EV."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    evs = [spray(rig).envelope.ev for _ in range(PLANES)]
    assert len({ev >> 28 for ev in evs}) == PLANES
    rig.arrive(far.sack(FIRST - 1, (1 << PLANES) - 2))
    rig.sent()
    return evs[0]


def test_all_paths_of_a_plane_by_which_nothing_arrives_are_avoided(rig: Rig, far: Far) -> None:
    """One lost packet is enough, although only its own path is withdrawn."""
    lost = lose_a_plane(rig, far)
    assert len([ev for ev in in_use(rig) if ev >> 28 == lost >> 28]) == T1S - 1
    assert planes_of_next(rig, 4 * PLANES)[lost >> 28] == 0
    answer_probe(rig, far, lost)
    assert planes_of_next(rig, PLANES)[lost >> 28] == 1


def test_packet_that_arrives_by_a_plane_ends_the_suspicion(rig: Rig, far: Far) -> None:
    planes = [spray(rig).envelope.ev >> 28 for _ in range(PLANES)]
    rig.edit("txs", 0, "mrc_tx", suspects=(1 << PLANES) - 1, suspect_ns=time.monotonic_ns())
    rig.arrive(far.sack(FIRST))
    assert rig.tx()["suspects"] == (1 << PLANES) - 1 & ~(1 << planes[0])


def test_loss_between_packets_that_arrive_is_no_reason(rig: Rig, far: Far) -> None:
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    evs = [spray(rig).envelope.ev for _ in range(2 * PLANES)]
    lost = evs[0]
    rig.arrive(far.sack(FIRST - 1, (1 << 2 * PLANES) - 2))
    assert state(rig, lost) is State.ASSUMED_BAD
    assert planes_of_next(rig, PLANES)[lost >> 28] == 1


def test_suspects_are_used_if_all_planes_are(rig: Rig) -> None:
    rig.edit("txs", 0, "mrc_tx", suspects=(1 << PLANES) - 1, suspect_ns=time.monotonic_ns())
    assert len(planes_of_next(rig, PLANES)) == PLANES


def test_suspicion_ends_by_itself(rig: Rig, far: Far) -> None:
    """No probe goes out where paths are denied, say."""
    lose_a_plane(rig, far)
    rig.tune(probe_interval_ns=10**9)
    rig.tick()
    assert rig.tx()["suspects"]
    rig.edit("txs", 0, "mrc_tx", suspect_ns=time.monotonic_ns() - 1_100_000_000)
    rig.tick()
    assert not rig.tx()["suspects"]


# ---- marks


@pytest.mark.parametrize("by", ["SACK", "probe"])
def test_marked_path_is_passed_over_once(rig: Rig, far: Far, by: str) -> None:
    first = spray(rig).envelope.ev
    if by == "SACK":
        rig.arrive(far.sack(FIRST, trigger=FIRST, verdict=SKIP_ONCE, about=first))
        assert rig.path(first)["marked"] == 1
    else:
        rig.withdraw(first)
        answer_probe(rig, far, first, SKIP_ONCE)
    assert state(rig, first) is State.SKIP
    counted = rig.counted()
    assert counted["path_skipped"] == 1
    assert counted.get("echo_rx", 0) == (by == "SACK")
    # The rotation passes over it once; its plane still gets as many packets as the others.
    evs = [spray(rig).envelope.ev for _ in range(T1S * PLANES + PLANES - 1)]
    assert first not in evs
    assert state(rig, first) is State.GOOD
    assert Counter(ev >> 28 for ev in [first, *evs]) == dict.fromkeys(range(PLANES), T1S + 1)
    assert first in [spray(rig).envelope.ev for _ in range(len(EVS))]


def test_one_packet_passes_over_one_marked_path(rig: Rig, far: Far) -> None:
    """Of two neighbours in SKIP, the packet clears the first and takes the next GOOD path."""
    marked = [path.ev for path in rig.paths(0) if path.plane == 1 and path.slot in (0, 1)]
    for psn in range(FIRST, FIRST + len(EVS)):
        ev = spray(rig).envelope.ev
        if ev in marked:
            rig.arrive(far.sack(psn, trigger=psn, verdict=SKIP_ONCE, about=ev))
    slots = []
    while len(slots) < 2:
        ev = spray(rig).envelope.ev
        if ev >> 28 == 1:
            slots.append(rig.path(ev)["slot"])
            skipped = sum(state(rig, one) is State.SKIP for one in marked)
            assert skipped == 1 or len(slots) > 1
    assert slots[0] in (2, 3)


def test_all_marked_still_sends(rig: Rig, far: Far) -> None:
    for psn in range(FIRST, FIRST + len(EVS)):
        ev = spray(rig).envelope.ev
        rig.arrive(far.sack(psn, trigger=psn, verdict=SKIP_ONCE, about=ev))
    assert {state(rig, ev) for ev in EVS} == {State.SKIP}
    evs = [spray(rig).envelope.ev for _ in range(6 * len(EVS))]
    assert Counter(ev >> 28 for ev in evs) == dict.fromkeys(range(PLANES), 6 * T1S)
    assert set(evs) == set(EVS)
    assert {state(rig, ev) for ev in EVS} == {State.GOOD}


def test_peer_can_have_a_path_taken_out_of_use(rig: Rig, far: Far) -> None:
    ev = spray(rig).envelope.ev
    rig.arrive(far.sack(FIRST, trigger=FIRST, verdict=ALWAYS_SKIP, about=ev))
    assert state(rig, ev) is State.ASSUMED_BAD


def test_mark_about_another_path_than_the_packet_took_is_ignored(rig: Rig, far: Far) -> None:
    ev = spray(rig).envelope.ev
    other = next(one for one in EVS if one != ev)
    rig.arrive(far.sack(FIRST, trigger=FIRST, verdict=ALWAYS_SKIP, about=other))
    assert {state(rig, one) for one in EVS} == {State.GOOD}


def test_mark_of_a_first_sending_counts_for_the_path_that_it_took(rig: Rig, far: Far) -> None:
    """A packet counted as lost is sent on another path; then its first copy arrives, marked."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    data = spray(rig)
    first, ts = data.envelope.ev, data.body.timestamp.tx_timestamp
    spray(rig)
    rig.arrive(far.sack(FIRST - 1, 0b10))
    ((_plane, frame),) = rig.sent()
    second = decode_frame(frame).envelope.ev
    assert second != first
    rig.counted()
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, verdict=SKIP_ONCE, about=first, ts=ts))
    assert rig.counted()["echo_rx"] == 1
    assert (rig.path(first)["marked"], rig.path(second)["marked"]) == (1, 0)
    assert state(rig, first) is State.ASSUMED_BAD
    assert state(rig, second) is State.GOOD


# ---- NACKs


def test_trimmed_packet_is_sent_again_and_its_path_passed_over(rig: Rig, far: Far) -> None:
    first = rig.spray(OUT).frame
    ev = decode_frame(first).envelope.ev
    rig.arrive(far.nack(FIRST, about=ev))
    ((plane, again),) = rig.sent()
    packet = decode_frame(again)
    assert again == far.our_data(FIRST, OUT, packet.envelope.ev, sent_at(again), rtx=True)
    assert plane != ev >> 28  # another plane
    assert state(rig, ev) is State.SKIP
    assert rig.path(ev)["lost"] == 0  # the path works
    assert {"rtx_nack": 1, "nack_rx": 1}.items() <= rig.counted().items()


def test_packet_trimmed_at_the_last_hop_is_not_its_paths_fault(rig: Rig, far: Far) -> None:
    ev = spray(rig).envelope.ev
    rig.arrive(far.nack(FIRST, about=ev, reason=WIRE.MRC_NACK_TRIMMED_LASTHOP))
    assert len(rig.sent()) == 1
    assert state(rig, ev) is State.GOOD


@pytest.mark.parametrize("psn", [FIRST - 1, FIRST + 1, FIRST + 2, FIRST + 0x700000])
def test_nack_of_what_is_not_on_its_way_changes_nothing(rig: Rig, far: Far, psn: int) -> None:
    spray(rig)
    spray(rig)
    rig.arrive(far.sack(FIRST - 1, 0b10))  # FIRST + 1 has arrived
    before = rig.state()
    rig.arrive(far.nack(psn))
    assert rig.state() == before
    assert rig.sent() == []


def test_nack_for_another_reason_changes_nothing(rig: Rig, far: Far) -> None:
    spray(rig)
    before = rig.state()
    rig.arrive(far.nack(FIRST, reason=WIRE.MRC_NACK_PSN_OOR_WINDOW))
    assert rig.state() == before
    assert rig.sent() == []


# ---- delay


def round_trip(rig: Rig, far: Far, psn: int, late: int, ns: int) -> tuple[int, bool]:
    """Send a packet and its SACK, `ns` later on the path `late`; return its EV and BTH.ackreq."""
    frame = rig.spray(OUT).frame
    data = decode_frame(frame)
    if data.envelope.ev == late:
        clock_passes(ns)
    rig.arrive(far.sack(psn, trigger=psn, ts=sent_at(frame), about=data.envelope.ev))
    return data.envelope.ev, data.bth.ackreq


def test_path_far_slower_than_its_plane_is_used_now_and_then(rig: Rig, far: Far) -> None:
    rig.tune(slow_slack_ns=500_000)
    late, psn = ev_of(2, 3), FIRST
    while not rig.path(late)["slow"] or (psn - FIRST) % PLANES:  # to the end of a round
        assert psn < FIRST + 40 * len(EVS), "never found slow"
        round_trip(rig, far, psn, late, 8_000_000)
        psn += 1
    assert rig.counted()["path_slow"] == 1
    assert sum(path.slow for path in rig.paths(0)) == 1
    assert state(rig, late) is State.GOOD  # being slow is not a fault
    used: Counter[int] = Counter()
    for _ in range(24 * len(EVS)):
        frame = rig.spray(OUT).frame
        data = decode_frame(frame)
        used[data.envelope.ev] += 1
        assert data.bth.ackreq == (data.envelope.ev == late)  # to learn its delay
        rig.arrive(far.sack(psn))
        psn += 1
    assert Counter(ev >> 28 for ev in used.elements()) == dict.fromkeys(range(PLANES), 24 * T1S)
    assert used[late] <= 6  # expected: one or two of 24 turns


def test_path_that_is_fast_again_is_used_as_before(rig: Rig, far: Far) -> None:
    rig.tune(slow_slack_ns=10_000_000)
    psn = FIRST
    for _ in range(2 * len(EVS)):
        round_trip(rig, far, psn, 0, 0)
        psn += 1
    slow = [0] * ABI.MRC_SET_WORDS
    slow[4] = 0b0001
    rig.edit("txs", 0, "mrc_tx", slow=tuple(slow))
    (late,) = [path.ev for path in rig.paths(0) if path.slow]
    rig.edit_path(late, srtt_ns=4_000_000_000, prompt=0)
    used = 0
    while rig.path(late)["slow"]:
        assert psn < FIRST + 1000 * len(EVS)  # once in 32 turns on average
        ev, _ackreq = round_trip(rig, far, psn, 0, 0)
        used += ev == late
        psn += 1
    assert 4 <= used <= 12  # a slow machine may break the regular sequence


def test_paths_that_are_all_alike_are_never_slow(rig: Rig, far: Far) -> None:
    rig.tune(slow_slack_ns=5_000_000)
    for psn in range(FIRST, FIRST + 6 * len(EVS)):
        round_trip(rig, far, psn, 0, 0)
    assert not any(path.slow for path in rig.paths(0))


def test_path_that_alone_goes_on_being_marked_is_crowded(rig: Rig, far: Far) -> None:
    rig.tune(slow_slack_ns=1_000_000_000)  # no round trip makes a path slow
    marked, psn, marking = ev_of(1, 2), FIRST, True

    def turn() -> int:
        nonlocal psn
        frame = rig.spray(OUT).frame
        ev = decode_frame(frame).envelope.ev
        verdict = SKIP_ONCE if marking and ev == marked else 0
        rig.arrive(far.sack(psn, trigger=psn, ts=sent_at(frame), about=ev, verdict=verdict))
        psn += 1
        return ev

    while not rig.path(marked)["slow"]:
        assert psn < FIRST + 400 * len(EVS), "never found crowded"
        turn()
    counted = rig.counted()
    assert (counted["path_crowded"], counted.get("path_slow", 0)) == (1, 0)
    assert [path.ev for path in rig.paths(0) if path.slow] == [marked]
    rig.edit_path(marked, crowded_ns=1 << 62)  # crowded until the test ends it
    used = Counter(turn() for _ in range(24 * len(EVS)))
    assert used[marked] <= 6  # of 24 turns
    marking = False
    for _ in range(100 * len(EVS)):
        turn()
    assert rig.path(marked)["slow"]  # its time as a crowded path is not over
    rig.edit_path(marked, crowded_ns=1)
    while rig.path(marked)["slow"]:
        assert psn < FIRST + 1000 * len(EVS), "never used as before"
        turn()


# ---- the return path


def sack_for(rig: Rig, far: Far, psn: int, ev: int) -> int:
    """Return the EV by which the SACK for a packet that arrived by `ev` leaves."""
    ran = rig.arrive(far.data(psn, numbered(psn), ev, ackreq=True), f"plane{ev >> 28}")
    sack = decode_frame(ran.frame)
    assert isinstance(sack, Sack)
    assert sack.body.entropy == ev  # on any return path
    rig.sent()
    return sack.envelope.ev


def hear_of(rig: Rig, far: Far, plane: int) -> int:
    """Send and acknowledge until a path of a plane has answered; return that path's EV."""
    psn = rig.tx()["next"]
    while True:
        ev = spray(rig).envelope.ev
        if ev >> 28 == plane:
            rig.arrive(far.sack(psn))
            return ev
        psn += 1


def test_sack_returns_on_the_mirrored_path_while_no_other_is_known(rig: Rig, far: Far) -> None:
    for psn, ev in enumerate(EVS, FIRST_RX):
        assert sack_for(rig, far, psn, ev) == ev


def test_sacks_take_the_mirrored_path_and_the_reverse_ev_in_turn(rig: Rig, far: Far) -> None:
    live = hear_of(rig, far, 1)
    came = next(ev for ev in EVS if ev >> 28 == 1 and ev != live)
    ways = [sack_for(rig, far, FIRST_RX + i, came) for i in range(6)]
    assert Counter(ways) == {came: 3, live: 3}
    assert all(one != other for one, other in itertools.pairwise(ways))


@pytest.mark.parametrize("why", ["no path in use", "down here"])
def test_sack_takes_another_plane_where_this_one_does_not_work(
    rig: Rig, far: Far, why: str
) -> None:
    live = hear_of(rig, far, 2)
    if why == "down here":
        rig.tune(plane_mask=0b1101)
    else:
        rig.withdraw(*(ev for ev in EVS if ev >> 28 == 1))
    ways = {sack_for(rig, far, FIRST_RX + i, ev_of(1, 2)) for i in range(4)}
    assert ways == {live}


def test_answer_to_a_probe_returns_mirrored_unless_the_plane_does_not_work(
    rig: Rig, far: Far
) -> None:
    hear_of(rig, far, 1)
    live = hear_of(rig, far, 2)
    ev = ev_of(1, 3)
    for _ in range(2):
        assert decode_frame(rig.receive(far.probe(7, ev)).frame).envelope.ev == ev
    rig.withdraw(*(one for one in EVS if one >> 28 == 1))
    assert decode_frame(rig.receive(far.probe(7, ev)).frame).envelope.ev == live


# ---- planes


@pytest.mark.parametrize(("mask", "down"), [(0b1111, 0), (0b1011, 0b0100), (0b0001, 0b1110)])
def test_sacks_tell_which_planes_are_down_here(rig: Rig, far: Far, mask: int, down: int) -> None:
    rig.tune(plane_mask=mask)
    sack = decode_frame(rig.arrive(far.data(FIRST_RX, numbered(1), ev_of(0, 1), ackreq=True),
                                   "plane0").frame)  # fmt: skip
    assert isinstance(sack, Sack)
    assert sack.body.down == down
    reply = decode_frame(rig.receive(far.probe(1, ev_of(0, 1)), "plane0").frame)
    assert isinstance(reply, Sack)
    assert reply.body.down == down


def test_planes_that_are_down_at_the_peer_are_not_used(rig: Rig, far: Far) -> None:
    for psn, down in enumerate([0b0110, 0b0001, 0], FIRST):
        spray(rig)
        rig.arrive(far.sack(psn, down=down))
        assert rig.table.peers.balance("h2").ports & 0xFF == ~down & 0xFF
        up = {p for p in range(PLANES) if not down >> p & 1}
        evs = [spray(rig).envelope.ev for _ in range(24)]
        assert {ev >> 28 for ev in evs} == up
        rig.connect(tx_psn=psn + 1)


def test_older_sack_does_not_change_what_is_known_of_the_planes(rig: Rig, far: Far) -> None:
    for _ in range(3):
        spray(rig)
    rig.arrive(far.sack(FIRST + 1, down=0b0110, received=50))
    rig.arrive(far.sack(FIRST, received=40))
    assert rig.table.peers.balance("h2").ports & 0xFF == 0b11111001


# ---- denied paths


def test_denied_path_carries_nothing(spare: Rig) -> None:
    (denied,) = [path for path in spare.paths(0) if (path.plane, path.slot) == (2, 1)]
    spare.table.deny(0, 2, 1, denied=True)
    assert state(spare, denied.ev) is State.DENIED
    evs = [spray(spare).envelope.ev for _ in range(64)]
    assert denied.ev not in evs
    assert Counter(ev >> 28 for ev in evs) == dict.fromkeys(range(PLANES), 16)
    spare.table.deny(0, 2, 1, denied=False)
    assert state(spare, denied.ev) is State.GOOD


def test_with_every_path_denied_nothing_is_sent(rig: Rig) -> None:
    for path in rig.paths(0):
        rig.table.deny(0, path.plane, path.slot, denied=True)
    rig.counted()
    before, free = rig.tx(), rig.free_slots("tx_free")
    assert rig.spray(OUT).verdict == TC_SHOT
    assert rig.counted() == {"drop_no_path": 1}
    assert rig.tx() == before
    assert rig.free_slots("tx_free") == free


def test_path_that_does_not_exist_cannot_be_denied(rig: Rig) -> None:
    before = rig.state()
    for plane, slot in ((0, T1S), (PLANES, 0), (7, 127)):
        with pytest.raises(Exception, match="no path"):
            rig.table.deny(0, plane, slot, denied=True)
    assert rig.state() == before


# ---- probes of idle paths


def idle(rig: Rig, rounds: int = 1) -> list[tuple[int, int]]:
    """Run mrc_idle once for each plane of each QP; return EVs and ids of its probes."""
    run = bpf.TestRun(rig.dp.programs["mrc_idle"], CARRIER)
    run.run(rounds * rig.dp.sizes.qps * PLANES)
    found = []
    for plane, frame in rig.sent():
        packet = decode_frame(frame)
        assert isinstance(packet.body, Peth)
        assert packet.envelope.ev >> 28 == plane
        found.append((packet.envelope.ev, packet.body.probe_id))
    return found


def test_every_plane_of_an_idle_qp_is_asked_by_one_path(rig: Rig) -> None:
    asked = idle(rig)
    assert sorted(ev >> 28 for ev, _id in asked) == list(range(PLANES))
    assert rig.counted() == {"probe_tx": PLANES}


def test_paths_are_asked_in_turn(rig: Rig) -> None:
    asked = idle(rig, T1S)
    assert {ev for ev, _id in asked} == set(EVS)
    assert len(asked) == len(EVS)


def test_path_of_which_something_was_heard_is_not_asked(rig: Rig, far: Far) -> None:
    for _ in EVS:
        spray(rig)
    rig.arrive(far.sack(FIRST + len(EVS) - 1))
    assert idle(rig, T1S) == []


def test_silent_idle_path_is_withdrawn_and_the_clock_told(rig: Rig, far: Far) -> None:
    asked = idle(rig, T1S)
    for ev, probe_id in asked:
        if ev != ev_of(3, 2):
            rig.receive(far.probe_reply(probe_id, ev), f"plane{ev >> 28}")
    assert not rig.active()
    clock_passes(5_000_000)
    idle(rig, T1S)
    assert [ev for ev in EVS if state(rig, ev) is State.ASSUMED_BAD] == [ev_of(3, 2)]
    assert rig.counted()["probe_missed"] == 1
    assert rig.active()


def test_the_turn_after_a_probe_looks_at_its_answer(rig: Rig, far: Far) -> None:
    """Turns of an idle plane are 0.7 s apart: not after a round of all its paths."""
    asked = dict(idle(rig))
    (silent,) = (ev for ev in asked if ev >> 28 == 2)
    for ev in asked.keys() - {silent}:
        rig.receive(far.probe_reply(asked[ev], ev), f"plane{ev >> 28}")
    clock_passes(5_000_000)
    idle(rig)
    assert [ev for ev in EVS if state(rig, ev) is State.ASSUMED_BAD] == [silent]
    assert rig.active()


def test_denied_paths_are_not_asked(rig: Rig) -> None:
    for slot in range(T1S):
        rig.table.deny(0, 1, slot, denied=True)
    assert {ev >> 28 for ev, _id in idle(rig, T1S)} == {0, 2, 3}


def test_plane_that_is_down_is_not_asked(rig: Rig) -> None:
    rig.spread("h2", 0, 1, planes=0b1101)
    rig.tune(plane_mask=0b0111)
    assert {ev >> 28 for ev, _id in idle(rig, T1S)} == {0, 2}
    rig.tune(plane_mask=0b1111)
    assert {ev >> 28 for ev, _id in idle(rig, T1S)} == {3}


@pytest.mark.parametrize("down", [ABI.MRC_QP_DOWN, ABI.MRC_QP_RECEIVE])
def test_qp_that_may_not_send_is_not_asked(rig: Rig, down: int) -> None:
    rig.set_state(down)
    assert idle(rig, 2) == []


def test_a_run_sends_at_most_one_probe(rig: Rig) -> None:
    """The clock limits the rate of probes by the rate of runs."""
    for index in range(16):
        rig.connect("h2", index, qpn=0x100000, remote_qpn=0x200000 | index)
    run = bpf.TestRun(rig.dp.programs["mrc_idle"], CARRIER)
    for _ in range(200):
        run.run()
        assert len(rig.sent()) <= 1


def test_back_comes_only_after_more_answers_when_it_had_been_silent(rig: Rig, far: Far) -> None:
    """Each time the path dies again, one more answer is needed to restore it (hysteresis)."""
    ev, needed = ev_of(0, 2), []
    for _ in range(4):
        silence(rig, ev)
        silence(rig, ev)
        answers = 0
        while state(rig, ev) is State.ASSUMED_BAD:
            answer_probe(rig, far, ev)
            answers += 1
        needed.append(answers)
    assert needed == [1, 3, 4, 5]


def silence(rig: Rig, ev: int) -> None:
    """Leave a probe of a path unanswered."""
    missed = rig.path(ev)["misses"] if state(rig, ev) is State.ASSUMED_BAD else 0
    rig.tune(probe_interval_ns=1, probe_idle_ns=2)
    for _ in range(200):
        idle(rig)
        clock_passes(300_000)
        if state(rig, ev) is State.ASSUMED_BAD and rig.path(ev)["misses"] > missed:
            return
    raise AssertionError("its silence is not noticed")


# ---- programs behind programs


def test_every_tail_call_leads_to_its_program(built_rig: Rig) -> None:
    places = sorted(loader.TAILS.values())
    entries = bpfmap.described(built_rig.dp.maps["tails"]).entries
    assert places == list(range(entries))
    built_rig.point_tails(stubs=False)
    tails = built_rig.dp.maps["tails"]
    ids = {place: bpf.lookup(tails, struct.pack("=I", place), 4) for place in places}
    built_rig.point_tails()
    assert None not in ids.values(), f"one is empty: {ids}"
    assert len(set(ids.values())) == len(places)
