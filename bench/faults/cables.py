# SPDX-License-Identifier: GPL-2.0-only
"""Measure hosts without switches: goodput beside plain routed TCP, and faults of cables and hosts.

    python -m bench.faults.cables [--shape ring:5] [--rate 250] [--seconds 4]     (as root)

The hosts have a cable to each neighbour, and `mrcctl quick up --forward`. Plain TCP goes by IPv4
routes of the kernel, by the shortest way, with forwarding and all offloads; mrcd's is measured in
turns with it. Then, under one TCP stream at a time, a cable that it uses is pulled out, and put in
again; one in the middle of its way is; and the next host on its way vanishes with its NICs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from bench.instruments import entry, flow
from bench.instruments.metrics import Arrivals
from bench.instruments.processor import Processor
from rigs.cabled_hosts import Cabled, mesh, ring
from rigs.quick_hosts import inner

NAME = "cables"
S, MS = 10**9, 10**6
_ROUNDS = 3
_READY_S = 30.0
_ports = count(7000)


def main() -> None:
    parser = entry.parser(__doc__, seconds=4.0, figures=False)
    parser.add_argument("--shape", default="ring:5", help="ring:N or mesh:N; %(default)s")
    parser.add_argument("--rate", type=int, default=250, help="of a cable, Mb/s; %(default)s")
    options = parser.parse_args()
    entry.begin(NAME)
    kind, _, size = options.shape.partition(":")
    names = "abcdefghijklmnop"[: int(size)]
    hosts = Cabled(f"c{time.monotonic_ns() % 10_000}", 2)
    try:
        hosts.lay({"ring": ring, "mesh": mesh}[kind](names))
        _shape(hosts, options.rate)
        _route(hosts)
        hosts.raise_all("--forward")
        hosts.whole(60)
        print(f"{options.shape}, cables of {options.rate} Mb/s")
        processor = Processor()
        middle = "c" if kind == "ring" and len(names) > 3 else "b"
        _compare(hosts, "b", "neighbours", options.seconds)
        if middle == "c":
            _compare(hosts, middle, "not neighbours", options.seconds)
        _faults(hosts, middle, options.seconds)
        print(f"steal meanwhile: {100 * processor.stolen():.1f} %")
    finally:
        hosts.close()


# ---- the network


def _shape(hosts: Cabled, mbps: int) -> None:
    for name, nics in hosts.nics.items():
        for nic in nics:
            hosts.run(name, *f"tc qdisc add dev {nic} root tbf rate {mbps}mbit burst 64kb "
                      "latency 20ms".split())  # fmt: skip


def _plain(hosts: Cabled, name: str) -> str:
    return f"10.50.0.{1 + list(hosts.nics).index(name)}"


def _route(hosts: Cabled) -> None:
    """Give each host an address of its own, and routes to the others by the shortest way."""
    near: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in hosts.nics}
    for (one, other), (nic, theirs) in hosts.between.items():
        near[one][other] = nic, hosts.link_local(other, theirs)
        near[other][one] = theirs, hosts.link_local(one, nic)
    for name in hosts.nics:
        hosts.run(name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        hosts.ip(name, f"address add {_plain(hosts, name)}/32 dev lo")
        first = {name: name}
        queue = [name]
        for at in queue:
            for there in sorted(near[at]):
                if there not in first:
                    first[there] = there if at == name else first[at]
                    queue.append(there)
        for there, by in first.items():
            if there != name:
                nic, via = near[name][by]
                hosts.ip(name, f"route add {_plain(hosts, there)} via inet6 {via} dev {nic} "
                         f"src {_plain(hosts, name)}")  # fmt: skip


# ---- traffic


def _stream(
    hosts: Cabled, target: str, address: str, seconds: float, during: Callable[[], None]
) -> tuple[Arrivals, object]:
    """Send from host a; return what arrived when, and the connection's error, if it had one."""
    port, record = str(next(_ports)), hosts.folder / "record"
    source, sending = hosts.namespace("a"), ("send", address, port, str(seconds), "--cc", "cubic")
    with flow.talking(hosts.namespace(target), "recv", address, port, str(record)) as sink:
        sink.read(_READY_S)
        with flow.talking(source, *sending) as sender:
            sender.read(_READY_S)
            during()
            error = sender.read(seconds + _READY_S)["error"]
        error = sink.read(_READY_S)["error"] or error
    raw = np.fromfile(record, np.uint64).astype(np.int64)
    return Arrivals(raw[::2], raw[1::2]), error


def _goodput(hosts: Cabled, target: str, address: str, seconds: float) -> float:
    arrivals, _error = _stream(hosts, target, address, seconds, lambda: None)
    end = int(arrivals.times_ns[-1])
    return arrivals.bps(end - int((seconds - 1) * S), end) / 1e6


def _compare(hosts: Cabled, target: str, what: str, seconds: float) -> None:
    addresses = {"plain": _plain(hosts, target), "mrcd": inner(hosts, target)}
    found: dict[str, list[float]] = {who: [] for who in addresses}
    for _ in range(_ROUNDS):
        for who, address in addresses.items():
            found[who].append(_goodput(hosts, target, address, seconds))
    shown = [
        f"{who} {statistics.median(each):.0f} Mb/s ({min(each):.0f} to {max(each):.0f})"
        for who, each in found.items()
    ]
    ratio = statistics.median(found["mrcd"]) / statistics.median(found["plain"])
    print(f"{what}: {', '.join(shown)}, ratio {ratio:.2f}", flush=True)


# ---- faults


def _faults(hosts: Cabled, target: str, seconds: float) -> None:
    for what, to, act in (
        ("the cable to a neighbour is cut", "b", lambda: hosts.cut("a", "b")),
        ("and put in again", "b", lambda: hosts.cut("a", "b", up=True)),
        *(_beyond(hosts, target) if target != "b" else ()),
    ):
        _fault(hosts, to, what, act, seconds)


def _beyond(hosts: Cabled, target: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    yield "the cable behind the next host is cut", target, lambda: hosts.cut("b", "c")
    yield "and put in again", target, lambda: hosts.cut("b", "c", up=True)
    yield "the next host vanishes", target, lambda: _vanish(hosts, "b")


def _vanish(hosts: Cabled, host: str) -> None:
    for nic in hosts.nics[host]:
        hosts.ip(host, f"link del {nic}")
    hosts.kill_daemon(host)


def _fault(hosts: Cabled, target: str, what: str, act: Callable[[], None], seconds: float) -> None:
    at: list[int] = []

    def during() -> None:
        time.sleep(seconds / 2)
        at.append(time.monotonic_ns())
        act()

    arrivals, error = _stream(hosts, target, inner(hosts, target), seconds, during)
    began = at[0]
    end = int(arrivals.times_ns[-1])
    calm = arrivals.longest_gap_ns(began - S, began) / MS
    gap = arrivals.longest_gap_ns(began, end) / MS
    before, after = (arrivals.bps(*each) / 1e6 for each in ((began - S, began), (end - S, end)))
    print(
        f"a to {target}, {what}: gap {gap:.1f} ms (before {calm:.1f}), {before:.0f} Mb/s before, "
        f"{after:.0f} at the end, connection {'lost: ' + str(error) if error else 'kept'}",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
