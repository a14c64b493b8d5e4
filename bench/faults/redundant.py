# SPDX-License-Identifier: GPL-2.0-only
"""Measure datagrams that are sent on two planes at once, beside others, over planes that lose.

    python -m bench.faults.redundant [--count 20000] [--loss 2] [--rounds 2]     (as root)

Two hosts without a fabric have two planes with a switch each, which drops packets at random in both
directions. A datagram of 200 bytes leaves each millisecond, in turn for a port that is redundant
and for one that is not. Latency is from the call that sends to the kernel's time stamp at the
receiver's socket. What comes later than 3 ms is late.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import time
from multiprocessing.connection import Connection

from bench.instruments import entry
from mrcd.linux import netns
from rigs import bare_hosts
from rigs.bare_hosts import HOSTS, INNER, Bare

NAME = "redundant"
PLAIN, REDUNDANT = 5000, 5001
SIZE, GAP_NS, DEADLINE_NS = 200, 1_000_000, 3_000_000
QUIET_S = 2.0
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_HEAD = struct.Struct("=IQ")
_TIME = struct.Struct("=qq")
_PARTS_MOST = 100_000
OURS = ("tx_redundant", "rtx_fifo", "rtx_guard", "rtx_timeout", "rtx_needless", "path_withdrawn")


def main() -> None:
    parser = entry.parser(__doc__, seed=1, figures=False)
    parser.add_argument("--count", type=int, default=20_000, help="datagrams; %(default)s")
    parser.add_argument("--loss", type=float, default=2.0, help="percent; %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="of both kinds; %(default)s")
    options = parser.parse_args()
    entry.begin(NAME)
    making = bare_hosts.building("r", 2)
    try:
        bare = next(making)(bare_hosts.bridge)
        for host in HOSTS:
            place, kinds = bare.config(host), f'redundant = ["udp/{REDUNDANT}"]'
            place.write_text(place.read_text().replace("[mrc0]\n", f"[mrc0]\n{kinds}\n"))
    except BaseException:
        making.close()
        raise
    try:
        bare.begin()
        if options.loss:
            part = round(options.loss / 100 * _PARTS_MOST)
            bare_hosts.treat(bare, f"numgen random mod {_PARTS_MOST} < {part} drop", range(2))
        for _ in range(options.rounds):
            for port in (PLAIN, REDUNDANT):
                _measure(bare, port, options.count)
    finally:
        making.close()


def _measure(bare: Bare, port: int, count: int) -> None:
    before = bare.counters("a"), bare.counters("b")
    latency = _latency(bare, port, count)
    after = bare.counters("a"), bare.counters("b")
    lost, late = count - len(latency), sum(each > DEADLINE_NS for each in latency)
    shown = ", ".join(
        f"{text} {latency[min(len(latency) - 1, int(part * len(latency)))] / 1e6:.2f}"
        for text, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("most", 1.0))
    )
    counted = {name: after[0][name] - before[0][name] for name in OURS}
    copies = after[1]["rx_duplicate"] - before[1]["rx_duplicate"]
    print(
        f"{'redundant' if port == REDUNDANT else 'plain':9} of {count}: lost {lost}, late {late}, "
        f"together {100 * (lost + late) / count:.3f} %; ms: {shown}; {counted}, copies {copies}",
        flush=True,
    )


def _latency(bare: Bare, port: int, count: int) -> list[int]:
    """Send datagrams; return how long those that arrived took, in order of that (ns)."""
    with netns.entered(bare.namespace("b")):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.entered(bare.namespace("a")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        receiver.bind((INNER["b"], port))
        sender.connect((INNER["b"], port))
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(
            target=_receive, args=(receiver, count, theirs), daemon=True
        )
        child.start()
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        try:
            _send(sender, count)
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        found: list[int] = ours.recv()
        child.join()
    return sorted(found)


def _send(sender: socket.socket, count: int) -> None:
    body, due = bytes(SIZE - _HEAD.size), time.monotonic_ns()
    for number in range(count):
        due += GAP_NS
        if (wait := due - time.monotonic_ns()) > 0:
            time.sleep(wait / 1e9)
        sender.send(_HEAD.pack(number, time.time_ns()) + body)


def _receive(receiver: socket.socket, count: int, result: Connection) -> None:
    receiver.settimeout(QUIET_S)
    took: dict[int, int] = {}
    try:
        while len(took) < count:
            data, parts, _flags, _from = receiver.recvmsg(SIZE, 64)
            seconds, nanoseconds = _TIME.unpack(parts[0][2])
            number, sent = _HEAD.unpack_from(data)
            assert number not in took, f"datagram {number} was delivered twice"
            took[number] = seconds * 1_000_000_000 + nanoseconds - sent
    except TimeoutError:
        pass
    result.send(list(took.values()))


if __name__ == "__main__":
    main()
