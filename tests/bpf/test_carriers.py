# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel knows of a packet's checksum, when the packet becomes another one.

A packet from an interface of the same machine leaves its checksum to a NIC. If that NIC is
asked after the packet has become an answer, it overwrites two bytes of the answer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrcd.linux import bpf, bpfmap, ethtool
from mrcd.wire.abi import ABI
from mrcd.wire.envelope import checksum16
from mrcd.wire.packet import WIRE, Control, Neth, Packet, Peth, Sack, decode_frame, encode_frame
from rigs.packets import ev_of, is_cell, trimmed
from rigs.rig import PLANES, WINDOW, Rig, popped, write_planes
from tests.bpf.cells import CellRig, noise, tcp

FIRST = 5000
_SOL_PACKET, _PACKET_AUXDATA, _NOT_READY = 263, 8, 1 << 3


@pytest.fixture
def summing(cells: CellRig) -> Iterator[None]:
    """Have planes complete checksums before they send, as NICs do."""
    for plane in range(PLANES):
        ethtool.set_features(f"plane{plane}", tx_checksum=False)
    yield
    for plane in range(PLANES):
        ethtool.set_features(f"plane{plane}", tx_checksum=True)


def answer(cells: CellRig) -> Packet:
    """Return the one packet sent that is no cell, which must be whole."""
    ((_plane, frame),) = [one for one in cells.sent() if not is_cell(one[1])]
    decoded = decode_frame(frame)
    assert encode_frame(decoded, frame[:6], frame[6:12]) == frame
    assert decoded.envelope == cells.far.our_envelope(decoded.envelope.ev)
    return decoded


@pytest.fixture(params=[4, 6], ids=["IPv4", "IPv6"])
def packet(request: pytest.FixtureRequest) -> bytes:
    """Return a packet whose checksum is left to a NIC, no longer than an acknowledgement."""
    return tcp(b"", version=request.param, inward=True, partial=True)


@pytest.mark.usefixtures("summing")
class TestAnswers:
    def test_to_what_is_delivered(self, cells: CellRig, packet: bytes) -> None:
        cells.bring(cells.far.cell(FIRST, packet, ackreq=True), 0)
        sack = answer(cells)
        assert isinstance(sack, Sack)
        assert sack.body.cack == FIRST
        assert len(cells.delivered()) == 1

    def test_to_what_is_held(self, cells: CellRig, packet: bytes) -> None:
        cells.bring(cells.far.cell(FIRST + 1, packet, ackreq=True), 0)
        sack = answer(cells)
        assert isinstance(sack, Sack)
        assert sack.body.bitmap == 2

    def test_to_a_duplicate(self, cells: CellRig, packet: bytes) -> None:
        cells.bring(cells.far.cell(FIRST - 1, packet), 0)
        assert isinstance(answer(cells), Sack)

    def test_to_what_has_no_place(self, cells: CellRig, packet: bytes) -> None:
        cells.bring(cells.far.cell(FIRST + 4000, packet), 0)
        nack = answer(cells)
        assert isinstance(nack, Control)
        assert isinstance(nack.body, Neth)
        assert nack.body.psn == FIRST + 4000

    def test_that_is_a_question(self, cells: CellRig, rig: Rig, packet: bytes) -> None:
        rig.tune(solicit_ns=1)
        cells.send(tcp(noise(3000), partial=True), 1000)
        cells.cells_sent()
        cells.bring(cells.far.cell(FIRST, packet), 0)
        asked = answer(cells)
        assert isinstance(asked, Control)
        assert isinstance(asked.body, Peth)

    def test_to_what_was_trimmed(self, cells: CellRig) -> None:
        whole = tcp(noise(900), inward=True, partial=True)
        cells.bring(trimmed(cells.far.cell(FIRST, whole), cells.places.inner + 100), 0)
        nack = answer(cells)
        assert isinstance(nack, Control)
        assert isinstance(nack.body, Neth)
        assert (nack.body.psn, nack.body.reason) == (FIRST, WIRE.MRC_NACK_TRIMMED)


def test_held_packet_has_its_checksum(cells: CellRig, packet: bytes) -> None:
    """What it is delivered with has left its own to a NIC."""
    late = tcp(noise(300), inward=True)
    cells.arrive(cells.far.cell(FIRST + 1, late))
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    with tap:
        tap.bind(("mrc0", 3))
        tap.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        tap.settimeout(5)
        cells.bring(cells.far.cell(FIRST, packet), 0)
        states = []
        for _ in range(2):
            _frame, ((_level, _kind, told),), _flags, _from = tap.recvmsg(2048, 64)
            states.append(struct.unpack_from("=I", told)[0] & _NOT_READY)
    assert states == [_NOT_READY, 0]
    assert cells.delivered()[1] == late


# ---- sums of NICs


_SUMS = r"""
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>

BPF_QUEUE(sums, s64, 64);
static s64 (*csum_update)(void *ctx, u32 csum) = (void *)BPF_FUNC_csum_update;

/* Note what the kernel holds as the sum of a packet. */
int note(struct __sk_buff *skb)
{
    s64 sum = csum_update(skb, 0);

    sums.push(&sum, 0);
    return TC_ACT_UNSPEC;
}
"""
_VXLAN_PORT = 4789


