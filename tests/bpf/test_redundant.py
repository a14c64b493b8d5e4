# SPDX-License-Identifier: GPL-2.0-only
"""Redundant packets: sent on two planes at once with one PSN, and what SACKs then teach."""

from __future__ import annotations

import time

import pytest

from mrcd.datapath import host
from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Data, decode_frame
from rigs import packets
from rigs.packets import Far, ev_of, ip4, ip6, numbered, sent_at
from rigs.rig import PLANES, T1S, TC_REDIRECT, Rig, clock_passes
from tests.bpf.cells import IN_EACH_ENVELOPE, MSS, CellRig, noise, tcp
from tests.bpf.test_sack import resent
from tests.bpf.test_window import narrow, widen

FIRST = 1000
FIRST_RX = 5000
PORT = 5000
EF = 46
OUT = {"src": "10.99.0.1", "dst": "10.99.0.2"}
OUT6 = {"src": "fd99::1", "dst": "fd99::2"}
NAMED = ip4(b"named", port=PORT, **OUT)
PLAIN = ip4(b"plain", port=PORT + 1, **OUT)
_ENTRY = ABI.structs["mrc_tx_entry"]
_BALANCE = ABI.structs["mrc_balance"]


def name(rig: Rig, *kinds: str) -> None:
    """Say which packets are redundant, as the daemon does."""
    rig.tune(**host.redundant(kinds))


@pytest.fixture
def named(rig: Rig) -> Rig:
    """Return the rig with a redundant port, DSCP, and none else."""
    name(rig, f"udp/{PORT}", f"dscp/{EF}")
    return rig


def ev_in(frame: bytes) -> int:
    """Return the EV of a data packet or of a cell."""
    if packets.is_cell(frame):
        return packets.ev_in(frame)
    return decode_frame(frame).envelope.ev


def sent_twice(rig: Rig, packet: bytes = NAMED) -> tuple[bytes, bytes]:
    """Spray a packet; return the frames of its first and its second sending."""
    ran = rig.spray(packet)
    assert ran.verdict == TC_REDIRECT
    ((plane, first),) = rig.sent()
    assert plane == ev_in(first) >> 28 != ev_in(ran.frame) >> 28
    return first, ran.frame


def sent_once(rig: Rig, packet: bytes) -> bytes:
    ran = rig.spray(packet)
    assert ran.verdict == TC_REDIRECT
    assert rig.sent() == []
    return ran.frame


def entry(rig: Rig, psn: int = FIRST) -> dict[str, int]:
    return rig.dp.read("tx_entries", psn % rig.dp.sizes.window, _ENTRY)


def acked(rig: Rig) -> tuple[int, ...]:
    raw = rig.dp.read_raw("balances", rig.table.peers.indices["h2"], _BALANCE.size)
    return _BALANCE.unpack_array(raw, "acked")[:PLANES]


# ---- sending


def test_packet_goes_by_two_planes_with_one_psn(named: Rig, far: Far) -> None:
    pairs = set()
    for psn in range(FIRST, FIRST + 32):
        for frame in sent_twice(named):
            data = decode_frame(frame)
            assert isinstance(data, Data)
            expected = far.our_data(psn, NAMED, data.envelope.ev, sent_at(frame), ackreq=True)
            assert frame == expected
            pairs.add((psn, data.envelope.ev >> 28))
    assert len(pairs) == 64
    assert {plane for _psn, plane in pairs} == set(range(PLANES))
    assert named.counted() == {
        "tx_packets": 32, "tx_bytes": 32 * len(NAMED), "tx_redundant": 32
    }  # fmt: skip
    assert named.tx()["next"] == FIRST + 32
    assert sum(path.values["sent"] for path in named.paths(0)) == 64


def test_planes_stay_even(named: Rig) -> None:
    planes = [ev_in(frame) >> 28 for _ in range(40) for frame in sent_twice(named)]
    counts = [planes.count(plane) for plane in range(PLANES)]
    assert max(counts) - min(counts) <= 2


def dscp4(dscp: int) -> bytes:
    return PLAIN[:1] + bytes([dscp << 2]) + PLAIN[2:]


def dscp6(dscp: int) -> bytes:
    packet = ip6(b"plain", port=PORT + 1, **OUT6)
    return bytes([0x60 | dscp >> 2, (dscp & 3) << 6]) + packet[2:]


def fragment(packet: bytes, at: int, more: bool) -> bytes:
    word = (at | more << 13).to_bytes(2, "big")
    return packet[:6] + word + packet[8:]


def from_port(packet: bytes, port: int) -> bytes:
    return packet[:20] + port.to_bytes(2, "big") + packet[22:]


