# SPDX-License-Identifier: GPL-2.0-only
"""Single packets of which a NIC is to complete a checksum that no copy could be given.

The copy is what is sent when the packet is lost, and whenever it had to wait for the window.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mrcd.wire.abi import ABI
from mrcd.wire.envelope import checksum16
from mrcd.wire.packet import Data, decode_frame
from rigs.rig import RING_SLOTS, Rig
from tests.bpf.cells import (
    IN_EACH_ENVELOPE,
    CellRig,
    ends_of,
    network,
    noise,
    pseudo_sum,
    tcp,
    udp,
)
from tests.bpf.test_cell_resend import overdue, resent_by_clock
from tests.bpf.test_window import TARGET_NS, widen

FIRST = 1000
ROOM = 1 << 20

pytestmark = IN_EACH_ENVELOPE


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A packet as its sender leaves it to a NIC, and as the NIC would send it."""

    left: bytes
    start: int  # the first byte that the NIC sums up
    field: int  # where it writes the sum
    whole: bytes


def header_length(packet: bytes) -> int:
    return 40 if packet[0] >> 4 == 6 else (packet[0] & 15) * 4


def inside(around: Callable[[bytes], bytes], inner: Callable[[bool], bytes]) -> Unfinished:
    """Return what `around` makes of an inner packet of TCP."""
    left, whole = inner(True), inner(False)
    outer, finished = around(left), around(whole)
    start = outer.index(left) + header_length(left)
    return Unfinished(outer, start, start + 16, finished)


def of_tcp(version: int) -> Callable[[bool], bytes]:
    return lambda partial: tcp(noise(301), version=version, partial=partial)


def in_ip(protocol: int, version: int, front: bytes = b"") -> Callable[[bytes], bytes]:
    return lambda packet: network(
        front + packet, protocol, ends_of(version, inward=False), ident=3, tos=0, options=b""
    )


def in_udp(version: int, front: bytes) -> Callable[[bytes], bytes]:
    return lambda packet: udp(front + packet, version=version, summed=False)


def with_outer_sum(version: int) -> Unfinished:
    """Return VXLAN whose outer checksum is right for the inner packet that is finished."""
    bare = inside(in_udp(version, VXLAN), of_tcp(4))
    outer = udp(VXLAN + tcp(noise(301)), version=version)
    at = header_length(outer) + 6
    left = bare.left[:at] + outer[at : at + 2] + bare.left[at + 2 :]
    return Unfinished(left, bare.start, bare.field, outer)


def behind_options(version: int, protocol: int) -> Unfinished:
    """Return a packet with options of IP, or with a header of options in IPv6."""
    ends = ends_of(version, inward=False)
    head = struct.pack("!HHIIBBHHH", 40000, 7, 1, 99, 5 << 4, 16, 500, 0, 0)
    at = 16
    if protocol == 17:
        head, at = struct.pack("!HHHH", 40000, 7, 8 + 301, 0), 6
    body = head + noise(301)
    half = pseudo_sum(*ends, protocol, len(body))
    summed = body[:at] + struct.pack("!H", half) + body[at + 2 :]
    total = checksum16(summed + bytes(len(summed) % 2))
    finished = body[:at] + struct.pack("!H", total) + body[at + 2 :]
    if version == 4:

        def packet(inner: bytes) -> bytes:
            return network(inner, protocol, ends, ident=3, tos=0, options=b"\x01" * 8)
    else:

        def packet(inner: bytes) -> bytes:
            front = bytes([protocol, 0, 1, 4, 0, 0, 0, 0])
            return network(front + inner, 60, ends, ident=3, tos=0, options=b"")

    start = 28 if version == 4 else 48
    return Unfinished(packet(summed), start, start + at, packet(finished))


