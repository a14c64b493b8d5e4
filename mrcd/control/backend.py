# SPDX-License-Identifier: GPL-2.0-only
"""What the control API asks of the daemon."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from mrcd.datapath import capture
from mrcd.model import (
    CaptureInfo,
    ConfigChanges,
    ConnInfo,
    DeniedInfo,
    FaultsReply,
    MapReply,
    PathEvent,
    PathInfo,
    PathProbe,
    PeerInfo,
    PlaneInfo,
    StatsInfo,
    Status,
)


class Source(Protocol):
    """Where the answers come from: the daemon.

    The methods run on the event loop and must not block. ``peer`` is ``None`` for all peers; a
    name was already checked against ``peer_names()``, a plane against ``status()``.
    """

    def status(self) -> Status:
        """The daemon as a whole."""

    def peers(self) -> list[PeerInfo]:
        """Every configured peer."""

    def foremost_peers(
        self, count: int, before: Mapping[str, int]
    ) -> tuple[list[PeerInfo], Mapping[str, int]]:
        """At most so many: those in trouble, and the busiest since `before`.

        Beside them the packets of every peer so far, which is `before` the next time.
        """

    def peer_names(self) -> list[str]:
        """The names of all peers."""

    def paths(self, peer: str | None) -> list[PathInfo]:
        """Every path of every QP."""

    def connections(self, peer: str | None) -> list[ConnInfo]:
        """Every QP."""

    def stats(self) -> StatsInfo:
        """All counters."""

    async def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        """Add a rule to the denylist; False when it was there.

        Raises NoSuchElement, or CutsOff without ``force``.
        """

    async def allow(self, element: str, peer: str | None) -> None:
        """Remove a rule. Raises NoSuchElement or NotDenied."""

    def denied(self) -> list[DeniedInfo]:
        """The rules of the denylist."""

    def watch_paths(self) -> AsyncGenerator[PathEvent | None, None]:
        """None at once, then every path event."""

    def capture_info(self) -> CaptureInfo:
        """What records of packets need to be understood."""

    def capture(self, wanted: capture.Wanted) -> AsyncGenerator[capture.Rings, None]:
        """Record packets until closed; yields once, when that has begun.

        Raises mrcd.datapath.capture.CannotCapture.
        """

    def drain(self, plane: int, force: bool) -> PlaneInfo:
        """Take a plane out of service. mrcd.planes.usable.LastPlane when none would be left."""

    def undrain(self, plane: int) -> PlaneInfo:
        """Put a plane back into service."""

    async def probe(self, peer: str, plane: int | None, count: int) -> list[PathProbe]:
        """Send EV probes over every path of one plane or all to a peer, and wait for answers."""

    def faults(self) -> FaultsReply:
        """What is at fault in the fabric."""

    def fabric_map(self) -> MapReply:
        """Every link and switch, as the survey sees it."""


class Configuration(Protocol):
    """What shows and changes the configuration of a running daemon."""

    def text(self) -> str:
        """The running configuration as TOML that loads to an equal one."""

    def diff(self, text: str) -> ConfigChanges:
        """What applying a text would change. Raises ConfigError with every problem."""

    async def apply(self, text: str, confirm_s: int) -> ConfigChanges:
        """Apply a text; unless confirm_s is 0, the former one returns when not confirmed by then.

        Raises ConfigError or CannotApply, and has changed nothing then.
        """

    def confirm(self) -> None:
        """Keep what was applied. Raises CannotApply when nothing waits."""
