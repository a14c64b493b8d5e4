# SPDX-License-Identifier: GPL-2.0-only
"""Cells in UDP: which packets are, what is wrong with one, and what routers may change.

What cells do in every envelope is in test_cell_spray.py, test_cell_arrive.py and test_cell_lies.py.
"""

from __future__ import annotations

import struct

import pytest

from mrcd.fabric.routing import SRV6, Routing
from mrcd.wire.packet import WIRE
from rigs.packets import CELL_PORT, OUTER, Far, cell, numbered, summed
from rigs.rig import (
    CELL,
    DROPPED,
    HANDED_CELL,
    PASSED,
    TC_SHOT,
    TC_UNSPEC,
    Ran,
    Rig,
)
from tests.bpf.cells import CellRig
from tests.bpf.test_cell_lies import FIRST, refused

OVER4, OVER6 = Routing("ecmp", underlay=4), Routing("ecmp", underlay=6)
EV = 0x10020000
UDP4, UDP6 = OUTER + WIRE.MRC_IP4_LEN, OUTER + WIRE.MRC_IP6_LEN

pytestmark = pytest.mark.parametrize(
    ("routing", "cell_udp"),
    [(SRV6, True), (OVER6, True), (OVER4, True)],
    ids=["usids", "udp6", "udp4"],
)


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


@pytest.fixture
def udp(routing: Routing) -> int:
    """Return where UDP is in a frame."""
    return UDP4 if routing.underlay == 4 else UDP6


def poked(frame: bytes, at: int, value: bytes) -> bytes:
    """Return a frame with other bytes, and the right checksum of IPv4."""
    out = frame[:at] + value + frame[at + len(value) :]
    return summed(out) if out[OUTER] >> 4 == 4 else out


# ---- which packets are cells


def test_port_makes_a_cell(rig: Rig, far: Far, udp: int) -> None:
    """What follows is mrc_cell's, whatever it is."""
    whole = cell(far, EV, numbered(1))
    for frame in (whole, whole[: udp + 8 + 50], poked(whole, udp + 8, b"\xff" * 22)):
        ran = rig.receive(frame)
        if rig.dp.sizes.xdp:  # the program at tc is the next one
            assert (ran.verdict, ran.frame) == (PASSED, frame)
            assert rig.tc("mrc_deliver", frame) == Ran(HANDED_CELL, frame)
        else:
            assert (ran.verdict, ran.frame) == (CELL, frame)
    assert rig.counted() == {}


FOREIGN = {
    "VXLAN's own port": lambda frame, udp: poked(frame, udp + 2, (4789).to_bytes(2, "big")),
    "port of cells in the source": lambda frame, udp: poked(frame, udp, CELL_PORT + b"\0\x07"),
    "UDP-Lite": lambda frame, udp: poked(frame, 23 if udp == UDP4 else 20, b"\x88"),
}
FOREIGN4 = {
    "options": lambda frame, _udp: poked(frame, OUTER, b"\x46"),
    "fragment, more to come": lambda frame, _udp: poked(frame, OUTER + 6, b"\x20"),
    "fragment, the last": lambda frame, _udp: poked(frame, OUTER + 7, b"\x01"),
    "another version": lambda frame, _udp: poked(frame, OUTER, b"\x65"),
}


def test_nearly_a_cell_is_none(rig: Rig, far: Far, udp: int) -> None:
    """Without uSIDs it is left to the stack. With them the address is MRC's alone."""
    routed = rig.fabric.routing.mode == "ecmp"
    frame = cell(far, EV, numbered(1))
    for what, change in (FOREIGN | FOREIGN4 if udp == UDP4 else FOREIGN).items():
        other = change(frame, udp)
        ran = rig.receive(other)
        assert ran.verdict == (PASSED if routed else DROPPED), what
        if routed:
            assert ran.frame == other
            assert rig.counted() == {}
        assert rig.tc("mrc_deliver", other).verdict == TC_UNSPEC, what
        rig.counted()


