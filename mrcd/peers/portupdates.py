# SPDX-License-Identifier: GPL-2.0-only
"""Tell every peer which planes this host takes packets on (pure).

A Port Status Update announces each change of the mask of usable planes to every peer. It is
repeated until the peer has answered an update with the same mask. Events go in, updates to send
come out, and time is an argument.

An update carries the whole mask, so only the newest matters: a change begins a new series, and an
answer to an older id ends nothing. A peer without a session receives no updates, because its Offers
and ours settle the mask when a session begins. One number counts the changes for all peers. It is
never reset while a session lasts, so a later mask always has a newer id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mrcd.handshake import MS

BACKOFF_NS: Final = tuple(n * MS for n in (2, 5, 10, 20, 50, 100, 200, 500, 1000))
"""Until the first repetition, between it and the second, and so on; the last one for ever."""
ID_MASK: Final = 0xFFFF
NEVER_NS: Final = 1 << 63
AT_ONCE: Final = 128
"""Peers told in one go: some milliseconds of the daemon's time."""


@dataclass(frozen=True, slots=True)
class SendUpdate:
    """Send a Port Status Update to a peer, once on each of `planes`."""

    peer: str
    update_id: int
    mask: int
    planes: tuple[int, ...]


@dataclass(slots=True)
class _Series:
    """Updates that a peer has not answered yet."""

    step: int
    due_ns: int


class PortUpdates:
    """The updates to all peers. Call `tick` at `deadline_ns` at the latest.

    What is to be sent comes in the order in which it should leave.
    """

    def __init__(self, mask: int = 0, update_id: int = 0) -> None:
        """`mask` is what the peers' sessions begin with; `update_id` the last that was used."""
        self.mask = mask
        self._ways = mask
        self.update_id = update_id & ID_MASK
        self._peers: set[str] = set()
        self._open: dict[str, _Series] = {}

    def set_mask(self, mask: int, *, now_ns: int) -> list[SendUpdate]:
        """Our usable planes changed. That none is left is said over those there were."""
        if mask == self.mask:
            return []
        self._ways = mask or self.mask
        self.mask = mask
        self.update_id = (self.update_id + 1) & ID_MASK
        self._open = {peer: _Series(-1, now_ns) for peer in sorted(self._peers)}
        return self.tick(now_ns=now_ns)

    def established(self, peer: str) -> None:
        """There is a session with the peer; its Offers have told it the mask of this moment."""
        self._peers.add(peer)

    def gone(self, peer: str) -> None:
        """The session with the peer ended."""
        self._peers.discard(peer)
        self._open.pop(peer, None)

    def answered(self, peer: str, update_id: int) -> bool:
        """The peer answered an update. True if that is the one it was still to answer."""
        if update_id != self.update_id or peer not in self._open:
            return False
        del self._open[peer]
        return True

    def tick(self, *, now_ns: int) -> list[SendUpdate]:
        """Time has passed: repeat what is due, to AT_ONCE peers; the others' turn is next."""
        due = islice((p for p, series in self._open.items() if now_ns >= series.due_ns), AT_ONCE)
        chosen = list(due)
        # Who is told again should have had the time to answer, also as the last of many.
        crowd = 1 + (len(self._open) - 1) // AT_ONCE
        for peer in chosen:
            series = self._open[peer]
            series.step = min(series.step + 1, len(BACKOFF_NS) - 1)
            series.due_ns = now_ns + crowd * BACKOFF_NS[series.step]
        return self._updates(chosen)

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        return min((series.due_ns for series in self._open.values()), default=NEVER_NS)

    @property
    def pending(self) -> bool:
        """Whether some peer may not know the mask yet."""
        return bool(self._open)

    @property
    def unanswered(self) -> frozenset[str]:
        """Peers that may not know the mask yet."""
        return frozenset(self._open)

    def _updates(self, peers: Iterable[str]) -> list[SendUpdate]:
        """One to each peer before the second to any: each should hear soon, by whatever plane."""
        chosen = list(peers)
        planes = [plane for plane in range(self._ways.bit_length()) if self._ways >> plane & 1]
        return [
            SendUpdate(peer, self.update_id, self.mask, (plane,))
            for plane in planes
            for peer in chosen
        ]
