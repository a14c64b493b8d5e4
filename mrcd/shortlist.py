# SPDX-License-Identifier: GPL-2.0-only
"""Choose a few of thousands of peers (pure).

To be shown: those in trouble, and the busiest. The daemon chooses those of a sample, and `mrcctl
top` those that fit its frame, by the same rule. To be looked at: those whose turn it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mrcd.model import PeerState

_TROUBLE: dict[PeerState, int] = {"silent": 0, "connecting": 1}


@dataclass(frozen=True, slots=True)
class Standing:
    """The rank of a peer. `packets` counts both directions since the last look."""

    name: str
    state: PeerState
    packets: float


def foremost(peers: Iterable[Standing], count: int) -> list[str]:
    """Return the names of at most `count` peers: silent ones first, then connecting, then busy.

    If both kinds exceed their share, peers in trouble get half of the places. A rack that was never
    switched on must not hide the peers in use, and busy peers must not hide the trouble.
    """
    well: list[Standing] = []
    troubled: list[Standing] = []
    for peer in peers:
        (troubled if peer.state in _TROUBLE else well).append(peer)
    places = max(count // 2, count - len(well))
    bad = heapq.nsmallest(
        places, troubled, key=lambda peer: (_TROUBLE[peer.state], -peer.packets, peer.name)
    )
    busy = heapq.nsmallest(count - len(bad), well, key=lambda peer: (-peer.packets, peer.name))
    return [peer.name for peer in (*bad, *busy)]


class InTurn:
    """So many of some names at a time, one after the other."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = 0

    def take(self, names: Collection[str]) -> list[str]:
        """Return those whose turn it is, in the order of names."""
        at = self._next if self._next < len(names) else 0
        self._next = at + self._most
        return sorted(names)[at : self._next]
