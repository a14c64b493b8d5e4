# SPDX-License-Identifier: GPL-2.0-only
"""Send as much on a plane as it takes, and count what arrives: one socket, and a thread that reads.

Each packet names the measurement, so nothing else is counted. Small ones are asked and answered
both ways before anything is sent, which opens the way through firewalls that keep states, and
shows that the other side wants what is sent.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

from mrcd.linux.boundsocket import Address, force_buffer, plane_socket
from mrcd.linux.pathmtu import send_whole
from mrcd.measure.messages import SECONDS_MAX
from mrcd.measure.tally import Tally
from mrcd.paths import largest

_HEADER: Final = struct.Struct("!QBBHIQ")
"""Of each packet: nonce, kind, run, length, number, the sender's clock in ns."""
_PATCH: Final = struct.Struct("!IQ")
_PATCH_AT: Final = _HEADER.size - _PATCH.size
_PING, _PONG, _DATA, _LONG, _FITS = range(1, 6)
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_SO_RXQ_OVFL = 40
_UDP_BYTES = 8
_IP_BYTES = {4: 20, 6: 40}
_BUFFER: Final = 1 << 16
_BURST_BYTES: Final = 60_000
_BURST_MAX: Final = 64
_STEP_S: Final = 0.001
"""Where a rate is given, what is sent at once takes this long at it."""
_WAKE_S: Final = 0.1
_FULL_S: Final = 0.0002
_WAITING_BYTES: Final = 1 << 20
_LONG_TRIES, _LONG_S, _LONG_MAX_S = 3, 0.04, 0.5
"""Tries of a long packet before it counts as lost; each waits for _LONG_S and four round trips."""
_PINGS, _PING_GAP_S = 10, 0.01
HEARD_S: Final = 3.0
"""The first small packet is answered within this time, or none will be."""
DRAIN_S: Final = 2.0
"""After a run, the queues on the way are empty after this time at the latest."""


class LoadError(Exception):
    """Nothing can be sent; the text says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was sent: packets of `size` bytes with their IP header, in `ns`, of it `cpu_ns` busy."""

    packets: int
    size: int
    ns: int
    cpu_ns: int


