# SPDX-License-Identifier: GPL-2.0-only
"""Keep what the next daemon needs to resume the sessions, also on a disk that was full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mrcd.peers import saved
from mrcd.peers.peers import Peers
from mrcd.service.findings import Findings
from mrcd.service.log import get_logger
from mrcd.service.writeback import Writeback

log = get_logger()

_SOURCE = "sessions"


class SessionMemory:
    """The file of sessions of one data path, whose maps have the kernel's identifier `maps`.

    It is written once `follow` was called. `update_id` returns the number of the last Port Status
    Update.
    """

    def __init__(self, folder: Path, maps: int, findings: Findings) -> None:
        self._folder = folder
        self._maps = maps
        self._findings = findings
        self._peers: Peers | None = None
        self._update_id: Callable[[], int] = lambda: 0
        self._write = Writeback(self._save)
        self._failed = False

    def load(self) -> saved.Saved:
        """Return what an earlier daemon with the same maps has left."""
        return saved.load(self._folder, self._maps)

    def follow(self, peers: Peers, update_id: Callable[[], int]) -> None:
        """Write the sessions with these peers, now and after changes."""
        self._peers, self._update_id = peers, update_id
        self._write.now()

    def changed(self) -> None:
        """Hear that something has changed that the next daemon needs."""
        self._write.changed()

    def save_again(self) -> None:
        """Try again if the last write failed."""
        if self._failed:
            self._write.now()

    def end(self) -> None:
        """Write for the last time."""
        self._write.now()

    def cancel(self) -> None:
        """Drop a write that is due."""
        self._write.cancel()

    def _save(self) -> None:
        if self._peers is None:
            return
        peers = self._peers
        try:
            saved.save(
                self._folder,
                self._maps,
                self._update_id(),
                peers.memories,
                peers.channel_memories,
            )
        except OSError as error:
            if not self._failed:
                log.error("sessions.not_saved", folder=str(self._folder), error=str(error))
            self._failed = True
            path = self._folder / saved.NAME
            text = (
                f"{path} could not be written ({error.strerror or error}): a restart of mrcd would "
                f"begin all sessions anew; remedy: make room in {self._folder}"
            )
            self._findings.put(_SOURCE, path.name, text)
        else:
            self._failed = False
            self._findings.replace(_SOURCE, {})