def with_options(packet: bytes) -> bytes:
    length = (len(packet) + 4).to_bytes(2, "big")
    return bytes([0x46, 0]) + length + packet[4:20] + bytes(4) + packet[20:]


@pytest.mark.parametrize(
    ("packet", "twice"),
    [
        (NAMED, True),
        (from_port(PLAIN, PORT), True),
        (with_options(NAMED), True),
        (ip6(b"six", port=PORT, **OUT6), True),
        (dscp4(EF), True),
        (dscp6(EF), True),
        (fragment(dscp4(EF), 100, False), True),
        (PLAIN, False),
        (dscp4(EF + 1), False),
        (dscp6(EF - 1), False),
        (ip4(b"", port=0, **OUT), False),
        (fragment(NAMED, 0, True), False),
        (fragment(NAMED, 100, False), False),
        (NAMED[:9] + bytes([6]) + NAMED[10:], False),
        (NAMED[:20], False),
    ],
)
def test_what_is_named(named: Rig, packet: bytes, twice: bool) -> None:
    (sent_twice if twice else sent_once)(named, packet)


def test_as_many_ports_as_can_be_named(rig: Rig) -> None:
    ports = range(PORT, PORT + ABI.MRC_REDUNDANT_PORTS)
    name(rig, *(f"udp/{port}" for port in ports))
    for port in ports:
        sent_twice(rig, ip4(b"x", port=port, **OUT))
    sent_once(rig, ip4(b"x", port=PORT + ABI.MRC_REDUNDANT_PORTS, **OUT))
    name(rig)
    sent_once(rig, NAMED)


@pytest.mark.parametrize("why", ["down", "withdrawn", "standby"])
def test_with_one_plane_it_goes_once(named: Rig, why: str) -> None:
    if why == "down":
        named.tune(plane_mask=0b0010)
    elif why == "standby":
        named.tune(standby=0b1101)
    else:
        named.withdraw(*(ev_of(p, t1) for p in (0, 2, 3) for t1 in range(1, T1S + 1)))
    for _ in range(8):
        assert ev_in(sent_once(named, NAMED)) >> 28 == 1
    assert "tx_redundant" not in named.counted()
    assert entry(named)["rule"] == 0


def test_what_waited_for_the_window_goes_once(named: Rig, far: Far) -> None:
    narrow(named)
    named.edit("txs", 0, "mrc_tx", cwnd=2 * len(NAMED))
    sent_twice(named)
    sent_twice(named)
    named.spray(NAMED)
    assert named.counted()["tx_held"] == 1
    assert named.sent() == []
    widen(named)
    named.tick_of(0)
    assert [sent.psn for sent in resent(named)] == [FIRST + 2]
    assert entry(named, FIRST + 2)["rule"] == 0


# ---- SACKs


def answer(rig: Rig, far: Far, psn: int, ev: int, *, second: bool = False, cack: int = 0) -> None:
    """Have the SACK arrive for a packet that came by `ev`."""
    sack = far.sack(cack or psn, trigger=psn, about=ev, ev=ev, duplicate=second)
    rig.arrive(sack, f"plane{ev >> 28}")


def test_each_arrival_speaks_for_its_own_path(named: Rig, far: Far) -> None:
    """The second one does not count as a needless retransmission."""
    one, other = map(ev_in, sent_twice(named))
    answer(named, far, FIRST, other)
    assert named.path(other)["acked"] == 1
    assert named.path(one)["acked"] == 0
    assert named.path(one)["delivered_ns"] == 0
    assert acked(named)[other >> 28] == 1
    spare = sent_once(named, PLAIN)
    assert spare
    answer(named, far, FIRST, one, second=True)
    assert named.path(one)["acked"] == 1
    assert named.path(one)["delivered_ns"] == named.path(other)["delivered_ns"] > 0
    assert named.path(one)["srtt_ns"] > 0
    counted = named.counted()
    assert "rtx_needless" not in counted
    assert entry(named)["rule"] == 0


def test_a_copy_that_comes_a_third_time_teaches_nothing(named: Rig, far: Far) -> None:
    one, other = map(ev_in, sent_twice(named))
    sent_once(named, PLAIN)
    for second in (False, True, True):
        answer(named, far, FIRST, other, second=second)
    assert named.path(other)["acked"] == 2
    assert named.path(one)["acked"] == 0
    assert "rtx_needless" not in named.counted()


def test_cumulative_news_speaks_for_no_path(named: Rig, far: Far) -> None:
    one, other = map(ev_in, sent_twice(named))
    last = ev_in(sent_once(named, PLAIN))
    answer(named, far, FIRST + 1, last)
    assert named.tx()["una"] == FIRST + 2
    assert sum(acked(named)) == 1
    assert {named.path(ev)["delivered_ns"] for ev in {one, other} - {last}} == {0}


