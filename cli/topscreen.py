# SPDX-License-Identifier: GPL-2.0-only
"""The screen of ``mrcctl top``: read samples and draw a frame for each."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cli.client import Client
from cli.topframe import HISTORY, Reading, frame
from mrcd.model import MonitorSample, PathInfo, PeerInfo

PEERS_READ = 128
"""The number of peers to request; it is larger than a screen can show."""
PEERS_ALL, PEERS_CHOSEN = 64, 8
"""If more than PEERS_ALL peers have ever answered, only the paths to PEERS_CHOSEN are read."""


def show(
    console: Console, watching: Client, asking: Client, interval_s: float, count: int | None
) -> None:
    """Draw frames until the daemon or the user ends it, or `count` frames have been drawn.

    `watching` carries the stream of samples; `asking` is a second connection for paths.
    """
    live = Live(
        Text("the first frame needs two samples ..."),
        console=console,
        screen=console.is_terminal,
        auto_refresh=False,
    )
    history: dict[int, deque[float]] = {}
    before: Reading | None = None
    frames = 0
    with live if console.is_terminal else contextlib.nullcontext():
        for sample in watching.monitor(round(interval_s * 1000), PEERS_READ):
            now = Reading(sample, _paths(asking, sample, before))
            if before is not None:
                _remember(history, before, now)
                size = console.size
                clock = time.strftime("%H:%M:%S")
                shown = frame(
                    before, now, history, width=size.width, height=size.height, clock=clock
                )
                if console.is_terminal:
                    live.update(shown, refresh=True)
                else:
                    console.print(shown)
                frames += 1
                if frames == count:
                    return
            elif console.is_terminal:
                live.refresh()
            before = now


def _paths(asking: Client, sample: MonitorSample, before: Reading | None) -> list[PathInfo]:
    """Return every path, or with many peers only those to the peers in trouble or busiest."""
    there = [peer for peer in sample.peers if peer.state != "connecting"]
    if sample.status.peers_total <= PEERS_ALL:
        return asking.paths(None)["paths"]
    earlier = {} if before is None else {peer.name: peer for peer in before.sample.peers}

    def rank(peer: PeerInfo) -> tuple[bool, int, str]:
        was = earlier.get(peer.name, peer)
        packets = peer.tx_packets - was.tx_packets + peer.rx_packets - was.rx_packets
        return peer.state == "established", -packets, peer.name

    few = len(there) <= PEERS_ALL
    chosen = there if few else heapq.nsmallest(PEERS_CHOSEN, there, key=rank)
    return [path for peer in chosen for path in asking.paths(peer.name)["paths"]]


def _remember(history: dict[int, deque[float]], before: Reading, now: Reading) -> None:
    seconds = max(1e-9, (now.sample.monotonic_ns - before.sample.monotonic_ns) / 1e9)
    earlier = {plane.index: plane for plane in before.sample.status.planes}
    for plane in now.sample.status.planes:
        was = earlier.get(plane.index, plane)
        rates = history.setdefault(plane.index, deque(maxlen=HISTORY))
        rates.append(8 * max(0, plane.tx_bytes - was.tx_bytes) / seconds)