class Load:
    """One side of a measurement. Its methods block, so call them from threads."""

    def __init__(self, nonce: int, interface: str, address: Address, mtu: int) -> None:
        """Open a UDP socket on a NIC and begin to listen. Raises OSError if it cannot be opened."""
        self._nonce = nonce
        self._headers = _IP_BYTES[address.version] + _UDP_BYTES
        self._longest = min(mtu, 65535) - self._headers
        self._least = min(largest.LEAST, mtu) - self._headers
        self._sock = plane_socket(socket.SOCK_DGRAM, 0, interface.encode(), address, 0)
        try:
            self._set_up(address)
        except OSError:
            self._sock.close()
            raise
        self.port: int = self._sock.getsockname()[1]
        self.tallies: dict[int, Tally] = {}
        self.rtts_ns: list[int] = []
        self.heard = threading.Event()  # something of the other side has arrived
        self.answered = threading.Event()  # and something of ours at the other side
        self.payload: int | None = None  # of the largest packet that gets through, once known
        self._came = threading.Condition()
        self._pongs: set[int] = set()
        self._fits: set[int] = set()
        self._dropped = 0
        self._number = 0
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="measure")

    def _set_up(self, address: Address) -> None:
        sock = self._sock
        sock.setblocking(True)
        timeval = struct.pack("@ll", 0, int(_WAKE_S * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        sock.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        send_whole(sock, address.version)
        with contextlib.suppress(OSError):  # a kernel without it hands over packet by packet
            sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        with contextlib.suppress(OSError):
            force_buffer(sock, _WAITING_BYTES)

    def connect(self, address: Address, port: int) -> None:
        """Hear only the other side, and begin to. Raises OSError if there is no way to it."""
        self._sock.connect((str(address), port))
        self._reader.start()

    def stop(self) -> None:
        """Have everything that goes on end within a tenth of a second."""
        self._ended.set()

    def close(self) -> None:
        """Stop, wait for the reader, and close the socket. No other method may run any more."""
        self.stop()
        if self._reader.is_alive():
            self._reader.join()
        self._sock.close()

    # ---- small packets

    def greet(self) -> None:
        """Send small packets, which open this host's firewall for what comes back."""
        for _ in range(_PINGS):
            self._ping()
            if self._ended.wait(_PING_GAP_S):
                return

    def meet(self) -> bool:
        """Ask until the other side answers, then measure round trips; return whether it did."""
        ends = time.monotonic() + HEARD_S
        while not self.answered.is_set():
            if time.monotonic() > ends or self._ended.is_set():
                return False
            self._ping()
            self.answered.wait(5 * _PING_GAP_S)
        self.greet()
        return True

    def drain(self) -> None:
        """Wait until the queues on the way to the other side are empty, or DRAIN_S."""
        ends = time.monotonic() + DRAIN_S
        number = self._ping()
        while not self._arrives(self._pongs, number, _WAKE_S):
            if time.monotonic() > ends or self._ended.is_set():
                return
            number = self._ping()

    def find_largest(self) -> int:
        """Return the payload of the largest packet that gets through, bytes; 0 if none does.

        It is found once.
        """
        if self.payload is None:
            search = largest.search(self._longest, largest.likely(self._headers))
            length = next(search)
            try:
                while True:
                    length = search.send(self._passes(length))
            except StopIteration as end:
                self.payload = end.value
        return self.payload or 0

    def _passes(self, length: int) -> bool:
        rtt_s = statistics.median(self.rtts_ns) / 1e9 if self.rtts_ns else _LONG_MAX_S
        wait_s = min(_LONG_S + 4 * rtt_s, _LONG_MAX_S)
        for _ in range(_LONG_TRIES):
            if self._ended.is_set():
                return False
            self._put(_LONG, length=length)
            if self._arrives(self._fits, length, wait_s):
                return True
        return False

    def _arrives(self, answers: set[int], wanted: int, seconds: float) -> bool:
        with self._came:
            return self._came.wait_for(lambda: wanted in answers, seconds)

    def _ping(self) -> int:
        self._number += 1
        self._put(_PING, number=self._number)
        return self._number

    def _put(self, kind: int, *, length: int = 0, number: int = 0, clock_ns: int = 0) -> None:
        """Send a small packet, or a long one; losing it is no error."""
        clock_ns = clock_ns or time.monotonic_ns()
        packet = _HEADER.pack(self._nonce, kind, 0, length, number, clock_ns)
        with contextlib.suppress(OSError):
            self._sock.send(packet.ljust(length if kind == _LONG else 0, b"\0"))

    # ---- sending

    def send(self, run: int, mbps: float, seconds: float) -> Outcome:
        """Send largest packets at a rate of IP packets, Mb/s; 0: as fast as the plane takes them.

        Raises LoadError if nothing can be sent.
        """
        payload = self.find_largest()
        if not payload:
            raise LoadError(f"no packet of {self._least + self._headers} bytes gets through")
        size = payload + self._headers
        per = max(1, min(_BURST_MAX, _BURST_BYTES // payload))
        gap_ns = 0.0
        if mbps:
            per = max(1, min(per, int(mbps * 1e6 * _STEP_S / 8 / size)))
            gap_ns = per * size * 8e3 / mbps
        burst = _Burst(self._sock, self._nonce, run, payload, per)
        began, worked = time.monotonic_ns(), time.thread_time_ns()
        ends, due, now = began + round(min(seconds, SECONDS_MAX) * 1e9), float(began), began
        while now < ends and not self._ended.is_set():
            if not gap_ns or now >= due:
                burst.send(now)
                due = max(due + gap_ns, now - 2 * gap_ns)  # never catch up with a long burst
            else:
                time.sleep(max(0.0, (due - now) / 1e9))
            now = time.monotonic_ns()
        return Outcome(burst.packets, size, now - began, time.thread_time_ns() - worked)

    # ---- receiving

    def _read(self) -> None:
        buffer = bytearray(_BUFFER)
        while not self._ended.is_set():
            try:
                length, extra, _flags, _source = self._sock.recvmsg_into([buffer], 64)
            except OSError:  # nothing came for a while, or an ICMP error
                continue
            self._take(buffer, length, extra, time.monotonic_ns())

    def _take(
        self, buffer: bytearray, length: int, extra: list[tuple[int, int, bytes]], now_ns: int
    ) -> None:
        size, dropped = length, self._dropped
        for level, kind, value in extra:
            if level == _SOL_UDP and kind == _UDP_GRO:
                size = struct.unpack_from("=H", value)[0] or length
            elif level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL:
                dropped = struct.unpack_from("=I", value)[0]
        if length < _HEADER.size or size < _HEADER.size:
            return
        nonce, kind, run, _length, _number, sent_ns = _HEADER.unpack_from(buffer)
        if nonce != self._nonce:
            return
        self.heard.set()
        if kind == _DATA:
            tally = self.tallies.setdefault(run, Tally()) if run < 8 else Tally()
            tally.add(-(-length // size), size + self._headers, sent_ns, now_ns)
            tally.behind = tally.behind or dropped != self._dropped
            self._dropped = dropped
            return
        for at in range(0, length - _HEADER.size + 1, size):
            self._answer(buffer, at, min(size, length - at), now_ns)

    def _answer(self, buffer: bytearray, at: int, size: int, now_ns: int) -> None:
        nonce, kind, _run, length, number, clock_ns = _HEADER.unpack_from(buffer, at)
        if nonce != self._nonce:
            return
        if kind == _PING:
            self._put(_PONG, number=number, clock_ns=clock_ns)
        elif kind == _LONG and length == size:
            self._put(_FITS, length=length)
        elif kind in (_PONG, _FITS):
            self.answered.set()
            with self._came:
                (self._pongs if kind == _PONG else self._fits).add(
                    number if kind == _PONG else length
                )
                self._came.notify_all()
            if kind == _PONG:
                self.rtts_ns.append(now_ns - clock_ns)


class _Burst:
    """Packets that are handed to the kernel at once, again and again with other numbers."""

    def __init__(self, sock: socket.socket, nonce: int, run: int, payload: int, per: int) -> None:
        self._sock = sock
        self._payload = payload
        self._per = per
        self._buffer = bytearray(payload * per)
        for at in range(0, payload * per, payload):
            _HEADER.pack_into(self._buffer, at, nonce, _DATA, run, payload, 0, 0)
        self._view = memoryview(self._buffer)
        self._extra = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", payload))]
        self._whole = per > 1
        self.packets = 0

    def send(self, now_ns: int) -> None:
        """Send all of it. Raises LoadError if that can never succeed."""
        number = self.packets
        for index in range(self._per):
            _PATCH.pack_into(
                self._buffer, index * self._payload + _PATCH_AT, number + index, now_ns
            )
        try:
            if self._whole:
                self._sock.sendmsg([self._buffer], self._extra)
                self.packets += self._per
                return
            for at in range(0, len(self._buffer), self._payload):
                self._sock.send(self._view[at : at + self._payload])
                self.packets += 1
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        if self._whole and error.errno in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP):
            self._whole = False  # the NIC or the kernel does not cut packets
        elif error.errno in (errno.ENOBUFS, errno.EAGAIN, errno.ECONNREFUSED, errno.EINTR):
            time.sleep(_FULL_S)  # a queue is full, or the other side has just closed its socket
        else:
            raise LoadError(f"sending failed: {error.strerror}") from error
