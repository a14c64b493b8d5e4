# SPDX-License-Identifier: GPL-2.0-only
"""mrc_receive at tc on packets as drivers deliver them, with their headers in pages.

Test runs make packets in one piece. Here plane 1 is a TAP device, which takes them in fragments.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from mrcd.linux import bpf
from mrcd.wire.packet import WIRE, Sack, decode_frame
from rigs.packets import EV, Far, cell, ip4, ip6, offer_frame
from rigs.rig import Rig

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NAPI, _IFF_NAPI_FRAGS, _IFF_NO_PI = 0x2, 0x10, 0x20, 0x1000
FIRST = 5000
PIECES = (14, 15, 54, 60, 102, 138, 158)


class Tap:
    """A TAP device as a plane's NIC: `put` is the wire's side, and so is `take`."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TAP | _IFF_NAPI | _IFF_NAPI_FRAGS | _IFF_NO_PI
        fcntl.ioctl(self._fd, _TUNSETIFF, struct.pack("16sH22x", b"tap1", flags))
        self.ifindex = socket.if_nametoindex("tap1")

    def put(self, frame: bytes, first: int) -> None:
        """Have a frame arrive whose first bytes alone are in the packet's linear part."""
        os.writev(self._fd, [frame[:first], frame[first:]])

    def take(self) -> bytes:
        """Return the frame that was sent."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                return os.read(self._fd, 4096)
            time.sleep(0.001)
        raise AssertionError("nothing was sent")

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def tap(rig: Rig) -> Iterator[Tap]:
    """Yield plane 1 of the rig, on whose tc ingress mrc_receive runs."""
    with contextlib.closing(Tap()) as made, rig.receiving_at("tap1"):
        yield made


@pytest.mark.parametrize("first", PIECES)
@pytest.mark.parametrize("packet", [ip4(bytes(1200)), ip6(b"")], ids=["ipv4", "ipv6"])
def test_data(rig: Rig, far: Far, tap: Tap, first: int, packet: bytes) -> None:
    tap.put(far.data(FIRST, packet), first)
    assert rig.delivered() == [packet]


@pytest.mark.parametrize("first", PIECES)
def test_data_is_answered(rig: Rig, far: Far, tap: Tap, first: int) -> None:
    tap.put(far.data(FIRST, ip4(bytes(20)), ackreq=True), first)
    answer = decode_frame(tap.take())
    assert isinstance(answer, Sack)
    assert answer.body.cack == FIRST


@pytest.mark.parametrize("first", PIECES[:-2])
def test_probe_is_answered(far: Far, tap: Tap, first: int) -> None:
    tap.put(far.probe(0x1234), first)
    answer = decode_frame(tap.take())
    assert isinstance(answer, Sack)
    assert answer.body.probe_id == 0x1234


@pytest.mark.parametrize("first", PIECES)
def test_sack_is_understood(rig: Rig, far: Far, tap: Tap, first: int) -> None:
    rig.spray(ip4(b"out", src="10.99.0.1", dst="10.99.0.2"))
    tap.put(far.sack(1000), first)
    assert rig.tx()["una"] == 1001


@pytest.mark.parametrize("first", PIECES[:-2])
def test_what_belongs_to_others(rig: Rig, far: Far, tap: Tap, first: int) -> None:
    """A cell is recognised, although its program is missing here."""
    rig.counted()
    tap.put(offer_frame(far, EV)[0], first)
    assert rig.counted() == {"control_rx": 1}
    tap.put(far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 7), first)
    assert rig.counted() == {"ev_probe_rx": 1}
    bpf.delete(rig.dp.maps["tails"], struct.pack("=I", 4))
    tap.put(cell(far, EV, ip4(bytes(300))), first)
    assert rig.counted() == {"drop_framing": 1}
