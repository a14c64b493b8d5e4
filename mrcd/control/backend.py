# SPDX-License-Identifier: GPL-2.0-only
"""The protocol through which the control API asks the daemon."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
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
    PlaneRate,
    StatsInfo,
    Status,
)


class Source(Protocol):
    """The source of the API's answers, which is the daemon.

    The methods run on the event loop and must not block. ``peer`` is ``None`` for all peers. The
    caller has already checked a peer's name against ``peer_names()`` and a plane against
    ``status()``.
    """

    def status(self) -> Status:
        """Return the state of the daemon as a whole."""

    def peer_parts(self) -> Iterator[list[PeerInfo]]:
        """Yield every configured peer, some at a time; peers may go meanwhile."""

    def foremost_peers(
        self, count: int, before: Mapping[str, int]
    ) -> tuple[list[PeerInfo], Mapping[str, int]]:
        """Return at most `count` peers: those in trouble, and the busiest since `before`.

        The second result is every peer's packets so far; pass it as `before` the next time.
        """

    def peer_names(self) -> list[str]:
        """Return the names of all peers."""

    def paths(self, peer: str | None) -> list[PathInfo]:
        """Return every path of every QP."""

    def connections(self, peer: str | None) -> list[ConnInfo]:
        """Return every QP."""

    def stats(self) -> StatsInfo:
        """Return all counters."""

    async def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        """Add a rule to the denylist. Returns False if it was already there.

        Raises NoSuchElement, or CutsOff if no path would be left and ``force`` is not set.
        """

    async def allow(self, element: str, peer: str | None) -> None:
        """Remove a rule. Raises NoSuchElement or NotDenied."""

    def denied(self) -> list[DeniedInfo]:
        """Return the rules of the denylist."""

    @property
    def denied_unsaved(self) -> str | None:
        """Why the rules of the denylist would not survive a restart; None if they would."""

    def watch_paths(self) -> AsyncGenerator[PathEvent | None, None]:
        """Yield None at once, then every path event."""

    def capture_info(self) -> CaptureInfo:
        """Return the data that a reader needs to interpret captured records."""

    def capture(self, wanted: capture.Wanted) -> AsyncGenerator[capture.Rings, None]:
        """Record packets until closed; yields once, when the recording has begun.

        Raises mrcd.datapath.capture.CannotCapture.
        """

    def drain(self, plane: int, force: bool) -> PlaneInfo:
        """Take a plane out of service.

        Raises mrcd.planes.usable.LastPlane if no usable plane would be left and `force` is not set.
        """

    def undrain(self, plane: int) -> PlaneInfo:
        """Put a plane back into service."""

    @property
    def secured(self) -> bool:
        """Whether there are keys."""

    async def rotate(self, peer: str | None) -> tuple[list[str], list[str]]:
        """Agree on new keys with a peer or all; return who answered in time, and who did not."""

    async def probe(self, peer: str, plane: int | None, count: int) -> list[PathProbe]:
        """Probe every path to a peer `count` times, on one plane or on all, and await answers."""

    async def measure(self, peer: str, plane: int) -> list[PlaneRate]:
        """Fill a plane to a peer and from it, and return what got through.

        Raises mrcd.measure.measure.CannotMeasure.
        """

    def faults(self) -> FaultsReply:
        """Return the links and switches of the fabric that are at fault."""

    def fabric_map(self) -> MapReply:
        """Return every link and switch, as the survey sees it."""


class Configuration(Protocol):
    """Access to the configuration of a running daemon: show it, compare it, change it."""

    def text(self) -> str:
        """Return the running configuration as TOML that loads to an equal configuration."""

    def diff(self, text: str) -> ConfigChanges:
        """Return the changes that applying a text would make.

        Raises ConfigError with every problem.
        """

    async def apply(self, text: str, confirm_s: int) -> ConfigChanges:
        """Apply a text.

        Unless confirm_s is 0, the former configuration returns after confirm_s seconds without
        confirm(). Raises ConfigError or CannotApply; nothing has changed in that case.
        """

    async def forget(self, name: str) -> None:
        """Take an admitted host out of the peers. Raises CannotApply if it was not admitted."""

    def confirm(self) -> None:
        """Keep the applied configuration. Raises CannotApply if none waits to be confirmed."""
