# SPDX-License-Identifier: GPL-2.0-only
"""The sessions with all peers: carry the hand-shake's commands out on maps and sockets."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from mrcd import __version__, handshake
from mrcd.config.config import Config, Current
from mrcd.config.config import Peer as Configured
from mrcd.datapath.qptable import QpTable
from mrcd.fabric import digest, underlay
from mrcd.fabric.numbering import Numbering
from mrcd.handshake import (
    CELL,
    CELL_UDP,
    CELLS_LOST,
    SACK_TIMES,
    TRIM,
    Command,
    ConfigureReceive,
    HandshakeError,
    LacksCapability,
    Memory,
    NoCommonVersion,
    Offer,
    Pace,
    PeerPlanes,
    ReadyToSend,
    ResetQps,
    SendOffer,
    Session,
    State,
    StateChanged,
    introduction,
    sealing,
    versions,
)
from mrcd.handshake.channel import ChannelMemory
from mrcd.handshake.pace import BEAT_MAX_NS
from mrcd.peers.channels import Admission, Channels, OnMoved, PacketKeys
from mrcd.peers.endpoint import Endpoint, OpenEvs
from mrcd.peers.offersockets import OfferSockets
from mrcd.peers.peer import Lengths, Peer, SessionFraming, Tried
from mrcd.peers.placed import Placed
from mrcd.peers.portcheck import PortDoubts
from mrcd.peers.schedule import Agenda
from mrcd.peers.sender import Ways
from mrcd.peers.unheard import LOOK_CROWD_NS, LOOK_NS, Unheard
from mrcd.service.alarm import Alarm
from mrcd.service.log import debugging, get_logger
from mrcd.service.ratelog import Rejections

log = get_logger()

_PROMPT = (State.BOUND, State.ESTABLISHED)
"""Sessions in these states have a peer that waits for our Offers."""
TOLD_AT_ONCE = 64
"""Peers told of a change of our planes without a pause; this takes a few milliseconds."""
REST_NS = 250_000_000
"""Interval at which arrivals from a crowd of peers are read while none of them needs an answer."""


Handler = Callable[[str | None, bytes, int], None]
"""Is called with a message's sender (None where nobody can know it), the message and its plane."""