def test_too_short_for_a_port_is_no_cell(rig: Rig, far: Far, udp: int) -> None:
    frame = cell(far, EV, numbered(1))
    for length in range(max(udp, 54), udp + 4):
        assert rig.receive(frame[:length]).verdict != CELL


# ---- what is wrong with one


def test_words_of_vxlan(cells: CellRig, rig: Rig, udp: int) -> None:
    """There is one right value of every bit that says nothing."""
    single, vxlan = cells.far.cell(FIRST, numbered(1)), udp + 8
    for what, at, value in (
        ("no VNI", vxlan, b"\0"),
        ("group policy", vxlan, b"\x88"),
        ("another protocol inside", vxlan, b"\x0c"),
        ("remote checksum offload", vxlan, b"\x28"),
        ("reserved", vxlan + 3, b"\1"),
        ("VNI beyond a label", vxlan + 4, b"\x10"),
        ("reserved byte", vxlan + 7, b"\1"),
        ("half of the mark", cells.places.state, b"\x80"),
        ("no mark", cells.places.state, b"\0"),
        ("ARP inside", cells.places.inner - 2, b"\x08\x06"),
        ("a VLAN inside", cells.places.inner - 2, b"\x81\0"),
    ):
        assert refused(cells, rig, poked(single, at, value)) == "drop_cell", what
    cells.arrive(single)
    assert cells.delivered() == [numbered(1)]


def test_lengths(cells: CellRig, rig: Rig, udp: int) -> None:
    """Both headers tell how much there is."""
    single = cells.far.cell(FIRST, numbered(1))
    ip = OUTER + (2 if udp == UDP4 else 4)
    for at in (ip, udp + 4):
        right = int.from_bytes(single[at : at + 2], "big")
        for wrong in (0, 8, 29, 30, right - 1, right + 1, 0xFFFF):
            frame = poked(single, at, wrong.to_bytes(2, "big"))
            assert refused(cells, rig, frame) == "drop_length", (at, wrong)
    both = poked(poked(single, ip, struct.pack("!H", 0)), udp + 4, struct.pack("!H", 0))
    assert refused(cells, rig, both) == "drop_length"


def test_checksum_of_ipv4(cells: CellRig, rig: Rig, udp: int) -> None:
    if udp != UDP4:
        pytest.skip("IPv6 has none")
    single = cells.far.cell(FIRST, numbered(1))
    for at in (OUTER + 1, OUTER + 5, OUTER + 8, OUTER + 10, OUTER + 11, OUTER + 13):
        frame = bytearray(single)
        frame[at] ^= 0x40
        assert refused(cells, rig, bytes(frame)) == "drop_checksum", at


# ---- what routers and switches may change


def test_what_routers_may_change_does_not_matter(cells: CellRig, rig: Rig, udp: int) -> None:
    """A router that translates addresses changes them, and counts hops; the tag is elsewhere."""
    source = OUTER + (12 if udp == UDP4 else 8)
    changes = [
        ("source port", udp, b"\x27\x10"),
        ("source address", source, b"\xc6\x33\x64\x07" if udp == UDP4 else b"\x20\1\x0d\xb8"),
        ("hops", OUTER + (8 if udp == UDP4 else 7), b"\1"),
        ("UDP checksum", udp + 6, b"\x12\x34"),
        ("class", OUTER, b"\x45\xb8" if udp == UDP4 else b"\x6b\x80"),
    ]
    if udp == UDP4:
        changes += [("identification", OUTER + 4, b"\xab\xcd"), ("no DF", OUTER + 6, b"\0")]
    else:
        changes += [("flow label", OUTER + 2, b"\x12\x34")]
    for number, (what, at, value) in enumerate(changes):
        packet = numbered(number)
        frame = poked(cells.far.cell(FIRST + number, packet), at, value)
        assert rig.receive(frame).verdict == (PASSED if rig.dp.sizes.xdp else CELL), what
        assert cells.arrive(frame).verdict == TC_SHOT, what
        assert cells.delivered() == [packet], what
