# SPDX-License-Identifier: GPL-2.0-only
"""Inner addresses: what comes out of mrc0 is from the peer that sent it, and for this host."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from mrcd.wire.packet import Sack, decode_frame
from rigs.packets import Far, ip4, ip6
from rigs.rig import Rig
from tests.bpf.cells import MSS, CellRig, network, piece, seq_of
from tests.bpf.test_cell_arrive import ALL_FREE, FIRST, large
from tests.bpf.test_receive import mark_of
from tests.bpf.test_unreachable import PEER, US

GOOD = {4: ip4(b"good"), 6: ip6(b"good")}
FOREIGN = {  # h3's address, one that nobody has, a loopback address
    4: [ip4(b"bad", src=src) for src in ("10.99.0.3", "192.0.2.1", "127.0.0.1", "10.99.0.1")],
    6: [ip6(b"bad", src=src) for src in ("fd99::3", "2001:db8::1", "::1", "fe80::1", "fd99::1")],
}
ELSEWHERE = {  # h2's own, h3's, nobody's, broadcast, multicast, loopback
    4: [
        ip4(b"bad", dst=dst)
        for dst in ("10.99.0.2", "10.99.0.3", "192.0.2.1", "10.99.0.255", "224.0.0.1", "127.0.0.1")
    ],
    6: [ip6(b"bad", dst=dst) for dst in ("fd99::2", "2001:db8::1", "ff02::1", "::1", "fe80::1")],
}
THIRD = {4: "10.99.0.3", 6: "fd99::3"}
WRONG = [
    (packet, counter)
    for cases, counter in ((FOREIGN, "drop_foreign"), (ELSEWHERE, "drop_not_here"))
    for packets in cases.values()
    for packet in packets
]


@pytest.fixture
def checked(rig: Rig) -> Rig:
    """Yield the rig with the check on."""
    rig.tune(inner=1)
    return rig


def answered(rig: Rig, frame: bytes) -> int:
    """Return the cumulative PSN of the SACK that a frame draws."""
    sack = decode_frame(rig.arrive(frame).frame)
    assert isinstance(sack, Sack)
    return sack.body.cack


@pytest.mark.parametrize("version", [4, 6])
def test_packets_between_the_hosts_are_delivered(checked: Rig, far: Far, version: int) -> None:
    checked.arrive(far.data(5000, GOOD[version]))
    assert checked.delivered() == [GOOD[version]]
    assert checked.counted() == {"rx_packets": 1, "rx_bytes": len(GOOD[version])}


@pytest.mark.parametrize(("packet", "counter"), WRONG)
def test_others_are_acknowledged_but_not_delivered(
    checked: Rig, far: Far, packet: bytes, counter: str
) -> None:
    assert answered(checked, far.data(5000, packet, ackreq=True)) == 5000
    assert checked.delivered() == []
    assert checked.counted() == {counter: 1, "sack_tx": 1}
    assert answered(checked, far.data(5001, GOOD[4], ackreq=True)) == 5001
    assert checked.delivered() == [GOOD[4]]
    assert answered(checked, far.data(5000, packet, rtx=True)) == 5001  # a copy is one
    assert checked.counted()["rx_duplicate"] == 1


@pytest.mark.parametrize(("packet", "counter"), WRONG)
def test_packets_that_waited_are_checked_too(
    checked: Rig, far: Far, packet: bytes, counter: str
) -> None:
    free = checked.free_slots("rx_free")
    for psn, each in ((5001, GOOD[4]), (5002, packet), (5003, GOOD[6])):
        checked.arrive(far.data(psn, each))
    assert checked.delivered() == []
    assert checked.counted() == {"rx_held": 3}
    checked.arrive(far.data(5000, packet))
    run_drain(checked)
    assert checked.delivered() == [GOOD[4], GOOD[6]]
    counted = checked.counted()
    assert (counted[counter], counted["rx_packets"]) == (2, 2)
    assert (checked.rx()["next"], checked.rx()["waiting"]) == (5004, 0)
    assert checked.free_slots("rx_free") == free


def run_drain(rig: Rig) -> None:
    """Let the clock release what the arrival has left."""
    rig.tick(4)


def test_without_the_check_every_address_is_taken(rig: Rig, far: Far) -> None:
    for number, (packet, _counter) in enumerate(WRONG):
        rig.arrive(far.data(5000 + number, packet))
    assert rig.delivered() == [packet for packet, _counter in WRONG]


def test_prefixes_behind_the_peer_and_behind_this_host(checked: Rig, far: Far) -> None:
    rig = checked
    h2, h3 = rig.config.peers
    wide = replace(
        h2, allowed=(*h2.allowed, ip_network("192.0.2.0/24"), ip_network("2001:db8:2::/48"))
    )
    routed = (ip_network("198.51.100.0/24"), ip_network("2001:db8:1::/48"))
    mrc0 = replace(rig.config.mrc0, routed=routed)
    rig.current = replace(rig.config, mrc0=mrc0, peers=(wide, h3))
    rig.table.peers.add((wide, h3))
    taken = [
        ip4(b"a", src="192.0.2.7", dst="198.51.100.9"),
        ip6(b"b", src="2001:db8:2::7", dst="2001:db8:1::9"),
        GOOD[4],
    ]
    for number, packet in enumerate(taken):
        rig.arrive(far.data(5000 + number, packet))
    assert rig.delivered() == taken
    rig.current = rig.config
    gone = {"192.0.2.0/24", "2001:db8:2::/48", "198.51.100.0/24", "2001:db8:1::/48"}
    assert set(rig.table.peers.drop_prefixes()) == gone
    rig.counted()
    rig.arrive(far.data(5003, taken[0]))
    rig.arrive(far.data(5004, ip4(b"c", dst="198.51.100.9")))
    assert rig.delivered() == []
    assert rig.counted() == {"drop_foreign": 1, "drop_not_here": 1}


ROUTER = {4: "192.0.2.1", 6: "2001:db8::1"}
ERRORS = [(4, kind, True) for kind in (3, 11, 12)] + [(6, kind, True) for kind in (1, 2, 3, 4)]
NO_ERRORS = [(4, kind, False) for kind in (0, 5, 8)] + [(6, kind, False) for kind in (128, 129)]


def error(version: int, kind: int, target: str) -> bytes:
    """Return what a router says to h1 of a packet that h1 sent to an address."""
    ends = [ip_address(end).packed for end in (ROUTER[version], US[version], US[version], target)]
    quoted = network(bytes(8), 17, (ends[2], ends[3]), ident=7, tos=0, options=b"")
    body = bytes([kind, 0, 0, 0, 0, 0, 0, 0]) + quoted
    return network(body, 1 if version == 4 else 58, (ends[0], ends[1]), ident=7, tos=0, options=b"")


@pytest.mark.parametrize(("version", "kind", "taken"), ERRORS + NO_ERRORS)
def test_routers_behind_the_peer_may_send_errors(
    checked: Rig, far: Far, version: int, kind: int, taken: bool
) -> None:
    """They come from addresses of their own, and path MTU discovery needs them."""
    packet = error(version, kind, PEER[version])
    checked.arrive(far.data(5000, packet))
    assert checked.delivered() == [packet] * taken
    assert ("drop_foreign" in checked.counted()) != taken


@pytest.mark.parametrize("version", [4, 6])
def test_error_about_a_packet_to_another_peer_is_foreign(
    checked: Rig, far: Far, version: int
) -> None:
    checked.arrive(far.data(5000, error(version, 3 if version == 4 else 1, THIRD[version])))
    assert checked.delivered() == []
    assert checked.counted()["drop_foreign"] == 1


@pytest.mark.parametrize("version", [4, 6])
def test_error_with_options_or_in_part_is_foreign(checked: Rig, far: Far, version: int) -> None:
    whole = error(version, 3 if version == 4 else 1, PEER[version])
    cut = whole[: len(whole) - 30]
    checked.arrive(
        far.data(5000, cut[:2] + len(cut).to_bytes(2) + cut[4:] if version == 4 else cut)
    )
    assert checked.delivered() == []


def test_cell_with_an_error_is_delivered(cells: CellRig, rig: Rig) -> None:
    rig.tune(inner=1)
    packet = error(4, 3, PEER[4])
    cells.arrive(cells.far.cell(FIRST, packet))
    assert cells.delivered() == [packet]


def test_the_check_comes_after_the_window(checked: Rig, far: Far) -> None:
    """What is not taken is refused for that reason, whatever its addresses are."""
    frame = far.data(5000 + 4096, FOREIGN[4][0])
    ran = checked.receive(frame)
    assert mark_of(ran.frame)["qp"] == 0
    checked.tc("mrc_deliver", ran.frame)
    assert "drop_psn" in checked.counted()


# ---- cells


def of_tcp(packet: bytes, **ends: str) -> bytes:
    """Return a packet of TCP with other addresses of IPv4; no checksum is looked at."""
    source, target = packet[12:16], packet[16:20]
    made = ip4(**ends)  # type: ignore[arg-type]
    source, target = made[12:16], made[16:20]
    return packet[:12] + source + target + packet[20:]


@pytest.mark.parametrize(
    ("ends", "counter"),
    [({"src": "10.99.0.3"}, "drop_foreign"), ({"dst": "10.99.0.3"}, "drop_not_here")],
)
def test_cells_are_acknowledged_but_not_delivered(
    cells: CellRig, rig: Rig, ends: dict[str, str], counter: str
) -> None:
    rig.tune(inner=1)
    bad = of_tcp(large(3), **ends)
    frame = cells.far.cell(FIRST, bad, mss=MSS)
    assert frame[cells.places.inner :] == bad
    cells.bring(frame, MSS)
    assert cells.delivered() == []
    assert rig.counted() == {counter: 3}
    assert (rig.rx()["next"], rig.rx()["waiting"]) == (FIRST + 3, 0)
    good = ip4(b"good")
    cells.arrive(cells.far.cell(FIRST + 3, good))
    assert cells.delivered() == [good]
    cells.arrive(cells.far.cell(FIRST + 4, ip4(b"bad", **ends)))  # type: ignore[arg-type]
    assert cells.delivered() == []
    assert rig.counted()[counter] == 1
    assert rig.rx()["next"] == FIRST + 5


@pytest.mark.parametrize(
    ("ends", "counter"),
    [({"src": "10.99.0.3"}, "drop_foreign"), ({"dst": "10.99.0.3"}, "drop_not_here")],
)
def test_cells_that_waited_are_checked_too(
    cells: CellRig, rig: Rig, ends: dict[str, str], counter: str
) -> None:
    rig.tune(inner=1)
    bad, good = of_tcp(large(3), **ends), ip4(b"good")
    cells.bring(cells.far.cell(FIRST + 1, bad, mss=MSS), MSS)
    part = piece(bad, MSS, 2, 3)
    assert seq_of(part) != seq_of(bad)
    cells.arrive(cells.far.cell(FIRST + 4, ip4(b"bad", **ends)))  # type: ignore[arg-type]
    cells.arrive(cells.far.cell(FIRST + 5, good))
    assert rig.counted()["rx_held"] == 5
    cells.arrive(cells.far.cell(FIRST, good))
    rig.tick(8)
    assert cells.delivered() == [good, good]
    assert rig.rx()["next"] == FIRST + 6
    assert rig.counted()[counter] == 4
    assert cells.slots() == ALL_FREE
