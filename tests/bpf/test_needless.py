# SPDX-License-Identifier: GPL-2.0-only
"""After a needless retransmission the path is cleared, and the rule that was too early adapts."""

from __future__ import annotations

import pytest

from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Data, decode_frame
from rigs.packets import Far, ip4, wire_time
from rigs.rig import TC_REDIRECT, Rig, clock_passes

_ENTRY = ABI.structs["mrc_tx_entry"]
_BALANCE = ABI.structs["mrc_balance"]
FIRST = 1000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


def spray(rig: Rig) -> int:
    """Send one packet; return the EV that it took."""
    ran = rig.spray(OUT)
    assert ran.verdict == TC_REDIRECT
    data = decode_frame(ran.frame)
    assert isinstance(data, Data)
    return data.envelope.ev


def state(rig: Rig, ev: int) -> State:
    return State(rig.path(ev)["state"])


def sent_again(rig: Rig) -> list[int]:
    """Return the PSNs of the packets sent in answer to a SACK."""
    frames = [decode_frame(frame) for _plane, frame in rig.sent()]
    return [packet.bth.psn for packet in frames if isinstance(packet, Data)]


@pytest.fixture
def lost(rig: Rig, far: Far) -> int:
    """Return the EV of a path withdrawn for packet FIRST, while three more are on their way."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    ev = spray(rig)
    for _ in range(3):
        spray(rig)
    rig.arrive(far.sack(FIRST - 1, 0b10))
    assert sent_again(rig) == [FIRST]
    assert state(rig, ev) is State.ASSUMED_BAD
    return ev


def test_path_of_a_packet_that_arrives_twice_comes_back(rig: Rig, far: Far, lost: int) -> None:
    before, all_before = rig.path(lost)["loss_ppm"], rig.tx()["loss_ppm"]
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.GOOD
    assert rig.path(lost)["loss_ppm"] < before
    assert rig.tx()["loss_ppm"] < all_before


def test_its_plane_did_not_lose_it(rig: Rig, far: Far, lost: int) -> None:
    assert plane_lost(rig)[lost >> 28] == 1
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert plane_lost(rig) == (0,) * 8


def plane_lost(rig: Rig) -> tuple[int, ...]:
    """Return the losses of each plane in the balance of the peer."""
    raw = rig.dp.read_raw("balances", rig.table.peers.indices["h2"], _BALANCE.size)
    return _BALANCE.unpack_array(raw, "lost")


def test_arrival_of_the_copy_alone_clears_nothing(rig: Rig, far: Far, lost: int) -> None:
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST))
    assert state(rig, lost) is State.ASSUMED_BAD


def test_path_that_kept_silent_since_stays_away(rig: Rig, far: Far, lost: int) -> None:
    """It delivered at that time, but does not any more."""
    rig.edit_path(lost, misses=1)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.ASSUMED_BAD


def test_two_of_three_sendings_that_arrive_clear_no_path(rig: Rig, far: Far, lost: int) -> None:
    """It is unknown which two arrived."""
    spray(rig)
    rig.arrive(far.sack(FIRST - 1, 0b11110))
    assert sent_again(rig) == [FIRST]
    spray(rig)
    rig.arrive(far.sack(FIRST + 4, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.ASSUMED_BAD


def test_denied_path_stays_denied(rig: Rig, far: Far, lost: int) -> None:
    path = rig.path(lost)
    rig.table.deny(0, path["plane"], path["slot"], denied=True)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.DENIED


def entry(rig: Rig, psn: int) -> dict[str, int]:
    """Return the entry of a packet in the send window."""
    raw = rig.dp.read_raw("tx_entries", psn % rig.dp.sizes.window, _ENTRY.size)
    return _ENTRY.unpack(raw)


def plane_rtt(rig: Rig, plane: int) -> int:
    """Return the present round trip of a plane in nanoseconds; 0 if none was measured."""
    raw = rig.dp.read_raw("balances", rig.table.peers.indices["h2"], _BALANCE.size)
    return _BALANCE.unpack_array(raw, "now_ns")[plane]


@pytest.mark.parametrize("twice", [False, True], ids=["before its copy", "after its copy"])
def test_late_original_teaches_its_own_round_trip(
    rig: Rig, far: Far, lost: int, twice: bool
) -> None:
    """Otherwise only early arrivals would be measured, and late ones never."""
    kept = entry(rig, FIRST)
    clock_passes(3_000_000)
    ts = wire_time(kept["first_ns"])
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=twice, ts=ts))
    assert plane_rtt(rig, lost >> 28) >= 3_000_000
    assert rig.path(lost)["srtt_ns"] >= 3_000_000
    assert plane_rtt(rig, kept["path"] >> 8) == 0


def test_copy_teaches_the_round_trip_of_its_path(rig: Rig, far: Far, lost: int) -> None:
    kept = entry(rig, FIRST)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, ts=wire_time(kept["sent_ns"])))
    assert plane_rtt(rig, kept["path"] >> 8) > 0
    assert plane_rtt(rig, lost >> 28) == 0


def test_clock_teaches_no_round_trip(rig: Rig, far: Far, lost: int) -> None:
    ts = wire_time(entry(rig, FIRST)["first_ns"])
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, delayed=True, ts=ts))
    assert not any(plane_rtt(rig, plane) for plane in range(8))


@pytest.mark.parametrize("copy", [False, True], ids=["original", "copy"])
def test_only_its_time_stamp_says_that_the_copy_arrived(
    rig: Rig, far: Far, lost: int, copy: bool
) -> None:
    """However late the original arrives, it proves nothing about the path of the copy."""
    kept = entry(rig, FIRST)
    plane, slot = kept["path"] >> 8, kept["path"] & 0xFF
    clock_passes(3_000_000)
    ts = wire_time(kept["sent_ns" if copy else "first_ns"])
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, ts=ts))
    raw = rig.dp.read_raw("paths", plane * rig.dp.sizes.evs + slot, ABI.structs["mrc_path"].size)
    delivered_ns = ABI.structs["mrc_path"].unpack(raw)["delivered_ns"]
    assert (delivered_ns == kept["sent_ns"]) == copy


# ---- copies that someone else has sent

MARK = WIRE.MRC_SETH_M_SKIP_ONCE
SECOND = 1_000_000_000
LEARNT = ("srtt_ns", "rttvar_ns", "queue_ns", "cwnd", "delay_ns", "fifo_extra_ns", "guard_extra_ns")


def learnt(rig: Rig) -> tuple[object, ...]:
    """Return what round trips, marks and needless copies have taught."""
    tx, planes = rig.tx(), [plane_rtt(rig, plane) for plane in range(8)]
    skipped, states = rig.sets()["skip"], [path.state for path in rig.paths(0)]
    return [tx[name] for name in LEARNT], planes, skipped, states


@pytest.mark.parametrize("verdict", [WIRE.MRC_SETH_M_NONE, MARK])
def test_copy_of_what_was_sent_once_teaches_nothing(rig: Rig, far: Far, verdict: int) -> None:
    """Whoever has seen it on a plane can repeat it, at a time of their own."""
    rig.tune(cc_target_ns=100_000, cc_rate=25_000)
    ev = spray(rig)
    for _ in range(3):
        spray(rig)
    ts = wire_time(entry(rig, FIRST)["sent_ns"])
    rig.arrive(far.sack(FIRST + 1))
    rig.counted()
    before = learnt(rig)
    clock_passes(3_000_000)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True, ts=ts, verdict=verdict, about=ev))
    assert learnt(rig) == before
    assert "rtx_needless" not in rig.counted()


def test_copy_teaches_once(rig: Rig, far: Far, lost: int) -> None:
    ts = wire_time(entry(rig, FIRST)["first_ns"])
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, ts=wire_time(entry(rig, FIRST)["sent_ns"])))
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True, ts=ts))
    assert rig.counted()["rtx_needless"] == 1
    before = learnt(rig)
    clock_passes(3_000_000)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True, ts=ts))
    assert learnt(rig) == before
    assert "rtx_needless" not in rig.counted()


@pytest.mark.parametrize(("age_s", "teaches"), [(2, True), (6, False)])
def test_copy_of_long_ago_teaches_nothing(
    rig: Rig, far: Far, lost: int, age_s: int, teaches: bool
) -> None:
    rig.tune(hole_timeout_ns=4 * SECOND)
    then = entry(rig, FIRST)["sent_ns"] - age_s * SECOND
    rig.edit("tx_entries", FIRST % rig.dp.sizes.window, "mrc_tx_entry", sent_ns=then)
    before = learnt(rig)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True, ts=wire_time(then)))
    assert (learnt(rig) != before) == teaches
    assert rig.counted().get("rtx_needless", 0) == teaches
