# SPDX-License-Identifier: GPL-2.0-only
"""Simulate how hundreds of hosts on switches find each other: what is said, and what it costs.

    python -m bench.faults.gathering [--hosts 500] [--planes 2]

The hosts' parts that decide (mrcd/peers/meeting.py) and their messages are the real ones; networks,
clocks and the time that admission takes are simulated, and no data path is there. All hosts start
within 10 s, and each looks at those it hears before it speaks. CPU time is that of this process,
shared out; each Hello is read once, for all. How far it is comes on stderr: 500 hosts take most of
an hour.
"""

from __future__ import annotations

import gc
import heapq
import random
import sys
import time
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from bench.instruments import entry
from mrcd.config import config
from mrcd.config.config import Peer
from mrcd.fabric import network
from mrcd.handshake.hello import Hello, decode, encode, spaced_s
from mrcd.peers.discovering import AGAIN_S
from mrcd.peers.meeting import Meeting

S = 10**9
KEY = bytes(range(32))
START_S, IDLE_S, LIMIT_S = 10.0, 30.0, 900.0
ADMITTED_S = 1.0
"""A host admits one other each second, beyond a burst of 16 (mrcd/peers/admitted.py)."""
BURST = 16
TOLD_S = 60.0
"""Time between two lines of how far it is, of this process's CPU time."""
SAMPLED = 16
"""One Hello of so many has the time measured that it takes to read: clocks cost more than that."""


class Host:
    """One host, and what it has been told."""

    def __init__(self, number: int, planes: int, rng: random.Random) -> None:
        nics = "".join(f'[[plane]]\ninterface = "eth{k + 1}"\n' for k in range(planes))
        self.name = f"host-{number}"
        found = config.loads(
            f'[host]\nname = "{self.name}"\n[mrc0]\naddresses = ["10.9.{number >> 8}.'
            f'{number & 255}/16"]\n[keys]\nsecret_file = "s"\ndiscover = true\n{nics}',
            Path("/nowhere/mrcd.toml"),
        )
        ends = tuple(ip_address(f"fe80::{number + 1:x}:{k}") for k in range(planes))
        self.config = replace(found, host=replace(found.host, endpoints=ends))
        self.meeting = Meeting(lambda: self.config, random.Random(rng.random()), number)
        self.credit = float(BURST)
        self.credited = 0.0
        self.read: dict[tuple[int, str], bytes] = {}
        self.whole_s: float | None = None

    def hear(self, plane: int, source: str, datagram: bytes, hello: Hello, now_s: float) -> bool:
        """Hear a datagram; return whether it had to be read."""
        new = self.read.get((plane, source)) != datagram
        self.read[plane, source] = datagram
        self.meeting.hear(plane, source, hello, now_ns=round(now_s * S))
        return new

    def admit(self, now_s: float) -> None:
        """Take those that are ready as peers, as fast as a host may."""
        self.credit = min(BURST, self.credit + (now_s - self.credited) / ADMITTED_S)
        self.credited = now_s
        if self.credit < 1:
            return
        taken = []
        unknown = (name for name in self.meeting.names if name not in self.config.by_name)
        for met in self.meeting.met(now_ns=round(now_s * S), names=[*unknown]):
            if met.ready and self.credit >= 1:
                self.credit -= 1
                taken.append(Peer(network.host(met.name, met.endpoints), ()))
        if taken:
            self.config = replace(self.config, peers=(*self.config.peers, *taken))


def main() -> None:
    parser = entry.parser(__doc__, seed=1, figures=False)
    parser.add_argument("--hosts", type=int, default=500, help="in all; %(default)s")
    parser.add_argument("--planes", type=int, default=2, help="NICs of each; %(default)s")
    options = parser.parse_args()
    gc.disable()  # what hosts know are no cycles, and to look for some in it takes minutes
    _run(options.hosts, options.planes, random.Random(options.seed))


