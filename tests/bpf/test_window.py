# SPDX-License-Identifier: GPL-2.0-only
"""Packets that find the congestion window full: they are numbered, wait, and leave in order."""

from __future__ import annotations

import struct
import time

import pytest

from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from mrcd.wire.packet import Data, decode_frame
from rigs.packets import Far, ev_of, ip4
from rigs.rig import CARRIER, PLANES, RING_SLOTS, TC_REDIRECT, TC_SHOT, Rig
from tests.bpf.cells import CellRig, noise, tcp
from tests.bpf.test_cell_resend import right
from tests.bpf.test_sack import FIRST, Sent, outgoing, resent, spray

SHORT = len(outgoing(0))
EVERY_FLOW = (1 << 64) - 1
TARGET_NS = 1_000_000
RELEASE_MAX = 12  # of bpf/release.c
FIRST_RX = 5000


def narrow(rig: Rig, packets: int = 2) -> None:
    """Make room for so many short packets in the congestion window."""
    rig.tune(cc_target_ns=TARGET_NS, cc_rate=25_000)
    rig.edit("txs", 0, "mrc_tx", cwnd=packets * SHORT)


def widen(rig: Rig) -> None:
    rig.edit("txs", 0, "mrc_tx", cwnd=1 << 20)


def hold(rig: Rig, count: int, first: int = 2) -> None:
    """Send packets for which the window has no room."""
    for i in range(count):
        rig.spray(outgoing(first + i))


def test_what_does_not_fit_is_numbered_and_waits(rig: Rig) -> None:
    narrow(rig)
    assert [sent.psn for sent in spray(rig, 2)] == [FIRST, FIRST + 1]
    hold(rig, 3)
    tx = rig.tx()
    assert (tx["next"], tx["held"]) == (FIRST + 5, 3)
    assert (tx["inflight"], tx["backlog"]) == (2 * SHORT, 3 * SHORT)
    counted = rig.counted()
    assert (counted["tx_held"], counted["tx_packets"]) == (3, 2)
    assert rig.free_slots("tx_free") == RING_SLOTS - 5
    assert not rig.sent()
    assert rig.active()


def test_packet_that_fills_the_window_asks_for_a_sack(rig: Rig) -> None:
    narrow(rig)
    rig.edit("txs", 0, "mrc_tx", cwnd=1 << 20)
    plain = decode_frame(rig.spray(outgoing(0)).frame)
    narrow(rig)
    last = decode_frame(rig.spray(outgoing(1)).frame)
    assert isinstance(plain, Data)
    assert isinstance(last, Data)
    assert (plain.bth.ackreq, last.bth.ackreq) == (False, True)


def test_sack_sends_what_waits_in_order(rig: Rig, far: Far) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 3)
    rig.arrive(far.sack(FIRST + 1))
    sent = resent(rig)
    assert [each.psn for each in sent] == [FIRST + 2, FIRST + 3]
    assert [each.payload for each in sent] == [outgoing(2), outgoing(3)]
    assert not any(each.rtx for each in sent)
    tx = rig.tx()
    assert (tx["held"], tx["backlog"], tx["inflight"]) == (1, SHORT, 2 * SHORT)
    assert rig.counted()["tx_packets"] == 4
    rig.arrive(far.sack(FIRST + 3))
    assert [each.psn for each in resent(rig)] == [FIRST + 4]
    rig.arrive(far.sack(FIRST + 4))
    tx = rig.tx()
    assert (tx["held"], tx["backlog"], tx["inflight"]) == (0, 0, 0)
    assert rig.free_slots("tx_free") == RING_SLOTS


def test_clock_sends_what_waits(rig: Rig) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 20)
    rig.tick()
    assert not resent(rig)
    widen(rig)
    rig.tick()
    assert [each.psn for each in resent(rig)] == [FIRST + 2 + i for i in range(RELEASE_MAX)]
    rig.tick()
    assert len(resent(rig)) == 20 - RELEASE_MAX
    assert rig.tx()["held"] == 0


