# SPDX-License-Identifier: GPL-2.0-only
"""Measure the time from a lost carrier, or a drain, to the last packet a peer sends to the NIC.

    python -m bench.faults.carrier [--rounds 20]     (as root)

In a lab of two hosts and four planes, one host sends TCP to the other all the time. A port of a T0
goes down, so the receiver's NIC loses its carrier. Times start with the kernel's message about that
(for a drain, with the change of the host's own mask). They are taken outside the daemons: from
their maps, and on the sender's NIC.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.instruments import entry
from bench.instruments.running import running
from mrcd.linux import bpf, netns
from mrcd.linux.carrier import link_changes
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE
from rigs import lab_hosts
from rigs.running_lab import RunningLab
from rigs.traffic import Stream

NAME = "carrier"
PLANE = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _PACKET_OUTGOING = 33, 35, 4
_OPCODE_AT = WIRE.MRC_ETH_LEN + 2 * WIRE.MRC_IP6_LEN + WIRE.MRC_UDP_LEN
_BIT = 1 << PLANE


def cut(namespace: str, name: str) -> int:
    """Set an interface down; return the time before (CLOCK_REALTIME, ns)."""
    with netns.entered(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = bytearray(struct.pack("16sh22x", os.fsencode(name), 0))
        fcntl.ioctl(sock, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("=h", request, 16)
        struct.pack_into("=h", request, 16, flags & ~_IFF_UP)
        before = time.time_ns()
        fcntl.ioctl(sock, _SIOCSIFFLAGS, request)
    return before


class Map:
    """The first element of a pinned map."""

    def __init__(self, folder: Path, name: str, kind: str) -> None:
        self._fd = bpf.get(folder / name)
        self._kind = ABI.structs[kind]

    def member(self, name: str) -> int:
        raw = bpf.lookup(self._fd, b"\0\0\0\0", self._kind.size)
        assert raw is not None
        at = self._kind.fields[name]
        return int.from_bytes(raw[at.offset : at.offset + at.size], "little")

    def close(self) -> None:
        os.close(self._fd)


class Departures(threading.Thread):
    """A thread that records when a host's NIC of the plane sent which packets."""

    def __init__(self, namespace: str) -> None:
        super().__init__(daemon=True)
        with netns.entered(namespace):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 32 << 20)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._socket.bind((f"plane{PLANE}", 3))
        self._ended = threading.Event()
        self.seen: list[tuple[int, int]] = []  # time, opcode

    def run(self) -> None:
        while not self._ended.is_set():
            if not select.select([self._socket], [], [], 0.05)[0]:
                continue
            data, extra, _flags, where = self._socket.recvmsg(_OPCODE_AT + 1, 64)
            if where[2] == _PACKET_OUTGOING and len(data) > _OPCODE_AT:
                seconds, rest = struct.unpack("@ll", extra[0][2])
                self.seen.append((seconds * 1_000_000_000 + rest, data[_OPCODE_AT]))

    def close(self) -> None:
        self._ended.set()
        self.join()
        self._socket.close()

    def last_after(self, start: int, opcodes: set[int]) -> int:
        """Return the ns from `start` to the last packet with such an opcode; 0 if there is none."""
        return max((at - start for at, opcode in self.seen if opcode in opcodes), default=0)


@dataclass(slots=True)
class Figures:
    """The times of one kind of loss, in nanoseconds."""

    kernel: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    peer: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    any: list[int] = field(default_factory=list)

    def show(self, what: str) -> None:
        def of(values: list[int]) -> str:
            ordered = sorted(values)
            worst = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
            return f"{statistics.median(values) / 1e6:.2f} / {worst / 1e6:.2f}"

        columns = (self.kernel, self.own, self.peer, self.data, self.any)
        print(f"| {what} | {' | '.join(map(of, columns))} |", flush=True)


DATA = {WIRE.MRC_OP_WRITE_ONLY}
ANY = DATA | {WIRE.MRC_OP_SACK, WIRE.MRC_OP_NACK, WIRE.MRC_OP_PROBE}


