# SPDX-License-Identifier: GPL-2.0-only
"""Hosts that number their planes differently, and one that hands packets on for others."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from mrcd.datapath.relaytable import LINGER_S, RelayTable
from mrcd.fabric.cabling import Handed
from mrcd.fabric.hosts import Host
from mrcd.fabric.numbering import Numbering
from mrcd.fabric.routing import Routing
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Sack, decode_frame
from rigs.packets import EV, Far, cell, destination, ev_of, ip4
from rigs.rig import CELL, DROPPED, PASSED, PLANES, SENT, Rig, mac_of
from tests.bpf.cells import CellRig, noise, tcp

OVER6 = Routing("ecmp", underlay=6, paths=8)
THEIRS = (2, 0, 3, 1)
"""The peer's number of each of our planes."""
OURS = tuple(THEIRS.index(number) for number in range(PLANES))
"""Our number of each of the peer's."""
EVERY = pytest.mark.parametrize("ours", range(PLANES))
NEIGHBOR = bytes.fromhex("0200000000aa")


@pytest.fixture
def routing() -> Routing:
    return OVER6


@pytest.fixture
def cell_udp() -> bool:
    return True


@pytest.fixture
def other(rig: Rig) -> Far:
    """Return a maker of the frames of h2, which numbers the same planes otherwise."""
    rig.table.peers.set_numbering("h2", Numbering(OURS).word)

    def as_there(host: Host) -> Host:
        ends = [host.endpoints[OURS[number]] for number in range(PLANES)]
        return replace(host, endpoints=tuple(ends))

    hosts = tuple(map(as_there, rig.fabric.hosts))
    fabric = replace(rig.fabric, hosts=hosts)
    return Far(fabric, fabric.host("h1"), fabric.host("h2"), cell_udp=True)


def name(plane: int) -> str:
    return f"plane{plane}"


@EVERY
def test_data_arrives_by_the_plane_of_its_network(rig: Rig, other: Far, ours: int) -> None:
    frame = other.data(5000, ip4(b"in"), ev_of(THEIRS[ours], 3))
    assert rig.arrive(frame, name(ours)).verdict != DROPPED
    assert rig.counted()["rx_packets"] == 1


@EVERY
def test_data_with_our_number_is_refused(rig: Rig, far: Far, other: Far, ours: int) -> None:
    """The sender's number is in it: the same packet with another one was made by nobody."""
    assert rig.receive(far.data(5000, ip4(b"in"), ev_of(ours, 3)), name(ours)).verdict == DROPPED
    assert rig.counted() == {"drop_entropy": 1}


@EVERY
def test_probe_is_answered_by_the_same_network(rig: Rig, other: Far, ours: int) -> None:
    ran = rig.receive(other.probe(0x17, ev_of(THEIRS[ours], 3)), name(ours))
    assert ran.verdict == SENT
    sack = decode_frame(ran.frame)
    assert isinstance(sack, Sack)
    assert sack.envelope.src_port << 16 == ev_of(ours, 3), "sent by our number"
    assert sack.body.entropy == ev_of(THEIRS[ours], 3), "about the path as its sender knows it"
    assert ran.frame[6:12] == mac_of(ours)


@EVERY
def test_update_is_followed_and_answered(rig: Rig, other: Far, ours: int) -> None:
    """It says that the peer takes packets only on this network."""
    mask, ev = 1 << THEIRS[ours], ev_of(THEIRS[ours], 3)
    ran = rig.receive(
        other.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, 7, mask, ev), name(ours)
    )
    assert ran.verdict == SENT
    answer = decode_frame(ran.frame)
    assert isinstance(answer, Control)
    assert answer.envelope.src_port << 16 == ev_of(ours, 3)
    assert rig.table.peers.balance("h2").ports == 1 << ours


@EVERY
def test_plane_that_is_down_there_is_not_used(rig: Rig, other: Far, ours: int) -> None:
    rig.spray(ip4(b"out", src="10.99.0.1", dst="10.99.0.2"))
    ev = ev_of(THEIRS[ours], 3)
    rig.arrive(other.sack(1000, ev=ev, about=ev_of(0, 1), down=1 << THEIRS[ours]), name(ours))
    heard = rig.dp.read("balances", rig.table.peers.indices["h2"], ABI.structs["mrc_balance"])
    assert heard["heard_ports"] & 0xF == 0xF & ~(1 << ours)


def test_plane_that_only_the_peer_has_is_none_of_ours(rig: Rig) -> None:
    rig.table.peers.set_numbering("h2", Numbering((None, 0, None, 1)).word)
    far = Far(rig.fabric, rig.fabric.host("h1"), rig.fabric.host("h2"))
    for plane in range(PLANES):
        frame = far.data(5000, ip4(b"in"), ev_of(plane, 3))
        assert rig.receive(frame, name(plane)).verdict == DROPPED


@EVERY
def test_cell_arrives_by_the_plane_of_its_network(cells: CellRig, other: Far, ours: int) -> None:
    rig = cells.rig
    frame = cell(other, ev_of(THEIRS[ours], 3), tcp(noise(700), inward=True))
    assert rig.receive(frame, name(ours)).verdict == CELL


# ---- a host in between


@pytest.fixture
def clock() -> list[float]:
    """Return the present time, seconds, which tests change."""
    return [0.0]