def test_chain_that_ends_with_room_left_goes_on_in_another(rig: Rig) -> None:
    """What waits must leave faster than anything can come."""
    narrow(rig)
    spray(rig, 2)
    hold(rig, 30)
    widen(rig)
    mark, program, frame = ABI.MRC_KICK_MARK, "mrc_tick", CARRIER
    for left in (30 - RELEASE_MAX, 30 - 2 * RELEASE_MAX):
        run = bpf.TestRun(
            rig.dp.programs[program],
            frame,
            out_size=4096,
            context=struct.pack("=III", 0, 0, mark),
            context_out_size=192,
        )
        assert run.run() == TC_REDIRECT
        assert rig.tx()["held"] == left
        mark = struct.unpack_from("=I", run.context_output, 8)[0]
        program, frame = "mrc_beat", run.output
    context = struct.pack("=III", 0, 0, mark)
    assert bpf.TestRun(rig.dp.programs["mrc_beat"], frame, context=context).run() == TC_SHOT
    assert [each.psn for each in resent(rig)] == [FIRST + 2 + i for i in range(30)]
    assert rig.tx()["held"] == 0


@pytest.mark.parametrize("waits", [0, 1], ids=["window full", "nothing waits"])
def test_chain_goes_on_only_if_something_can_leave(rig: Rig, waits: int) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, RELEASE_MAX + 1 - waits)
    rig.edit("txs", 0, "mrc_tx", cwnd=(2 + RELEASE_MAX) * SHORT)
    mark = struct.pack("=III", 0, 0, ABI.MRC_KICK_MARK)
    assert bpf.TestRun(rig.dp.programs["mrc_tick"], CARRIER, context=mark).run() == TC_SHOT
    assert len(resent(rig)) == RELEASE_MAX


def wants_sack(sent: Sent) -> bool:
    data = decode_frame(sent.frame)
    assert isinstance(data, Data)
    return data.bth.ackreq


def test_full_window_asks_for_a_sack_now_and_then(rig: Rig, far: Far) -> None:
    """A SACK for each packet would release one packet, which would ask for the next."""
    narrow(rig, 32)
    spray(rig, 32)
    hold(rig, 64)
    rig.arrive(far.sack(FIRST + 7))
    sent = resent(rig)
    assert len(sent) == 8
    rig.arrive(far.sack(FIRST + 15))
    sent += resent(rig)
    asked = [each.psn - FIRST for each in sent if wants_sack(each)]
    assert 1 <= len(asked) <= 5
    rig.arrive(far.sack(FIRST + 47))  # what had asked is acknowledged: the next one asks
    assert any(map(wants_sack, resent(rig)))


def test_cell_waits_as_many_bytes_as_its_packets_have(cells: CellRig, rig: Rig) -> None:
    """Each packet that leaves has headers of its own."""
    packet = tcp(noise(5 * 512 - 1), partial=True)
    rig.tune(cc_target_ns=TARGET_NS, cc_rate=25_000)
    rig.edit("txs", 0, "mrc_tx", cwnd=1, inflight=1)
    cells.send(packet, 512)
    rig.spray(outgoing(2))
    tx = rig.tx()
    assert (tx["held"], tx["others"]) == (6, SHORT)
    assert tx["backlog"] == len(packet) + 4 * 40 + SHORT
    rig.edit("txs", 0, "mrc_tx", cwnd=1 << 20, inflight=0)
    rig.tick_of(0)
    tx = rig.tx()
    assert (tx["held"], tx["backlog"], tx["others"]) == (0, 0, 0)
    assert tx["inflight"] == len(packet) + 4 * 40 + SHORT


PARK, RATE = 77, 25_000
"""A parking interface, and bytes a millisecond that the planes carry together."""


