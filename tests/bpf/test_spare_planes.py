# SPDX-License-Identifier: GPL-2.0-only
"""Spare planes: they carry data only while no other plane can, and are probed all the same."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mrcd.datapath.peertable import PeerTable
from mrcd.wire.abi import ABI
from mrcd.wire.packet import Sack, decode_frame
from rigs.packets import Far, ev_of, numbered
from rigs.rig import PLANES, T1S, Rig, clock_passes
from tests.bpf.test_judge import FULL, MS, Seen, judge
from tests.bpf.test_paths import answer_probe, idle, planes_of_next, spray
from tests.bpf.test_sack import resent
from tests.bpf.test_window import hold, narrow, widen

FIRST = 1000
FIRST_RX = 5000
ALL = set(range(PLANES))
MAIN, SPARE = 0, 0b1110
"""The plane that carries data, and the mask of all others."""


def paths_of(planes: set[int]) -> list[int]:
    return [ev_of(plane, t1) for plane in planes for t1 in range(1, T1S + 1)]


def used(rig: Rig, count: int = 24) -> set[int]:
    """Return the planes that the next packets take."""
    return set(planes_of_next(rig, count))


@pytest.fixture
def one(rig: Rig) -> Rig:
    """Return the rig with one plane that is not spare."""
    rig.table.peers.set_spare("h2", SPARE)
    return rig


@pytest.mark.parametrize(
    ("of_peer", "of_host"), [(0b0100, 0), (0, 0b0100), (0b0100, 0b0100)], ids=["peer", "host", "2"]
)
def test_spare_plane_carries_no_data(rig: Rig, of_peer: int, of_host: int) -> None:
    rig.table.peers.set_spare("h2", of_peer)
    rig.tune(standby=of_host)
    assert planes_of_next(rig, 60) == {0: 20, 1: 20, 3: 20}


def test_spare_planes_of_the_peer_and_of_the_host_add_up(rig: Rig) -> None:
    rig.table.peers.set_spare("h2", 0b0100)
    rig.tune(standby=0b0001)
    assert used(rig) == {1, 3}


def test_planes_that_are_spare_to_one_peer_carry_data_to_another(rig: Rig) -> None:
    rig.table.peers.set_spare("h3", 0b1110)
    assert used(rig) == ALL


def test_if_all_planes_are_spare_none_is(rig: Rig) -> None:
    rig.table.peers.set_spare("h2", 0b1111)
    assert planes_of_next(rig, 4 * PLANES) == dict.fromkeys(ALL, 4)


Fault = Callable[[Rig, Far], None]


def down_here(rig: Rig, _far: Far) -> None:
    rig.tune(plane_mask=SPARE)


def down_there(rig: Rig, _far: Far) -> None:
    rig.table.peers.set_planes("h2", SPARE)


def said_by_updates(rig: Rig, _far: Far) -> None:
    rig.table.peers.set_ports("h2", SPARE)


def said_by_sacks(rig: Rig, far: Far) -> None:
    rig.arrive(far.sack(FIRST, down=1 << MAIN))


def withdrawn(rig: Rig, _far: Far) -> None:
    rig.withdraw(*paths_of({MAIN}))


def suspected(rig: Rig, _far: Far) -> None:
    rig.edit("txs", 0, "mrc_tx", suspects=1 << MAIN, suspect_ns=time.monotonic_ns())


@pytest.mark.parametrize(
    "fault", [down_here, down_there, said_by_updates, said_by_sacks, withdrawn, suspected]
)
def test_spare_planes_take_over_with_the_next_packet(one: Rig, far: Far, fault: Fault) -> None:
    assert used(one) == {MAIN}
    fault(one, far)
    assert used(one, 3 * 8) == {1, 2, 3}


@pytest.mark.parametrize("fault", [withdrawn, suspected])
def test_answer_to_a_probe_ends_their_turn(one: Rig, far: Far, fault: Fault) -> None:
    spray(one)
    fault(one, far)
    assert MAIN not in used(one)
    answer_probe(one, far, ev_of(MAIN, 1))
    assert used(one) == {MAIN}


def test_plane_that_is_up_again_carries_data_again(one: Rig) -> None:
    one.tune(plane_mask=SPARE)
    assert used(one) == {1, 2, 3}
    one.tune(plane_mask=0b1111)
    assert used(one) == {MAIN}


def test_suspected_plane_among_others_is_no_reason(rig: Rig, far: Far) -> None:
    """One that is no suspect carries all."""
    rig.table.peers.set_spare("h2", 0b1100)
    suspected(rig, far)
    assert used(rig) == {1}


def test_a_spare_plane_without_paths_does_not_take_over(one: Rig, far: Far) -> None:
    one.withdraw(*paths_of({1, 2, 3}))
    suspected(one, far)
    assert used(one) == {MAIN}


def test_lost_packet_is_sent_again_by_a_spare_plane_at_once(one: Rig, far: Far) -> None:
    """The loss by which the plane becomes a suspect is repaired elsewhere."""
    assert spray(one).envelope.ev >> 28 == MAIN
    one.tune(rto_min_ns=1)
    clock_passes(MS)
    one.tick()
    (again,) = resent(one)
    assert again.ev >> 28 != MAIN
    assert one.counted()["rtx_timeout"] == 1


def test_packet_that_is_lost_between_others_stays_off_spare_planes(one: Rig, far: Far) -> None:
    one.tune(reo_min_ns=0, reo_max_ns=0)
    for _ in range(2 * T1S):
        spray(one)
    one.arrive(far.sack(FIRST - 1, (1 << 2 * T1S) - 2))
    (again,) = resent(one)
    assert again.ev >> 28 == MAIN


def test_packets_that_waited_leave_by_the_planes_that_serve(one: Rig, far: Far) -> None:
    narrow(one)
    planes_of_next(one, 2)
    hold(one, 4)
    widen(one)
    one.tick_of(0)
    assert {sent.ev >> 28 for sent in resent(one)} == {MAIN}


def test_idle_spare_planes_are_probed(one: Rig) -> None:
    assert {ev >> 28 for ev, _id in idle(one, T1S)} == ALL


@pytest.mark.parametrize("plane", ALL)
def test_sack_returns_by_the_plane_of_what_it_acknowledges(one: Rig, far: Far, plane: int) -> None:
    """The peer has its own view of planes, and what arrived shows that this one works."""
    ev = ev_of(plane, 2)
    ran = one.arrive(far.data(FIRST_RX, numbered(1), ev, ackreq=True), f"plane{plane}")
    sack = decode_frame(ran.frame)
    assert isinstance(sack, Sack)
    assert sack.envelope.ev == ev


# ---- judged


BUSY = Seen(rtt_ns=[10 * MS, MS, MS, MS])


@pytest.fixture
def judged(one: Rig) -> Rig:
    """Return the rig with a QP that the clock watches, judged in every run of the program."""
    one.tune(judge_ns=0, judge_slack_ns=0)
    spray(one)
    return one


def test_busy_plane_is_not_compared_with_spare_ones(judged: Rig) -> None:
    assert judge(judged, BUSY, 30)[MAIN] == FULL


def test_spare_planes_are_compared_while_they_carry_data(judged: Rig) -> None:
    seen = Seen(rtt_ns=[MS, MS, 10 * MS, MS], age_ns=[300 * MS, 0, 0, 0])
    assert judge(judged, seen, 30)[2] < FULL


def test_shorter_way_by_a_spare_plane_is_not_the_way_of_data(one: Rig, far: Far) -> None:
    """Congestion control would take the difference for a queue."""

    def probed() -> int:
        peer = one.table.peers.indices["h2"]
        return one.dp.read("balances", peer, ABI.structs["mrc_balance"])["probed_ns"]

    one.withdraw(ev_of(2, 1), ev_of(MAIN, 1))
    spray(one)
    answer_probe(one, far, ev_of(2, 1))
    assert probed() == 0
    answer_probe(one, far, ev_of(MAIN, 1))
    assert probed() > 0


def test_shortest_round_trips_of_probes_are_kept_by_plane_and_by_time(one: Rig, far: Far) -> None:
    peer, kind = one.table.peers.indices["h2"], ABI.structs["mrc_balance"]

    def known(name: str) -> int:
        raw = one.dp.read_raw("balances", peer, kind.size)
        return int(kind.unpack_array(raw, name)[2])

    part = time.monotonic_ns() >> ABI.MRC_NEAR_SHIFT
    one.withdraw(ev_of(2, 1), ev_of(MAIN, 1))
    spray(one)
    one.edit("balances", peer, "mrc_balance", near_ns=(7,) * 8, near_at=(part - 1,) * 8)
    answer_probe(one, far, ev_of(2, 1))
    assert known("near_at") in (part, part + 1)
    assert known("near_ns") > 7
    if known("near_at") == part:
        assert known("near_before_ns") == 7
    one.edit("balances", peer, "mrc_balance", near_ns=(7,) * 8)
    answer_probe(one, far, ev_of(MAIN, 1))
    assert known("near_ns") == 7  # that was by another plane


def test_far_planes_carry_data_only_while_no_nearer_one_can(rig: Rig) -> None:
    peers = rig.table.peers
    peers.set_far("h2", SPARE)
    assert used(rig) == {MAIN}
    peers.set_planes("h2", SPARE)
    assert used(rig) == ALL - {MAIN}
    later = PeerTable(rig.dp, lambda: rig.current)
    later.adopt()
    assert (later.far["h2"], later.spare["h2"]) == (SPARE, 0)


# ---- kept


def test_mask_stays_when_the_entry_is_written_anew(rig: Rig) -> None:
    kind, peers = ABI.structs["mrc_peer"], rig.table.peers
    peers.set_spare("h2", 0b0100)
    peers.set_planes("h2", 0b0111)
    peers.pair("h2", 1)
    peers.set_unheard({"h2": 0})
    entry = rig.dp.read("peers", peers.indices["h2"], kind)
    assert (entry["spare"], entry["plane_mask"]) == (0b0100, 0b0111)


def test_next_daemon_reads_it_back(rig: Rig) -> None:
    rig.table.peers.set_spare("h2", 0b0100)
    later = PeerTable(rig.dp, lambda: rig.current)
    later.adopt()
    assert later.spare["h2"] == 0b0100
    later.set_planes("h2", 0b0111)
    kind = ABI.structs["mrc_peer"]
    assert rig.dp.read("peers", later.indices["h2"], kind)["spare"] == 0b0100


def test_mask_may_be_told_before_the_peer_is_added(rig: Rig) -> None:
    peers, kind = rig.table.peers, ABI.structs["mrc_peer"]
    peer = next(peer for peer in rig.config.peers if peer.name == "h2")
    index = peers.indices["h2"]
    peers.remove(peer)
    peers.set_spare("h2", 0b0010)
    peers.add((peer,))
    assert peers.indices["h2"] == index
    assert rig.dp.read("peers", index, kind)["spare"] == 0b0010