def look(links: socket.socket, mask: Map, ports: Map, within_s: float) -> tuple[int, int, int]:
    """Return three times: when the kernel reported the loss, when the plane left the loser's own
    mask, and when its peer learned of it. A time is 0 if that did not happen in time."""
    told = own = peer = 0
    end = time.monotonic() + within_s
    while not (own and peer) and time.monotonic() < end:
        if not told:
            with contextlib.suppress(BlockingIOError):
                for change in link_changes(links.recv(1 << 16)):
                    if change.link.name == f"plane{PLANE}" and not change.link.carrier:
                        told = time.time_ns()
        if not own and not mask.member("plane_mask") & _BIT:
            own = time.time_ns()
        if not peer and not ports.member("ports") & _BIT:
            peer = time.time_ns()
        time.sleep(30e-6)
    return told, own, peer


def watch(
    namespace: str, mask: Map, ports: Map, act: Callable[[], int]
) -> tuple[int, int, int, int]:
    """Call `act` while a separate process with real-time priority watches the maps."""
    with netns.entered(namespace):
        links = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        links.setblocking(False)
        links.bind((0, 1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
        os.write(write, b"!")
        os.write(write, struct.pack("=QQQ", *look(links, mask, ports, 5.0)))
        os._exit(0)
    assert os.read(read, 1) == b"!"
    before = act()
    told, own, peer = struct.unpack("=QQQ", os.read(read, 24))
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    links.close()
    assert own, "the plane stayed in the mask"
    assert peer, "the peer did not learn of it"
    return before, told, own, peer


def back(made: RunningLab) -> None:
    """Wait until both hosts are ok and use the plane."""
    for host in ("h1", "h2"):
        lab_hosts.eventually(lambda host=host: lab_hosts.ok(made.name, host), f"{host} is ok")


def measure(made: RunningLab, loser: str, kind: str) -> Figures:
    other = "h2" if loser == "h1" else "h1"
    number = {"h1": 1, "h2": 2}[loser]
    mask = Map(lab_hosts.maps_of(made.name, loser), "host", "mrc_host")
    ports = Map(lab_hosts.maps_of(made.name, other), "balances", "mrc_balance")
    switch, port = made.namespace(f"p{PLANE}t0-{number}"), "port1"
    figures = Figures()

    def drain() -> int:
        before = time.time_ns()
        with lab_hosts.Client(str(lab_hosts.socket_of(made.name, loser))) as client:
            client.drain(PLANE, force=False)
        return before

    def restore() -> None:
        if kind == "drain":
            with lab_hosts.Client(str(lab_hosts.socket_of(made.name, loser))) as client:
                client.undrain(PLANE)
        else:
            # The switch lost its routes with the port. The lab restores both.
            for action in ("down", "clear"):
                made.fault(f"{loser}:p{PLANE}", action)

    back(made)
    stream = Stream(made, other, loser, {"h1": "10.99.0.1", "h2": "10.99.0.2"}[loser]).start()
    stream.progress(4 << 20)
    departures = Departures(made.namespace(other))
    departures.start()
    lab_hosts.eventually(
        lambda: sum(opcode in DATA for _, opcode in departures.seen[-20:]) > 10,
        f"data leaves {other} by plane {PLANE}",
        60,
    )
    act = drain if kind == "drain" else lambda: cut(switch, port)
    try:
        before, told, own, peer = watch(made.namespace(loser), mask, ports, act)
        start = told or own
        stream.progress(2 << 20)
        departures.close()
        figures.kernel.append(start - before)
        figures.own.append(own - start)
        figures.peer.append(peer - start)
        figures.data.append(departures.last_after(start, DATA))
        figures.any.append(departures.last_after(start, ANY))
    finally:
        restore()
        mask.close()
        ports.close()
    stream.finish()
    return figures


def main() -> None:
    parser = entry.parser(__doc__, rounds=20, figures=False)
    parser.add_argument("--rate", type=int, default=300, help="of each link, Mb/s")
    options = parser.parse_args()
    sys.setswitchinterval(50e-6)  # this process watches, sends and listens at the same time
    print("| what | action to start | own mask | peer told | last data | last packet |")
    print("|---|---|---|---|---|---|")
    with running(NAME, options.rate) as made:
        for kind, loser in (("carrier", "h1"), ("carrier", "h2"), ("drain", "h1")):
            total = Figures()
            for _ in range(options.rounds):
                one = measure(made, loser, kind)
                total.kernel += one.kernel
                total.own += one.own
                total.peer += one.peer
                total.data += one.data
                total.any += one.any
            total.show(f"{loser}, {kind}: ms, median / 99th percentile")


if __name__ == "__main__":
    main()