@pytest.mark.parametrize(
    ("others", "since_ms", "leaves"),
    [
        (0, 0, None),
        (60_000, 0, None),  # a quarter of a burst may wait before its sender pays
        (70_000, 0, 1000 // 8),
        (140_000, 0, 1000 // 4),
        (230_000, 0, 1000),
        (270_000, 0, 1000),  # refused
        (2_000, 100, 1000 // 8),  # a queue that stays is kept as short as the window
        (5_000, 100, 1000),
    ],
)
def test_sender_pays_for_what_waits(
    rig: Rig, others: int, since_ms: int, leaves: int | None
) -> None:
    """Its socket is charged until the packet leaves the parking interface."""
    packet = ip4(bytes(1000 - 14 - 28), src="10.99.0.1", dst="10.99.0.2")
    narrow(rig)
    spray(rig, 2)
    rig.tune(park_ifindex=PARK, cut_back_ifindex=2, cell_bytes=0)
    then = time.monotonic_ns() - since_ms * 1_000_000
    waits = {"backlog": others, "others": others, "others_ns": then, "inflight": 1 << 20}
    rig.edit("txs", 0, "mrc_tx", **waits, cwnd=4 * 1500)
    ran = rig.spray(packet)
    counted = rig.counted()
    assert ran.verdict == TC_REDIRECT
    assert counted.get("tx_parked", 0) == (leaves is not None)
    if leaves is not None:
        assert len(ran.frame) == max(leaves, 128)
    refused = others > 262_144
    assert (counted.get("drop_backlog", 0), counted.get("tx_held", 0)) == (refused, not refused)


def test_tcp_is_not_parked(rig: Rig) -> None:
    packet = bytearray(ip4(bytes(958), src="10.99.0.1", dst="10.99.0.2"))
    packet[1], packet[9] = 2, 6
    narrow(rig)
    spray(rig, 2)
    rig.tune(park_ifindex=PARK, cut_back_ifindex=2)
    rig.edit("txs", 0, "mrc_tx", backlog=9_000, others=9_000, inflight=1 << 20)
    rig.spray(bytes(packet))
    assert rig.tx()["held"] == 1
    assert "tx_parked" not in rig.counted()


def test_clock_sends_what_waits_while_paths_are_away(rig: Rig) -> None:
    """A plane may stay dead for long, and nothing else may come."""
    narrow(rig)
    spray(rig, 2)
    hold(rig, 2)
    rig.withdraw(ev_of(2, 1))
    rig.tune(probe_interval_ns=0)
    widen(rig)
    rig.tick()
    assert rig.counted()["probe_tx"] == 1
    assert [each.psn for each in resent(rig)] == [FIRST + 2, FIRST + 3]


def test_sack_with_nothing_on_its_way_sends_what_waits(rig: Rig, far: Far) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 2)
    rig.edit("txs", 0, "mrc_tx", una=FIRST + 2, inflight=0)  # as another CPU has just learnt
    rig.arrive(far.sack(FIRST + 1))
    assert rig.counted()["sack_stale"] == 1
    assert [each.psn for each in resent(rig)] == [FIRST + 2, FIRST + 3]


def test_overtaken_sack_sends_what_it_makes_room_for(rig: Rig, far: Far) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 2)
    rig.edit("txs", 0, "mrc_tx", heard=100)  # a newer one has been learnt from
    rig.arrive(far.sack(FIRST, received=99 * 256))
    assert [each.psn for each in resent(rig)] == [FIRST + 2]


def test_sack_that_is_learnt_late_leaves_the_bytes_of_what_was_sent_since(
    rig: Rig, far: Far
) -> None:
    """Another CPU has moved the window over what it acknowledges, and the count began anew."""
    spray(rig, 2)
    rig.edit("txs", 0, "mrc_tx", counted_from=FIRST + 2, inflight=SHORT)
    rig.arrive(far.sack(FIRST + 1))
    assert rig.tx()["inflight"] == SHORT
    spray(rig, 1, first=2)
    assert (rig.tx()["inflight"], rig.tx()["counted_from"]) == (SHORT, FIRST + 2)


def test_one_tick_delivers_repairs_probes_and_sends_what_waits(rig: Rig, far: Far) -> None:
    """The kernel allows 33 tail calls in a chain: no kind of work takes those of another."""
    narrow(rig, 20)
    rig.edit("txs", 0, "mrc_tx", cwnd=1 << 20)
    spray(rig, 20)
    narrow(rig, 1)
    hold(rig, 12, first=20)
    widen(rig)
    for plane in range(PLANES):
        rig.withdraw(ev_of(plane, 1))
    rig.tune(probe_interval_ns=0, rto_min_ns=1)
    for i in range(1, 20):
        rig.arrive(far.data(FIRST_RX + i, outgoing(i), ev_of(2, 3)), "plane2")
    rig.edit("rxs", 0, "mrc_rx", next=FIRST_RX + 1)  # the gap has been given up
    rig.edit("txs", 0, "mrc_tx", progress_ns=0)
    rig.counted()
    rig.delivered()
    rig.tick()
    counted = rig.counted()
    assert len(rig.delivered()) == 16
    assert counted["rtx_timeout"] == 16
    assert counted["probe_tx"] == PLANES
    assert rig.tx()["held"] == 12 - 3


def test_new_packets_wait_behind_those_that_wait(rig: Rig) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 1)
    widen(rig)
    hold(rig, 1, first=3)
    rig.tick()
    assert [each.payload for each in resent(rig)] == [outgoing(2), outgoing(3)]
    assert rig.spray(outgoing(4)).verdict == TC_REDIRECT