def test_arrival_by_one_plane_does_not_clear_the_other(named: Rig, far: Far) -> None:
    one, other = map(ev_in, sent_twice(named))
    both = 1 << (one >> 28) | 1 << (other >> 28)
    named.edit("txs", 0, "mrc_tx", suspects=both, suspect_ns=time.monotonic_ns())
    answer(named, far, FIRST, other)
    assert named.tx()["suspects"] == 1 << (one >> 28)


def test_loss_of_one_copy_is_no_loss(named: Rig, far: Far) -> None:
    """Nothing is sent again, and no path is withdrawn."""
    named.tune(reo_min_ns=0, reo_max_ns=0, fifo_slack_ns=0)
    evs = [tuple(map(ev_in, sent_twice(named))) for _ in range(16)]
    for psn, (_one, other) in enumerate(evs, FIRST):
        answer(named, far, psn, other)
    assert named.tx()["una"] == FIRST + 16
    assert not list(resent(named))
    assert all(path.state is State.GOOD for path in named.paths(0))
    assert named.tx()["retransmits"] == 0


def test_loss_of_both_is_repaired_once(named: Rig, far: Far) -> None:
    named.tune(rto_min_ns=1)
    one, _other = map(ev_in, sent_twice(named))
    clock_passes(1_000_000)
    named.tick()
    (again,) = resent(named)
    assert (again.psn, again.rtx) == (FIRST, True)
    assert entry(named)["sends"] == 2
    assert State(named.path(one)["state"]) is State.ASSUMED_BAD
    counted = named.counted()
    assert (counted["rtx_timeout"], counted["tx_redundant"]) == (1, 1)


def test_second_arrival_does_not_pass_for_the_answer_to_a_trial(named: Rig, far: Far) -> None:
    one, other = map(ev_in, sent_twice(named))
    sent_once(named, PLAIN)
    answer(named, far, FIRST, one)
    plane, slot = other >> 28, named.path(other)["slot"]
    trial = [0] * ABI.MRC_MAX_PLANES
    trial[plane] = FIRST
    path = [0] * ABI.MRC_MAX_PLANES
    path[plane] = plane << 8 | slot
    named.edit("txs", 0, "mrc_tx", trial_psn=tuple(trial), trial_path=tuple(path))
    named.edit_path(other, trial_len=900, probe_id=5)
    answer(named, far, FIRST, other, second=True)
    assert named.path(other)["fits"] == 0
    assert "trial_reply" not in named.counted()
    answer(named, far, FIRST, other, second=True)  # this one is
    assert named.path(other)["fits"] == 900


# ---- receiving


def test_receiver_delivers_once_and_answers_both(rig: Rig, far: Far) -> None:
    for plane, second in ((1, False), (2, True)):
        ev = ev_of(plane, 3)
        frame = far.data(FIRST_RX, numbered(1), ev, ackreq=True)
        ran = rig.arrive(frame, f"plane{plane}")
        sack = decode_frame(ran.frame)
        assert sack.body.entropy == ev
        assert bool(sack.body.cc_flags & WIRE.MRC_CC_FLAG_DUPLICATE) is second
    assert rig.delivered() == [numbered(1)]
    assert rig.counted()["rx_duplicate"] == 1


# ---- cells


@IN_EACH_ENVELOPE
@pytest.mark.parametrize("version", [4, 6])
def test_cell_of_one_packet_goes_by_two_planes(cells: CellRig, rig: Rig, version: int) -> None:
    name(rig, f"udp/{PORT}")
    packet = NAMED if version == 4 else ip6(b"named", port=PORT, **OUT6)
    for psn in range(FIRST, FIRST + 8):
        ran = rig.spray(packet)
        assert ran.verdict == TC_REDIRECT
        ((_plane, first),) = rig.sent()
        for frame in (first, ran.frame):
            assert frame == cells.far.our_cell(psn, packet, ev_in(frame), ackreq=True)
        assert ev_in(first) >> 28 != ev_in(ran.frame) >> 28
    assert rig.counted()["tx_redundant"] == 8


@IN_EACH_ENVELOPE
def test_cell_of_several_packets_goes_once(cells: CellRig, rig: Rig) -> None:
    name(rig, f"dscp/{EF}")
    packet = tcp(noise(4 * MSS), partial=True)
    cells.send(packet[:1] + bytes([EF << 2]) + packet[2:], MSS)
    assert len(cells.cells_sent()) == 1
    assert "tx_redundant" not in rig.counted()
