# SPDX-License-Identifier: GPL-2.0-only
"""Read the paths worth showing: every one, or those to a few of very many peers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from cli.console.client import Client
from mrcd.model import PathInfo, PeerInfo

PEERS_ALL, PEERS_CHOSEN = 64, 8
"""If more than PEERS_ALL peers have ever answered, only the paths to PEERS_CHOSEN are read."""


def shown_paths(
    asking: Client,
    total: int,
    peers: Sequence[PeerInfo],
    earlier: Mapping[str, PeerInfo],
    wanted: str = "",
) -> list[PathInfo]:
    """Return every path, or with many peers only those to the peers in trouble or busiest.

    `total` is the number of all peers, `peers` those to choose from, and `earlier` holds them by
    name as they were before. Peers with `wanted` in their names come first.
    """
    there = [peer for peer in peers if peer.state != "connecting"]
    if total <= PEERS_ALL:
        return asking.paths(None)["paths"]

    def rank(peer: PeerInfo) -> tuple[bool, bool, int, str]:
        was = earlier.get(peer.name, peer)
        packets = peer.tx_packets - was.tx_packets + peer.rx_packets - was.rx_packets
        other = wanted.strip().lower() not in peer.name.lower()
        return other, peer.state == "established", -packets, peer.name

    few = len(there) <= PEERS_ALL
    chosen = there if few else heapq.nsmallest(PEERS_CHOSEN, there, key=rank)
    return [path for peer in chosen for path in asking.paths(peer.name)["paths"]]
