# SPDX-License-Identifier: GPL-2.0-only
"""Cells that this host forwards: what leaves by an interface without offloads is right.

The kernel remembers of a cell that it was inside another packet, and NICs with offloads for tunnels
may sum up the wrong bytes (docs/fleet.md).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import warnings
from collections.abc import Iterator

import pytest

from mrcd.linux import bpf, ethtool
from rigs.rig import Rig, Tap, popped, settle
from tests.bpf.cells import MSS, CellRig, noise, pieces, tcp

FIRST = 5000
EALREADY = 114
_FORWARD = r"""
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>

BPF_QUEUE(seen, u64, 64);

/* Send a packet on, as the host would. */
int forward(struct __sk_buff *skb)
{
    return bpf_redirect(OUT, 0);
}

/* Note how large a packet is, and whether the kernel takes it for one inside another. */
int note(struct __sk_buff *skb)
{
    u64 size = skb->gso_size;
    u64 found = size << 32 | (u32)-bpf_skb_adjust_room(skb, 40, BPF_ADJ_ROOM_MAC,
                       BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6);

    seen.push(&found, 0);
    return TC_ACT_SHOT;
}
"""


class Way:
    """A way from mrc0 to another interface, without offloads, by which cells are forwarded."""

    def __init__(self, rig: Rig) -> None:
        from bcc import BPF  # type: ignore[import-untyped]

        lines = ["link add out1 mtu 1500 type veth peer name end1 mtu 1500"]
        lines += [f"link set {name} arp off up" for name in ("out1", "end1")]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        ethtool.set_features("out1", tx_checksum=False)
        flag = f"-DOUT={socket.if_nametoindex('out1')}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # bcc wants names as bytes
            self._module = BPF(text=_FORWARD, cflags=[flag])
            self.seen = self._module[b"seen"].map_fd
            self.programs = {
                name: self._module.load_func(name, BPF.SCHED_CLS).fd for name in ("forward", "note")
            }
        self.end = Tap("end1", "out1")
        self._rig = rig

    @contextlib.contextmanager
    def taken_by(self, program: str) -> Iterator[None]:
        """Have a program take what enters at mrc0."""
        index = self._rig.ifindex["mrc0"]
        link = bpf.create_link(self.programs[program], index, bpf.ATTACH_TCX_INGRESS)
        try:
            yield
        finally:
            os.close(link)

    def close(self) -> None:
        self.end.close()
        self._module.cleanup()
        subprocess.run(["ip", "link", "del", "out1"], check=True)


@pytest.fixture
def way(rig: Rig) -> Iterator[Way]:
    with contextlib.closing(Way(rig)) as made:
        yield made


@pytest.mark.parametrize("version", [4, 6])
def test_forwarded_cell_is_cut_and_summed_up(cells: CellRig, way: Way, version: int) -> None:
    packet = tcp(noise(3 * MSS + 5), version=version, inward=True, partial=True)
    with way.taken_by("forward"):
        cells.take(FIRST, packet, MSS, 0, 4)
        found = [frame[14:] for frame in way.end.take()]
    assert found == pieces(packet, MSS)


@pytest.mark.parametrize("version", [4, 6])
def test_kernel_remembers_the_header_around_a_cell(cells: CellRig, way: Way, version: int) -> None:
    """If this fails, kernel or programs have learnt to forget it, and the advice is out of date."""
    packet = tcp(noise(3 * MSS + 5), version=version, inward=True, partial=True)
    with way.taken_by("note"):
        cells.take(FIRST, packet, MSS, 0, 4)
        settle()
    told = popped(way.seen, 8)
    assert told is not None
    assert struct.unpack("=II", told) == (EALREADY, MSS)
