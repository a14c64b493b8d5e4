# SPDX-License-Identifier: GPL-2.0-only
"""Path events for whoever watches: what the ring buffer says, in the words of the control API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace

from mrcd.fabric import usid
from mrcd.model import PathEvent, PathState
from mrcd.paths.states import Event, State

WAITING_MAX = 4096
"""Events kept for a watcher that does not read; more are counted and lost to it."""

STATES: Mapping[int, PathState] = {
    State.GOOD: "GOOD",
    State.DENIED: "DENIED",
    State.SKIP: "SKIP",
    State.ASSUMED_BAD: "ASSUMED_BAD",
}
"""The control API's word for each state."""
CAUSES: Mapping[int, str] = {event: event.name.lower() for event in Event}


class PathFeed:
    """Hands path events to any number of watchers; for the event loop's thread only.

    peer_of: whose QP an index is. per_peer: QPs each has.
    """

    def __init__(self, peer_of: Callable[[int], str | None], per_peer: int) -> None:
        self._peer_of = peer_of
        self._per_peer = per_peer
        self._watchers: dict[asyncio.Queue[PathEvent], int] = {}  # and how many it missed

    def publish(self, event: Mapping[str, int]) -> None:
        """A struct mrc_event of kind MRC_EVENT_PATH."""
        if not self._watchers:
            return
        told = PathEvent(
            time_ns=event["time_ns"],
            peer=self._peer_of(event["qp"]) or "",
            qp=event["qp"] % self._per_peer,
            ev=event["ev"],
            plane=usid.ev_plane(event["ev"]),
            t1=usid.ev_t1(event["ev"]),
            from_state=STATES[event["from_state"]],
            to_state=STATES[event["state"]],
            cause=CAUSES.get(event["cause"], str(event["cause"])),
            sent_ns=event["sent_ns"] or None,
            rtt_ns=event["rtt_ns"] or None,
            missed=0,
        )
        for waiting, missed in self._watchers.items():
            try:
                waiting.put_nowait(replace(told, missed=missed))
                self._watchers[waiting] = 0
            except asyncio.QueueFull:
                self._watchers[waiting] = missed + 1

    async def watch(self) -> AsyncGenerator[PathEvent | None, None]:
        """None once, when the watch has begun, then every event from there on."""
        waiting: asyncio.Queue[PathEvent] = asyncio.Queue(WAITING_MAX)
        self._watchers[waiting] = 0
        try:
            yield None
            while True:
                yield await waiting.get()
        finally:
            del self._watchers[waiting]