@pytest.mark.parametrize(
    ("waits", "others", "since_ms", "is_tcp", "refused"),
    [
        (1 << 20, 0, 0, True, True),
        (1 << 20, 0, 0, False, False),  # TCP's backlog refuses no others
        (1 << 20, 1 << 20, 0, True, False),  # nor do others refuse TCP
        (1 << 20, 1 << 20, 0, False, True),  # more than a burst
        (200_000, 200_000, 0, False, False),  # a burst
        (200_000, 200_000, 1000, False, True),  # a queue that stays
        (20_000, 20_000, 1000, False, False),  # a short one
    ],
)
def test_too_much_waits(
    rig: Rig, waits: int, others: int, since_ms: int, is_tcp: bool, refused: bool
) -> None:
    packet = bytearray(outgoing(2))
    packet[9] = 6 if is_tcp else packet[9]
    narrow(rig)
    spray(rig, 2)
    then = time.monotonic_ns() - since_ms * 1_000_000
    rig.edit("txs", 0, "mrc_tx", backlog=waits, others=others, others_ns=then, inflight=1 << 20)
    before = rig.tx()
    assert rig.spray(bytes(packet)).verdict == (TC_SHOT if refused else TC_REDIRECT)
    after = rig.tx()
    took = after["next"] - before["next"]
    assert took == after["held"] == (0 if refused else 1)
    assert rig.counted().get("drop_backlog", 0) == int(refused)
    assert rig.free_slots("tx_free") == RING_SLOTS - 2 - took


@pytest.mark.parametrize(
    ("cut_back", "backlog", "took"),
    [(1, 250_000, 1), (1, 400_000, 0), (2, 300_000, 1), (2, 400_000, 0)],
)
def test_single_packet_that_leaves_has_more_room_than_what_was_cut(
    rig: Rig, cut_back: int, backlog: int, took: int
) -> None:
    """A connection whose only packet is refused sends it again after 200 ms, then 400.

    Test runs come in by interface 1, where what was cut comes back.
    """
    packet = bytearray(outgoing(2))
    packet[9] = 6
    narrow(rig)
    spray(rig, 2)
    rig.tune(cut_back_ifindex=cut_back)
    rig.edit("txs", 0, "mrc_tx", backlog=backlog, inflight=1 << 20)
    rig.spray(bytes(packet))
    assert (rig.tx()["held"], rig.tx()["others"]) == (took, 0)


@pytest.mark.parametrize(
    ("flows", "age_ms", "took"), [(0, 0, 1), (EVERY_FLOW, 0, 0), (EVERY_FLOW, 1000, 1)]
)
def test_no_connection_is_kept_out_by_the_backlog_of_another(
    rig: Rig, flows: int, age_ms: int, took: int
) -> None:
    """Each has one packet at a time beyond the room, where TCP would lose what is refused."""
    packet = bytearray(outgoing(2))
    packet[9] = 6
    narrow(rig)
    spray(rig, 2)
    rig.tune(cut_back_ifindex=1)
    then = time.monotonic_ns() - age_ms * 1_000_000
    waits = {"backlog": 300_000, "inflight": 1 << 20}
    rig.edit("txs", 0, "mrc_tx", **waits, extra_flows=flows, extra_ns=then)
    before = rig.tx()
    rig.spray(bytes(packet))
    after = rig.tx()
    assert after["held"] == took
    assert bool(after["extra_flows"]) == bool(flows or took)
    assert (after["extra_ns"] > before["extra_ns"]) == (age_ms > 0)


def test_others_are_counted_while_they_wait(rig: Rig, far: Far) -> None:
    of_tcp = bytearray(outgoing(2))
    of_tcp[9] = 6
    narrow(rig)
    spray(rig, 2)
    rig.edit("txs", 0, "mrc_tx", inflight=1 << 20)
    for packet in (bytes(of_tcp), outgoing(3), bytes(of_tcp), outgoing(5)):
        rig.spray(packet)
    assert (rig.tx()["backlog"], rig.tx()["others"]) == (4 * SHORT, 2 * SHORT)
    rig.edit("txs", 0, "mrc_tx", inflight=2 * SHORT)
    rig.arrive(far.sack(FIRST + 1))
    assert len(resent(rig)) == 2
    assert (rig.tx()["backlog"], rig.tx()["others"]) == (2 * SHORT, SHORT)
    rig.arrive(far.sack(FIRST + 3))
    assert len(resent(rig)) == 2
    assert (rig.tx()["backlog"], rig.tx()["others"]) == (0, 0)


