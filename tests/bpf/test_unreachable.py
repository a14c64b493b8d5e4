# SPDX-License-Identifier: GPL-2.0-only
"""Destinations that cannot be reached: who is told so, by which packet, and who is not."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6

from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from mrcd.wire.envelope import checksum16
from rigs.packets import Far
from rigs.rig import LINK_MAC, MPR, RING_SLOTS, TC_REDIRECT, TC_SHOT, Ran, Rig, clock_passes
from tests.bpf.cells import ACK, CellRig, network, tcp, udp
from tests.bpf.test_sack import FIRST, resent

SYN, FIN, RST = 0x02, 0x01, 0x04
NOBODY = {4: "10.99.0.77", 6: "fd99::77"}
US = {4: "10.99.0.1", 6: "fd99::1"}
PEER = {4: "10.99.0.2", 6: "fd99::2"}
POD = {4: "198.51.100.9", 6: "2001:db8::9"}
SECOND_NS = 1_000_000_000
TRIAL_NS = 500_000_000
BURST = 50


def packed(
    version: int, source: dict[int, str] | str, target: dict[int, str] | str
) -> tuple[bytes, bytes]:
    ends = (end if isinstance(end, str) else end[version] for end in (source, target))
    one, other = (ip_address(end).packed for end in ends)
    return one, other


def segment(version: int, flags: int, source: object = None, target: object = None) -> bytes:
    """Return a TCP segment without payload from us, or another source, to nobody or to `target`."""
    ends = packed(version, source or US, target or NOBODY)  # type: ignore[arg-type]
    head = struct.pack("!HHIIBBHHH", 40000, 7, 1000, 0, 5 << 4, flags, 500, 0, 0)
    return network(head, 6, ends, ident=0x1234, tos=0, options=b"")


def payload(
    version: int, protocol: int, body: bytes, target: object = None, **wishes: int
) -> bytes:
    ends = packed(version, US, target or NOBODY)  # type: ignore[arg-type]
    return network(body, protocol, ends, ident=7, tos=0, options=b"", **wishes)  # type: ignore[arg-type]


def echo(version: int, kind: int | None = None, target: object = None) -> bytes:
    first = (8 if version == 4 else 128) if kind is None else kind
    protocol = 1 if version == 4 else 58
    return payload(version, protocol, bytes([first, 0]) + bytes(54), target)


def spray(rig: Rig, packet: bytes, interface: str = "back") -> Ran:
    """Run mrc_spray on a packet that comes in at an interface, by default cut and summed."""
    context = bytearray(192)
    struct.pack_into("=I", context, 40, rig.ifindex[interface])
    proto = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    run = bpf.TestRun(
        rig.dp.programs["mrc_spray"], LINK_MAC * 2 + proto + packet, out_size=4096,
        context=bytes(context),
    )  # fmt: skip
    return Ran(run.run(), run.output)


def told(packet: bytes, code: int | None = None) -> bytes:
    """Return the frame that tells of a packet, in the bytes that RFC 792 and RFC 4443 ask for."""
    if code is None:
        code = 1 if packet[0] >> 4 == 4 else 3
    quoted = packet[: min(len(packet), 124) & ~3]
    if packet[0] >> 4 == 4:
        body = bytes([3, code, 0, 0, 0, 0, 0, 0]) + quoted
        body = body[:2] + checksum16(body).to_bytes(2) + body[4:]
        head = struct.pack("!BBHHHBBH", 0x45, 0xC0, 20 + len(body), 0, 0x4000, 64, 1, 0)
        ends = packet[16:20] + packet[12:16]
        head = head[:10] + checksum16(head + ends).to_bytes(2) + ends
        return LINK_MAC * 2 + b"\x08\x00" + head + body
    body = bytes([1, code, 0, 0, 0, 0, 0, 0]) + quoted
    ends = packet[24:40] + packet[8:24]
    total = checksum16(ends + struct.pack("!II", len(body), 58) + body)
    body = body[:2] + total.to_bytes(2) + body[4:]
    return (
        LINK_MAC * 2 + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(body), 58, 64) + ends + body
    )


def unheard(rig: Rig, seconds: float = 10, peer: str = "h2") -> None:
    """Have the daemon say that it does not hear a peer, for so long."""
    rig.edit(
        "peers", rig.table.peers.indices[peer], "mrc_peer",
        unheard_ns=time.monotonic_ns() + int(seconds * SECOND_NS),
    )  # fmt: skip


def tried(rig: Rig, ago_ns: int = TRIAL_NS + 1, heard_ns: int = 0, peer: str = "h2") -> None:
    """Have the last trial of a peer lie so far back, unanswered unless `heard_ns` is given."""
    rig.edit(
        "balances", rig.table.peers.indices[peer], "mrc_balance",
        tried_ns=time.monotonic_ns() - ago_ns, heard_ns=heard_ns,
    )  # fmt: skip


BEGINNINGS = {
    "SYN": lambda version, target: segment(version, SYN, target=target),
    "SYN with ECN": lambda version, target: segment(version, SYN | 0xC0, target=target),
    "echo": lambda version, target: echo(version, target=target),
    "UDP": lambda version, target: payload(version, 17, bytes(200), target),
    "SCTP": lambda version, target: payload(version, 132, bytes(33), target),
    "nothing inside": lambda version, target: payload(version, 17, b"", target),
}
both_versions = pytest.mark.parametrize("version", [4, 6])
beginnings = pytest.mark.parametrize("kind", BEGINNINGS)


# ---- nobody's address


@both_versions
@beginnings
def test_sender_is_told_that_nobody_has_the_address(rig: Rig, kind: str, version: int) -> None:
    packet = BEGINNINGS[kind](version, None)
    ran = spray(rig, packet)
    assert ran.verdict == TC_REDIRECT
    assert ran.frame == told(packet)
    assert rig.counted() == {"drop_no_peer": 1, "unreachable_tx": 1}


@both_versions
def test_scapy_reads_what_the_sender_is_told(rig: Rig, version: int) -> None:
    packet = segment(version, SYN)
    frame = spray(rig, packet).frame
    read = (IP if version == 4 else IPv6)(frame[14:])
    assert (read.src, read.dst) == (NOBODY[version], US[version])
    assert (read.ttl if version == 4 else read.hlim) == 64
    message = read[ICMP if version == 4 else ICMPv6DestUnreach]
    assert (message.type, message.code) == ((3, 1) if version == 4 else (1, 3))
    assert bytes(message.payload) == packet
    for layer, name in ((read, "chksum"), (message, "cksum" if version == 6 else "chksum")):
        found = layer.fields.pop(name, None)
        again = (IP if version == 4 else IPv6)(bytes(read))
        part = again if layer is read else again[type(message)]
        assert found == part.fields.get(name)


@both_versions
def test_forwarded_sender_is_told_too(rig: Rig, version: int) -> None:
    packet = segment(version, SYN, POD)
    assert spray(rig, packet).frame == told(packet)


# ---- from a source that the peer takes nothing from


@pytest.fixture
def checked(rig: Rig) -> Rig:
    """Return the rig with the check of inner addresses on."""
    rig.tune(inner=1)
    return rig


@both_versions
def test_foreign_source_is_told_that_it_is_prohibited(checked: Rig, version: int) -> None:
    packet = segment(version, SYN, POD, PEER)
    assert spray(checked, packet).frame == told(packet, 13 if version == 4 else 5)
    assert checked.counted() == {"drop_not_ours": 1, "unreachable_tx": 1}
    assert spray(checked, segment(version, ACK, POD, PEER)).verdict == TC_SHOT
    assert checked.counted() == {"drop_not_ours": 1}


@both_versions
def test_sources_of_this_host_and_behind_it_are_sent(checked: Rig, version: int) -> None:
    routed = tuple(ip_network(POD[each]) for each in (4, 6))
    mrc0 = replace(checked.config.mrc0, routed=routed)
    checked.current = replace(checked.config, mrc0=mrc0)
    checked.table.peers.add(checked.config.peers)
    for source in (US, POD):
        assert spray(checked, segment(version, SYN, source, PEER)).verdict == TC_REDIRECT
        counted = checked.counted()
        assert counted.get("tx_packets") == 1, counted
    checked.current = checked.config
    checked.table.peers.drop_prefixes()


@both_versions
@pytest.mark.parametrize("error", [True, False])
def test_routers_behind_this_host_may_send_errors(checked: Rig, version: int, error: bool) -> None:
    """Path MTU discovery through a host that routes needs them."""
    quoted = segment(version, ACK, PEER, POD)
    kinds = {4: (3, 8), 6: (2, 128)}[version]
    body = bytes([kinds[not error], 4, 0, 0, 0, 0, 5, 20]) + quoted
    ends = packed(version, POD, PEER)
    packet = network(body, 1 if version == 4 else 58, ends, ident=7, tos=0, options=b"")
    spray(checked, packet)
    counted = checked.counted()
    assert ("tx_packets" in counted, "drop_not_ours" in counted) == (error, not error)


OTHERS = {
    "ACK": segment(4, ACK),
    "SYN ACK": segment(4, SYN | ACK),
    "RST": segment(6, RST),
    "FIN": segment(6, FIN | ACK),
    "echo reply": echo(4, 0),
    "unreachable": echo(4, 3),
    "time exceeded": echo(4, 11),
    "redirect": echo(4, 5),
    "echo reply 6": echo(6, 129),
    "unreachable 6": echo(6, 1),
    "too big 6": echo(6, 2),
    "neighbour 6": echo(6, 135),
    "later fragment": payload(4, 17, bytes(64), fragment=0x0010),
    "fragment 6": payload(6, 44, bytes(64)),
    "hop by hop": payload(6, 0, bytes(64)),
    "to a group": payload(4, 17, bytes(64), "224.0.0.251"),
    "to all": payload(4, 17, bytes(64), "255.255.255.255"),
    "to a group 6": payload(6, 17, bytes(64), "ff02::fb"),
    "from nowhere": segment(4, SYN, "0.0.0.0"),
    "from nowhere 6": segment(6, SYN, "::"),
    "from a group": segment(4, SYN, "224.0.0.1"),
}


@pytest.mark.parametrize("packet", OTHERS.values(), ids=OTHERS)
def test_what_begins_nothing_is_dropped_without_a_word(rig: Rig, packet: bytes) -> None:
    assert spray(rig, packet).verdict == TC_SHOT
    assert rig.counted() == {"drop_no_peer": 1}


def test_source_with_zeros_at_both_ends_is_one(rig: Rig) -> None:
    packet = segment(6, SYN, "64:ff9b::a00:0")
    assert spray(rig, packet).frame == told(packet)


@both_versions
def test_packet_that_leaves_goes_round_first(rig: Rig, version: int) -> None:
    """Its checksum may be left to a NIC; the cutting pair completes it."""
    packet = segment(version, SYN)
    ran = spray(rig, packet, "mrc0")
    assert (ran.verdict, ran.frame[14:]) == (TC_REDIRECT, packet)
    assert rig.counted() == {}
    assert spray(rig, segment(version, ACK), "mrc0").verdict == TC_SHOT
    assert rig.counted() == {"drop_no_peer": 1}


def test_without_cells_nothing_goes_round(rig: Rig) -> None:
    rig.tune(cut_ifindex=0, cut_back_ifindex=0)
    packet = segment(4, SYN)
    assert spray(rig, packet, "mrc0p").frame == told(packet)


def test_messages_have_a_budget(rig: Rig) -> None:
    packet = segment(4, SYN)
    began = time.monotonic_ns()
    for _ in range(4 * BURST):
        spray(rig, packet)
    most = BURST + 2 + (time.monotonic_ns() - began) // 1_000_000
    counted = rig.counted()
    assert counted["drop_no_peer"] == 4 * BURST
    assert BURST <= counted["unreachable_tx"] <= most
    clock_passes(2_000_000)
    assert spray(rig, packet).frame == told(packet)


def test_long_packet_is_quoted_in_part(rig: Rig) -> None:
    packet = payload(4, 17, bytes(range(256)) * 5)
    frame = spray(rig, packet).frame
    assert frame == told(packet)
    assert len(frame) == 14 + 20 + 8 + 124


# ---- peers that are not heard


@both_versions
@beginnings
@pytest.mark.parametrize("state", [ABI.MRC_QP_DOWN, ABI.MRC_QP_RECEIVE, ABI.MRC_QP_ERROR])
def test_peer_without_qps(rig: Rig, kind: str, version: int, state: int) -> None:
    rig.set_state(state)
    counter = "drop_qp_error" if state == ABI.MRC_QP_ERROR else "drop_not_ready"
    packet = BEGINNINGS[kind](version, PEER)
    assert spray(rig, packet).verdict == TC_SHOT  # it may be about to start
    assert rig.counted() == {counter: 1}
    unheard(rig)
    assert spray(rig, packet).frame == told(packet)
    assert rig.counted() == {counter: 1, "unreachable_tx": 1}
    unheard(rig, seconds=-1)  # the daemon died meanwhile
    assert spray(rig, packet).verdict == TC_SHOT
    assert rig.counted() == {counter: 1}


def sent_as_ever(rig: Rig, packet: bytes) -> bool:
    """Return whether mrc_spray sends a packet to the peer."""
    rig.counted()
    ran = spray(rig, packet)
    counted = rig.counted()
    return ran.verdict == TC_REDIRECT and counted.get("tx_packets") == 1


@both_versions
def test_first_connection_is_tried_and_then_refused(rig: Rig, version: int) -> None:
    packet = segment(version, SYN, target=PEER)
    unheard(rig)
    assert sent_as_ever(rig, packet)
    assert sent_as_ever(rig, packet)  # the trial has not lasted yet
    tried(rig)
    assert spray(rig, packet).frame == told(packet)
    assert rig.counted() == {"drop_unreachable": 1, "unreachable_tx": 1}
    assert spray(rig, segment(version, SYN, POD, PEER)).frame == told(
        segment(version, SYN, POD, PEER)
    )


def test_connection_to_a_peer_that_is_heard_is_not_refused(rig: Rig) -> None:
    tried(rig)
    assert sent_as_ever(rig, segment(4, SYN, target=PEER))
    unheard(rig, seconds=-1)
    assert sent_as_ever(rig, segment(4, SYN, target=PEER))


def test_established_connections_are_left_alone(rig: Rig) -> None:
    unheard(rig)
    tried(rig)
    for flags in (ACK, SYN | ACK, FIN | ACK, RST):
        assert sent_as_ever(rig, segment(4, flags, target=PEER))
        assert sent_as_ever(rig, segment(6, flags, target=PEER))


def test_data_path_that_answers_ends_the_refusal(rig: Rig, far: Far) -> None:
    """The daemon of the peer is dead, and its programs are not."""
    unheard(rig)
    assert sent_as_ever(rig, segment(4, SYN, target=PEER))
    tried(rig)
    rig.arrive(far.sack(FIRST))
    assert sent_as_ever(rig, segment(4, SYN, target=PEER))  # a trial again
    tried(rig)
    assert not sent_as_ever(rig, segment(4, SYN, target=PEER))


def test_answer_to_a_probe_ends_the_refusal(rig: Rig, far: Far) -> None:
    unheard(rig)
    tried(rig)
    ev = next(path.ev for path in rig.paths(0) if path.plane == 1)
    probe_id = rig.path(ev)["slot"] << 9 | 1
    rig.edit_path(ev, probe_id=probe_id, probe_ns=time.monotonic_ns())
    rig.receive(far.probe_reply(probe_id, ev))
    assert rig.counted()["probe_reply"] == 1
    assert sent_as_ever(rig, segment(4, SYN, target=PEER))


@both_versions
@pytest.mark.parametrize("kind", ["echo", "UDP", "SCTP"])
def test_datagram_is_kept_and_its_sender_told(rig: Rig, kind: str, version: int) -> None:
    packet = BEGINNINGS[kind](version, PEER)
    unheard(rig)
    tried(rig)
    assert spray(rig, packet).frame == told(packet)
    assert rig.counted() == {"tx_packets": 1, "tx_bytes": len(packet), "unreachable_tx": 1}
    assert rig.free_slots("tx_free") == RING_SLOTS - 1
    assert rig.tx()["next"] == FIRST + 1
    rig.tune(rto_min_ns=1)
    rig.edit("txs", 0, "mrc_tx", progress_ns=0)
    rig.tick()
    assert [each.payload for each in resent(rig)] == [packet]


def test_datagram_that_leaves_goes_round_before_it_is_kept(rig: Rig) -> None:
    packet = payload(4, 17, bytes(20), PEER)
    unheard(rig)
    tried(rig)
    ran = spray(rig, packet, "mrc0")
    assert (ran.verdict, ran.frame[14:]) == (TC_REDIRECT, packet)
    assert rig.free_slots("tx_free") == RING_SLOTS
    assert rig.counted() == {}


def test_datagram_without_room_is_dropped_and_its_sender_told(rig: Rig) -> None:
    packet = payload(4, 17, bytes(20), PEER)
    unheard(rig)
    tried(rig)
    rig.edit("txs", 0, "mrc_tx", next=FIRST + MPR)
    assert spray(rig, packet).frame == told(packet)
    assert rig.counted() == {"drop_window": 1, "unreachable_tx": 1}


def test_peer_that_takes_packets_on_no_plane(rig: Rig) -> None:
    unheard(rig)
    tried(rig)
    rig.edit("balances", rig.table.peers.indices["h2"], "mrc_balance", ports=0, tried_ns=1)
    packet = segment(4, SYN, target=PEER)
    assert spray(rig, packet).frame == told(packet)
    packet = echo(4, target=PEER)
    assert spray(rig, packet).frame == told(packet)
    assert rig.counted() == {"drop_unreachable": 1, "drop_no_plane": 1, "unreachable_tx": 2}
    assert spray(rig, segment(4, ACK, target=PEER)).verdict == TC_SHOT
    assert rig.counted() == {"drop_no_plane": 1}


def test_another_peer_is_not_meant(rig: Rig) -> None:
    unheard(rig, peer="h3")
    tried(rig, peer="h3")
    assert sent_as_ever(rig, segment(4, SYN, target=PEER))


# ---- cells


@both_versions
def test_cell__connection_is_refused(cells: CellRig, rig: Rig, version: int) -> None:
    packet = segment(version, SYN, target=PEER)
    unheard(rig)
    tried(rig)
    assert spray(rig, packet).frame == told(packet)
    assert rig.counted() == {"drop_unreachable": 1, "unreachable_tx": 1}


@both_versions
def test_cell__datagram_is_kept_and_its_sender_told(cells: CellRig, rig: Rig, version: int) -> None:
    packet = udp(b"kept", version=version)
    unheard(rig)
    tried(rig)
    assert spray(rig, packet).frame == told(packet)
    assert rig.counted() == {"tx_packets": 1, "tx_bytes": len(packet), "unreachable_tx": 1}
    rig.tune(rto_min_ns=1)
    rig.edit("txs", 0, "mrc_tx", progress_ns=0)
    rig.tick()
    assert [cell.payload for cell, _frame in cells.cells_sent()] == [packet]


def test_cell__established_connections_are_left_alone(cells: CellRig, rig: Rig) -> None:
    unheard(rig)
    tried(rig)
    spray(rig, tcp(b"more"))
    assert rig.counted()["tx_packets"] == 1
