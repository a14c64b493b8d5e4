# SPDX-License-Identifier: GPL-2.0-only
"""Run the survey, which another configuration begins anew."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

from mrcd.config.config import Current
from mrcd.datapath.datapath import Datapath
from mrcd.fabric import underlay
from mrcd.peers.peers import Peers
from mrcd.service.tasks import Tasks
from mrcd.survey.pairsurvey import DataLoss, PairSurvey, Seeing
from mrcd.survey.survey import Survey


class Surveying:
    """The survey that runs now."""

    def __init__(
        self,
        config: Current,
        datapath: Datapath,
        peers: Peers,
        on_health: Callable[[int, bool, str], None],
        tasks: Tasks,
        data_loss: DataLoss,
    ) -> None:
        """Begin at once. `on_health` is called with what probes say of a plane.

        `data_loss` returns what data loses, which the survey of a network tells beside probes.
        """
        self.seen: Seeing | None = None
        self._data_loss = data_loss
        self._config = config
        self._datapath = datapath
        self._peers = peers
        self._on_health = on_health
        self._tasks = tasks
        self.now, self._running = self._begun()

    def _begun(self) -> tuple[Survey | PairSurvey, asyncio.Task[None]]:
        if underlay.of(self._config().fabric).next_hops:
            pairs = PairSurvey(
                self._config, self._peers, self._data_loss, lambda: self.seen and self.seen()
            )
            return pairs, self._tasks.spawn(pairs.follow())
        survey = Survey(
            self._config(),
            self._datapath,
            self._peers,
            secrets.randbits(64),
            self._on_health,
        )
        return survey, self._tasks.spawn(survey.follow())

    async def restart(self) -> None:
        """Begin anew by the configuration of now."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.now, self._running = self._begun()

    def use(self, programs: Mapping[str, int]) -> None:
        """Send probes by these programs from now on."""
        self.now.use(programs)
