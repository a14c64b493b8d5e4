# SPDX-License-Identifier: GPL-2.0-only
"""The common base of the parts of the report: access to the engine that runs now."""

from __future__ import annotations

from mrcd.config.config import Peer
from mrcd.engine.engine import Engine
from mrcd.running import Running


class Live:
    """A part of the report.

    Each answer asks for the engine anew, because a restart of the data path replaces the engine,
    and `config apply` the configuration.
    """

    def __init__(self, running: Running) -> None:
        self._running = running

    @property
    def _engine(self) -> Engine:
        return self._running.engine

    def _chosen(self, name: str | None) -> list[Peer]:
        """Return the configured peer of a name, if there is one; all of them for None."""
        engine = self._engine
        if name is None:
            return list(engine.config.peers)
        known = engine.peers.all.get(name)
        return [] if known is None else [known.configured]