def _run(count: int, planes: int, rng: random.Random) -> None:
    hosts = [Host(number, planes, rng) for number in range(count)]
    turns = [(rng.uniform(0, START_S), number) for number in range(count)]
    heapq.heapify(turns)
    said = bytes_ = read = heard = longest = 0
    idle: tuple[int, int, int, float, float] | None = None
    cpu_s, decode_s = time.process_time(), 0.0
    now, told_s = 0.0, cpu_s
    while turns:
        now, number = heapq.heappop(turns)
        host = hosts[number]
        host.admit(now)
        if time.process_time() > told_s + TOLD_S:
            told_s = time.process_time()
            _tell(hosts, now, told_s - cpu_s)
        if host.whole_s is None and len(host.config.peers) == count - 1:
            host.whole_s = now
        for plane in range(planes):
            datagram = encode(host.meeting.hello(plane), KEY)
            if said % SAMPLED:
                hello = decode(datagram, KEY)
            else:
                began = time.process_time()
                hello = decode(datagram, KEY)
                decode_s += SAMPLED * (time.process_time() - began)
            source = str(host.config.host.endpoints[plane])
            said, bytes_, longest = said + 1, bytes_ + len(datagram), max(longest, len(datagram))
            for other in hosts:
                if other is not host:
                    read += other.hear(plane, source, datagram, hello, now)
                    heard += 1
        period_s = host.meeting.period_s(now_ns=round(now * S))
        again_s = spaced_s(period_s, host.meeting.count + 1, planes)
        if host.whole_s is None:
            again_s = min(again_s, max(AGAIN_S, spaced_s(0, count, planes)))
        heapq.heappush(turns, (now + again_s, number))
        if idle is None and all(each.whole_s is not None for each in hosts):
            took = time.process_time() - cpu_s
            wholes = sorted(each.whole_s or 0 for each in hosts)
            print(f"{count} hosts: all know all {wholes[-1]:.0f} s after the first start (median "
                  f"{wholes[len(wholes) // 2]:.0f}); {said / planes:.0f} Hellos on each network, "
                  f"{bytes_ / said:.0f} bytes in the mean, {longest} at most; {took / count:.2f} s "
                  f"of CPU for each host, and {1e6 * decode_s / said:.0f} us to read a Hello, of "
                  f"which a host reads {read / count:.0f}")  # fmt: skip
            idle = said, bytes_, read, now, time.process_time()
        if idle is not None and now > idle[3] + IDLE_S:
            return _idle(idle, said, bytes_, read, now, count, planes)
        if now > LIMIT_S:
            whole = sum(each.whole_s is not None for each in hosts)
            print(f"{whole} of {count} hosts know all others after {LIMIT_S:.0f} s")
            return None


def _tell(hosts: list[Host], now: float, took_s: float) -> None:
    """Say how far it is."""
    known = sorted(len(each.config.peers) for each in hosts)
    whole = sum(each.whole_s is not None for each in hosts)
    print(f"{now:.1f} s after the first start, {took_s / 60:.0f} minutes of CPU: hosts know "
          f"{known[0]} to {known[-1]} others, {known[len(known) // 2]} in the median; {whole} "
          f"know all", file=sys.stderr, flush=True)  # fmt: skip


def _idle(
    since: tuple[int, int, int, float, float], said: int, bytes_: int, read: int, now: float,
    count: int, planes: int,
) -> None:  # fmt: skip
    for_s, hellos = now - since[3], said - since[0]
    cpu = 100 * (time.process_time() - since[4]) / count / for_s
    print(f"afterwards, for {for_s:.0f} s: {hellos / for_s / planes:.1f} Hellos a second on each "
          f"network, {(bytes_ - since[1]) / hellos:.0f} bytes; "
          f"{(read - since[2]) / count / for_s:.2f} a second have to be read by a host; "
          f"{cpu:.2f} % of a CPU for each")  # fmt: skip


if __name__ == "__main__":
    main()