@pytest.fixture
def relays(rig: Rig, clock: list[float]) -> RelayTable:
    """Return the table of a host that hands on what h2 and h3 send each other."""
    two, three = (rig.fabric.host(each).endpoints for each in ("h2", "h3"))
    handed = (
        Handed(str(two[1]), str(three[2]), 2, "fe80::33"),
        Handed(str(three[2]), str(two[1]), 1, "fe80::22"),
    )
    rig.current = replace(rig.config, handed=handed)
    rig.tune(relays=1)
    table = RelayTable(rig.dp, lambda: rig.current, lambda: clock[0])
    table.learn(2, "fe80::33", NEIGHBOR)
    return table


def between(rig: Rig, target: str = "h3") -> Far:
    """Return a maker of frames that h2 sends by its plane 1 to another host's plane 2."""
    other = rig.fabric.host(target)
    moved = replace(other, endpoints=(other.endpoints[0], other.endpoints[2], *other.endpoints[2:]))
    return Far(rig.fabric, moved, rig.fabric.host("h2"), cell_udp=True)


def test_packets_of_others_are_handed_on(rig: Rig, relays: RelayTable) -> None:
    frame = between(rig).data(1, ip4(b"not for us"))
    ran = rig.receive(frame, "plane1")
    assert ran.verdict == SENT
    assert ran.frame[:12] == NEIGHBOR + mac_of(2)
    assert ran.frame[21] == frame[21] - 1, "one hop less"
    assert ran.frame[12:21] + ran.frame[22:] == frame[12:21] + frame[22:]
    assert rig.counted() == {"relayed": 1}


def test_cells_of_others_are_handed_on(rig: Rig, relays: RelayTable) -> None:
    frame = cell(between(rig), EV, tcp(noise(700), inward=True))
    ran = rig.receive(frame, "plane1")
    assert ran.verdict == SENT
    assert destination(ran.frame) == destination(frame)
    assert rig.counted() == {"relayed": 1}


def test_nothing_is_handed_on_that_was_not_arranged(rig: Rig, relays: RelayTable) -> None:
    """Neither for other addresses, nor the way back before its neighbour is known."""
    strange = Far(rig.fabric, rig.fabric.host("h3"), rig.fabric.host("h2"))
    assert rig.receive(strange.data(1, ip4(b"to h3's plane 1")), "plane1").verdict == PASSED
    back = replace(rig.fabric.host("h3"), endpoints=(ip_address("fe80::3:2"),) * PLANES)
    target = replace(rig.fabric.host("h2"), endpoints=(ip_address("fe80::2:1"),) * PLANES)
    frame = Far(rig.fabric, target, back).data(1, ip4(b"back"))
    assert rig.receive(frame, "plane2").verdict == PASSED
    relays.learn(1, "fe80::22", NEIGHBOR)
    assert rig.receive(frame, "plane2").verdict == SENT


def test_nothing_else_than_udp_is_handed_on(rig: Rig, relays: RelayTable) -> None:
    frame = bytearray(between(rig).data(1, ip4(b"not for us")))
    frame[20] = 58  # ICMPv6
    assert rig.receive(bytes(frame), "plane1").verdict == PASSED


def test_packet_does_not_go_round_for_ever(rig: Rig, relays: RelayTable) -> None:
    frame = bytearray(between(rig).data(1, ip4(b"not for us")))
    frame[21] = 1
    assert rig.receive(bytes(frame), "plane1").verdict == DROPPED
    assert rig.receive(between(rig).data(1, ip4(b"back")), "plane2").verdict == DROPPED, (
        "it would leave by the NIC by which it has come"
    )
    assert rig.counted() == {"drop_relay": 2}


def test_host_that_does_not_forward_hands_nothing_on(rig: Rig, relays: RelayTable) -> None:
    rig.tune(relays=0)
    assert rig.receive(between(rig).data(1, ip4(b"not for us")), "plane1").verdict == PASSED


def test_own_packets_are_delivered_beside_it(rig: Rig, far: Far, relays: RelayTable) -> None:
    assert rig.arrive(far.data(5000, ip4(b"in"))).verdict != DROPPED
    assert rig.counted()["rx_packets"] == 1


def test_what_is_not_wanted_any_more_goes_after_a_while(
    rig: Rig, relays: RelayTable, clock: list[float]
) -> None:
    """A daemon that has just started does not know yet what is wanted."""
    again = RelayTable(rig.dp, lambda: rig.current, lambda: clock[0])
    again.adopt()
    rig.current = replace(rig.config, handed=())
    again.configured()
    frame = between(rig).data(1, ip4(b"not for us"))
    assert rig.receive(frame, "plane1").verdict == SENT
    clock[0] = LINGER_S + 1
    again.configured()
    assert rig.receive(frame, "plane1").verdict == PASSED


def test_addresses_that_are_not_ipv6_are_left_out(
    rig: Rig, relays: RelayTable, clock: list[float]
) -> None:
    rig.current = replace(rig.config, handed=(Handed("192.0.2.1", "192.0.2.2", 2, "fe80::33"),))
    clock[0] = LINGER_S + 1
    relays.configured()
    clock[0] = 2 * LINGER_S + 3
    relays.configured()
    assert rig.receive(between(rig).data(1, ip4(b"x")), "plane1").verdict == PASSED