def test_sack_of_what_waits_is_a_lie(rig: Rig, far: Far) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 2)
    rig.arrive(far.sack(FIRST + 2))
    assert rig.counted()["drop_sack"] == 1
    assert rig.tx()["una"] == FIRST


def test_what_waits_is_not_overdue(rig: Rig) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 2)
    rig.tune(rto_min_ns=1)
    rig.edit("txs", 0, "mrc_tx", progress_ns=0)
    rig.tick()
    assert [each.psn for each in resent(rig) if each.rtx] == [FIRST, FIRST + 1]
    assert rig.tx()["held"] == 2


def test_tcp_is_told_of_a_full_window_and_may_exceed_it_by_half(rig: Rig) -> None:
    ect = bytearray(ip4(bytes(40), src="10.99.0.1", dst="10.99.0.2"))
    ect[1], ect[9] = 2, 6
    narrow(rig)
    rig.edit("txs", 0, "mrc_tx", cwnd=4 * len(ect))
    assert [rig.spray(bytes(ect)).verdict for _ in range(5)] == [TC_REDIRECT] * 5
    assert "tx_ce" not in rig.counted()
    assert rig.spray(bytes(ect)).verdict == TC_REDIRECT
    assert (rig.counted()["tx_ce"], rig.tx()["held"]) == (1, 0)
    rig.spray(bytes(ect))
    assert rig.tx()["held"] == 1


def test_beside_a_slow_plane_tcp_is_told_later(rig: Rig) -> None:
    """There it sends in bursts, as order is restored behind packets of that plane."""
    ect = bytearray(ip4(bytes(40), src="10.99.0.1", dst="10.99.0.2"))
    ect[1], ect[9] = 2, 6
    narrow(rig)
    rig.edit("txs", 0, "mrc_tx", cwnd=len(ect))
    rig.edit("balances", 0, "mrc_balance", shares=0x8080_8080_8080_1080)
    for _ in range(4):
        rig.spray(bytes(ect))
    waits_since(rig, 10_000_000)
    rig.spray(bytes(ect))
    assert "tx_ce" not in rig.counted()
    waits_since(rig, 100_000_000)
    rig.spray(bytes(ect))
    assert rig.counted()["tx_ce"] == 1


def waits_since(rig: Rig, nanoseconds: int) -> None:
    """Have packets waited for the window for so long."""
    assert rig.tx()["held"]
    rig.edit("txs", 0, "mrc_tx", held_ns=time.monotonic_ns() - nanoseconds)


def test_control_switched_off_lets_go(rig: Rig) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 2)
    rig.tune(cc_target_ns=0)
    rig.tick()
    assert [each.psn for each in resent(rig)] == [FIRST + 2, FIRST + 3]


@pytest.mark.parametrize("version", [4, 6])
def test_cell_that_waits_leaves_in_single_packets(cells: CellRig, rig: Rig, version: int) -> None:
    packet = tcp(noise(5 * 512 - 1), version=version, partial=True)
    rig.tune(cc_target_ns=TARGET_NS, cc_rate=25_000)
    rig.edit("txs", 0, "mrc_tx", cwnd=1, inflight=1)
    cells.send(packet, 512)
    assert not cells.cells_sent()
    assert rig.tx()["held"] == 5
    widen(rig)
    rig.tick()
    found = [cell for cell, _frame in cells.cells_sent()]
    assert [cell.cell.psn for cell in found] == [FIRST + i for i in range(5)]
    assert all(right(cell.payload) for cell in found)
    assert rig.tx()["held"] == rig.tx()["backlog"] == 0


@pytest.mark.parametrize(("interface", "verdict"), [(0, TC_SHOT), (1, TC_SHOT), (2, TC_REDIRECT)])
def test_sender_is_told_that_what_waits_was_taken(rig: Rig, interface: int, verdict: int) -> None:
    """At egress a drop would make TCP send it once more; test runs come in by interface 1."""
    narrow(rig)
    spray(rig, 2)
    rig.tune(cut_back_ifindex=interface)
    assert rig.spray(outgoing(2)).verdict == verdict
    assert rig.tx()["held"] == 1
