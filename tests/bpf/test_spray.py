# SPDX-License-Identifier: GPL-2.0-only
"""mrc_spray: the form and the path of an application's packet, and reasons to refuse it."""

from __future__ import annotations

from collections import Counter

import pytest

from mrcd.wire.abi import ABI
from mrcd.wire.packet import Data, decode_frame
from rigs.packets import Far, ev_of, ip4, ip6, sent_at
from rigs.rig import MPR, PLANES, RING_SLOTS, T1S, TC_REDIRECT, TC_SHOT, Rig

FIRST = 1000  # the first PSN of the rig's QP
EVS = [ev_of(plane, t1) for plane in range(PLANES) for t1 in range(1, T1S + 1)]


def out4(body: bytes = b"", *, port: int = 7) -> bytes:
    """Return an IPv4 packet to h2."""
    return ip4(body, src="10.99.0.1", dst="10.99.0.2", port=port)


def out6(body: bytes = b"", *, port: int = 7) -> bytes:
    """Return an IPv6 packet to h2."""
    return ip6(body, src="fd99::1", dst="fd99::2", port=port)


def sprayed(rig: Rig, packet: bytes) -> Data:
    """Spray an application's packet; return the data packet that it becomes."""
    ran = rig.spray(packet)
    assert ran.verdict == TC_REDIRECT
    data = decode_frame(ran.frame)
    assert isinstance(data, Data)
    return data


@pytest.mark.parametrize(
    "packet",
    [
        out4(b"hello"),
        out6(b"hello"),
        out4(b""),
        out4(bytes(1344)),
        out6(bytes(1324)),
    ],
    ids=["v4", "v6", "small", "v4 of the MTU", "v6 of the MTU"],
)
def test_frame_is_byte_exact_on_every_path(rig: Rig, far: Far, packet: bytes) -> None:
    seen = set()
    for psn in range(FIRST, FIRST + 2 * len(EVS)):
        frame = rig.spray(packet).frame
        data = decode_frame(frame)
        assert frame == far.our_data(psn, packet, data.envelope.ev, sent_at(frame))
        seen.add(data.envelope.ev)
    assert seen == set(EVS)


def test_planes_and_paths_take_turns(rig: Rig) -> None:
    rounds = MPR // len(EVS)
    evs = [sprayed(rig, out4()).envelope.ev for _ in range(rounds * len(EVS))]
    assert Counter(evs) == dict.fromkeys(EVS, rounds)
    planes = [ev >> 28 for ev in evs]
    orders = {tuple(planes[i : i + PLANES]) for i in range(0, len(planes), PLANES)}
    for order in orders:  # each plane once in a round ...
        assert sorted(order) == list(range(PLANES))
    # ... from any plane on: otherwise packets of one plane would cause all SACKs
    assert {order[0] for order in orders} == set(range(PLANES))


def test_planes_stay_even_when_one_has_few_paths(rig: Rig) -> None:
    rig.withdraw(*(ev_of(2, t1) for t1 in (1, 2, 3)))
    evs = [sprayed(rig, out4()).envelope.ev for _ in range(64)]
    assert Counter(ev >> 28 for ev in evs) == dict.fromkeys(range(PLANES), 16)
    assert {ev for ev in evs if ev >> 28 == 2} == {ev_of(2, 4)}


def test_withdrawn_path_is_not_used(rig: Rig) -> None:
    bad = [ev_of(0, 1), ev_of(3, 4)]
    rig.withdraw(*bad)
    evs = {sprayed(rig, out4()).envelope.ev for _ in range(64)}
    assert evs == set(EVS) - set(bad)


def test_plane_without_a_good_path_is_not_used(rig: Rig) -> None:
    rig.withdraw(*(ev_of(1, t1) for t1 in range(1, T1S + 1)))
    evs = [sprayed(rig, out4()).envelope.ev for _ in range(60)]
    assert Counter(ev >> 28 for ev in evs) == {0: 20, 2: 20, 3: 20}


def test_with_no_good_path_it_still_sends(rig: Rig) -> None:
    rig.withdraw(*EVS)
    evs = {sprayed(rig, out4()).envelope.ev for _ in range(64)}
    assert {ev >> 28 for ev in evs} == set(range(PLANES))


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_plane_that_is_down_on_either_side_is_not_used(rig: Rig, side: str) -> None:
    if side == "ours":
        rig.tune(plane_mask=0b0101)
    else:
        rig.spread("h2", 0, 1, planes=0b0101)
    evs = [sprayed(rig, out4()).envelope.ev for _ in range(40)]
    assert Counter(ev >> 28 for ev in evs) == {0: 20, 2: 20}


def test_full_window_drops_and_counts(rig: Rig) -> None:
    for _ in range(MPR):
        sprayed(rig, out4())
    rig.counted()
    before = rig.state()
    assert rig.spray(out4()).verdict == TC_SHOT
    assert rig.counted() == {"drop_window": 1}
    assert rig.state() == before
    assert rig.free_slots("tx_free") == RING_SLOTS - MPR


def test_smaller_window_of_the_peer_counts(rig: Rig) -> None:
    rig.connect(mpr=16)
    verdicts = [rig.spray(out4()).verdict for _ in range(18)]
    assert verdicts == [TC_REDIRECT] * 16 + [TC_SHOT] * 2
    assert rig.counted()["drop_window"] == 2


