# SPDX-License-Identifier: GPL-2.0-only
"""The sessions with all peers: carries the hand-shake's commands to the maps and the sockets."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address

from mrcd import handshake
from mrcd.config import Config, Peer
from mrcd.endpoint import Endpoint
from mrcd.fabric import underlay, usid
from mrcd.handshake import (
    Command,
    ConfigureReceive,
    HandshakeError,
    Memory,
    Offer,
    PeerPlanes,
    ReadyToSend,
    ResetQps,
    SendOffer,
    Session,
    State,
    StateChanged,
)
from mrcd.log import get_logger
from mrcd.offers import OfferSockets
from mrcd.qptable import QpTable
from mrcd.rejections import Rejections

log = get_logger()


class Peers:
    """One session for each configured peer."""

    def __init__(
        self,
        config: Config,
        table: QpTable,
        epoch: int,
        on_mtu: Callable[[Peer, int], None],
        endpoint: Endpoint,
        on_change: Callable[[], None],
    ) -> None:
        """`endpoint` hears with whom there is a session; `on_change` that `memories` changed."""
        self._endpoint = endpoint
        self._on_change = on_change
        self._epoch = epoch
        self._config = config
        self._table = table
        self._on_mtu = on_mtu
        self._rng = random.SystemRandom()
        self._sockets = OfferSockets(
            config.transport.control_port, self._datagram, config.fabric.routing.code
        )
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._peers = {peer.name: peer for peer in config.peers}
        self._handlers: dict[bytes, Callable[[bytes, int], None]] = {}
        self._rejections = Rejections("handshake.rejected")
        self.heard_ns: dict[str, int] = {}
        self.mtu: dict[str, int] = {}
        self.port_mask: dict[str, int] = {}
        self._doubted: dict[str, int] = {}
        self._mask = 0
        self.sessions = {peer.name: self._session(peer.name, epoch) for peer in config.peers}

    def _session(self, peer: str, epoch: int) -> Session:
        return Session(self._ours(peer, epoch), peer, self._mask, self._rng)

    def _ours(self, peer: str, epoch: int) -> handshake.Ours:
        config = self._config
        return handshake.Ours(
            host=config.host.name,
            epoch=epoch,
            mtu=config.mtu,
            mpr=config.transport.mpr,
            qp_base=self._table.base(peer),
            qps=self._table.per_peer,
        )

    # ---- across a restart of the daemon

    @property
    def memories(self) -> dict[str, Memory]:
        """What the sessions must know again to be resumed."""
        found = {name: session.memory for name, session in self.sessions.items()}
        return {name: memory for name, memory in found.items() if memory is not None}

    def resume(self, memories: Mapping[str, Memory], told: int) -> list[str]:
        """Go on with the sessions whose QPs the maps still hold; the others' QPs are reset.

        told: the mask of planes that peers know of. Returns the peers whose sessions go on.
        """
        now = time.monotonic_ns()
        resumed = []
        for name in self.sessions:
            memory = memories.get(name)
            if memory is None or not self._table.holds(name, memory):
                self._table.reset(tuple(self._table.qps_of(name)))
                continue
            ours = self._ours(name, memory.epoch)
            self.sessions[name] = Session.resume(ours, name, told, self._rng, memory, now_ns=now)
            self.port_mask[name] = self._table.peer_planes(name)
            self.mtu[name] = min(self._config.mtu, memory.offer.mtu)
            self._endpoint.peer_established(name)
            self._on_mtu(self._peers[name], self.mtu[name])
            resumed.append(name)
        return resumed

    # ---- peers that come and go

    def reconfigure(self, config: Config) -> None:
        """From now on this is the configuration; its peers are to be added and removed."""
        self._config = config
        self._peers = {peer.name: peer for peer in config.peers}

    def add(self, name: str) -> None:
        """Begin to offer a session to a peer that is in the table."""
        self.sessions[name] = self._session(name, self._epoch)
        self._carry_out(self.sessions[name].start(now_ns=time.monotonic_ns()))
        self._arm(name)

    def remove(self, name: str) -> None:
        """Forget the session with a peer; its QPs are the table's to reset."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        self._endpoint.peer_gone(name)
        for known in (self.sessions, self.heard_ns, self.mtu, self.port_mask, self._doubted):
            known.pop(name, None)
        self._on_change()

    def begin_anew(self, name: str) -> None:
        """Forget the session with a peer, as a restart would, and offer a new one.

        Its QPs are reset: what they had outstanding is lost, applications' connections live.
        """
        if self.sessions[name].state is not State.ESTABLISHED:
            return  # that is under way already
        log.warning("peer.out_of_step", peer=name)
        self._table.reset(tuple(self._table.qps_of(name)))
        self.sessions[name] = self._session(name, self._rng.getrandbits(64))
        self._carry_out(self.sessions[name].start(now_ns=time.monotonic_ns()))
        self._arm(name)

    def start(self, mask: int) -> None:
        """Open the sockets and begin to offer."""
        fabric, host = self._config.fabric, self._config.host
        for plane, name in enumerate(self._config.interfaces):
            self._sockets.open_plane(plane, name, underlay.address(fabric, host, plane))
        now = time.monotonic_ns()
        self._mask = mask
        for name, session in self.sessions.items():
            self._carry_out(session.set_planes(mask, now_ns=now))
            self._carry_out(session.start(now_ns=now))
            self._arm(name)

    def set_planes(self, mask: int) -> None:
        """Our usable planes changed: every peer hears of it at once."""
        now = time.monotonic_ns()
        self._mask = mask
        for name, session in self.sessions.items():
            self._carry_out(session.set_planes(mask, now_ns=now))
            self._arm(name)

    def on_message(self, magic: bytes, handler: Callable[[bytes, int], None]) -> None:
        """Give datagrams that begin with `magic` to a handler, with the plane they came by."""
        self._handlers[magic] = handler

    def usable_planes(self, peer: str) -> list[int]:
        """Planes on which a peer says it can be reached."""
        mask = self.port_mask.get(peer, 0)
        return [plane for plane in range(self._config.fabric.planes) if mask >> plane & 1]

    def _datagram(self, datagram: bytes, plane: int) -> None:
        handler = self._handlers.get(datagram[:4])
        if handler is not None:
            handler(datagram, plane)
            return
        now = time.monotonic_ns()
        try:
            offer = handshake.decode(datagram)
            session = self.sessions.get(offer.host)
            if session is None:
                raise HandshakeError(f"no peer {offer.host!r} is configured")
            commands = session.receive(offer, now_ns=now)
        except HandshakeError as error:
            self._rejections.add(plane, str(error), now_ns=now)
            return
        self.heard_ns[offer.host] = now
        self._carry_out(commands)
        if session.remote is offer:
            self._compare_ports(offer)
        self._arm(offer.host)

    def _arm(self, name: str) -> None:
        old = self._timers.pop(name, None)
        if old is not None:
            old.cancel()
        delay = (self.sessions[name].deadline_ns - time.monotonic_ns()) / 1e9
        self._timers[name] = asyncio.get_running_loop().call_later(max(0, delay), self._due, name)

    def _due(self, name: str) -> None:
        self._carry_out(self.sessions[name].tick(now_ns=time.monotonic_ns()))
        self._arm(name)

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case SendOffer():
                    for plane in command.planes:
                        self.send(command.peer, plane, command.datagram)
                case ConfigureReceive():
                    self._table.configure(command.peer, command.qps, command.mpr)
                    self._planes_of(command.peer, command.port_mask)
                    self._table.set_ports(command.peer, command.port_mask)
                    self.mtu[command.peer] = command.mtu
                    self._on_mtu(self._peers[command.peer], command.mtu)
                case ReadyToSend():
                    self._table.ready(command.peer)
                case ResetQps():
                    self._endpoint.peer_gone(command.peer)
                    self._table.reset(command.indices)
                case PeerPlanes():
                    self._planes_of(command.peer, command.port_mask)
                case StateChanged():
                    if command.new is State.ESTABLISHED:
                        self._endpoint.peer_established(command.peer)
                    self._log_state(command)
                    self._on_change()

    def _planes_of(self, peer: str, mask: int) -> None:
        if self.port_mask.get(peer) != mask:
            self.port_mask[peer] = mask
            self._table.set_peer_planes(peer, mask)
            log.info("peer.ports_changed", peer=peer, planes=f"{mask:#x}")

    def _compare_ports(self, offer: Offer) -> None:
        """Believe the peer's Offers where two in a row differ from its Port Status Updates.

        A single one may have been overtaken by an update.
        """
        said = self._table.balance(offer.host).ports
        if said == offer.port_mask:
            self._doubted.pop(offer.host, None)
        elif self._doubted.get(offer.host) != said:
            self._doubted[offer.host] = said
        else:
            del self._doubted[offer.host]
            self._table.set_ports(offer.host, offer.port_mask)
            log.info("peer.ports_corrected", peer=offer.host, planes=f"{offer.port_mask:#x}")

    def send(self, peer: str, plane: int, datagram: bytes) -> None:
        """One datagram to a peer over any of a plane's T1s: the next one takes another."""
        fabric, host = self._config.fabric, self._config.host
        target = self._peers[peer].host
        path = None
        if fabric.routing.mode == "srv6":
            evs = usid.evs_between(fabric, host, target, plane)
            usids = usid.path_usids(host, target, self._rng.choice(evs))
            path = IPv6Address(usid.da_bytes(fabric.block, usids))
        self._sockets.send(plane, path, underlay.address(fabric, target, plane), datagram)

    def _log_state(self, change: StateChanged) -> None:
        if change.new is State.ESTABLISHED:
            log.info("peer.established", peer=change.peer, reason=change.reason)
        elif change.new is State.SILENT:
            log.warning("peer.silent", peer=change.peer, reason=change.reason)
        elif change.old is State.ESTABLISHED or change.old is State.SILENT:
            log.info("peer.restarted", peer=change.peer, reason=change.reason)

    def state(self, name: str) -> State:
        """How far the session with a peer is."""
        return self.sessions[name].state

    def close(self) -> None:
        """Stop all timers and close the sockets."""
        for timer in self._timers.values():
            timer.cancel()
        self._sockets.close()
