# SPDX-License-Identifier: GPL-2.0-only
"""Test that sockets are charged at least what a packet holds, whichever skb brought it.

TCP gives an acknowledgement without data a truesize of 2, and the clock's packet, in the buffer
of which others are sent and delivered, is made of any packet that wakes it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

from mrcd.linux import netns
from rigs.bare_hosts import INNER, Bare, Make, bridge, building, treat, treat_no_more
from rigs.lab_hosts import eventually
from rigs.traffic import Stream, open_in

_SO_RCVBUFFORCE, _SO_MEMINFO = 33, 55  # missing in Python's socket module
_SOL_PACKET, _PACKET_IGNORE_OUTGOING, _ETH_P_IP = 263, 23, 0x0800
SIZE = 4 << 20  # bytes
PROBES = 4  # after some 3 s: the clock rests between them
SKB = 256  # bytes of an skb itself, which its truesize contains
MSS = 1000  # a packet is longer, if it is full


def charged(packets: socket.socket) -> int:
    """Return the bytes of memory that a socket is charged for what it has received."""
    return int(struct.unpack_from("=I", packets.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64))[0])


class Arrivals:
    """A packet socket on a host's mrc0 that keeps what arrives there."""

    def __init__(self, namespace: str) -> None:
        with netns.entered(namespace):
            self._packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
        self._packets.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._packets.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 28)
        self._packets.bind(("mrc0", _ETH_P_IP))

    def charges(self) -> Iterator[tuple[int, int]]:
        """Yield the length and the charge in bytes of each packet that has come. The last use."""
        self._packets.bind(("lo", _ETH_P_IP))
        before = charged(self._packets)
        while before:
            data = self._packets.recv(1 << 17)
            after = charged(self._packets)
            yield len(data), before - after
            before = after
        self._packets.close()


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts by one of BUILDERS, and remove them at the end."""
    yield from building("t", 2)


def full(bare: Bare) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection from b whose receiver on a has no more room."""
    with open_in(bare.namespace("a"), INNER["a"], socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        listener.bind((INNER["a"], 0))
        listener.listen()
        sender = open_in(bare.namespace("b"), INNER["b"], socket.SOCK_STREAM)
        sender.connect(listener.getsockname()[:2])
        receiver, _peer = listener.accept()
    sender.setblocking(False)
    eventually(lambda: blocked(sender) and window_probes(bare) >= PROBES, "the window is 0")
    return sender, receiver


def blocked(sender: socket.socket) -> bool:
    """Send what there is room for."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 16))
    return True


def window_probes(bare: Bare) -> int:
    """Return how often the TCP of b has asked whether there is room again."""
    shown = bare.run("b", "cat", "/proc/net/netstat").splitlines()
    names, values = (line.split() for line in shown[:2])
    return int(values[names.index("TCPWinProbe")])


@pytest.mark.parametrize("settings", ["", '[transport]\nframing = "mrc"\n'])
def test_truesize_is_that_of_the_buffer(make: Make, settings: str) -> None:
    """An acknowledgement of a wakes the clock, which then sends again what is lost."""
    bare = make(bridge, settings, mtu=1500)
    bare.begin()
    arrivals = Arrivals(bare.namespace("b"))
    sender, receiver = full(bare)
    assert receiver.recv(1 << 20)
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    for _ in range(8):
        stream.progress(SIZE)
        treat(bare, "drop", [1])
        stream.progress(SIZE)
        treat_no_more(bare)
    stream.finish()
    sender.close()
    receiver.close()
    found = [each for each in arrivals.charges() if each[0] > MSS]
    assert len(found) > 100
    assert [each for each in found if each[0] + SKB > each[1]] == []