def test_full_ring_drops_and_counts(rig: Rig) -> None:
    rig.take_slots("tx_free")
    before = rig.state()
    assert rig.spray(out4()).verdict == TC_SHOT
    assert rig.counted() == {"drop_ring": 1}
    assert rig.state() == before


@pytest.mark.parametrize(
    "packet", [ip4(dst="10.99.0.77"), ip4(dst="192.0.2.1"), ip6(dst="fd99::77"), ip6(dst="fd98::2")]
)
def test_destination_without_a_peer(rig: Rig, packet: bytes) -> None:
    """The packet goes round to be finished, and comes back to be dropped (test_unreachable.py)."""
    before = rig.state()
    ran = rig.spray(packet)
    assert (ran.verdict, ran.frame[14:]) == (TC_REDIRECT, packet)
    assert rig.counted() == {}
    rig.tune(cut_ifindex=0, cut_back_ifindex=0)
    rig.spray(packet)
    assert rig.counted() == {"drop_no_peer": 1, "unreachable_tx": 1}
    assert rig.state() == before


@pytest.mark.parametrize("state", [ABI.MRC_QP_DOWN, ABI.MRC_QP_RECEIVE])
def test_peer_that_is_not_ready(rig: Rig, state: int) -> None:
    rig.set_state(state)
    before = rig.state()
    assert rig.spray(out4()).verdict == TC_SHOT
    assert rig.spray(ip4(dst="10.99.0.3")).verdict == TC_SHOT  # h3 was never connected
    assert rig.counted() == {"drop_not_ready": 2}
    assert rig.state() == before


def test_packet_larger_than_the_mtu(rig: Rig) -> None:
    assert rig.spray(out4(bytes(rig.mtu - 28))).verdict == TC_REDIRECT
    assert rig.spray(out4(bytes(rig.mtu - 27))).verdict == TC_SHOT
    assert rig.counted()["drop_too_big"] == 1
    assert rig.free_slots("tx_free") == RING_SLOTS - 1


@pytest.mark.parametrize("proto", [b"\x08\x06", b"\x88\xb5", b"\x81\x00"])
def test_other_protocols_are_dropped(rig: Rig, proto: bytes) -> None:
    assert rig.tc("mrc_spray", bytes(12) + proto + bytes(46)).verdict == TC_SHOT
    assert rig.counted() == {"drop_not_ip": 1}


def test_flows_are_hashed_over_the_connections(rig: Rig) -> None:
    for index in range(4):
        rig.connect("h2", index, qpn=0x100000, remote_qpn=0x200000 | index)
    rig.spread("h2", 0, 4)
    flows: dict[int, set[int]] = {}
    for port in list(range(40)) * 2:
        for packet in (out4(port=port), out6(port=port)):
            key = port << 8 | packet[0]
            flows.setdefault(key, set()).add(sprayed(rig, packet).bth.dqpn & 0xFF)
    assert all(len(qps) == 1 for qps in flows.values())  # a flow keeps its connection
    assert {qp for qps in flows.values() for qp in qps} == {0, 1, 2, 3}


def test_longest_prefix_wins(rig: Rig) -> None:
    rig.connect("h3", 16, qpn=0x100000, remote_qpn=0x300000)
    assert sprayed(rig, ip4(dst="10.99.0.3")).bth.dqpn == 0x300000
    assert sprayed(rig, ip4(dst="10.99.0.2")).bth.dqpn == 0x880003
    assert sprayed(rig, ip6(dst="fd99::3")).bth.dqpn == 0x300000


@pytest.mark.parametrize("first", [0xFFFFFE, 0xFFFFFFFE])
def test_psn_wraps_on_the_wire(rig: Rig, first: int) -> None:
    rig.connect(tx_psn=first)
    psns = [sprayed(rig, out4()).bth.psn for _ in range(4)]
    assert psns == [0xFFFFFE, 0xFFFFFF, 0, 1]


def test_counters_and_clock(rig: Rig) -> None:
    assert not rig.active()
    packet = out4(b"x" * 50)
    data = sprayed(rig, packet)
    assert rig.counted() == {"tx_packets": 1, "tx_bytes": len(packet)}
    assert rig.path(data.envelope.ev)["sent"] == 1
    assert rig.tx()["packets"] == 1
    assert rig.active()


def test_peer_that_takes_packets_on_no_plane_is_sent_nothing(rig: Rig, far: Far) -> None:
    """Only a report about all planes at once, by an update or by Offers, stops the traffic."""
    peer = rig.table.peers.indices["h2"]
    sprayed(rig, out4(b"before"))
    rig.edit("balances", peer, "mrc_balance", ports=0)
    assert rig.spray(out4(b"held")).verdict == TC_SHOT
    assert rig.counted()["drop_no_plane"] == 1
    assert rig.free_slots("tx_free") == RING_SLOTS - 1
    rig.table.peers.set_ports("h2", 0b0001)
    assert sprayed(rig, out4(b"again")).bth.psn == FIRST + 1
    # SACKs may be old: if only they report the planes down, every plane is tried.
    rig.edit("balances", peer, "mrc_balance", heard_ports=0)
    sprayed(rig, out4(b"still"))
