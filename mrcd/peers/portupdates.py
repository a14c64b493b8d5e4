# SPDX-License-Identifier: GPL-2.0-only
"""Tell every peer on which planes this host accepts packets (pure).

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
"""Time before each repetition of an update. The last value applies to all further repetitions."""
ID_MASK: Final = 0xFFFF
NEVER_NS: Final = 1 << 63
AT_ONCE: Final = 128
"""Peers told in one call of `tick`; this takes a few milliseconds."""


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

    Methods return updates in the order in which they should be sent.
    """

    def __init__(self, mask: int = 0, update_id: int = 0) -> None:
        """Start with the mask that peers know from their sessions, and the last id used."""
        self.mask = mask
        self._ways = mask
        self.update_id = update_id & ID_MASK
        self._peers: set[str] = set()
        self._open: dict[str, _Series] = {}

    def set_mask(self, mask: int, *, now_ns: int) -> list[SendUpdate]:
        """Return the updates that announce a changed mask of usable planes.

        If no plane is left, they are sent over the planes that were usable before.
        """
        if mask == self.mask:
            return []
        self._ways = mask or self.mask
        self.mask = mask
        self.update_id = (self.update_id + 1) & ID_MASK
        self._open = {peer: _Series(-1, now_ns) for peer in sorted(self._peers)}
        return self.tick(now_ns=now_ns)

    def established(self, peer: str) -> None:
        """Note that a session with the peer began; our Offers have told it the current mask."""
        self._peers.add(peer)

    def gone(self, peer: str) -> None:
        """Note that the session with the peer ended."""
        self._peers.discard(peer)
        self._open.pop(peer, None)

    def answered(self, peer: str, update_id: int) -> bool:
        """Record the peer's answer. Returns whether it answers the update that was still open."""
        if update_id != self.update_id or peer not in self._open:
            return False
        del self._open[peer]
        return True

    def tick(self, *, now_ns: int) -> list[SendUpdate]:
        """Return the updates that are due, for at most AT_ONCE peers; the others come next."""
        due = islice((p for p, series in self._open.items() if now_ns >= series.due_ns), AT_ONCE)
        chosen = list(due)
        # Every peer must have had time to answer before a repetition, even the last of many.
        crowd = 1 + (len(self._open) - 1) // AT_ONCE
        for peer in chosen:
            series = self._open[peer]
            series.step = min(series.step + 1, len(BACKOFF_NS) - 1)
            series.due_ns = now_ns + crowd * BACKOFF_NS[series.step]
        return self._updates(chosen)

    @property
    def deadline_ns(self) -> int:
        """The time at which `tick` must be called next."""
        return min((series.due_ns for series in self._open.values()), default=NEVER_NS)

    @property
    def pending(self) -> bool:
        """Return whether some peer may not know the mask yet."""
        return bool(self._open)

    @property
    def unanswered(self) -> frozenset[str]:
        """Peers that may not know the mask yet."""
        return frozenset(self._open)

    def _updates(self, peers: Iterable[str]) -> list[SendUpdate]:
        """Return the updates plane by plane, so that each peer soon gets one on some plane."""
        chosen = list(peers)
        planes = [plane for plane in range(self._ways.bit_length()) if self._ways >> plane & 1]
        return [
            SendUpdate(peer, self.update_id, self.mask, (plane,))
            for plane in planes
            for peer in chosen
        ]
