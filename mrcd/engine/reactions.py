# SPDX-License-Identifier: GPL-2.0-only
"""What has to be done about news of planes, neighbours, peers and the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from mrcd.config.change import Change
from mrcd.config.config import Peer
from mrcd.config.inforce import InForce
from mrcd.datapath.qptable import QpTable
from mrcd.datapath.relaytable import RelayTable
from mrcd.engine.interfaces import OurInterfaces
from mrcd.engine.memory import SessionMemory
from mrcd.fabric import underlay
from mrcd.fabric.hosts import Address
from mrcd.handshake import State
from mrcd.peers.endpoint import Endpoint
from mrcd.peers.peers import Peers
from mrcd.peers.routes import PeerRoutes
from mrcd.peers.trials import Trials
from mrcd.planes.nexthops import Hop
from mrcd.planes.plane import Plane
from mrcd.planes.planes import Planes
from mrcd.rules.denylist import Denials
from mrcd.service.log import get_logger

log = get_logger()


@dataclass(frozen=True, slots=True)
class Sessions:
    """The parts that speak with peers."""

    endpoint: Endpoint
    peers: Peers
    trials: Trials
    memory: SessionMemory


class Reactions:
    """Brings news to the parts that they concern. Before there are sessions, to the programs only.

    planes: those of this host, which their owner keeps up to date. draining: this host takes its
    leave, and has told peers so.
    """

    def __init__(
        self,
        config: InForce,
        table: QpTable,
        interfaces: OurInterfaces,
        routes: PeerRoutes,
        denials: Denials,
        relays: RelayTable,
        planes: Sequence[Plane],
    ) -> None:
        self._in_force = config
        self._table = table
        self._interfaces = interfaces
        self._routes = routes
        self._denials = denials
        self._planes = planes
        self._relays = relays
        self._sessions: Sessions | None = None
        self.draining = False

    def begin(self, sessions: Sessions) -> None:
        """Bring news to these sessions from now on."""
        self._sessions = sessions

    # ---- of our planes

    def planes_changed(self, mask: int) -> None:
        """Stop sending on a lost plane first, then ask peers to stop sending to it."""
        self._interfaces.write_host(mask)
        self.follow_rates()
        if not self.draining:
            self.tell_planes(mask)

    def follow_rates(self) -> None:
        """Go by what our planes should carry now, and tell peers."""
        self._table.peers.set_rates(self._interfaces.says)
        if self._sessions is not None:
            self._sessions.peers.set_rates()

    def tell_planes(self, mask: int) -> None:
        """Tell peers on which planes we take packets, by Port Status Updates and by Offers."""
        if self._sessions is not None:
            self._sessions.endpoint.set_planes(mask)
            self._sessions.peers.set_planes(mask)
            self._sessions.memory.changed()  # the number of the update is saved

    def plane_bound(self, plane: Plane) -> None:
        """Open the sockets of a plane anew, whose place another NIC has taken."""
        if self._sessions is not None:
            self._sessions.endpoint.rebind(plane.index, plane.link.name)
            self._sessions.peers.rebind(plane.index, plane.link.name)

    def plane_up(self, plane: Plane) -> None:
        """Open the sockets of a plane whose NIC was down when they were to be opened."""
        if self._sessions is not None:
            self._sessions.endpoint.open_closed(plane.index, plane.link.name)
            self._sessions.peers.open_closed(plane.index, plane.link.name)

    def we_moved(self, addresses: tuple[Address, ...]) -> None:
        """Send from the addresses that our planes have now."""
        names = {plane.index: plane.link.name for plane in self._planes}
        moved = {plane: names[plane] for plane in self._in_force.we_moved(addresses)}
        if self._sessions is not None:
            self._sessions.endpoint.move(moved)
            self._sessions.peers.move(moved)

    # ---- of the ways to peers

    def hop_found(self, hop: Hop) -> None:
        """Send to a peer by the neighbour that leads to it now."""
        peer = self._in_force.config.by_name.get(hop.peer)
        if hop.mac is not None and hop.via is not None:
            self._relays.learn(hop.plane, hop.via, hop.mac)
        if peer is not None and hop.mac is not None:
            self._table.peers.set_next_hop(peer, hop.plane, hop.mac)

    def path_measured(self, hop: Hop) -> None:
        """Send a peer no longer packets than the path to it takes."""
        if self._sessions is not None:
            self._sessions.peers.set_path_mtu(hop.peer, hop.plane, hop.mtu)

    def peer_moved(self, name: str, plane: int, address: str) -> None:
        """Follow a peer to an address from which it has said something that only it can say."""
        if underlay.of(self._in_force.config.fabric).roaming and not self.draining:
            self._in_force.peer_moved(name, plane, ip_address(address))
            log.info("peer.moved", peer=name, plane=plane, address=address)

    def longest_changed(self, peer: Peer, mtu: int) -> None:
        """Lay the denylist over the QPs of a peer that are set up.

        Routes to the peer carry its MTU where it is smaller than ours.
        """
        self._denials.apply(peer.name)
        self._routes.want(peer, mtu)
        sessions = self._sessions
        if sessions is not None and sessions.peers.state(peer.name) is not State.ESTABLISHED:
            sessions.trials.begin(peer.name)

    # ---- of the configuration

    def follow(self, planes: Planes, endpoint: Endpoint, peers: Peers) -> None:
        """Have all parts hear when the configuration is another one; they ask for it."""

        def heard(change: Change) -> None:
            for part in (self._denials, endpoint, peers, self._relays):
                part.configured()
            self._readdress(change)
            planes.configured()

        self._in_force.follow(heard)

    def _readdress(self, change: Change) -> None:
        """Move peers that have other addresses than before; their sessions stay."""
        for was, now in change.readdressed:
            if now.name in self._table.peers.planes:
                self._table.peers.readdress(was, now)