class Peers(Placed):
    """All configured peers: the index of them, their turns, and the sockets.

    `all` holds what is known of each, by name.
    """

    _sockets: OfferSockets

    def __init__(
        self,
        config: Current,
        table: QpTable,
        epoch: int,
        on_mtu: Callable[[Configured, int], None],
        endpoint: Endpoint,
        on_change: Callable[[], None],
        open_evs: OpenEvs,
        packets: PacketKeys | None = None,
        channels: Mapping[str, ChannelMemory] | None = None,
        on_moved: OnMoved = lambda _peer, _plane, _address: None,
        admission: Admission | None = None,
    ) -> None:
        """Create a session for each peer, and a sealed channel if the configuration has keys.

        `endpoint` is told which peers have a session, and `on_change` is called when `memories`
        or `channel_memories` changed. `open_evs` returns the EVs of a plane to a peer that no rule
        denies, none if the plane does not lead there. `packets` holds the keys of packets.
        `channels` are the memories of an earlier daemon with this data path. `on_moved` and
        `admission` are those of Channels.
        """
        self._admission = admission
        self._on_moved = on_moved
        self._packets = packets
        self._open_evs = open_evs
        self._endpoint = endpoint
        self._on_change = on_change
        self._epoch = epoch
        self._config = config
        now = config()
        self._table = table
        self._on_mtu = on_mtu
        self._rng = random.SystemRandom()
        self._sockets = OfferSockets(
            now.transport.control_port,
            self._arrived,
            now.fabric.routing.code,
            self._heard_all,
            now.fabric.classes.control,
        )
        self._calm = True  # since the last look, nothing but keepalives arrived
        self._agenda = Agenda(now_ns=time.monotonic_ns())
        self._alarm = Alarm(self._due)
        self._pace = Pace(phase_ns=self._rng.randrange(BEAT_MAX_NS))
        self._answering: dict[str, None] = {}  # a set that keeps its order
        self._untold: deque[str] = deque()  # peers still to be told of a change of our planes
        self._telling: asyncio.Handle | None = None
        self._handlers: dict[bytes, Handler] = {
            introduction.QUESTION: self._introduce,
            introduction.REFUSAL: self._not_taken,
        }
        self._rejections = Rejections("handshake.rejected")
        self._refusals = Rejections("host.not_taken")
        self._frame = digest.of_frame(now.fabric)
        self._lengths = Lengths.of(now)
        self._doubts = PortDoubts()
        self._doubts_ns = 0  # when they are compared next
        self._unheard = Unheard()
        self._unheard_ns = 0  # when is looked for such peers next
        self._mask = 0
        self._ways = Ways(config, self._sockets.send, open_evs)
        self.channels = self._channels(now, channels or {})
        self.all: dict[str, Peer] = {}
        for peer in now.peers:
            self.all[peer.name] = Peer(peer, self._session(peer, epoch, plain=False))
        self._count()

    def _channels(self, config: Config, memories: Mapping[str, ChannelMemory]) -> Channels | None:
        """Return the channels with all peers; None without keys."""
        if config.keyring is None:
            return None
        return Channels(
            config,
            config.keyring,
            self._pace,
            memories,
            self._packets,
            self._transmit,
            self._said,
            self._has_keys,
            self._on_change,
            self._on_moved,
            self._admission,
            lambda place, plane, datagram: self._ways.send_to(place, plane, datagram),
            lambda plane, address, datagram: self._ways.send_at(plane, address, datagram),
        )

    def _session(self, peer: Configured, epoch: int, *, plain: bool) -> Session:
        ours = self._ours(peer, epoch, plain=plain)
        return Session(ours, peer.name, self._mask, self._rng, self._pace)

    def _count(self) -> None:
        """Tell the pace how many sessions there are: their keepalive interval depends on it."""
        self._pace.answering = len(self._answering)
        self._pace.unanswered = len(self.all) - len(self._answering)

    def _ours(self, peer: Configured, epoch: int, *, plain: bool) -> handshake.Ours:
        config = self._config()
        return handshake.Ours(
            host=config.host.name,
            epoch=epoch,
            mtu=config.mtu,
            mpr=config.transport.mpr,
            qp_base=self._table.peers.base(peer.name),
            qps=self._table.peers.per_peer,
            capabilities=_capabilities(config, lost=plain),
            required=_cell(config) if config.transport.framing == "cell" else (),
            frame=self._frame,
            hosts=digest.of_hosts(config.fabric, config.host, peer.host),
            endpoints=_packed(config),
            rates=self._table.peers.rates,
            build=__version__,
        )

    @property
    def other_files(self) -> dict[str, str]:
        """Which peers state that they have another fabric file, and what does not agree."""
        return {name: text for name, p in self.all.items() if (text := p.other_file) is not None}

    @property
    def used_twice(self) -> dict[str, str]:
        """Which peers' keys a second host uses, and where the two are."""
        return {} if self.channels is None else self.channels.used_twice

    # ---- what data to a peer is in, and how long

    def _framed(self, peer: Peer, framing: SessionFraming) -> None:
        self._on_mtu(peer.configured, peer.frame(framing, self._lengths))

    def _frame_again(self, peer: Peer) -> None:
        if peer.framing is not None:
            self._framed(peer, peer.framing)

    def set_path_mtu(self, name: str, plane: int, mtu: int) -> None:
        """Send a peer no longer packets than its path on a plane takes; 0: as long as a NIC's."""
        peer = self.all.get(name)
        if peer is not None:
            peer.set_path_mtu(plane, mtu)
            self._frame_again(peer)

    def tried(self, name: str) -> Tried | None:
        """Return what data to a peer is to be tried; None without a session."""
        return self.all[name].tried(self._lengths) if name in self.all else None

    def set_most(self, name: str, plane: int, most: int | None) -> None:
        """Send a peer no longer packets than these, bytes, because of a plane."""
        if name in self.all:
            self.all[name].set_most(plane, most, self._lengths)
            self._frame_again(self.all[name])

    def set_swallowed(self, name: str, planes: Mapping[int, bool]) -> None:
        """Send a peer MRC's packets while cells get through to it on no plane."""
        peer = self.all.get(name)
        if peer is None or self._config().transport.framing == "cell":
            return
        if peer.set_swallowed(planes, self._mask, time.monotonic()):
            framing = "cell" if peer.plain_s is None else "mrc"
            log.warning("peer.framing", peer=name, framing=framing)
            self._set_up_anew(peer)

    # ---- across a restart of the daemon

    @property
    def memories(self) -> dict[str, Memory]:
        """The state that each session needs to be resumed, by peer."""
        found = {name: peer.memory for name, peer in self.all.items()}
        return {name: memory for name, memory in found.items() if memory is not None}

    @property
    def channel_memories(self) -> dict[str, ChannelMemory]:
        """The state that each channel needs after a restart, by peer. There are no keys in it."""
        return {} if self.channels is None else self.channels.memories

    def resume(self, memories: Mapping[str, Memory], told: int) -> list[str]:
        """Resume the sessions whose QPs the maps still hold, and reset the QPs of the others.

        `told` is the mask of usable planes that peers know. Returns the peers whose sessions were
        resumed.
        """
        now = time.monotonic_ns()
        resumed = []
        for name, peer in self.all.items():
            memory = memories.get(name)
            if memory is not None and not versions.spoken(memory.agreed):
                log.warning("session.outdated", peer=name, version=memory.agreed)
                memory = None
            if memory is None or not self._is_held(name, memory):
                self._table.reset(tuple(self._table.qps_of(name)))
                continue
            ours = self._ours(peer.configured, memory.epoch, plain=False)
            peer.session = Session.resume(
                ours, name, told, self._rng, memory, now_ns=now, pace=self._pace
            )
            self._answering[name] = None
            peer.ports = self._table.peers.planes[name]
            self._number(peer, memory.offer)
            self._endpoint.peer_established(name)
            self._framed(peer, self._framing_of(memory.offer))
            resumed.append(name)
        self._count()
        return resumed

    def _is_held(self, name: str, memory: Memory) -> bool:
        """Return whether the maps still hold the QPs of a session."""
        framing = self._framing_of(memory.offer)
        return self._table.holds(
            name, memory, cells=framing.cells, trims=framing.trims, timed=framing.timed
        )

    def _framing_of(self, offer: Offer) -> SessionFraming:
        return self._framing(offer.mtu, offer.capabilities, trims=TRIM in offer.capabilities)

    def _framing(self, mtu: int, takes: Collection[str], *, trims: bool) -> SessionFraming:
        """Return what data is in, with a peer that takes what has these names."""
        cells = self._takes_cells(takes)
        return SessionFraming(mtu, cells, trims, timed=cells and SACK_TIMES in takes)

    def _takes_cells(self, capabilities: Collection[str]) -> bool:
        return any(name in capabilities for name in _cell(self._config()))

    # ---- peers that come and go

    def configured(self) -> None:
        """Go by the configuration of now; the caller adds and removes peers separately."""
        config = self._config()
        self._frame = digest.of_frame(config.fabric)
        self._lengths = Lengths.of(config)
        for configured in config.peers:
            if (peer := self.all.get(configured.name)) is not None:
                peer.configured = configured
                hosts = digest.of_hosts(config.fabric, config.host, configured.host)
                peer.session.set_digests(self._frame, hosts)
                if (offer := peer.session.remote) is not None:
                    self._number(peer, offer)
                told = peer.session.set_endpoints(_packed(config), now_ns=time.monotonic_ns())
                self._carry_out(peer, told)
        self._ways.configured()
        self._reconfigure_channels(config)

    def _reconfigure_channels(self, config: Config) -> None:
        if self.channels is not None and config.keyring is not None:
            self.channels.reconfigure(config, config.keyring)
            return
        if self.channels is not None:
            self.channels.close()
        self.channels = None
        if config.keyring is not None:  # the caller adds all peers again, now with keys
            alone = replace(config.keyring, peers={})
            self.channels = self._channels(replace(config, keyring=alone), {})
            assert self.channels is not None
            self.channels.reconfigure(config, config.keyring)
            self.channels.start()

    def add(self, configured: Configured) -> None:
        """Begin to offer a session to a peer that the QP table already holds."""
        name = configured.name
        self.all[name] = Peer(configured, self._session(configured, self._epoch, plain=False))
        if self.channels is not None:
            self.channels.add(name)
        self._count()
        self._arm(self.all[name])
        self._schedule()

    def remove(self, name: str) -> None:
        """Forget the session with a peer, and its keys; the QP table resets its QPs."""
        if self.channels is not None:
            self.channels.remove(name)
        del self.all[name]
        self._agenda.drop(name)
        self._answering.pop(name, None)
        self._unheard.forget(name)
        self._endpoint.peer_gone(name)
        self._count()
        self._on_change()

    def begin_anew(self, name: str) -> None:
        """Forget the session with a peer, as a restart would, and offer a new one.

        This resets its QPs and loses their outstanding packets; applications' connections survive.
        """
        peer = self.all[name]
        if not peer.established:
            return  # a new session is being set up already
        log.warning("peer.out_of_step", peer=name)
        self._set_up_anew(peer)

    def replace_failed(self, name: str, qp: int, why: str) -> None:
        """Begin anew with a peer because one of its QPs, given by its index, gave up."""
        if not self._table.has_failed(qp):
            return  # it was reset meanwhile
        number = qp - self._table.peers.base(name)
        log.warning("qp.failed", peer=name, qp=number, reason=why)
        peer = self.all[name]
        peer.failed = f"QP {number} gave up: {why}"
        self._set_up_anew(peer)

    def _set_up_anew(self, peer: Peer) -> None:
        self._table.reset(tuple(self._table.qps_of(peer.name)))
        epoch = self._rng.getrandbits(64)
        plain = peer.plain_s is not None
        peer.session = self._session(peer.configured, epoch, plain=plain)
        self._answering.pop(peer.name, None)
        self._count()
        self._carry_out(peer, peer.session.start(now_ns=time.monotonic_ns()))
        self._arm(peer)
        self._schedule()

    def start(self, mask: int) -> None:
        """Open the sockets and begin to send Offers."""
        config = self._config()
        addresses = underlay.of(config.fabric).addresses(config.host)
        for failed in self._sockets.open_planes(config.interfaces, addresses):
            log.warning("plane.not_restored", error=failed)
        self.set_planes(mask)
        if self.channels is not None:
            self.channels.start()
        for peer in self.all.values():
            self._arm(peer)
        self._schedule()

    def set_planes(self, mask: int) -> None:
        """Tell all peers of our changed mask of usable planes, those that answer first."""
        gained, self._mask = mask & ~self._mask, mask
        if gained and self.channels is not None:
            self.channels.ask_again()
        if self._telling is not None:
            self._telling.cancel()
        self._untold = deque(sorted(self.all, key=lambda name: name not in self._answering))
        self._tell_planes()

    def _tell_planes(self) -> None:
        """Tell the next few peers, and continue after the event loop's other tasks had a turn."""
        now = time.monotonic_ns()
        for _ in range(min(TOLD_AT_ONCE, len(self._untold))):
            peer = self.all.get(self._untold.popleft())
            if peer is None:
                continue  # it was removed meanwhile
            self._carry_out(peer, peer.session.set_planes(self._mask, now_ns=now))
            self._arm(peer)
        if self._untold:
            self._telling = asyncio.get_running_loop().call_soon(self._tell_planes)
        self._schedule()

    def on_message(self, magic: bytes, handler: Handler) -> None:
        """Pass messages that begin with `magic` to a handler."""
        self._handlers[magic] = handler

    def beat_s(self, period_s: float) -> float:
        """Return the time of the next beat of a period, in seconds of the monotonic clock.

        All work of the same period is done at the same beats, so that it wakes the daemon up once.
        """
        period_ns = round(period_s * 1e9)
        return self._pace.next(time.monotonic_ns() + period_ns // 2, period_ns) / 1e9

    @property
    def refusals(self) -> dict[str, str]:
        """Why each peer that is heard, but gets no session or no keys, is refused."""
        found = {} if self.channels is None else self.channels.mismatches
        told = {name: text for name, p in self.all.items() if (text := p.refused) is not None}
        return found | told

    def refusal(self, name: str) -> str | None:
        """Why one peer is."""
        found = {} if self.channels is None else self.channels.mismatches
        return self.all[name].refused or found.get(name)

    @property
    def failed(self) -> dict[str, str]:
        """Why QPs of peers are set up anew, by peer."""
        return {name: text for name, p in self.all.items() if (text := p.failed) is not None}

    @property
    def datagrams_read(self) -> int:
        """How many datagrams our sockets have taken so far."""
        return self._sockets.read

    @property
    def answering(self) -> list[str]:
        """Peers with which a session is established."""
        return list(self._answering)

    @property
    def established(self) -> list[str]:
        """Peers whose session is established and that are heard."""
        return [name for name in self._answering if self.all[name].established]

    def numbering(self, name: str) -> Numbering | None:
        """Return which of our planes a peer's are; None while it has not said."""
        peer = self.all.get(name)
        return None if peer is None or peer.session.remote is None else peer.numbering

    def usable_planes(self, name: str) -> list[int]:
        """Return the planes that a peer says are usable and whose paths are not all denied."""
        mask = self.all[name].ports or 0
        planes = range(self._config().fabric.planes)
        return [p for p in planes if mask >> p & 1 and self._open_evs(name, p)]

    def _arrived(self, datagram: bytes, plane: int, source: str) -> None:
        if self.channels is not None:
            if debugging():
                log.debug("message.received", source=source, plane=plane, **_shape(datagram))
            self.channels.receive(datagram, source, plane)
        else:
            self._said(None, datagram, plane)

    def _said(self, sender: str | None, message: bytes, plane: int) -> None:
        """Process a message; `sender` is who has said it, or None where nobody can know."""
        if debugging():
            log.debug("message.received", sender=sender, plane=plane, **_shape(message))
        handler = self._handlers.get(message[:4])
        if handler is not None:
            handler(sender, message, plane)
            return
        now = time.monotonic_ns()
        try:
            if sender is None and sealing.kind_of(message) is not None:
                raise HandshakeError("is sealed: its sender has keys, and this host is insecure")
            offer = handshake.decode(message)
            if sender not in (None, offer.host):
                raise HandshakeError(f"Offer in the name of {offer.host}, from {sender}")
            peer = self.all.get(offer.host)
            if peer is None:
                raise HandshakeError(f"no peer {offer.host!r} is configured")
            commands = peer.session.receive(offer, now_ns=now)
        except HandshakeError as error:
            if isinstance(error, LacksCapability):
                self.all[offer.host].refused = str(error)
            elif isinstance(error, NoCommonVersion):
                self._apart(sender or error.host, error)
            self._rejections.add(plane, str(error), now_ns=now)
            return
        self._number(peer, offer)
        other_file = peer.hear(offer, now)
        if other_file is not None:
            log.warning("peer.fabric_differs", peer=peer.name, what=other_file)
        if not commands and peer.established:
            return  # a keepalive only postpones the session's next turn
        self._calm = False
        self._carry_out(peer, commands)
        self._arm(peer)

    def _introduce(self, sender: str | None, _message: bytes, plane: int) -> None:
        """Tell a peer that does not know this host who it is."""
        config = self._config()
        if sender is None or not config.fabric.described:
            return
        host = config.host
        addresses = tuple(map(str, host.addresses))[: introduction.ADDRESSES_MAX]
        said = introduction.introduction(host.name, host.t0, host.port, addresses, self._frame)
        self._say(sender, (plane,), said)

    def _not_taken(self, sender: str | None, message: bytes, plane: int) -> None:
        """Note why a peer does not take this host."""
        peer = self.all.get(sender or "")
        if peer is None:
            return
        try:
            reason = introduction.read_refusal(message)
        except HandshakeError as error:
            self._rejections.add(plane, str(error), now_ns=time.monotonic_ns())
            return
        text = f"peer {peer.name} does not take this host: {reason}"
        if peer.refused != text:
            peer.refused = text
            self._refusals.add(plane, text, now_ns=time.monotonic_ns())

    def _apart(self, name: str, error: NoCommonVersion) -> None:
        """Note that a peer speaks no version that this host speaks."""
        if name in self.all:
            self.all[name].refused = versions.apart(name, error.versions)

    def _heard_all(self) -> float:
        """Return how long the next arrivals may wait, in seconds, now that all have been read."""
        calm, self._calm = self._calm, True
        if not calm:
            self._schedule()
        if not calm or not self._pace.crowd:
            return 0.0
        now = time.monotonic_ns()
        return (self._pace.next(now + REST_NS // 2, REST_NS) - now) / 1e9

    def _arm(self, peer: Peer) -> None:
        session = peer.session
        due = session.deadline_ns
        if session.state is State.ESTABLISHED:
            due = self._pace.beat(due)
        self._agenda.put(peer.name, due, prompt=session.state in _PROMPT)

    def _schedule(self) -> None:
        """Set the one alarm that all sessions share to the time of the next turn."""
        self._alarm.set(self._agenda.deadline_ns(now_ns=time.monotonic_ns()))

    def _due(self) -> None:
        now = time.monotonic_ns()
        for name in self._agenda.take(now_ns=now):
            peer = self.all[name]
            patient = peer.session.state not in _PROMPT
            commands = peer.session.tick(now_ns=now)
            if patient:
                self._agenda.spend(sum(map(_packets, commands)))
            self._carry_out(peer, commands)
            self._arm(peer)
        if now >= self._doubts_ns:
            self._doubts_ns = now + self._pace.keepalive_ns
            self._compare_ports()
        if now >= self._unheard_ns:
            self._unheard_ns = now + (LOOK_CROWD_NS if self._pace.crowd else LOOK_NS)
            self._table.peers.set_unheard(self._unheard.look(self._unreached(), now))
        self._schedule()

    def _carry_out(self, peer: Peer, commands: list[Command]) -> None:
        name = peer.name
        for command in commands:
            match command:
                case SendOffer():
                    planes = self._ways.open_planes(name, command.planes, self._mask)
                    self._say(name, planes, command.datagram)
                    if self.channels is not None and not peer.established:
                        self.channels.doubt(name)
                case ConfigureReceive():
                    framing = self._framing(command.mtu, command.capabilities, trims=command.trims)
                    self._table.configure(
                        name,
                        command.qps,
                        command.mpr,
                        cells=framing.cells,
                        trims=framing.trims,
                        timed=framing.timed,
                    )
                    self._planes_of(peer, command.port_mask)
                    self._table.peers.set_ports(name, peer.numbering.mask(command.port_mask))
                    self._framed(peer, framing)
                case ReadyToSend():
                    self._table.ready(name)
                case ResetQps():
                    self._endpoint.peer_gone(name)
                    self._table.reset(command.indices)
                case PeerPlanes():
                    self._planes_of(peer, command.port_mask)
                case StateChanged():
                    self._state_changed(peer, command)

    def _state_changed(self, peer: Peer, change: StateChanged) -> None:
        name = peer.name
        if change.new is State.ESTABLISHED:
            self._endpoint.peer_established(name)
            self._answering[name] = None
            peer.failed = None
            self._table.peers.set_unheard(self._unheard.heard(name))
        else:
            self._answering.pop(name, None)
        if change.new is State.SILENT:
            self._unheard_ns = 0  # new connections need not wait any longer
            if self.channels is not None:
                self.channels.renew([name])  # it may have lost its keys
        self._count()
        _log_state(change)
        self._on_change()

    def _number(self, peer: Peer, offer: Offer) -> None:
        """Go by which of our planes a peer's are, and what they carry, as its Offer says."""
        changed = peer.number(offer)
        self._table.peers.set_their_rates(peer.name, peer.numbering.by_ours(offer.rates))
        if not changed:
            return
        self._table.peers.set_numbering(peer.name, peer.numbering.word)
        log.info("peer.numbered", peer=peer.name, planes=peer.numbering.ours)
        if peer.ports is not None:
            self._planes_of(peer, offer.port_mask)
            self._table.peers.set_ports(peer.name, peer.numbering.mask(offer.port_mask))

    def set_rates(self) -> None:
        """Tell peers from now on what our planes should carry, as the table of peers has it."""
        for peer in self.all.values():
            peer.session.set_rates(self._table.peers.rates)

    def _planes_of(self, peer: Peer, theirs: int) -> None:
        mask = peer.numbering.mask(theirs)
        if peer.set_ports(mask):
            self._table.peers.set_planes(peer.name, mask)
            log.info("peer.ports_changed", peer=peer.name, planes=f"{mask:#x}")

    def _unreached(self) -> Iterator[tuple[str, bool]]:
        """Return the peers that cannot be reached now, and whether this has lasted for long."""
        for name, peer in self.all.items():
            if name not in self._answering or not peer.ports:
                yield name, peer.session.state is State.SILENT

    def _compare_ports(self) -> None:
        """Trust Offers that keep differing from the Port Status Updates."""
        remotes = ((name, self.all[name].session.remote) for name in self._answering)
        offers = [
            (name, structs.replace(offer, port_mask=self.all[name].numbering.mask(offer.port_mask)))
            for name, offer in remotes
            if offer is not None
        ]
        if not offers:
            return
        said = self._table.peers.every_ports()
        for name, mask in self._doubts.corrections(offers, said).items():
            self._table.peers.set_ports(name, mask)
            log.info("peer.ports_corrected", peer=name, planes=f"{mask:#x}")

    def send(self, peer: str, plane: int, message: bytes) -> None:
        """Send a message to a peer over a random T1 of a plane that is not denied.

        Sends nothing if all are denied, or if the configuration has keys and there are none yet.
        """
        self._say(peer, (plane,), message)

    def _say(self, peer: str, planes: tuple[int, ...], message: bytes) -> None:
        """Send a message on each of the planes, sealed where the configuration has keys."""
        if debugging():
            log.debug("message.sent", peer=peer, planes=planes, **_shape(message))
        datagram = message if self.channels is None else self.channels.seal(peer, message)
        if datagram is not None:
            for plane in planes:
                self._ways.send(peer, plane, datagram)

    def _transmit(self, peer: str, plane: int | None, datagram: bytes) -> None:
        """Send a datagram of a channel on a plane, or on all that are usable for None."""
        usable = tuple(p for p in range(self._config().fabric.planes) if self._mask >> p & 1)
        planes = usable if plane is None else (plane,)
        if debugging():
            log.debug("message.sent", peer=peer, planes=planes, **_shape(datagram))
        for each in self._ways.open_planes(peer, planes, self._mask):
            self._ways.send(peer, each, datagram)

    def _has_keys(self, name: str) -> None:
        """Send Offers at once to a peer to which nothing could be said before."""
        peer = self.all.get(name)
        if peer is not None:
            self._carry_out(peer, peer.session.start(now_ns=time.monotonic_ns()))
            self._arm(peer)
            self._schedule()

    def count(self, state: State) -> int:
        """Return the number of sessions in a state."""
        return sum(peer.session.state is state for peer in self.all.values())

    def state(self, name: str) -> State:
        """Return the state of the session with a peer."""
        return self.all[name].session.state

    def close(self) -> None:
        """Stop the timer and close the sockets."""
        if self.channels is not None:
            self.channels.close()
        self._alarm.cancel()
        if self._telling is not None:
            self._telling.cancel()
        self._sockets.close()


def _shape(message: bytes) -> dict[str, Any]:
    """Return what the log says of a message: its kind, by its first bytes, and length."""
    return {"kind": message[:4].decode("ascii", "backslashreplace"), "bytes": len(message)}


def _log_state(change: StateChanged) -> None:
    if change.new is State.ESTABLISHED:
        log.info("peer.established", peer=change.peer, reason=change.reason)
    elif change.new is State.SILENT:
        log.warning("peer.silent", peer=change.peer, reason=change.reason)
    elif change.old is State.ESTABLISHED or change.old is State.SILENT:
        log.info("peer.restarted", peer=change.peer, reason=change.reason)


def _packed(config: Config) -> tuple[bytes, ...]:
    """Return this host's addresses by plane as Offers have them; none in a fabric."""
    return tuple(address.packed for address in config.host.endpoints)


def _packets(command: Command) -> int:
    return len(command.planes) if isinstance(command, SendOffer) else 0


def _capabilities(config: Config, *, lost: bool) -> tuple[str, ...]:
    """Return what this host's Offers to a peer list; `lost`: cells to it are lost."""
    cells = (CELLS_LOST,) if lost else _cell(config) + (SACK_TIMES,) * config.cells
    return cells + (TRIM,) * config.fabric.trim


def _cell(config: Config) -> tuple[str, ...]:
    """Return the name of our cells among capabilities; none without cells."""
    return (CELL_UDP if config.cell_udp else CELL,) * config.cells
