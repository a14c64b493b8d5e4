# SPDX-License-Identifier: GPL-2.0-only
"""Measure planes that differ in what they carry and in how far they are.

    python -m bench.transport.unequal [--rates 1000,250,25] [--delays 0,0,0]
        [--told both|one|none] [--standby 3] [--rest 20] [--rounds 3]     (as root)

Two hosts without a fabric have a network for each rate, Mb/s, that passes so much each way, with
queues of 20 ms, and holds packets for so many milliseconds each way. `--told` says which hosts have
the rates in their configuration: both, the one that receives, or none. One TCP connection sends
from one host to the other; meanwhile a datagram of 64 bytes goes there and back, one at a time.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from itertools import count, zip_longest

from bench.instruments import entry, flow
from bench.instruments.metrics import Arrivals
from bench.instruments.processor import Processor
from mrcd.linux import netns
from rigs import bare_hosts
from rigs.bare_hosts import HOSTS, INNER, Bare
from rigs.unequal_planes import Way, unequal

NAME = "unequal"
ASK_PORT, SIZE, PAUSE_S, WAIT_S = 7777, 64, 0.005, 2.0
_HEAD = struct.Struct("=Q")
_READY_S = 30.0
_TOLD = {"both": HOSTS, "one": HOSTS[1:], "none": ""}
_ports = count(7000)


def main() -> None:
    parser = entry.parser(__doc__, rounds=3, seconds=10.0, figures=False)
    parser.add_argument("--rates", type=_numbers, default=[1000, 250, 25], help="Mb/s, by plane")
    parser.add_argument("--delays", type=_numbers, default=[], help="ms each way, by plane")
    parser.add_argument("--told", choices=_TOLD, default="both", help="%(default)s")
    parser.add_argument("--standby", type=int, action="append", default=[], help="plane, from 1")
    parser.add_argument("--rest", type=float, default=0.0, help="s before the first round")
    options = parser.parse_args()
    entry.begin(NAME)
    both = zip_longest(options.rates, options.delays[: len(options.rates)], fillvalue=0.0)
    with unequal(*(Way(*each) for each in both)) as ways:
        making = bare_hosts.building("u", len(options.rates))
        try:
            bare = next(making)(ways)
            for host in HOSTS:
                rates = options.rates if host in _TOLD[options.told] else ()
                _write(bare, host, rates, options.standby)
            bare.begin()
            time.sleep(options.rest)
            for _ in range(options.rounds):
                _measure(bare, sum(options.rates), options.seconds)
        finally:
            making.close()


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def _write(bare: Bare, host: str, rates: Sequence[float], standby: Sequence[int]) -> None:
    place = bare.config(host)
    text = place.read_text()
    for plane in range(bare.planes):
        line = f'interface = "{bare_hosts.nic(plane)}"\n'
        more = f"rate_mbps = {round(rates[plane])}\n" if rates else ""
        more += "standby = true\n" if plane + 1 in standby else ""
        text = text.replace(line, line + more)
    place.write_text(text)


def _measure(bare: Bare, most: float, seconds: float) -> None:
    trips: list[float] = []
    ended = threading.Event()
    asking = threading.Thread(target=_ask, args=(bare, ended, trips))
    processor, before = Processor(), bare.sent()
    asking.start()
    try:
        received = _stream(bare, seconds)
    finally:
        ended.set()
        asking.join()
    planes = [
        (now - then) * 8 / seconds / 1e6 for now, then in zip(bare.sent(), before, strict=True)
    ]
    trips.sort()
    p50, p99 = (trips[int(part * (len(trips) - 1))] for part in (0.5, 0.99))
    print(
        f"{received:.0f} of {most:.0f} Mb/s ({received / most:.2f}), on planes "
        f"{', '.join(f'{each:.1f}' for each in planes)}; requests p50 {p50:.2f}, p99 {p99:.2f} ms; "
        f"CPUs {100 * processor.busy():.0f} %, steal {100 * processor.stolen():.1f} %",
        flush=True,
    )


def _stream(bare: Bare, seconds: float) -> float:
    """Send from a to b; return what arrived behind the first second, Mb/s."""
    port, record = str(next(_ports)), bare.folder / "record"
    sending = ("send", INNER["b"], port, str(seconds), "--cc", "cubic")
    with flow.talking(bare.namespace("b"), "recv", INNER["b"], port, str(record)) as sink:
        sink.read(_READY_S)
        with flow.talking(bare.namespace("a"), *sending) as sender:
            sender.read(_READY_S)
            sender.read(seconds + _READY_S)
        sink.read(_READY_S)
    arrivals = Arrivals(*flow.read_pairs(record))
    end = int(arrivals.times_ns[-1])
    return arrivals.bps(end - round((seconds - 1) * 1e9), end) / 1e6


def _ask(bare: Bare, ended: threading.Event, trips: list[float]) -> None:
    """Have a datagram go from a to b and back until it is enough; note how long each took, ms."""
    with netns.entered(bare.namespace("b")):
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.entered(bare.namespace("a")):
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with there, here:
        there.bind((INNER["b"], ASK_PORT))
        there.settimeout(WAIT_S)
        here.connect((INNER["b"], ASK_PORT))
        here.settimeout(WAIT_S)
        answering = threading.Thread(target=_answer, args=(there, ended))
        answering.start()
        for number in count():
            if ended.is_set():
                break
            began = time.monotonic_ns()
            here.send(_HEAD.pack(number).ljust(SIZE, b"\0"))
            try:
                while _HEAD.unpack_from(here.recv(SIZE))[0] != number:
                    pass
                trips.append((time.monotonic_ns() - began) / 1e6)
            except TimeoutError:
                trips.append(WAIT_S * 1e3)
            time.sleep(PAUSE_S)
        answering.join()


def _answer(there: socket.socket, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            data, who = there.recvfrom(SIZE)
        except TimeoutError:
            continue
        there.sendto(data, who)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
