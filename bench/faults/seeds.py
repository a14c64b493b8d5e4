# SPDX-License-Identifier: GPL-2.0-only
"""Measure how soon hosts behind routers find each other by a seed, and what that costs.

    python -m bench.faults.seeds [--hosts 8] [--seed 1]     (as root)

Hosts with two NICs are in subnets of their own, behind a router for each plane. They join one after
another, by a random member. A join is timed from `mrcctl quick up`, and from the moment at which
its mrcd is ready, until the last of all hosts has a session. Then nothing happens for a while, and
Hellos that arrive at one host are counted. Then hosts are powered off and come back without any
file: some with other addresses, and the first one with its former ones and nobody that it knows.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from datetime import datetime

from bench.instruments import entry
from mrcd.linux.groupsocket import PORT
from rigs.lab_hosts import eventually
from rigs.routed_hosts import RoutedCluster, frames

NAME = "seeds"
WAIT_S = 120.0
IDLE_S = 30.0
REBOOTS = 5
READY, SESSION = "daemon.ready", "peer.established"


def main() -> None:
    parser = entry.parser(__doc__, seed=1, figures=False)
    parser.add_argument("--hosts", type=int, default=8, help="in all; %(default)s")
    options = parser.parse_args()
    entry.begin(NAME)
    cluster = RoutedCluster(f"q{time.monotonic_ns() % 10_000}", 2)
    try:
        _run(cluster, options.hosts, random.Random(options.seed))
    finally:
        cluster.close()


def _run(cluster: RoutedCluster, count: int, rng: random.Random) -> None:
    cluster.build()
    hosts = [f"h{number}" for number in range(count)]
    for host in hosts:
        cluster.plug(host)
    cluster.first(hosts[0])
    there, joins = hosts[:1], []
    for host in hosts[1:]:
        seed = rng.choice(there)
        there.append(host)
        joins.append(_timed(cluster, host, there, seed))
    print(f"{len(joins)} joins of a cluster of 2 to {count}: {_both(joins)}")
    _idle(cluster, hosts)
    backs = []
    for host in rng.sample(hosts[1:], min(REBOOTS, count - 1)):
        cluster.power_off(host)
        cluster.plug(host)
        backs.append(_timed(cluster, host, hosts, hosts[0]))
    print(f"{len(backs)} hosts come back with other addresses: {_both(backs)}")
    backs = []
    for _ in range(REBOOTS):
        number = cluster.subnets[hosts[0]]
        cluster.power_off(hosts[0])
        cluster.plug(hosts[0], number)
        backs.append(_timed(cluster, hosts[0], hosts, None))
    print(f"the first host comes back {len(backs)} times, and knows nobody: {_both(backs)}")


def _timed(
    cluster: RoutedCluster, host: str, hosts: list[str], seed: str | None
) -> tuple[float, float]:
    """Bring a host up; return the seconds from the command, and from ready, until all have it."""
    began = time.time()
    if seed is None:
        cluster.first(host)
    else:
        cluster.seed(host, seed)
    others = [other for other in hosts if other != host]
    for one, two in ((one, two) for other in others for one, two in ((host, other), (other, host))):
        eventually(lambda o=one, t=two: t in cluster.established(o), f"{one} has {two}", WAIT_S)
    ready = next(at for at, event, _peer in _events(cluster, host) if event == READY)
    news = [_events(cluster, one) for one in hosts]
    last = max(at for each in news for at, event, _peer in each if event == SESSION)
    return last - began, last - ready


def _events(cluster: RoutedCluster, host: str) -> list[tuple[float, str, str]]:
    """Return what a host's log has: when, which event, and of which peer."""
    lines = (cluster.quick(host) / "mrcd.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [
        (datetime.fromisoformat(each["time"]).timestamp(), each["event"], each.get("peer", ""))
        for each in found
    ]


def _both(times: list[tuple[float, float]]) -> str:
    command, ready = zip(*times, strict=True)
    return f"{_spread(command)} from the command, {_spread(ready)} from mrcd's being ready"


def _spread(seconds: tuple[float, ...]) -> str:
    middle = statistics.median(seconds)
    return f"{middle:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def _idle(cluster: RoutedCluster, hosts: list[str]) -> None:
    """Count what arrives at a host and leaves it by one plane, at the router."""
    time.sleep(IDLE_S / 2)  # what the last join began is over
    host = hosts[-1]
    count, size, port = 0, 0, PORT.to_bytes(2, "big")
    for frame in frames(cluster.namespace(cluster.router(0)), f"{host}0", IDLE_S):
        if frame[36:38] == port:
            count, size = count + 1, size + len(frame)
    rate, kbit_s, mean = count / IDLE_S, 8 * size / IDLE_S / 1000, size / max(1, count)
    print(
        f"idle, {len(hosts)} hosts: {rate:.1f} Hellos a second to and from a host by a plane, "
        f"{kbit_s:.1f} kbit/s, {mean:.0f} bytes each"
    )


if __name__ == "__main__":
    main()
