# SPDX-License-Identifier: GPL-2.0-only
"""Send and receive traffic and check every byte of it, as a process inside a host of a lab.

    checked.py tcp-listen HOST PORT --seed N [--mbps R]     both ends send and check a stream
    checked.py tcp-connect HOST PORT --seed N [--mbps R]
    checked.py udp-recv HOST PORT                           numbered datagrams of many sizes
    checked.py udp-send HOST PORT --seed N --mbps R --size MOST
    checked.py answer HOST PORT                             requests whose answer is their digest
    checked.py ask HOST PORT --seed N --size MOST

A sender runs until SIGTERM, all others until the other end finishes. Each prints one JSON object a
line: first when ready, then its progress four times a second, and the result at the end.
The file is run by its path and imports nothing from the project.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

BLOCK = 1 << 16
_POOL = 4 << 20
_HEAD = struct.Struct("=QQ")  # number, seed
_SAY_S = 0.25
_STEP = 104_729  # a prime, so that consecutive blocks begin all over the pool
_SO_RCVBUFFORCE = 33
_END = (1 << 64) - 1


@dataclass(slots=True)
class Progress:
    """The amount received so far, and whether to stop sending."""

    value: int = 0
    stop: threading.Event = field(default_factory=threading.Event)


PROGRESS = Progress()
_SAYING = threading.Lock()


def say(**result: object) -> None:
    """Print one JSON object for the parent process, whole whatever thread says something."""
    with _SAYING:
        print(json.dumps(result), flush=True)


def report() -> None:
    """Print progress until the process ends."""
    while True:
        time.sleep(_SAY_S)
        say(progress=PROGRESS.value, at_ns=time.monotonic_ns())


class Data:
    """A pseudo-random stream, any block of which can be regenerated from its number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pool = memoryview(random.Random(seed).randbytes(_POOL))

    def block(self, number: int, size: int = BLOCK) -> bytes:
        """Return the first `size` bytes of block `number`."""
        body = size - _HEAD.size
        start = number * _STEP % (_POOL - BLOCK)
        return _HEAD.pack(number, self._seed) + self._pool[start : start + body]


def difference(sent: bytes, got: bytes) -> str:
    """Say where two blocks differ: one bit is damage, a stretch is a packet out of place."""
    places = [i for i, (a, b) in enumerate(zip(sent, got, strict=False)) if a != b]
    bits = sum((sent[i] ^ got[i]).bit_count() for i in places)
    return f"bytes {places[0]} to {places[-1]} of {len(got)}: {len(places)} differ in {bits} bits"


def paced(mbps: float, size: int) -> Iterator[int]:
    """Yield numbers from 0 at the pace of `mbps` for `size` bytes each; 0 Mb/s means no limit."""
    number, due_ns = 0, time.monotonic_ns()
    while not PROGRESS.stop.is_set():
        if mbps:
            pause_ns = due_ns - time.monotonic_ns()
            if pause_ns > 0:
                time.sleep(pause_ns / 1e9)
            elif pause_ns < -50_000_000:
                due_ns -= pause_ns  # after a delay, do not catch up with a burst
            due_ns += int(size * 8000 / mbps)
        yield number
        number += 1


def tcp(sock: socket.socket, seed: int, mbps: float) -> None:
    """Send and check at the same time; the seeds of the two ends differ in the lowest bit."""
    sent: dict[str, object] = {}
    sender = threading.Thread(target=_send, args=(sock, seed, mbps, sent), daemon=True)
    sender.start()
    digest, received, error = hashlib.sha256(), 0, None
    wrong: list[str] = []
    data, buffer = Data(seed ^ 1), bytearray(BLOCK)
    number = 0
    try:
        while size := _fill(sock, buffer):
            digest.update(memoryview(buffer)[:size])
            if buffer[:size] != data.block(number)[:size] and len(wrong) < 10:
                wrong.append(f"{number} ({difference(data.block(number), buffer[:size])})")
            received += size
            number += 1
            PROGRESS.value = received
    except OSError as problem:
        error = f"receiving: {problem}"
    sender.join(60)
    say(received=received, received_sha=digest.hexdigest(), wrong=wrong,
        error=error, **{"sent": None, **sent})  # fmt: skip


def _send(sock: socket.socket, seed: int, mbps: float, result: dict[str, object]) -> None:
    data, digest, sent = Data(seed), hashlib.sha256(), 0
    try:
        for number in paced(mbps, BLOCK):
            block = data.block(number)
            sock.sendall(block)
            digest.update(block)
            sent += BLOCK
        sock.shutdown(socket.SHUT_WR)
    except OSError as problem:
        result["send_error"] = str(problem)
    result["sent"] = sent
    result["sent_sha"] = digest.hexdigest()


