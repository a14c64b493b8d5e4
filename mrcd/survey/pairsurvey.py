# SPDX-License-Identifier: GPL-2.0-only
"""The survey where there is no fabric: probe the ways to peers, exchange counts, infer the faults.

It stands in for mrcd/survey/survey.py where no probe comes back to its sender by itself. Probes are
plain UDP between the planes' NICs (mrcd/survey/prober.py); what is told of them travels with what
the sessions say to each other.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from mrcd.config.config import Current, Peer
from mrcd.fabric import underlay
from mrcd.fabric.numbering import Numbering
from mrcd.linux.planesocket import Address
from mrcd.peers.peers import Peers
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections
from mrcd.survey import told
from mrcd.survey.cables import Joints
from mrcd.survey.inference import Fault
from mrcd.survey.likelihood import Seen
from mrcd.survey.matrix import Matrix
from mrcd.survey.messages import EvidenceError
from mrcd.survey.named import FaultList, fields_of
from mrcd.survey.prober import TICK_S, Prober, nic_of
from mrcd.survey.probesockets import ProbeSockets
from mrcd.survey.shots import Target
from mrcd.survey.ways import Way

log = get_logger()

DATAGRAMS_MAX = 64
"""Datagrams that are told in one interval; more peers take turns."""
JUDGED_SHARE = 0.05
"""Share of a CPU that judging may take."""

Seeing = Callable[[], Mapping[str, set[tuple[int, int]]] | None]
"""Returns our NIC and theirs for each pair on which another host is heard; None: nobody listens."""
DataLoss = Callable[[], Mapping[Target, int]]
"""Returns what data to each peer loses by each plane, in packets of a million."""


class PairSurvey:
    """The survey of this host; start `follow` when planes and peers are up."""

    def __init__(
        self, config: Current, peers: Peers, data_loss: DataLoss, seen: Seeing = lambda: None
    ) -> None:
        self._config = config
        now = config()
        self._peers = peers
        self._data_loss = data_loss
        self._seen = seen
        self._joints = Joints()
        self.pps = now.transport.survey_pps if now.peers else 0
        self.reason = _why_not(now.transport.survey_pps, len(now.peers))
        names = [now.host.name, *(peer.name for peer in now.peers)]
        planes = now.fabric.planes
        self.matrix = Matrix(
            now.host.name, names, planes, self.pps, secrets.randbits(63), secrets.randbits(63)
        )
        self._sockets = ProbeSockets(dscp=now.fabric.classes.control)
        self.prober = Prober(self.matrix, self._sockets, self.pps, self._address, self._name)
        self._names: dict[tuple[int, str], str] = {}
        self._told = self._turn = 0
        self._judged, self._judging = -math.inf, 0.0
        self._failed: set[str] = set()
        self.accepted = 0
        self.rejections = Rejections("survey.rejected")
        self.seen: list[Seen] = []
        peers.on_message(told.MAGIC, self._receive)

    # ---- as a survey of loops shows itself

    @property
    def loops(self) -> Sequence[Way]:
        """The ways that this host probes."""
        layout, own = self.matrix.layout, self.matrix.own
        if not self.pps:
            return ()
        there = dict.fromkeys(host for host, _nic in layout.from_host(own))
        return tuple(way for host in there for way in layout.ways(host) if way.sender == own)

    @property
    def list(self) -> FaultList:
        """The list of faults."""
        return self.matrix.list

    @property
    def heard(self) -> int:
        """The number of peers whose counts were received lately."""
        return self.matrix.heard(time.monotonic_ns())

    def use(self, programs: Mapping[str, int]) -> None:
        """Probes are sent by no program."""

    # ---- the loop

    async def follow(self) -> None:
        """Send, exchange and judge; runs until cancelled."""
        if not self.pps:
            log.info("survey.off", reason=self.reason)
            return
        log.info("survey.started", loops=len(self.loops), pps=self.pps)
        loop = asyncio.get_running_loop()
        read_at = loop.time()
        try:
            while True:
                now = loop.time()
                self.prober.turn(now)
                if now >= read_at:
                    self._interval(now)
                    read_at = now + self.matrix.interval_s(time.monotonic_ns()) - TICK_S / 2
                await asyncio.sleep(self._peers.beat_s(TICK_S) - loop.time())
        finally:
            self._sockets.close()

    def _interval(self, now: float) -> None:
        """Tell the totals, and judge if that is due."""
        config, now_ns = self._config(), time.monotonic_ns()
        self._place()
        self.matrix.connect(self._pairs())
        nics = tuple(nic_of(name) for name in config.interfaces)
        datagrams = list(self.matrix.tell(nics, self._data_loss(), now_ns=now_ns))
        self._tell(datagrams)
        if now - self._judged >= self._judging / JUDGED_SHARE:
            self._judge(now_ns, [k for k, nic in enumerate(nics) if not nic.up])
            self._judged = now
            self._judging = asyncio.get_running_loop().time() - now

    def _place(self) -> None:
        """Have sockets at the planes' addresses of now, and know those of peers."""
        config = self._config()
        across = underlay.of(config.fabric)
        for plane, interface in enumerate(config.interfaces):
            address = across.address(config.host, plane)
            if address.is_unspecified:
                self._sockets.close_plane(plane)
                continue
            self._open(plane, interface, address)
        self._names = {
            (plane, _text(across.address(peer.host, plane))): peer.name
            for peer in config.peers
            for plane in range(config.fabric.planes)
        }

    def _open(self, plane: int, interface: str, address: Address) -> None:
        try:
            self._sockets.place(plane, socket.if_nametoindex(interface), interface, address)
        except OSError as error:
            self._sockets.close_plane(plane)
            text = f"{interface}: {error.strerror}"
            if text not in self._failed:  # it is tried again at each interval
                self._failed.add(text)
                log.warning("survey.no_socket", plane=plane, error=text)

    def _tell(self, datagrams: Sequence[bytes]) -> None:
        """Send the totals to peers that answer, each on two planes in turn."""
        peers = self._peers.answering
        planes = self._config().fabric.planes
        if not peers:
            return
        count = max(1, min(len(peers), DATAGRAMS_MAX // (len(datagrams) * min(2, planes))))
        for i in range(count):
            name = peers[(self._told + i) % len(peers)]
            usable = self._peers.usable_planes(name) or list(range(planes))
            first = usable[self._turn % len(usable)]
            second = usable[(self._turn + 1 + self._turn // len(usable)) % len(usable)]
            for plane in {first, second}:
                for datagram in datagrams:
                    self._peers.send(name, plane, datagram)
        self._turn += 1
        self._told = (self._told + count) % len(peers)

    def _receive(self, sender: str | None, datagram: bytes, plane: int) -> None:
        now_ns = time.monotonic_ns()
        try:
            self.matrix.receive(datagram, now_ns=now_ns, sender=sender)
            self.accepted += 1
        except EvidenceError as error:
            self.rejections.add(plane, str(error), now_ns=now_ns)

    def _pairs(self) -> dict[str, tuple[int, ...]]:
        """Return the NIC of each peer that each of ours leads to by itself, -1 if it does not.

        What a peer with all our planes numbers them is open until it has said so.
        """
        found = {}
        for peer in self._config().peers:
            numbering = self._peers.numbering(peer.name)
            if numbering is not None or not _shares_all(peer):
                found[peer.name] = paired(peer, numbering, self._config().fabric.planes)
        seen = self._seen()
        return found if seen is None else self._joints.certain(found, seen)

    def _judge(self, now_ns: int, down: Sequence[int]) -> None:
        changes, found = self.matrix.judge(now_ns=now_ns)
        self.matrix.aim(found, down)
        for fault in changes.named:
            log.warning("fault.named", **_fields(fault))
        for fault in changes.cleared:
            log.info("fault.cleared", element=fault.element.name, kind=fault.kind)

    # ---- addresses

    def _address(self, peer: str, plane: int) -> str | None:
        config = self._config()
        there = config.by_name.get(peer)
        return (
            None if there is None else _text(underlay.of(config.fabric).address(there.host, plane))
        )

    def _name(self, address: str, plane: int) -> str | None:
        return self._names.get((plane, address))


def _text(address: Address) -> str:
    """Return an address without the name of an interface, which the socket has."""
    return str(address).partition("%")[0]


def _shares_all(peer: Peer) -> bool:
    """Return whether each plane leads to a peer by itself."""
    return len(_direct(peer)) == len(peer.host.endpoints)


def _direct(peer: Peer) -> list[int]:
    """Return the planes that lead to a peer without another host."""
    host = peer.host
    return [plane for plane, _end in host.places if host.via(plane) is None]


def paired(peer: Peer, numbering: Numbering | None, planes: int) -> tuple[int, ...]:
    """Return the NIC of a peer that each of our planes leads to by itself, -1 for none."""
    found = [-1] * planes
    for theirs, ours in enumerate(numbering.ours if numbering is not None else ()):
        if ours in _direct(peer):
            found[ours] = theirs
    return tuple(found)


def _why_not(pps: int, peers: int) -> str:
    """Return the reason why this host runs no survey; empty if it does."""
    if not pps:
        return "[transport] survey_pps is 0"
    return "" if peers else "there is no peer"


def _fields(fault: Fault) -> dict[str, str]:
    return {**fields_of(fault), "evidence": fault.evidence[0] if fault.evidence else ""}
