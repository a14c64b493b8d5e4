# SPDX-License-Identifier: GPL-2.0-only
"""Say how interfaces, routes and programs should be, and put right what others have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mrcd.config.config import Config
from mrcd.config.overlap import Prefix
from mrcd.datapath import mrc0
from mrcd.datapath.attachment import Attachment, Hook
from mrcd.datapath.clock import Clock
from mrcd.engine.interfaces import OurInterfaces
from mrcd.linux.netlink import Netlink
from mrcd.peers.routes import PeerRoutes
from mrcd.planes.planes import Planes
from mrcd.repair.reading import our_links, our_planes, programs, routes_of
from mrcd.repair.repair import Means, Repair
from mrcd.repair.wanted import Wanted
from mrcd.service.findings import Findings


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is kept as it should be. `config` returns None while mrcd takes its leave.

    attachment: returns None while programs are being replaced.
    follow: is told the prefixes that belong to peers by routes of others, with the peers' names.
    """

    config: Callable[[], Config | None]
    hooks: Sequence[Hook]
    attachment: Callable[[], Attachment | None]
    interfaces: OurInterfaces
    routes: PeerRoutes
    planes: Planes
    clock: Clock
    follow: Callable[[Mapping[Prefix, str]], None]

    def repair(self, nl: Netlink, findings: Findings) -> Repair:
        """Return what looks, compares and acts."""
        means = Means(
            self.wanted,
            self.hooks,
            self.attachment,
            self._remake,
            self._reroute,
            self.planes,
            self._spread,
            self.follow,
        )
        return Repair(nl, means, findings)

    def wanted(self) -> Wanted | None:
        """Return how interfaces, routes and programs should be, or None while we take leave."""
        config, attachment = self.config(), self.attachment()
        if config is None:
            return None
        made, planes = self.interfaces.made, self.planes
        placed = {}
        if attachment is not None:
            placed = programs(attachment, self.hooks, made, planes.planes)
        return Wanted(
            config.mrc0.name,
            our_links(config, made, self.interfaces.gso, self.interfaces.mbps),
            frozenset(str(address) for address in config.mrc0.addresses),
            routes_of(config.peers, self.routes.installed),
            our_planes(planes),
            placed,
            {peer.name: peer.allowed for peer in config.peers},
            config.mrc0.routed,
        )

    async def attach_to(self, interface: str) -> None:
        """Attach the programs of an interface that has taken the place of another one."""
        if (attachment := self.attachment()) is not None:
            await attachment.attach([hook for hook in self.hooks if hook.interface == interface])

    def _spread(self) -> Mapping[str, str | None]:
        config = self.config()
        return {} if config is None else mrc0.spread_again(config)

    async def _remake(self) -> None:
        """Make what is missing of mrc0, and tell everything that depends on it."""
        if not await self.interfaces.remake():
            return
        for interface in self.interfaces.made.indices:
            await self.attach_to(interface)
        self.clock.make_beat()
        config = self.config()
        await self.routes.renew(() if config is None else config.peers)

    async def _reroute(self, prefixes: Sequence[str]) -> None:
        """Install the routes of the peers that have these prefixes."""
        missing, config = set(prefixes), self.config()
        peers = () if config is None else config.peers
        await self.routes.renew(peer for peer in peers if missing & {*map(str, peer.allowed)})