def _fill(sock: socket.socket, buffer: bytearray) -> int:
    """Read a whole block, or the rest before the end of the stream; return its size."""
    view, size = memoryview(buffer), 0
    while size < len(buffer):
        got = sock.recv_into(view[size:])
        if not got:
            break
        size += got
    return size


def udp_send(host: str, port: int, seed: int, mbps: float, most: int) -> None:
    """Send numbered datagrams of random sizes, then end markers."""
    data, rng, sent, refused = Data(seed), random.Random(seed), 0, 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        say(ready=True)
        for number in paced(mbps, most // 2):
            try:
                sock.send(data.block(number, rng.randint(_HEAD.size, most)))
            except OSError:
                refused += 1
            sent = number + 1
        time.sleep(2)  # datagrams still on their way must arrive before the end marker
        for _ in range(5):
            with contextlib.suppress(ConnectionRefusedError):  # the receiver has one already
                sock.send(_HEAD.pack(_END, seed))
            time.sleep(0.2)
    say(sent=sent, refused=refused)


def udp_recv(host: str, port: int) -> None:
    """Check content and order; report how many numbers arrived, repeated, late or wrong."""
    seen = bytearray()
    highest, doubled, late, wrong = -1, 0, 0, 0
    data: Data | None = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        sock.bind((host, port))
        say(ready=True)
        while True:
            got = sock.recv(BLOCK)
            number, seed = _HEAD.unpack_from(got)
            if number == _END:
                break
            data = data or Data(seed)
            if number > 1 << 32 or got != data.block(number, len(got)):
                wrong += 1
                continue
            if number >= len(seen):
                seen.extend(bytes(number + 1 - len(seen)))
            doubled += seen[number] > 0
            late += number < highest and not seen[number]
            seen[number] = 1
            highest = max(highest, number)
            PROGRESS.value += 1
    arrived = sum(seen)
    say(arrived=arrived, doubled=doubled, late=late, wrong=wrong, highest=highest)


def answer(sock: socket.socket) -> None:
    """Answer each request with its digest."""
    file, count = sock.makefile("rb", buffering=BLOCK), 0
    while head := file.read(8):
        body = file.read(struct.unpack("=Q", head)[0])
        sock.sendall(hashlib.sha256(body).digest())
        count += 1
        PROGRESS.value = count
    say(answered=count)


def ask(sock: socket.socket, seed: int, most: int) -> None:
    """Send requests of random sizes one after another, a few ms apart, and check the answers."""
    data, rng, wrong, slowest_ns, count = Data(seed), random.Random(seed), 0, 0, 0
    error = None
    try:
        while not PROGRESS.stop.is_set():
            body = data.block(count, rng.randint(_HEAD.size, most))
            began_ns = time.monotonic_ns()
            sock.sendall(struct.pack("=Q", len(body)) + body)
            got = sock.recv(32, socket.MSG_WAITALL)
            slowest_ns = max(slowest_ns, time.monotonic_ns() - began_ns)
            wrong += got != hashlib.sha256(body).digest()
            count += 1
            PROGRESS.value = count
            time.sleep(0.005)
    except OSError as problem:
        error = str(problem)
    say(asked=count, wrong=wrong, slowest_ns=slowest_ns, error=error)


def accepted(host: str, port: int) -> socket.socket:
    """Return the first connection to a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        say(ready=True)
        sock, _ = listener.accept()
        return sock


def connected(host: str, port: int) -> socket.socket:
    """Return a connection to a port."""
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    say(ready=True)
    return sock


def main() -> None:
    """Run the kind of traffic that the command line names."""
    parser = argparse.ArgumentParser(description="checked traffic inside a host of a lab")
    kinds = ("tcp-listen", "tcp-connect", "udp-send", "udp-recv", "ask", "answer")
    parser.add_argument("what", choices=kinds)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mbps", type=float, default=0)
    parser.add_argument("--size", type=int, default=8000)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: PROGRESS.stop.set())
    threading.Thread(target=report, daemon=True).start()
    if args.what == "tcp-listen":
        tcp(accepted(args.host, args.port), args.seed | 1, args.mbps)
    elif args.what == "tcp-connect":
        tcp(connected(args.host, args.port), args.seed & ~1, args.mbps)
    elif args.what == "udp-send":
        udp_send(args.host, args.port, args.seed, args.mbps, args.size)
    elif args.what == "udp-recv":
        udp_recv(args.host, args.port)
    elif args.what == "answer":
        answer(accepted(args.host, args.port))
    else:
        ask(connected(args.host, args.port), args.seed, args.size)


if __name__ == "__main__":
    main()