VXLAN = struct.pack("!II", 1 << 27, 7 << 8) + bytes(12) + b"\x08\x00"
GENEVE = struct.pack("!BBHI", 1, 0, 0x6558, 7 << 8) + struct.pack("!HBBI", 1, 2, 1, 9) + bytes(
    12
) + b"\x86\xdd"  # fmt: skip
GRE = struct.pack("!HH", 0, 0x0800)
KINDS = {
    f"{name} over {version}": make
    for version in (4, 6)
    for name, make in {
        "vxlan": inside(in_udp(version, VXLAN), of_tcp(4)),
        "vxlan with a sum": with_outer_sum(version),
        "geneve": inside(in_udp(version, GENEVE), of_tcp(6)),
        "4in": inside(in_ip(4, version), of_tcp(4)),
        "6in": inside(in_ip(41, version), of_tcp(6)),
        "gre": inside(in_ip(47, version, GRE), of_tcp(4)),
        "tcp behind options": behind_options(version, 6),
        "udp behind options": behind_options(version, 17),
    }.items()
}


def send(cells: CellRig, kind: Unfinished) -> None:
    cells.send_unfinished(kind.left, kind.start, kind.field)


@pytest.mark.parametrize("name", KINDS)
def test_packet_and_its_copies_have_the_whole_checksum(cells: CellRig, rig: Rig, name: str) -> None:
    send(cells, KINDS[name])
    ((first, _frame),) = cells.cells_sent()
    assert (first.cell.psn, first.payload) == (FIRST, KINDS[name].whole)
    (again,) = resent_by_clock(cells)
    assert again.payload == KINDS[name].whole


@pytest.mark.parametrize("name", KINDS)
def test_packet_that_waited_has_the_whole_checksum(cells: CellRig, rig: Rig, name: str) -> None:
    rig.tune(cc_target_ns=TARGET_NS, cc_rate=25_000)
    rig.edit("txs", 0, "mrc_tx", cwnd=1, inflight=1)
    send(cells, KINDS[name])
    assert not cells.cells_sent()
    assert rig.tx()["held"] == 1
    widen(rig)
    rig.tick()
    ((found, _frame),) = cells.cells_sent()
    assert found.payload == KINDS[name].whole


@pytest.mark.parametrize("version", [4, 6])
def test_packets_in_the_framing_of_mrc_leave_with_the_whole_checksum(
    cells: CellRig, rig: Rig, version: int
) -> None:
    """No NIC looks for one inside of them."""
    rig.edit("qps", 0, "mrc_qp", framing=ABI.MRC_FRAMING_MRC)
    start = 20 if version == 4 else 40
    packet = tcp(noise(300), version=version, partial=True)
    cells.send_unfinished(packet, start, start + 16)
    ((_plane, frame),) = cells.sent()
    decoded = decode_frame(frame)
    assert isinstance(decoded, Data)
    assert decoded.payload == tcp(noise(300), version=version)


def test_later_packets_of_its_flow_follow_it(cells: CellRig, rig: Rig) -> None:
    """It comes back by a CPU's backlog, where they would overtake it."""
    kind = KINDS["vxlan over 4"]
    cells.send_unfinished(kind.left, kind.start, kind.field, back=False)
    cells.send_unfinished(kind.left, kind.start, kind.field, back=False)
    assert [frame[14:] for frame in rig.back.take()] == [kind.whole] * 2
    assert (rig.tx()["cut_flows"].bit_count(), rig.tx()["cut_pending"]) == (1, 2)
    rig.edit("txs", 0, "mrc_tx", cut_flows=(1 << 64) - 1)
    assert rig.spray(kind.whole).frame[14:] == kind.whole
    assert rig.tx()["cut_pending"] == 3


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("make", [tcp, udp])
def test_what_a_copy_can_be_given_goes_straight(
    cells: CellRig, rig: Rig, make: Callable[..., bytes], version: int
) -> None:
    start = 20 if version == 4 else 40
    packet = make(noise(300), version=version, partial=True)
    cells.send_unfinished(packet, start, start + (16 if make is tcp else 6))
    assert not rig.back.take()
    ((found, _frame),) = cells.cells_sent()
    assert found.payload == packet  # its NIC completes it
    assert rig.tx()["cut_flows"] == 0
    overdue(rig)
    rig.tick()
    ((again, _frame),) = cells.cells_sent()
    assert again.payload == make(noise(300), version=version)
    assert rig.free_slots("tx_free") == RING_SLOTS - 1
