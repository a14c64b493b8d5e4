# SPDX-License-Identifier: GPL-2.0-only
"""The daemon's writes to the maps and its reads. They need real maps, so the tests are here."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import IPv6Address, ip_network

import pytest

from mrcd.datapath.peertable import EQUAL_SHARES
from mrcd.datapath.prefixes import key_of
from mrcd.datapath.qptable import QpTable
from mrcd.fabric import usid
from mrcd.fabric.ranking import Rank
from mrcd.handshake import LocalQp, Memory, Offer, RemoteQp
from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from mrcd.wire.layout import words
from mrcd.wire.packet import decode_frame
from rigs.packets import Far, ip4, numbered
from rigs.rig import MPR, PLANES, QPS_PER_PEER, RING_SLOTS, T1S, TC_REDIRECT, Rig

PACKET = ip4(src="10.99.0.1", dst="10.99.0.2")


def pairs(first: int, count: int) -> tuple[tuple[LocalQp, RemoteQp], ...]:
    return tuple(
        (LocalQp(i, 0x110000 | i, 10 * i), RemoteQp(0x220000 | i, 20 * i))
        for i in range(first, first + count)
    )


def test_words_are_the_address_in_memory() -> None:
    address = IPv6Address("fdcb:0:1:2::1").packed
    assert struct.pack("=4I", *words(address)) == address


@pytest.mark.parametrize(
    ("network", "bits", "tail"),
    [
        ("10.99.0.2/32", 128, "0000ffff0a630002"),
        ("10.99.0.0/24", 120, "0000ffff0a630000"),
        ("0.0.0.0/0", 96, "0000ffff00000000"),
        ("fd99::2/128", 128, "0000000000000002"),
        ("fd99::/64", 64, "0000000000000000"),
    ],
)
def test_prefix_key(network: str, bits: int, tail: str) -> None:
    key = key_of(ip_network(network))
    assert struct.unpack_from("=I", key) == (bits,)
    assert len(key) == 20
    assert key[12:].hex() == tail


def test_every_plane_of_a_peer_is_programmed(rig: Rig) -> None:
    us, peer = rig.fabric.host("h1"), rig.fabric.host("h2")
    kind = ABI.structs["mrc_peer_plane"]
    for plane in range(PLANES):
        index = rig.table.peers.indices["h2"] * ABI.MRC_MAX_PLANES + plane
        raw = rig.dp.read_raw("peer_planes", index, kind.size)
        template = usid.template_da(rig.fabric.block, us, peer, plane)
        assert raw == rig.fabric.address6(peer, plane).packed + template


def test_prefixes_lead_to_their_peers(rig: Rig) -> None:
    for peer in rig.config.peers:
        for network in peer.allowed:
            assert network.prefixlen == network.max_prefixlen
            raw = bpf.lookup(rig.dp.maps["addresses"], key_of(network)[4:], 4)
            assert raw == struct.pack("=I", rig.table.peers.indices[peer.name])


OWN = struct.pack("=I", ABI.MRC_OWNER_SELF)


def test_closed_prefixes__send_nothing_but_still_belong_to_their_peers(rig: Rig) -> None:
    packet = ip4(src="10.99.0.1", dst="10.99.0.2")
    back = ip4(b"back", src="10.99.0.2", dst="10.99.0.1")
    rig.tune(inner=1)
    far = Far(rig.fabric, rig.fabric.host("h1"), rig.fabric.host("h2"))
    assert rig.spray(packet).verdict == TC_REDIRECT
    rig.table.peers.prefixes.close()
    rig.counted()
    rig.tune(cut_ifindex=0, cut_back_ifindex=0)
    rig.spray(packet)  # it becomes the message that its destination is unreachable
    rig.arrive(far.data(5000, back))
    assert rig.delivered() == [back]
    counted = rig.counted()
    assert (counted["drop_no_peer"], counted["rx_packets"]) == (1, 1)
    rig.table.peers.add(rig.config.peers)
    assert rig.spray(packet).verdict == TC_REDIRECT


def test_addresses_and_shorter_prefixes_are_in_maps_of_their_own(rig: Rig) -> None:
    """A packet goes to the peer with its address, otherwise to the one with the longest prefix."""
    rig.reset()
    h2, h3 = rig.config.peers
    wide = replace(h3, allowed=(*h3.allowed, ip_network("10.99.0.0/24"), ip_network("fd99::/64")))
    rig.current = replace(rig.config, peers=(h2, wide))
    rig.table.peers.add((h2, wide))
    held = (len(bpf.keys(rig.dp.maps["addresses"], 16)), rig.table.peers.prefixes.addresses)
    own = rig.config.own_prefixes
    assert held == (len(own) + len(h2.allowed) + len(h3.allowed),) * 2
    assert len(bpf.keys(rig.dp.maps["prefixes"], 20)) == rig.table.peers.prefixes.shorter == 2
    for index, peer in enumerate((h2, h3)):
        rig.connect(peer.name, rig.table.peers.base(peer.name), remote_qpn=0x880000 | index)
    for last, index in ((2, 0), (3, 1), (77, 1)):
        ran = rig.spray(ip4(src="10.99.0.1", dst=f"10.99.0.{last}"))
        assert decode_frame(ran.frame).bth.dqpn == 0x880000 | index
    rig.current = rig.config
    assert sorted(rig.table.peers.drop_prefixes()) == ["10.99.0.0/24", "fd99::/64"]
    assert bpf.keys(rig.dp.maps["prefixes"], 20) == []
    rig.current = replace(rig.config, peers=())
    assert len(rig.table.peers.drop_prefixes()) == len(h2.allowed) + len(h3.allowed)
    left = {key_of(network)[4:] for network in own}
    assert set(bpf.keys(rig.dp.maps["addresses"], 16)) == left
    assert {bpf.lookup(rig.dp.maps["addresses"], key, 4) for key in left} == {OWN}
    rig.reset()


def test_another_daemon_finds_all_prefixes(rig: Rig) -> None:
    rig.reset()
    (h2, _) = rig.config.peers
    wide = replace(h2, allowed=(*h2.allowed, ip_network("192.0.2.0/24")))
    config = replace(rig.config, peers=(wide,))
    rig.current = config
    rig.table.peers.add((wide,))
    later = QpTable(rig.dp, lambda: config)
    later.adopt()
    assert (later.peers.prefixes.addresses, later.peers.prefixes.shorter) == (
        rig.table.peers.prefixes.addresses,
        1,
    )
    assert later.peers.drop_prefixes() == [str(p) for p in rig.config.peers[1].allowed]
    rig.reset()


def test_places_of_peers_are_used_again(rig: Rig) -> None:
    rig.reset()
    h2, h3 = rig.config.peers
    places = dict(rig.table.peers.indices)
    rig.current = replace(rig.config, peers=(h3,))
    rig.table.peers.drop_prefixes()
    rig.table.remove_peer(h2)
    assert rig.table.peers.indices == {"h3": places["h3"]}
    rig.current = rig.config
    rig.table.peers.add((h2,))
    assert rig.table.peers.indices == places
    rig.reset()


def test_configured_qps_receive_and_send_when_ready(rig: Rig) -> None:
    rig.reset()
    rig.table.configure("h2", pairs(0, QPS_PER_PEER), MPR)
    for index in rig.table.qps_of("h2"):
        view = rig.view(index)
        assert view.qp["state"] == ABI.MRC_QP_RECEIVE
        assert (view.qp["qpn"], view.qp["remote_qpn"]) == (0x110000 | index, 0x220000 | index)
        assert view.tx["next"] == view.tx["una"] == 10 * index
        assert view.rx["next"] == view.rx["high"] == 20 * index
        assert view.tx["plane_use"] == view.tx["plane_open"] == (1 << PLANES) - 1
        assert view.tx["used_all"] == PLANES * T1S
        assert view.tx["floor"] == PLANES * T1S // 4  # a quarter by default
    assert rig.view(QPS_PER_PEER).qp["state"] == ABI.MRC_QP_DOWN  # a QP of the other peer
    rig.table.ready("h2")
    states = {rig.view(i).qp["state"] for i in rig.table.qps_of("h2")}
    assert states == {ABI.MRC_QP_READY}


@pytest.mark.parametrize("cells", [False, True])
def test_framing_is_kept_and_compared_by_the_next_daemon(rig: Rig, cells: bool) -> None:
    rig.reset()
    whole = pairs(0, QPS_PER_PEER)
    rig.table.configure("h2", whole, MPR, cells=cells)
    rig.table.ready("h2")
    offer = Offer(2, "h2", "h1", 1, 2, 3, 4, True, False, 1372, MPR, 15, (),
                  tuple((remote.qpn, remote.psn) for _, remote in whole))  # fmt: skip
    memory = Memory(1, 5, 6, 7, tuple(local for local, _ in whole), offer)
    expected = ABI.MRC_FRAMING_CELL if cells else ABI.MRC_FRAMING_MRC
    assert {rig.view(i).qp["framing"] for i in rig.table.qps_of("h2")} == {expected}
    assert rig.table.holds("h2", memory, cells=cells)
    assert not rig.table.holds("h2", memory, cells=not cells)
    rig.reset()


def test_paths_are_all_evs_of_the_fabric(rig: Rig) -> None:
    evs = [path.ev for path in rig.paths(0)]
    assert sorted(evs) == [
        usid.ev(plane, t1) for plane in range(PLANES) for t1 in range(1, T1S + 1)
    ]


def test_reset_gives_every_slot_back(rig: Rig, far: Far) -> None:
    for _ in range(20):
        rig.spray(PACKET)
    rig.arrive(far.sack(999 + 5, 0b1010, offset=3))
    for psn in (5001, 5002, 5007, 5100):
        rig.arrive(far.data(psn, numbered(psn)))
    assert rig.free_slots("tx_free") < RING_SLOTS
    assert rig.free_slots("rx_free") == RING_SLOTS - 4
    rig.table.reset((0,))
    assert rig.free_slots("tx_free") == RING_SLOTS
    assert rig.free_slots("rx_free") == RING_SLOTS
    assert rig.view(0).qp["state"] == ABI.MRC_QP_DOWN
    rig.table.reset((0,))  # no slot is returned twice
    assert rig.free_slots("tx_free") == RING_SLOTS


@pytest.mark.parametrize("first", [0xFFFFFFF0, 0xFFFFF0])
def test_reset_across_the_wrap(rig: Rig, far: Far, first: int) -> None:
    rig.connect(tx_psn=first, rx_psn=first)
    for _ in range(30):
        rig.spray(PACKET)
    for i in (1, 20, 25):
        psn = (first + i) & 0xFFFFFFFF
        rig.arrive(far.data(psn, numbered(psn)))
    rig.table.reset((0,))
    assert rig.free_slots("tx_free") == RING_SLOTS
    assert rig.free_slots("rx_free") == RING_SLOTS


def test_configuring_again_forgets_the_old_connection(rig: Rig, far: Far) -> None:
    for _ in range(5):
        rig.spray(PACKET)
    rig.arrive(far.data(5001, numbered(5001)))
    rig.connect(qpn=0x660000, tx_psn=7, rx_psn=70)
    assert rig.free_slots("tx_free") == rig.free_slots("rx_free") == RING_SLOTS
    rig.counted()
    rig.arrive(far.data(5000, numbered(5000)))  # a packet of the old connection
    assert rig.counted() == {"drop_qpn": 1}
    rig.arrive(far.data(70, numbered(70), qpn=0x660000))
    assert rig.delivered() == [numbered(70)]
    assert {path.values["delivered_ns"] for path in rig.paths(0)} == {0}
    assert sum(path.values["sent"] for path in rig.paths(0)) == 5  # a total is kept


def test_planes_of_a_peer_can_be_changed(rig: Rig) -> None:
    rig.table.peers.set_planes("h2", 0b0110)
    kind = ABI.structs["mrc_peer"]
    peer = rig.dp.read("peers", rig.table.peers.indices["h2"], kind)
    # The rig pairs only one QP: flows must not be spread over QPs without a partner.
    base = rig.table.peers.base("h2")
    assert peer == {
        "qp_base": base, "qp_mask": 0, "plane_mask": 0b0110, "ours": ABI.MRC_OURS_ALIKE,
        "unheard_ns": 0, "spare": 0, "far": 0,
        "weights": EQUAL_SHARES,
    }  # fmt: skip


def test_turns_of_planes_go_by_the_lesser_of_both_hosts_rates(rig: Rig) -> None:
    kind, peers = ABI.structs["mrc_peer"], rig.table.peers

    def weights(name: str) -> list[int]:
        word = rig.dp.read("peers", peers.indices[name], kind)["weights"]
        return [*word.to_bytes(8, "little")][:PLANES]

    peers.set_rates((1_000, 1_000, 500, 0))
    assert [weights("h2"), weights("h3")] == [[128, 128, 64, 64]] * 2
    peers.set_their_rates("h2", (1_000, 250, 1_000, 1_000))
    assert weights("h2") == [128, 32, 64, 128]
    assert weights("h3") == [128, 128, 64, 64]
    peers.set_planes("h2", 0b0110)  # what else is said of a peer changes nothing
    assert weights("h2") == [128, 32, 64, 128]
    slow = tuple(Rank(mbps=mbps) for mbps in (1_000, 1_000, 1_000, 10))
    h2 = rig.current.by_name["h2"]
    rig.current = replace(
        rig.current,
        peers=(replace(h2, host=replace(h2.host, ranks=slow)), rig.current.by_name["h3"]),
    )
    peers.set_planes("h2", 0b1111)
    assert weights("h2") == [128, 32, 64, 1]  # what the way leads through is the least
    peers.set_rates(())
    assert weights("h3") == [128] * PLANES


def test_unheard_peers_are_said_to_be_so_until_then(rig: Rig) -> None:
    kind, peers = ABI.structs["mrc_peer"], rig.table.peers
    peers.set_unheard({"h2": 1 << 60, "h3": 77})
    peers.set_planes("h2", 0b0110)  # what else is said of a peer changes nothing
    found = [rig.dp.read("peers", peers.indices[name], kind)["unheard_ns"] for name in ("h2", "h3")]
    assert found == [1 << 60, 77]
    peers.set_unheard({"h2": 0})
    assert rig.dp.read("peers", peers.indices["h2"], kind)["unheard_ns"] == 0
    assert rig.dp.read("peers", peers.indices["h3"], kind)["unheard_ns"] == 77
    peers.set_unheard({})
