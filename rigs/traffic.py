# SPDX-License-Identifier: GPL-2.0-only
"""Generate test traffic: TCP streams and UDP sequences between the hosts of a lab."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mrcd.linux import netns

_TCP_INFO, _TOTAL_RETRANS_AT = 11, 100
_SO_RCVBUFFORCE = 33  # missing in Python's socket module
_CHUNK = random.Random(4971).randbytes(1 << 18)


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def open_in(namespace: str, address: str, kind: socket.SocketKind) -> socket.socket:
    """Return a socket in a host's namespace, of the family of an address."""
    with netns.entered(namespace):
        return socket.socket(family_of(address), kind)


class Stream:
    """One TCP connection that sends until it is finished, and compares the data that arrives."""

    def __init__(self, running: Any, source: str, target: str, address: str) -> None:
        listener = open_in(running.namespace(target), address, socket.SOCK_STREAM)
        with listener:
            listener.bind((address, 0))
            listener.listen()
            self._out = open_in(running.namespace(source), address, socket.SOCK_STREAM)
            self._out.settimeout(30)
            self._out.connect(listener.getsockname()[:2])
            listener.settimeout(5)
            self._in, _peer = listener.accept()
        self._in.settimeout(30)
        self._stop = threading.Event()
        self._limit: int | None = None
        self._sent, self._got = hashlib.sha256(), hashlib.sha256()
        self.sent_bytes = self.received = 0
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guard, args=(work,), daemon=True)
                         for work in (self._send, self._receive)]  # fmt: skip

    def start(self, size: int | None = None) -> Stream:
        """Begin to send, `size` bytes or until finish()."""
        self._limit = size
        for thread in self._threads:
            thread.start()
        return self

    def _guard(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # raised again in the test's thread
            self._errors.append(error)

    def _send(self) -> None:
        while not self._stop.is_set():
            chunk = _CHUNK
            if self._limit is not None:
                chunk = chunk[: self._limit - self.sent_bytes]
                if not chunk:
                    break
            self._out.sendall(chunk)
            self._sent.update(chunk)
            self.sent_bytes += len(chunk)
        self._out.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        while data := self._in.recv(1 << 18):
            self._got.update(data)
            self.received += len(data)

    def progress(self, size: int, within_s: float = 10.0) -> None:
        """Wait until `size` more bytes have arrived."""
        goal, deadline = self.received + size, time.monotonic() + within_s
        while self.received < goal:
            assert not self._errors, self._errors
            assert time.monotonic() < deadline, (
                f"{self.received - goal + size} of {size} bytes within {within_s} s"
            )
            time.sleep(0.002)

    def retransmissions(self) -> int:
        """Return the number of TCP's retransmissions."""
        raw = self._out.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
        return int(struct.unpack_from("=I", raw, _TOTAL_RETRANS_AT)[0])

    def finish(self, within_s: float = 15.0) -> int:
        """End the stream, check that all data arrived unchanged, and return its size in bytes."""
        if self._limit is None:
            self._stop.set()
        deadline = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not self._errors, self._errors
            assert not thread.is_alive(), f"{self.received} of {self.sent_bytes} bytes arrived"
        self.close()
        assert self.received == self.sent_bytes
        assert self._got.digest() == self._sent.digest()
        return self.received

    def close(self) -> None:
        self._stop.set()
        self._in.close()
        self._out.close()


class Arrivals:
    """A TCP stream between two hosts whose receiver notes when data arrive, in nanoseconds."""

    def __init__(self, running: Any, source: str, target: str, address: str) -> None:
        self.stream = Stream(running, source, target, address)
        self.times: list[int] = []
        receive = self.stream._in.recv

        class Noting:
            """The socket, with a note of each arrival."""

            def recv(_self, size: int) -> bytes:
                data = receive(size)
                self.times.append(time.monotonic_ns())
                return data

            def close(_self) -> None:
                inner.close()

        inner = self.stream._in
        self.stream._in = Noting()  # type: ignore[assignment]
        self.stream.start()
        self.stream.progress(4 << 20)

    def longest_ns(self, since_ns: int) -> int:
        """Return the longest time without an arrival since a time."""
        times = [when for when in self.times if when >= since_ns]
        return max((after - before for before, after in pairwise(times)), default=0)


@dataclass(frozen=True, slots=True)
class Arrived:
    """What became of numbered datagrams; the gap is the longest time without one."""

    sent: int
    lost: int
    doubled: int
    overtaken: int
    gap_ns: int


class Datagrams:
    """Numbered datagrams between two hosts at a fixed rate, whatever becomes of them."""

    def __init__(
        self, running: Any, source: str, target: str, address: str, *, rate: int = 500
    ) -> None:
        self._receiver = open_in(running.namespace(target), address, socket.SOCK_DGRAM)
        self._receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        self._receiver.bind((address, 0))
        self._receiver.settimeout(0.1)
        self._sender = open_in(running.namespace(source), address, socket.SOCK_DGRAM)
        self._sender.connect(self._receiver.getsockname()[:2])
        self._pause_s = 1 / rate
        self._stop, self._over = threading.Event(), threading.Event()
        self._numbers: list[int] = []
        self._times: list[int] = []
        self._sent = 0
        self._threads = [threading.Thread(target=work, daemon=True)
                         for work in (self._send, self._receive)]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        # Packets of one socket may overtake each other where the sender changes its CPU.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        due = time.monotonic()
        while not self._stop.is_set():
            with contextlib.suppress(OSError):  # no route while mrc0 is made anew: it is lost
                self._sender.send(self._sent.to_bytes(4, "big") + bytes(996))
            self._sent += 1
            due = max(due + self._pause_s, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))

    def _receive(self) -> None:
        while True:
            try:
                data = self._receiver.recv(2048)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            self._times.append(time.monotonic_ns())
            self._numbers.append(int.from_bytes(data[:4], "big"))

    def finish(self, within_s: float = 5.0) -> Arrived:
        """End them, wait for the last ones at most this long, and count."""
        self._stop.set()
        self._threads[0].join()
        deadline = time.monotonic() + within_s
        while len(set(self._numbers)) < self._sent and time.monotonic() < deadline:
            time.sleep(0.01)
        self._over.set()
        self._threads[1].join()
        self._sender.close()
        self._receiver.close()
        numbers = self._numbers
        return Arrived(
            sent=self._sent,
            lost=self._sent - len(set(numbers)),
            doubled=len(numbers) - len(set(numbers)),
            overtaken=sum(after < before for before, after in pairwise(numbers)),
            gap_ns=max((b - a for a, b in pairwise(self._times)), default=0),
        )


