# SPDX-License-Identifier: GPL-2.0-only
"""Send and receive traffic for measurements, as a process inside a host of a lab.

    stream.py recv HOST PORT RECORD [--mptcp]          writes sizes and times to RECORD
    stream.py send HOST PORT SECONDS [--mptcp] [--cc cubic] [--pace MBPS]
    stream.py udp-recv HOST PORT RECORD                until a datagram of one byte arrives
    stream.py udp-send HOST PORT SECONDS --mbps N --size BYTES
    stream.py answer HOST PORT RECORD                  answers requests until the other end closes
    stream.py ask HOST PORT SECONDS --size BYTES --record FILE

A RECORD is a flat array of native u64: pairs of CLOCK_MONOTONIC and byte count for TCP, datagram
numbers for UDP, nanoseconds from request to answer for `ask`. Both ends print one JSON object a
line: first when ready, then the result.
The file is run by its path. It imports nothing from the project, so that it starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import socket
import struct
import threading
import time
from array import array
from pathlib import Path

IPPROTO_MPTCP = 262
SOL_MPTCP = 284
MPTCP_INFO = 1
UDP_SEGMENT = 103
SO_RCVBUFFORCE = 33
SO_MAX_PACING_RATE = 47

_TOTAL_RETRANS = 100  # offsetof(struct tcp_info, tcpi_total_retrans)
_TCP_INFO_BYTES = 104
_SAMPLE_S = 0.005
_CHUNK = 1 << 18
_BURST = 8  # datagrams per system call, if they fit
_BURST_BYTES = 65_000  # a burst is one datagram before segmentation, so IP's 64 KiB limit it
_NUMBER = struct.Struct("=Q")


def say(**result: object) -> None:
    """Print one JSON object for the parent process."""
    print(json.dumps(result), flush=True)


def counter(file: str, group: str, name: str) -> int:
    """Return a counter of this network namespace, from /proc/net/snmp or /proc/net/netstat."""
    lines = Path("/proc/thread-self/net", file).read_text().splitlines()
    rows = [line.split() for line in lines if line.startswith(f"{group}:")]
    for names, values in zip(rows[::2], rows[1::2], strict=True):
        if name in names:
            return int(values[names.index(name)])
    return 0


class Sampler(threading.Thread):
    """A thread that samples TCP's retransmitted segments and keeps only the changes."""

    def __init__(self, sock: socket.socket, mptcp: bool) -> None:
        super().__init__(daemon=True)
        self._sock = sock
        self._mptcp = mptcp
        self._start = counter("snmp", "Tcp", "RetransSegs")
        self._done = threading.Event()
        self.samples: list[tuple[int, int]] = []
        self.subflows = 0

    def run(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self.take()

    def finish(self) -> None:
        """Stop, with a last sample."""
        self._done.set()
        self.join()
        self.take()

    def take(self) -> None:
        now = time.monotonic_ns()
        value = self._total()
        if not self.samples or self.samples[-1][1] != value:
            self.samples.append((now, value))

    def _total(self) -> int:
        if not self._mptcp:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return int(struct.unpack_from("=I", info, _TOTAL_RETRANS)[0])
        # TCP_INFO shows the first subflow only; nothing else in this host speaks TCP.
        info = self._sock.getsockopt(SOL_MPTCP, MPTCP_INFO, 1)
        self.subflows = max(self.subflows, info[0])
        return counter("snmp", "Tcp", "RetransSegs") - self._start


def tcp_socket(mptcp: bool) -> socket.socket:
    """Return a TCP or MPTCP socket; OSError if the kernel has no MPTCP."""
    protocol = IPPROTO_MPTCP if mptcp else socket.IPPROTO_TCP
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)


def send(host: str, port: int, seconds: float, mptcp: bool, cc: str, pace_mbps: float = 0) -> None:
    """Send as fast as possible, or at `pace_mbps`; report bytes, errors and retransmits."""
    with tcp_socket(mptcp) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, cc.encode())
        if pace_mbps:
            sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(pace_mbps * 1e6 / 8))
        sock.connect((host, port))
        block = memoryview(bytes(_CHUNK))
        sampler = Sampler(sock, mptcp)
        sampler.start()
        began_ns = time.monotonic_ns()
        say(began_ns=began_ns)
        end_ns = began_ns + int(seconds * 1e9)
        sent, error = 0, None
        try:
            while time.monotonic_ns() < end_ns:
                sent += sock.send(block)
        except OSError as problem:
            error = str(problem)
        sampler.finish()
        say(sent=sent, error=error, retransmits=sampler.samples, subflows=sampler.subflows)


