# SPDX-License-Identifier: GPL-2.0-only
"""Queues of the host's own: receive queues behind which mrc0 steers, and queueing disciplines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest

from rigs.packets import EV, ev_of
from rigs.rig import Rig
from tests.bpf.cells import CellRig, is_cell, noise, tcp

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_MULTI_QUEUE, _IFF_NO_PI = 0x2, 0x100, 0x1000
_SOL_PACKET, _PACKET_FANOUT, _FANOUT_CPU = 263, 18, 2
SENT, FIRST = 1000, 5000
QUEUES = 4


class Nic:
    """A TAP device as plane 1, with several receive queues; `put` is the wire's side."""

    def __init__(self) -> None:
        self._queues = [os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK) for _ in range(QUEUES)]
        request = struct.pack("16sH22x", b"tap2", _IFF_TAP | _IFF_MULTI_QUEUE | _IFF_NO_PI)
        for queue in self._queues:
            fcntl.ioctl(queue, _TUNSETIFF, request)
        self.ifindex = socket.if_nametoindex("tap2")

    def put(self, frame: bytes, queue: int) -> None:
        os.write(self._queues[queue], frame)

    def close(self) -> None:
        for queue in self._queues:
            os.close(queue)


@pytest.fixture
def nic(rig: Rig) -> Iterator[Nic]:
    """Yield plane 1 of the rig, on whose tc ingress mrc_receive runs."""
    with contextlib.closing(Nic()) as made, rig.receiving_at("tap2"):
        yield made


class SteeredTo:
    """A reader of what arrives at an interface, by the CPU that takes it there."""

    def __init__(self, name: str) -> None:
        self.sockets = []
        for _cpu in range(os.cpu_count() or 1):
            one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            one.bind((name, 3))
            one.setsockopt(_SOL_PACKET, _PACKET_FANOUT, _FANOUT_CPU << 16 | os.getpid() & 0xFFFF)
            self.sockets.append(one)

    def next_cpu(self) -> int:
        """Return the CPU that takes the next packet."""
        poll = select.poll()
        by_number = {sock.fileno(): sock for sock in self.sockets}
        for number in by_number:
            poll.register(number, select.POLLIN)
        ready = [by_number[number] for number, _events in poll.poll(5000)]
        (one,) = ready
        one.recv(65536)
        return self.sockets.index(one)

    def close(self) -> None:
        for one in self.sockets:
            one.close()


def steer(rig: Rig, name: str, cpus: int) -> None:
    """Set the CPUs to which an interface steers what arrives."""
    file = f"/sys/class/net/{name}/queues/rx-0/rps_cpus"
    command = ["ip", "netns", "exec", rig.namespace, "tee", file]
    subprocess.run(command, input=f"{cpus:x}", text=True, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="steering needs two CPUs")
@pytest.mark.parametrize("queue", range(QUEUES))
def test_mrc0_steers_what_came_by_any_queue_of_a_nic(
    cells: CellRig, rig: Rig, nic: Nic, queue: int
) -> None:
    (here,) = os.sched_getaffinity(0)
    there = (here + 1) % (os.cpu_count() or 1)
    steer(rig, "mrc0", 1 << there)
    try:
        with contextlib.closing(SteeredTo("mrc0")) as steered:
            nic.put(cells.far.cell(FIRST, tcp(noise(300), inward=True), EV), queue)
            assert steered.next_cpu() == there
    finally:
        steer(rig, "mrc0", 0)


@contextlib.contextmanager
def bands_on(name: str) -> Iterator[None]:
    """Have an interface send slowly, and first what has a higher priority (pfifo_fast)."""
    lines = [
        f"qdisc add dev {name} root handle 1: tbf rate 2mbit burst 1600 limit 1000000",
        f"qdisc add dev {name} parent 1:1 pfifo_fast",
    ]
    subprocess.run(["tc", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", name, "root"], check=True)


def test_path_keeps_order_whatever_priorities_applications_choose(cells: CellRig, rig: Rig) -> None:
    """IP_TOS and SO_PRIORITY set them, and pfifo_fast is what most NICs send by."""
    rig.spread("h2", 0, 1, planes=1 << 2)
    with bands_on("plane2"):
        for number in range(8):
            cells.send(tcp(noise(1200), seq=number, partial=True), 0, priority=6 * (number // 4))
        frames = [frame for _plane, frame in cells.sent()]
    assert [cells.decoded(frame).cell.psn for frame in frames] == list(range(SENT, SENT + 8))


def test_acknowledgement_does_not_wait_behind_this_hosts_own_data(cells: CellRig, rig: Rig) -> None:
    """What is sent in one direction would delay what is known of the other."""
    rig.spread("h2", 0, 1, planes=1 << 2)
    cells.arrive(cells.far.cell(FIRST, tcp(noise(300), inward=True), ev_of(2, 1)))
    with bands_on("plane2"):
        for number in range(8):
            cells.send(tcp(noise(1200), seq=number, partial=True), 0)
        rig.tick()
        frames = [frame for _plane, frame in cells.sent()]
    (place,) = (place for place, frame in enumerate(frames) if not is_cell(frame))
    assert len(frames) == 9
    assert place <= 2  # what had left by then, and what the token bucket had taken out
