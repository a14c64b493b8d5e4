# SPDX-License-Identifier: GPL-2.0-only
"""Take a snapshot of the daemon for the metrics: maps in batches, everything else from memory.

With many peers a snapshot takes a while, and hand-shakes and calls need the event loop meanwhile.
So the snapshot is taken in slices with pauses between them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from mrcd.datapath.census import Census, PeerCount, PlaneCount, planes_of
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.view import ALL_PLANES
from mrcd.engine.engine import Engine
from mrcd.handshake.channel import Drop
from mrcd.linux import bpfbatch
from mrcd.model import Status
from mrcd.report.metrics import PeerSample, PlaneState, Snapshot
from mrcd.report.peers import SHOWN, SLICE
from mrcd.report.status import StatusReport
from mrcd.running import Running
from mrcd.wire.abi import ABI

PAUSE_S = 0.0005
"""This is long enough for what waits to get its turn."""

_BALANCE = ABI.structs["mrc_balance"].size
_CLOCK = ABI.structs["mrc_clock"]
_QP, _TX, _RX = (ABI.structs[name].size for name in ("mrc_qp", "mrc_tx", "mrc_rx"))


async def census_of(datapath: Datapath, owners: list[int]) -> tuple[Census, int]:
    """Count all QPs. `owners` has the peer of each. Return also how many QPs are not DOWN."""
    census, in_use, maps = Census(), 0, datapath.maps
    qps = bpfbatch.lookup(maps["qps"], 0, len(owners), _QP)
    for first in range(0, len(qps), SLICE):
        size = min(SLICE, len(qps) - first)
        txs = bpfbatch.lookup(maps["txs"], first, size, _TX)
        rxs = bpfbatch.lookup(maps["rxs"], first, size, _RX)
        for index, tx, rx in zip(range(first, first + size), txs, rxs, strict=True):
            in_use += census.add(owners[index], qps[index], tx, rx)
        await asyncio.sleep(PAUSE_S)
    return census, in_use


async def balances_of(datapath: Datapath, peers: int, planes: int) -> list[list[PlaneCount]]:
    """Return the planes of each peer, by its index."""
    found: list[list[PlaneCount]] = []
    while len(found) < peers:
        size = min(SLICE, peers - len(found))
        rows = bpfbatch.lookup(datapath.maps["balances"], len(found), size, _BALANCE)
        if not rows:  # the map has no more
            break
        found += [planes_of(row, planes) for row in rows]
        await asyncio.sleep(PAUSE_S)
    return found


class Snapshots:
    """The source of snapshots, taken from live state on the event loop."""

    def __init__(self, running: Running, report: StatusReport) -> None:
        self._running = running
        self._report = report
        self._started = time.time()

    async def take(self) -> Snapshot:
        """Return a snapshot. Its parts differ in age by at most the time that this takes."""
        engine = self._running.engine
        config, datapath, table = engine.config, engine.datapath, engine.table
        fabric, sizes = config.fabric, datapath.sizes
        names = {index: name for name, index in table.peers.indices.items()}
        places = max(names, default=-1) + 1  # those of removed peers included
        owners = [peer for peer in range(places) for _ in range(table.peers.per_peer)]
        census, in_use = await census_of(datapath, owners)
        balances = await balances_of(datapath, places, fabric.planes)
        status = self._report.status()
        mask = sum(1 << plane.index for plane in status.planes if plane.usable)
        peers = []
        for index, name in sorted(names.items()):
            if table.peers.indices.get(name) != index:
                continue  # it was removed meanwhile
            count = census.peers.get(index, PeerCount())
            peers.append(_peer(engine, name, count, balances[index], mask))
            if len(peers) % SLICE == 0:
                await asyncio.sleep(PAUSE_S)
        return Snapshot(
            host=status.host,
            version=status.version,
            routing=status.datapath.routing,
            xdp=status.datapath.xdp,
            tc=status.datapath.tc,
            start_time_s=self._started,
            degraded=len(status.reasons),
            clock_runs=datapath.read("clock", 0, _CLOCK)["ticks"],
            ring_slots=sizes.ring_slots,
            counters=datapath.counters(),
            planes=_planes(status),
            plane_paths=census.planes[: fabric.planes],
            peers=peers,
            used={
                "peers": len(names),
                "qps": in_use,
                "addresses": table.peers.prefixes.addresses,
                "prefixes": table.peers.prefixes.shorter,
                "sources": len(names) * fabric.planes,
                "loops": len(engine.survey.loops),
            },
            capacity={
                "peers": max(1, sizes.peers),
                "qps": max(1, sizes.qps),
                "addresses": max(1, sizes.prefixes),
                "prefixes": max(1, sizes.prefixes),
                "sources": max(1, sizes.peers) * ABI.MRC_MAX_PLANES,
                "loops": max(1, sizes.loops),
            },
            faults=Counter(named.fault.kind for named in engine.survey.list.named),
            survey_hosts_heard=engine.survey.heard,
            denied_rules=len(engine.denials.listed()),
            secured=status.secured,
            admitted=status.peers_admitted,
            channel_drops=_channel_drops(engine),
        )


def _channel_drops(engine: Engine) -> dict[str, int]:
    channels = engine.peers.channels
    dropped = Counter[Drop]() if channels is None else channels.dropped
    return {why.name.lower(): dropped[why] for why in Drop}


def _peer(
    engine: Engine, name: str, count: PeerCount, planes: list[PlaneCount], mask: int
) -> PeerSample:
    known = engine.peers.all[name]
    heard, ports = known.heard_ns, ALL_PLANES if known.ports is None else known.ports
    there = sum(1 << plane for plane, each in enumerate(planes) if each.open)
    return PeerSample(
        name=name,
        state=SHOWN[known.session.state],
        heard_age_s=None if heard is None else (time.monotonic_ns() - heard) / 1e9,
        mtu=engine.config.mtu if known.mtu is None else known.mtu,
        count=count,
        planes=planes,
        ports=mask & there & ports,
        key_age_s=None if engine.peers.channels is None else engine.peers.channels.key_age_s(name),
        cells_lost=known.loses_cells is not None,
    )


def _planes(status: Status) -> list[PlaneState]:
    return [
        PlaneState(
            index=plane.index,
            interface=plane.interface,
            carrier=plane.carrier,
            usable=plane.usable,
            drained=plane.drained,
            sick=plane.sick is not None,
            unreached=plane.unreached,
            swallowed=plane.swallowed,
            tx_packets=plane.tx_packets,
            tx_bytes=plane.tx_bytes,
            rx_packets=plane.rx_packets,
            rx_bytes=plane.rx_bytes,
        )
        for plane in status.planes
    ]
