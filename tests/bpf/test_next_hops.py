# SPDX-License-Identifier: GPL-2.0-only
"""The data path of a network without a fabric: each peer has a next hop of its own on a plane."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest

from mrcd.config.config import with_endpoint
from mrcd.fabric import underlay
from mrcd.fabric.hosts import Address
from mrcd.fabric.routing import Routing
from mrcd.linux import bpf
from mrcd.wire.packet import Data, Sack, decode_frame
from rigs.packets import EV, Far, destination, ev_in, ip4, offer_frame, redirected
from rigs.rig import (
    CELL,
    DROPPED,
    PASSED,
    PLANES,
    SENT,
    TC_SHOT,
    TC_UNSPEC,
    Rig,
    hop_mac_of,
    mac_of,
)
from tests.bpf.cells import CellRig, noise, tcp

PATHS = 8
OVER6 = Routing("ecmp", underlay=6, paths=PATHS)
OVER4 = Routing("ecmp", underlay=4, paths=PATHS)
BOTH = pytest.mark.parametrize("routing", [OVER6, OVER4], ids=["ipv6", "ipv4"])
CELLS = pytest.mark.parametrize(
    ("routing", "cell_udp"),
    [(OVER6, False), (OVER6, True), (OVER4, True)],
    ids=["ipv6", "udp6", "udp4"],
)
OUT = ip4(b"out of mrc0", src="10.99.0.1", dst="10.99.0.2")


def to(frame: bytes) -> bytes:
    """Return the MAC address that a frame is for."""
    return frame[:6]


@BOTH
def test_data_goes_to_the_next_hop_of_its_peer(rig: Rig, far: Far) -> None:
    planes = set()
    for psn in range(1000, 1000 + 4 * PLANES * PATHS):
        frame = rig.spray(OUT).frame
        data = decode_frame(frame)
        assert isinstance(data, Data)
        ev = data.envelope.src_port << 16
        plane = ev >> 28
        assert data.body.timestamp is not None
        expected = far.our_data(psn, OUT, ev, data.body.timestamp.tx_timestamp)
        assert frame == hop_mac_of("h2", plane) + expected[6:]
        planes.add(plane)
    assert planes == set(range(PLANES))


@BOTH
def test_each_peer_has_its_own(rig: Rig) -> None:
    rig.connect("h3", 16, qpn=0x780010, remote_qpn=0x990003)
    found = set()
    for last in ("2", "3"):
        for _ in range(4 * PLANES):
            ran = rig.spray(ip4(b"out", src="10.99.0.1", dst=f"10.99.0.{last}"))
            found.add(to(ran.frame))
    expected = {hop_mac_of(peer, plane) for peer in ("h2", "h3") for plane in range(PLANES)}
    assert found == expected


@BOTH
def test_answers_go_to_the_next_hop_not_to_where_the_question_came_from(rig: Rig, far: Far) -> None:
    """A router may send by another interface than it receives by."""
    ran = rig.receive(far.probe(0x17))
    assert ran.verdict == SENT
    assert isinstance(decode_frame(ran.frame), Sack)
    assert to(ran.frame) == hop_mac_of("h2", EV >> 28)
    assert ran.frame[6:12] == mac_of(EV >> 28)


@BOTH
def test_next_hop_that_changes_is_used_at_once(rig: Rig) -> None:
    (peer,) = (each for each in rig.config.peers if each.name == "h2")
    new = bytes.fromhex("02000000beef")
    for plane in range(PLANES):
        rig.table.peers.set_next_hop(peer, plane, new)
    assert to(rig.spray(OUT).frame) == new


@BOTH
def test_plane_without_a_next_hop_is_not_used(rig: Rig) -> None:
    peers = rig.table.peers
    del peers.next_hops["h2", 0]
    peers.set_planes("h2", (1 << PLANES) - 1)
    sent = {to(rig.spray(OUT).frame) for _ in range(8 * PLANES)}
    assert sent == {hop_mac_of("h2", plane) for plane in range(1, PLANES)}
    (peer,) = (each for each in rig.config.peers if each.name == "h2")
    peers.set_next_hop(peer, 0, hop_mac_of("h2", 0))
    sent = {to(rig.spray(OUT).frame) for _ in range(8 * PLANES)}
    assert sent == {hop_mac_of("h2", plane) for plane in range(PLANES)}


@BOTH
def test_data_arrives_from_the_peers_address_alone(rig: Rig, far: Far) -> None:
    assert rig.receive(far.data(5000, ip4(b"in"))).verdict == PASSED
    stranger = Far(rig.fabric, rig.fabric.host("h1"), rig.fabric.host("h3"))
    assert rig.receive(stranger.data(5001, ip4(b"in"))).verdict == DROPPED
    assert rig.counted()["drop_source"] == 1


def another(address: Address) -> Address:
    """Return an address near another one, which nobody has."""
    return type(address)(int(address) + 0x20)


@BOTH
def test_peer_that_moves_is_heard_at_its_new_address(rig: Rig) -> None:
    plane = EV >> 28
    (before,) = (each for each in rig.config.peers if each.name == "h2")
    address = another(before.host.endpoints[plane])
    config = with_endpoint(rig.config, "h2", plane, address)
    (after,) = (each for each in config.peers if each.name == "h2")
    rig.current = config
    rig.table.peers.readdress(before, after)
    old = Far(rig.fabric, rig.config.host, before.host)
    new = Far(config.fabric, config.host, after.host)
    assert rig.receive(old.data(5000, ip4(b"in"))).verdict == DROPPED
    assert rig.receive(new.data(5000, ip4(b"in"))).verdict == PASSED
    sources = rig.dp.maps["sources"]
    assert bpf.lookup(sources, underlay.of(rig.fabric).packed(before.host, plane), 4) is None
    assert bpf.lookup(sources, underlay.of(config.fabric).packed(after.host, plane), 4) is not None


@BOTH
def test_offers_reach_the_stack_as_they_are(rig: Rig, far: Far) -> None:
    frame, seen = offer_frame(far, EV)
    ran = rig.receive(frame)
    assert (ran.verdict, ran.frame) == (PASSED, seen)
    assert rig.counted() == {"control_rx": 1}


@BOTH
def test_what_is_for_another_address_of_the_nic_is_not_ours(rig: Rig, far: Far) -> None:
    frame = bytearray(far.data(5000, ip4(b"in")))
    frame[14 + (19 if frame[14] >> 4 == 4 else 39)] ^= 0x40  # the last byte of the destination
    assert rig.receive(bytes(frame)).verdict == PASSED
    assert rig.counted() == {}, "the stack decides"


# ---- cells


@CELLS
def test_cell_goes_to_the_next_hop(cells: CellRig, rig: Rig) -> None:
    ran = rig.spray(OUT)
    ev = ev_in(ran.frame)
    expected = cells.far.our_cell(1000, OUT, ev)
    assert ran.frame == hop_mac_of("h2", ev >> 28) + expected[6:]


@CELLS
def test_cell_to_an_address_of_any_prefix_is_taken(cells: CellRig, rig: Rig) -> None:
    packet = tcp(noise(700), inward=True)
    frame = cells.far.cell(5000, packet)
    to = destination(frame)
    assert len(to) == 4 or IPv6Address(to).is_link_local
    assert rig.receive(frame).verdict == CELL
    cells.arrive(frame)
    assert rig.counted()["rx_packets"] == 1


@CELLS
def test_cell_for_another_address(cells: CellRig, rig: Rig) -> None:
    """The source says whether it is a cell in IPv6. To the port of cells, others may be meant."""
    frame = cells.far.cell(5000, tcp(noise(700), inward=True))
    to = destination(frame)
    other = redirected(frame, to[:-1] + bytes([to[-1] ^ 0x40]))
    assert cells.arrive(other).verdict == (TC_UNSPEC if cells.far.cell_udp else TC_SHOT)
    assert rig.counted() == ({} if cells.far.cell_udp else {"drop_sid": 1})


@CELLS
def test_tunnel_of_others_is_left_to_the_stack(rig: Rig, cells: CellRig) -> None:
    """IPv4 in IPv6 is no cell if its source is an ordinary address, nor is VXLAN on its port."""
    frame = bytearray(cells.far.cell(5000, tcp(noise(700), inward=True)))
    if cells.far.cell_udp:
        port = cells.places.length - 2
        frame[port : port + 2] = (4789).to_bytes(2, "big")
    else:
        frame[22:38] = bytes.fromhex("20010db8000000000000000000000001")
    assert rig.receive(bytes(frame)).verdict == PASSED
    assert rig.counted() == {}
