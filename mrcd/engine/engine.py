# SPDX-License-Identifier: GPL-2.0-only
"""One data path that runs, and what can be asked of it as a whole: other settings, and an end.

mrcd/engine/start.py brings it up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mrcd.config.config import Config
from mrcd.config.inforce import InForce
from mrcd.datapath import adoption, pins
from mrcd.datapath.attachment import Attachment, Hook
from mrcd.datapath.capture import Capture
from mrcd.datapath.cellsize import CellSize
from mrcd.datapath.clock import Clock
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.qptable import QpTable
from mrcd.engine.counts import Counts
from mrcd.engine.interfaces import OurInterfaces
from mrcd.engine.reactions import Reactions
from mrcd.engine.surveying import Surveying
from mrcd.measure.measure import Measuring
from mrcd.measure.watch import Watch
from mrcd.paths.feed import PathFeed
from mrcd.peers.endpoint import Endpoint
from mrcd.peers.peers import Peers
from mrcd.peers.routes import PeerRoutes
from mrcd.peers.trials import Trials
from mrcd.planes.network import AnyNetwork
from mrcd.planes.planes import Planes
from mrcd.rules.denylist import Denials
from mrcd.service.findings import Findings
from mrcd.survey.pairsurvey import PairSurvey
from mrcd.survey.survey import Survey

DRAIN_S = 5.0
"""A drain waits no longer than this for outstanding packets, because a peer may be dead."""
_DRAIN_LOOK_S = 0.02


@dataclass(slots=True, kw_only=True)
class Engine:
    """One data path and its parts, which all run. Call `close` last.

    made: whether it was not adopted and is not ready yet, so that a failure takes it down. beside:
    findings that outlive this engine. stack: what ends its parts.
    """

    in_force: InForce
    bpffs: Path
    hooks: list[Hook]
    made: bool
    datapath: Datapath
    attached: Callable[[Datapath], Attachment]
    captures: Capture
    interfaces: OurInterfaces
    table: QpTable
    planes: Planes
    routes: PeerRoutes
    denials: Denials
    feed: PathFeed
    clock: Clock
    endpoint: Endpoint
    peers: Peers
    trials: Trials
    surveying: Surveying
    measuring: Measuring
    watch: Watch
    counts: Counts
    findings: Findings
    beside: Findings
    reactions: Reactions
    stack: contextlib.AsyncExitStack

    @property
    def config(self) -> Config:
        """Return the configuration that is in force."""
        return self.in_force.config

    @property
    def cells(self) -> CellSize | None:
        """Return the length of cells; None without cells."""
        return self.interfaces.cells

    @property
    def survey(self) -> Survey | PairSurvey:
        """Return the survey that runs now."""
        return self.surveying.now

    @property
    def attachment(self) -> Attachment | None:
        """Return what our programs are attached by; None while they are being replaced."""
        datapath = self.captures.in_place
        return None if datapath is None else self.attached(datapath)

    # ---- the end

    async def close(self) -> None:
        """Let go of the data path. Its programs stay attached."""
        await self.stack.aclose()

    async def drain(self) -> bool:
        """Take no more packets, tell peers, and wait for outstanding packets.

        Return False if some are left after DRAIN_S.
        """
        loop = asyncio.get_running_loop()
        self.reactions.draining = True
        self.table.peers.prefixes.close()  # ends spraying; outstanding packets are still resent
        self.reactions.tell_planes(0)
        deadline = loop.time() + DRAIN_S
        while not (self.table.quiet() and not self.endpoint.unanswered):
            if loop.time() > deadline:
                return False
            await asyncio.sleep(_DRAIN_LOOK_S)
        return True

    # ---- another configuration, while it runs

    def fits(self, config: Config) -> bool:
        """Return whether the present maps serve a configuration."""
        config = self.in_force.placed(config)
        needed = adoption.sizes_of(config)
        key = adoption.layout_of(config, needed)
        same = pins.layout(self.bpffs, key) == self.datapath.folder
        return same and not self.datapath.sizes.lacking(needed)

    async def apply(self, config: Config) -> None:
        """Switch to a configuration for which `fits` holds, without effect on unchanged peers."""
        config = self.in_force.placed(config)
        change = self.in_force.replace(config)
        dropped = self.table.peers.drop_prefixes()
        for peer in change.gone:
            self.peers.remove(peer.name)
            self.trials.forget(peer.name)
            self.table.remove_peer(peer)
            self.routes.forget(peer.name)
        self.in_force.tell(change)
        self.table.peers.add(change.changed)
        for peer in change.new:
            self.peers.add(peer)
        tell_path_mtus(self.planes, self.peers)
        await self.routes.delete(dropped)
        await self.routes.renew(change.changed)
        await self.interfaces.reconfigure()
        self.reactions.follow_rates()
        if change.tick:
            self.clock.retune(config.transport.tick_us * 1000)
        if change.survey:
            await self.surveying.restart()


def tell_path_mtus(planes: Planes, peers: Peers) -> None:
    """Tell sessions how long packets the paths to peers take, as far as that is known."""
    if isinstance(planes.ground, AnyNetwork):
        for hop in planes.ground.hops.all:
            peers.set_path_mtu(hop.peer, hop.plane, hop.mtu)