def transfer(running: Any, source: str, target: str, address: str, size: int = 4 << 20) -> None:
    """Send `size` bytes by TCP; they must arrive unchanged."""
    Stream(running, source, target, address).start(size).finish()


def udp_sequence(
    running: Any,
    source: str,
    target: str,
    address: str,
    *,
    count: int = 3000,
    size: int = 1000,
    ahead: int = 200,
    within_s: float = 15.0,
) -> list[int]:
    """Send numbered datagrams, and return the numbers in the order of arrival.

    At most `ahead` are in flight at once, so that no socket buffer loses any. A datagram that is
    missing for half a second counts as lost, and the sender continues.
    """
    receiver = open_in(running.namespace(target), address, socket.SOCK_DGRAM)
    sender = open_in(running.namespace(source), address, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        receiver.bind((address, 0))
        receiver.settimeout(0.5)
        sender.connect(receiver.getsockname()[:2])
        arrived: list[int] = []
        sent, given_up = 0, 0
        body = random.Random(size).randbytes(size - 4)
        deadline = time.monotonic() + within_s
        while len(arrived) + given_up < count:
            while sent < count and sent - len(arrived) - given_up < ahead:
                sender.send(sent.to_bytes(4, "big") + body)
                sent += 1
            assert time.monotonic() < deadline, f"{len(arrived)} of {count} datagrams arrived"
            try:
                data = receiver.recv(65536)
            except TimeoutError:
                given_up = sent - len(arrived)
                continue
            assert data[4:] == body
            arrived.append(int.from_bytes(data[:4], "big"))
        receiver.settimeout(0.05)
        try:
            while True:  # duplicates would arrive now
                arrived.append(int.from_bytes(receiver.recv(65536)[:4], "big"))
        except TimeoutError:
            return arrived
