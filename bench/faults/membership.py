# SPDX-License-Identifier: GPL-2.0-only
"""Measure how soon hosts join a cluster, come back, and are let go, and what finding them costs.

    python -m bench.faults.membership [--hosts 16] [--seed 1]     (as root)

Hosts with two NICs are on two bridges. They join one after another, in random order, by `mrcctl
quick up`; a join ends when a ping over mrc0 has come back from every other host. Then nothing
happens for a while, and packets of Hellos and the daemons' CPU time are counted. Then hosts are
powered off and come back with other MAC addresses and no file, one of them and then half of them at
once, beside a TCP stream of two others whose every byte is compared. In the end one leaves.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.instruments import entry
from bench.instruments.processor import cpu_s
from rigs.lab_hosts import eventually
from rigs.quick_hosts import Cluster, inner
from rigs.traffic import Stream

NAME = "membership"
WAIT_S = 120.0
IDLE_S = 20.0
SPARE = 2
"""The tables of neighbours have room for so many times what the hosts need."""


def main() -> None:
    parser = entry.parser(__doc__, seed=1, figures=False)
    parser.add_argument("--hosts", type=int, default=16, help="in all; %(default)s")
    options = parser.parse_args()
    entry.begin(NAME)
    cluster = Cluster(f"m{time.monotonic_ns() % 10_000}", 2)
    with _neighbours(options.hosts**2 * cluster.planes * SPARE):
        try:
            _run(cluster, options.hosts, random.Random(options.seed))
        finally:
            cluster.close()


@contextlib.contextmanager
def _neighbours(entries: int) -> Iterator[None]:
    """Have the kernel's tables of neighbours, which all namespaces share, hold so many entries."""
    files = [Path(f"/proc/sys/net/{family}/neigh/default/gc_thresh{number}")
             for family in ("ipv4", "ipv6") for number in (3, 2, 1)]  # fmt: skip
    before = [(file, int(file.read_text())) for file in files]
    try:
        for file, limit in before:
            file.write_text(str(max(limit, entries)))
        yield
    finally:
        for file, limit in reversed(before):
            file.write_text(str(limit))


def _run(cluster: Cluster, count: int, rng: random.Random) -> None:
    cluster.build()
    names = [f"h{number}" for number in range(count - 2)]
    rng.shuffle(names)
    joined, pinged = [], []
    for name in names:
        cluster.plug(name)
        before = time.monotonic()
        cluster.join(name)
        joined.append(time.monotonic() - before)
        _ping_all(cluster, name)
        pinged.append(time.monotonic() - before)
    print(f"joins of {len(names)} hosts to a cluster of 2: until `quick up` returns "
          f"{_spread(joined)}, until each has pinged every other {_spread(pinged)}")  # fmt: skip
    everybody = ["a", "b", *names]
    for host in everybody:
        eventually(lambda h=host: len(cluster.established(h)) == count - 1, f"{host} whole", WAIT_S)
    _idle(cluster, everybody)
    stream = Stream(cluster, "a", "b", inner(cluster, "b")).start(1 << 30)
    one = names[:1]
    print(f"one host without a word, and back: {_reboot(cluster, one, count):.1f} s")
    half = names[: count // 2]
    print(
        f"{len(half)} of {count} at once: {_reboot(cluster, half, count):.1f} s until all are whole"
    )
    stream.finish()
    print("the stream of two others: every byte right")
    before = time.monotonic()
    cluster.down(names[0])
    down = time.monotonic() - before
    for host in everybody:
        if host != names[0]:
            eventually(lambda h=host: names[0] not in cluster.peers(h), "let go", WAIT_S)
    print(f"one leaves: {down:.1f} s for `quick down`; {time.monotonic() - before:.1f} s until "
          f"{count - 1} hosts were asked, and none has it")  # fmt: skip


def _spread(seconds: list[float]) -> str:
    middle = statistics.median(seconds)
    return f"{middle:.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"


def _ping_all(cluster: Cluster, host: str) -> None:
    for other, peer in cluster.peers(host).items():
        address = next(each for each in peer["addresses"] if "." in each).partition("/")[0]
        eventually(
            lambda address=address: _answers(cluster, host, address), f"{other} answers", WAIT_S
        )


def _answers(cluster: Cluster, host: str, address: str) -> bool:
    done = subprocess.run(
        ["ip", "netns", "exec", cluster.namespace(host), "ping", "-c1", "-W1", address],
        capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def _idle(cluster: Cluster, hosts: list[str]) -> None:
    """Count Hellos at one NIC, and the CPU time of the daemons."""
    pids = [int(Path(cluster.quick(host), "pid").read_text()) for host in hosts]
    time.sleep(IDLE_S / 2)  # what the last join began is over
    before, heard = sum(map(cpu_s, pids)), _multicasts(cluster)
    time.sleep(IDLE_S)
    spent, heard = sum(map(cpu_s, pids)) - before, _multicasts(cluster) - heard
    per_cent = 100 * spent / IDLE_S / len(hosts)
    print(f"idle, {len(hosts)} hosts: {heard / IDLE_S / cluster.planes:.1f} multicast packets a "
          f"second arrive at a NIC; a daemon takes {per_cent:.2f} % of a CPU in all")  # fmt: skip


def _multicasts(cluster: Cluster) -> int:
    shown = cluster.run("a", "cat", "/proc/net/snmp6")
    return int(dict(line.split() for line in shown.splitlines())["Ip6InMcastPkts"])


def _reboot(cluster: Cluster, hosts: list[str], count: int) -> float:
    """Power hosts off, give them new NICs, and return the seconds from then until all are whole."""
    for host in hosts:
        cluster.power_off(host)
    for host in hosts:
        cluster.plug(host)
    before = time.monotonic()
    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(cluster.join, hosts))
    for host in hosts:
        eventually(lambda h=host: len(cluster.established(h)) == count - 1, f"{host} whole", WAIT_S)
    return time.monotonic() - before


if __name__ == "__main__":
    sys.exit(main())
