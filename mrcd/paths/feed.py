# SPDX-License-Identifier: GPL-2.0-only
"""Translate path events from the ring buffer into the control API's types for its watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace

from mrcd.fabric import usid
from mrcd.model import PathEvent, PathState
from mrcd.paths.states import Event, State
from mrcd.service.log import debugging, get_logger

log = get_logger()

WAITING_MAX = 4096
"""Events queued for a watcher that does not read; it loses any more, but their number is kept."""

STATES: Mapping[int, PathState] = {
    State.GOOD: "GOOD",
    State.DENIED: "DENIED",
    State.SKIP: "SKIP",
    State.ASSUMED_BAD: "ASSUMED_BAD",
}
"""The control API's name for each state."""
CAUSES: Mapping[int, str] = {event: event.name.lower() for event in Event}


class PathFeed:
    """A feed of path events to any number of watchers, for the event loop's thread only.

    peer_of: maps a QP's index to the name of its peer. per_peer: QPs of each peer.
    """

    def __init__(self, peer_of: Callable[[int], str | None], per_peer: int) -> None:
        self._peer_of = peer_of
        self._per_peer = per_peer
        self._watchers: dict[asyncio.Queue[PathEvent], int] = {}  # to the events each missed

    def publish(self, event: Mapping[str, int]) -> None:
        """Pass on a struct mrc_event of kind MRC_EVENT_PATH."""
        if not self._watchers and not debugging():
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
        if debugging():
            log.debug(
                "path.changed",
                peer=told.peer,
                qp=told.qp,
                ev=f"{told.ev:#x}",
                before=told.from_state,
                state=told.to_state,
                cause=told.cause,
            )
        for waiting, missed in self._watchers.items():
            try:
                waiting.put_nowait(replace(told, missed=missed))
                self._watchers[waiting] = 0
            except asyncio.QueueFull:
                self._watchers[waiting] = missed + 1

    async def watch(self) -> AsyncGenerator[PathEvent | None, None]:
        """Yield None once when the watch has begun, then every event from there on."""
        waiting: asyncio.Queue[PathEvent] = asyncio.Queue(WAITING_MAX)
        self._watchers[waiting] = 0
        try:
            yield None
            while True:
                yield await waiting.get()
        finally:
            del self._watchers[waiting]
