# SPDX-License-Identifier: GPL-2.0-only
"""Which few of thousands of peers to show: those in trouble, and those that carry most (pure)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from mrcd.model import PeerState

_TROUBLE: dict[PeerState, int] = {"silent": 0, "connecting": 1}


@dataclass(frozen=True, slots=True)
class Standing:
    """What a peer is ranked by; `packets` both ways, since it was looked at last."""

    name: str
    state: PeerState
    packets: int


def foremost(peers: Iterable[Standing], count: int) -> list[str]:
    """The names of at most `count` peers, silent ones first, then by what they carry.

    Where there are too many of both kinds, those in trouble get half of the places: a rack that was
    never switched on must not hide what is in use, nor the other way round.
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
