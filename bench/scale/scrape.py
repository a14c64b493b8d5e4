# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of a metrics scrape on a host with many peers, and its effect on the daemon.

Maps as large as the daemon's are filled, and read as the exporter reads them. A thread that needs
the interpreter every millisecond records how late it gets it. Run
``python -m bench.scale.scrape [--peers 1000] [--planes 8]`` as root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import struct
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from mrcd.datapath.datapath import Datapath
from mrcd.datapath.loader import Sizes
from mrcd.linux import bpf
from mrcd.report.exporter import exposition
from mrcd.report.metrics import Snapshot
from mrcd.report.snapshot import balances_of, census_of
from mrcd.wire.abi import ABI
from rigs.metrics_double import snapshot

QPS = 4
ROUNDS = 10
BITS = ABI.MRC_EV_WORDS * 64


def words(bitmap: int) -> tuple[int, ...]:
    return tuple(bitmap >> 64 * word & (1 << 64) - 1 for word in range(ABI.MRC_SET_WORDS))


def filled(peers: int, planes: int) -> Datapath:
    """Return maps of a host whose QPs are all in use, half of them with packets outstanding."""
    sizes = Sizes(
        mtu=8872, window=4096, ring_slots=8192, peers=peers, qps=QPS * peers, evs=32, prefixes=peers
    )
    datapath = Datapath(Path("/nonexistent"), sizes)
    kinds = {"qps": QPS * peers, "txs": QPS * peers, "rxs": QPS * peers, "balances": peers}
    for name, entries in kinds.items():
        kind = ABI.structs[f"mrc_{name[:-1]}"]
        datapath.maps[name] = bpf.create_array(kind.size, entries, name=name)
    datapath.maps["counters"] = bpf.create_array(
        8 * bpf.possible_cpus(), ABI.MRC_C_COUNT, name="counters"
    )
    rng = random.Random(1)
    every = sum((1 << 32) - 1 << plane * BITS for plane in range(planes))
    use = sum((1 << 16) - 1 << plane * BITS for plane in range(planes))
    for index in range(QPS * peers):
        busy = index % 2
        lost = 1 << rng.randrange(planes) * BITS if busy else 0
        values = {
            "qps": {"state": ABI.MRC_QP_READY, "peer": index // QPS, "mpr": 2048},
            "txs": {
                "next": 1000 * busy,
                "packets": rng.getrandbits(40),
                "use": words(use & ~lost),
                "spare": words(every & ~use),
                "all": words(every),
                "sacked": tuple(rng.getrandbits(64) for _ in range(8 * busy))
                + (0,) * (ABI.MRC_WINDOW_WORDS - 8 * busy),
            },
            "rxs": {"packets": rng.getrandbits(40), "waiting": busy},
        }
        for name, members in values.items():
            raw = ABI.structs[f"mrc_{name[:-1]}"].pack(**members)
            bpf.update(datapath.maps[name], struct.pack("=I", index), raw)
    return datapath


async def look(datapath: Datapath, made_up: Snapshot, peers: int, planes: int) -> Snapshot:
    owners = [peer for peer in range(peers) for _ in range(QPS)]
    census, _in_use = await census_of(datapath, owners)
    balances = await balances_of(datapath, peers, planes)
    return replace(
        made_up,
        counters=datapath.counters(),
        plane_paths=census.planes[:planes],
        peers=[
            replace(each, count=census.peers[index], planes=balances[index])
            for index, each in enumerate(made_up.peers)
        ],
    )


@dataclass(slots=True)
class Ticker:
    """A thread that needs the interpreter every millisecond; `late_us` is how late it gets it."""

    late_us: list[float]
    stop: threading.Event

    def run(self) -> None:
        while not self.stop.is_set():
            due = time.perf_counter() + 0.001
            time.sleep(0.001)
            self.late_us.append((time.perf_counter() - due) * 1e6)


async def measured(peers: int, planes: int) -> None:
    datapath, made_up = filled(peers, planes), snapshot(peers, planes)
    walls, cpus, text = [], [], b""
    ticker = Ticker([], threading.Event())
    thread = threading.Thread(target=ticker.run)
    thread.start()
    await asyncio.sleep(2)
    idle, ticker.late_us = sorted(ticker.late_us), []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_SELF)
        seen = await look(datapath, made_up, peers, planes)
        text = b"".join([piece async for piece in exposition(seen)])
        after = resource.getrusage(resource.RUSAGE_SELF)
        walls.append(time.perf_counter() - began)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    busy = sorted(ticker.late_us)
    ticker.stop.set()
    thread.join()
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    print(f"{peers} peers, {QPS} QPs each, {planes} planes, {os.cpu_count()} CPUs")
    print(f"series              {series}, {len(text) / 1e6:.1f} MB of text")
    print(f"scrape, wall        {1e3 * sorted(walls)[len(walls) // 2]:.0f} ms (median)")
    print(f"scrape, CPU         {1e3 * sorted(cpus)[len(cpus) // 2]:.0f} ms (median)")
    for name, late in (("without a scrape", idle), ("during scrapes", busy)):
        print(
            f"interpreter late, {name}: median {late[len(late) // 2]:.0f} us, "
            f"p99 {late[len(late) * 99 // 100]:.0f} us, worst {late[-1]:.0f} us"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--planes", type=int, default=8)
    options = parser.parse_args()
    asyncio.run(measured(options.peers, options.planes))


if __name__ == "__main__":
    main()