class Summed:
    """Plane 1 behind VXLAN, whose packets come with a sum of the kernel's (CHECKSUM_COMPLETE)."""

    def __init__(self, cells: CellRig) -> None:
        self._cells = cells
        lines = [
            "link add far1 mtu 1500 type veth peer name near1 mtu 1500",
            "link set far1 arp off up",
            "link set near1 address 02:00:00:00:00:55 up",
            "addr add 192.0.2.1/24 dev near1",
            f"link add vx1 mtu 1500 type vxlan id 5 local 192.0.2.1 dstport {_VXLAN_PORT}"
            " nolearning udpcsum",
            "link set vx1 arp off up",
        ]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        Path("/proc/sys/net/ipv6/conf/vx1/disable_ipv6").write_text("1")
        self.ifindex = socket.if_nametoindex("vx1")
        self._out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._out.bind(("far1", 0))

    def put(self, frame: bytes) -> None:
        """Have a frame arrive."""
        body = struct.pack("!II", 1 << 27, 5 << 8) + frame
        ends = bytes((192, 0, 2, 2, 192, 0, 2, 1))
        head = struct.pack("!HHHH", 4000, _VXLAN_PORT, 8 + len(body), 0)
        whole = ends + struct.pack("!HH", 17, 8 + len(body)) + head + body
        total = checksum16(whole + bytes(len(whole) % 2))
        udp = head[:6] + struct.pack("!H", total) + body
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0x4000, 64, 17, 0) + ends
        ip = ip[:10] + struct.pack("!H", checksum16(ip)) + ip[12:]
        macs = bytes.fromhex("020000000055") + bytes.fromhex("020000000056")
        self._out.send(macs + b"\x08\x00" + ip + udp)

    def close(self) -> None:
        self._out.close()
        subprocess.run(["ip", "link", "del", "vx1"], check=True)
        subprocess.run(["ip", "link", "del", "far1"], check=True)


@pytest.fixture
def summed(cells: CellRig, rig: Rig) -> Iterator[Summed]:
    with contextlib.closing(Summed(cells)) as made:
        planes = [rig.ifindex[f"plane{p}"] for p in range(PLANES)]
        planes[1] = made.ifindex
        write_planes(rig.dp, rig.fabric, rig.config.host, planes)
        link = bpf.create_link(rig.dp.programs["mrc_cell"], made.ifindex, bpf.ATTACH_TCX_INGRESS)
        try:
            yield made
        finally:
            os.close(link)


@pytest.fixture(scope="module")
def noting() -> Iterator[tuple[int, int]]:
    """Yield a program that notes the kernel's sums of packets, and its queue."""
    from bcc import BPF  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # bcc wants names as bytes
        module = BPF(text=_SUMS)
        yield module.load_func("note", BPF.SCHED_CLS).fd, module["sums"].map_fd
        module.cleanup()


def next_sum(queue: int) -> int:
    """Return the kernel's sum of the next packet, or an error."""
    deadline = time.monotonic() + 5
    while (found := popped(queue, 8)) is None:
        assert time.monotonic() < deadline, "no packet came"
    return int(struct.unpack("=q", found)[0])


def test_sum_of_a_carrier_is_not_that_of_the_packet(
    cells: CellRig, rig: Rig, summed: Summed, noting: tuple[int, int]
) -> None:
    """TCP would take it for the NIC's word, or for broken hardware."""
    program, sums = noting
    first, held = tcp(noise(300), inward=True), tcp(noise(300, 50), inward=True)
    cells.arrive(cells.far.cell(FIRST + 1, held, ev_of(2, 1)))
    link = bpf.create_link(program, rig.ifindex["mrc0"], bpf.ATTACH_TCX_INGRESS)
    try:
        summed.put(cells.far.cell(FIRST, first))
        assert next_sum(sums) >= 0
        assert next_sum(sums) < 0
    finally:
        os.close(link)
    assert cells.delivered() == [first, held]


def test_packet_with_a_sum_of_the_kernels_lacks_none(
    cells: CellRig, rig: Rig, summed: Summed
) -> None:
    """Half of all sums would be errors, if they were numbers with a sign."""
    for number in range(1, 33):
        summed.put(cells.far.cell(FIRST + number, tcp(noise(300, number), inward=True)))
    rig.counted()
    ring, size = rig.dp.maps["rx_ring"], bpfmap.described(rig.dp.maps["rx_ring"]).value_size
    tags = []
    for number in range(1, 33):
        entry = rig.dp.read(
            "rx_entries", (FIRST + number) % (WINDOW // 2), ABI.structs["mrc_rx_entry"]
        )
        slot = bpf.lookup(ring, struct.pack("=I", entry["slot"] - 1), size)
        assert slot is not None
        tags.append(struct.unpack_from("=Q", slot)[0])
    assert tags == list(range(FIRST + 1, FIRST + 33))
