# SPDX-License-Identifier: GPL-2.0-only
"""Find planes whose way to a peer is far longer than that of the nearest.

What arrives by such a plane comes tens of milliseconds later than what was sent with it, and
everything else waits: it carries little and costs much. So it is spare, to that peer. A queue and a
long way look alike for a moment, but a queue is empty now and then: what counts is the shortest
round trip of any probe in eight seconds, and the eight before (bpf/receive.c).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from mrcd.datapath.peertable import PeerTable
from mrcd.service.log import get_logger
from mrcd.shortlist import InTurn

log = get_logger()

LOOK_S: Final = 1.0
LOOKED_AT: Final = 64
"""Peers that are looked at each time, in turn."""
FAR_NS: Final = 15_000_000
"""A plane is far if its round trip exceeds that of the nearest by this ..."""
FAR_PART: Final = 2
"""... and by this part of that, beside which a reordering of this length is nothing ..."""
NEAR_PART: Final = 0.8
"""... and is no longer, if it exceeds it by no more than this part of both."""


def far_planes(trips_ns: Sequence[int], planes: int, known: int) -> int:
    """Return the mask of planes that are far (pure).

    `trips_ns` has the shortest round trip by plane, 0 where there is none. Planes of the mask
    `planes` are compared; those of `known` are far until now. A plane of which nothing was heard
    stays what it is, and the nearest is never far.
    """
    heard = {k: trip for k, trip in enumerate(trips_ns) if trip and planes >> k & 1}
    if not heard:
        return 0
    nearest = min(heard.values())
    limit = max(FAR_NS, nearest // FAR_PART)
    found = 0
    for plane, trip in heard.items():
        part = NEAR_PART if known >> plane & 1 else 1.0
        if trip - nearest > limit * part:
            found |= 1 << plane
    unheard = sum(1 << k for k in range(len(trips_ns)) if planes >> k & 1 and k not in heard)
    return found | (known & unheard)


class Distances:
    """Follows how far planes are from peers.

    peers: returns the names of those whose session is established. standby: returns the mask of
    planes that are spare to everybody: no other is compared with them.
    """

    def __init__(
        self, table: PeerTable, peers: Callable[[], Sequence[str]], standby: Callable[[], int]
    ) -> None:
        self._table = table
        self._peers = peers
        self._standby = standby
        self._in_turn = InTurn(LOOKED_AT)

    async def follow(self) -> None:
        """Look again and again; runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Look at the peers whose turn it is."""
        for peer in self._in_turn.take(self._peers()):
            self._look_at(peer)

    def _look_at(self, peer: str) -> None:
        known = self._table.far.get(peer, 0)
        if not known and self._table.planes[peer].bit_count() < 2:
            return
        trips = self._table.nearest_ns(peer)
        rest = ~(self._standby() | self._table.spare.get(peer, 0))
        found = far_planes(trips, self._table.planes[peer] & rest, known)
        if found == known:
            return
        self._table.set_far(peer, found)
        shown = {str(k): round(trip / 1e6, 3) for k, trip in enumerate(trips) if trip}
        log.info("peer.far_planes", peer=peer, planes=f"{found:#x}", ms=shown)