def recv(host: str, port: int, record: Path, mptcp: bool) -> None:
    """Receive one connection until it ends; record each arrival."""
    arrivals = array("Q")
    buffer = bytearray(1 << 20)
    error = None
    with tcp_socket(mptcp) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        say(ready=True)
        sock, _ = listener.accept()
        gc.disable()
        now, note, take = time.monotonic_ns, arrivals.append, sock.recv_into
        try:
            while size := take(buffer):
                note(now())
                note(size)
        except OSError as problem:
            error = str(problem)
    with record.open("wb") as file:
        arrivals.tofile(file)
    say(received=sum(arrivals[1::2]), error=error)


def udp_send(host: str, port: int, seconds: float, mbps: float, size: int) -> None:
    """Send numbered datagrams of `size` bytes at a steady pace, a few at a time."""
    count = min(_BURST, _BURST_BYTES // size)
    gap_ns = int(count * size * 8 * 1000 / mbps)
    fill = bytes(size - _NUMBER.size)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
        sock.connect((host, port))
        began_ns = due_ns = time.monotonic_ns()
        say(began_ns=began_ns)
        number, end_ns = 0, began_ns + int(seconds * 1e9)
        while due_ns < end_ns:
            pause_ns = due_ns - time.monotonic_ns()
            if pause_ns > 0:
                time.sleep(pause_ns / 1e9)
            elif pause_ns < -5_000_000:
                due_ns -= pause_ns  # after a delay, do not catch up with a burst
            burst = (_NUMBER.pack(number + i) + fill for i in range(count))
            sock.send(b"".join(burst))
            number += count
            due_ns += gap_ns
        took_ns = time.monotonic_ns() - began_ns
        time.sleep(0.5)  # datagrams still on their way must arrive before the end marker
        sock.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 0)
        for _ in range(3):
            with contextlib.suppress(ConnectionRefusedError):  # the receiver has one already
                sock.send(b".")
        say(sent=number, mbps=number * size * 8e3 / took_ns)


def udp_recv(host: str, port: int, record: Path) -> None:
    """Record the numbers of datagrams as they arrive."""
    numbers = array("Q")
    buffer = bytearray(1 << 16)
    dropped = counter("snmp", "Udp", "RcvbufErrors")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        sock.bind((host, port))
        say(ready=True)
        gc.disable()
        note, take, unpack = numbers.append, sock.recv_into, _NUMBER.unpack_from
        while take(buffer) > 1:
            note(unpack(buffer)[0])
    with record.open("wb") as file:
        numbers.tofile(file)
    say(received=len(numbers), overrun=counter("snmp", "Udp", "RcvbufErrors") - dropped)


def answer(host: str, port: int) -> None:
    """Answer each request of a connection with one word; a request begins with its length."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        say(ready=True)
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = sock.makefile("rb", buffering=1 << 16)
        count = 0
        while head := file.read(_NUMBER.size):
            file.read(_NUMBER.unpack(head)[0] - _NUMBER.size)
            sock.sendall(head)
            count += 1
    say(answered=count)


def ask(host: str, port: int, seconds: float, size: int, record: Path) -> None:
    """Send requests one after another, each after the last answer; record the time of each."""
    took = array("Q")
    request = _NUMBER.pack(size) + bytes(size - _NUMBER.size)
    with socket.create_connection((host, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        say(began_ns=time.monotonic_ns())
        gc.disable()
        end_ns = time.monotonic_ns() + int(seconds * 1e9)
        while (asked_ns := time.monotonic_ns()) < end_ns:
            sock.sendall(request)
            if len(sock.recv(_NUMBER.size, socket.MSG_WAITALL)) < _NUMBER.size:
                break
            took.append(time.monotonic_ns() - asked_ns)
    with record.open("wb") as out:
        took.tofile(out)
    say(asked=len(took))


def main() -> None:
    """Run the kind of traffic that the command line names."""
    parser = argparse.ArgumentParser(description="traffic inside a host of a lab")
    kinds = ("send", "recv", "udp-send", "udp-recv", "ask", "answer")
    parser.add_argument("what", choices=kinds)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("third", help="SECONDS of a sender, RECORD of a receiver")
    parser.add_argument("--mptcp", action="store_true")
    parser.add_argument("--cc", default="cubic")
    parser.add_argument("--pace", type=float, default=0, help="Mb/s of a TCP sender at most")
    parser.add_argument("--mbps", type=float, default=100)
    parser.add_argument("--size", type=int, default=1200)
    parser.add_argument("--record", type=Path, help="file for the times")
    args = parser.parse_args()
    if args.what == "send":
        send(args.host, args.port, float(args.third), args.mptcp, args.cc, args.pace)
    elif args.what == "recv":
        recv(args.host, args.port, Path(args.third), args.mptcp)
    elif args.what == "udp-send":
        udp_send(args.host, args.port, float(args.third), args.mbps, args.size)
    elif args.what == "ask":
        ask(args.host, args.port, float(args.third), args.size, args.record)
    elif args.what == "answer":
        answer(args.host, args.port)
    else:
        udp_recv(args.host, args.port, Path(args.third))


if __name__ == "__main__":
    main()
