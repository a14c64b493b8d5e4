# SPDX-License-Identifier: GPL-2.0-only
"""Send the daemon's endpoint packets, Port Status Updates and EV probes, and match the answers.

Requests are whole MRC packets. They leave through a raw socket, which adds the outer IP header
(the only IP header, except with encap "full"). mrc_receive checks the answers, removes an outer
header and lets the stack deliver them to a UDP socket on the plane's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address

from mrcd.config.config import Current, Peer
from mrcd.fabric import underlay, usid
from mrcd.fabric.routing import ENCAP_FULL
from mrcd.linux.planesocket import Address, PlaneSockets
from mrcd.peers.evprobe import PathResult, ProbeRound
from mrcd.peers.placed import Placed
from mrcd.peers.portupdates import PortUpdates, SendUpdate
from mrcd.service.log import get_logger
from mrcd.wire.abi import ABI
from mrcd.wire.packet import (
    WIRE,
    Bth,
    Control,
    DecodeError,
    Eeth,
    Envelope,
    Erth,
    Ip4,
    Ip6,
    Timestamp,
    encode,
)

_IPPROTO_IPV6 = 41
_IPV6_AUTOFLOWLABEL = 70
_IP_LEN = {4: WIRE.MRC_IP4_LEN, 6: WIRE.MRC_IP6_LEN}
_UDP_NO_CHECK6_RX = 102
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_MAX_BYTES = 512
_BTH_BYTES = WIRE.structs["mrc_bth"].size

_ON_PLANE = (1 << WIRE.MRC_EV_PLANE_SHIFT) - 1
READ_MAX = 64
"""Answers read from a plane before the event loop's other tasks get a turn."""
PROBE_GAP_S = 0.01
"""Time between two rounds of EV probes. It is longer than the delay of a queue in the fabric, so
each round sees its own queue."""
PROBE_WAIT_S = 0.5
"""An EV probe that is not answered within this time counts as lost."""

Answer = Callable[[str, int, bytes, int], None]
log = get_logger()

OpenEvs = Callable[[str, int], Sequence[int]]
KeyOf = Callable[[str], tuple[bytes, int]]


def _stamp(now_ns: int) -> Timestamp:
    return Timestamp(now_ns >> WIRE.MRC_TS_SHIFT & 0xFFFF)


class EndpointSockets(PlaneSockets):
    """One pair of sockets for each plane. Times are CLOCK_REALTIME, like kernel timestamps."""

    def __init__(
        self,
        port: int,
        on_answer: Answer,
        encap: int,
        dscp: int = 0,
        admitted: int | None = ABI.MRC_ADMITTED_MARK,
    ) -> None:
        """Set the sockets up for `encap`, one of MRC_ENCAP_*, without opening any.

        `on_answer` is called with the source address, the EV, the bytes from BTH to ICRC, and the
        time of arrival in nanoseconds. The EV has our number of the plane that the packet came by,
        and mrc_receive has checked that its lower half, which no socket tells, is 0.
        """
        raw_protocol = _IPPROTO_IPV6 if encap == ENCAP_FULL else socket.IPPROTO_UDP
        super().__init__("endpoint", port, raw_protocol, dscp, admitted)
        self._on_answer = on_answer
        self._encap = encap

    def open_plane(self, plane: int, interface: str, address: Address) -> None:
        """Begin to send and listen on a plane. Raises OSError if a socket cannot be set up."""
        super().open_plane(plane, interface, address)
        self._in[plane].setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        if address.version == 6:
            # MRC uses no UDP checksum (RFC 6935); by default the kernel drops such packets.
            self._in[plane].setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1)
            # With a single IPv6 header, part of the flow label belongs to the EV.
            self._raw[plane].setsockopt(socket.IPPROTO_IPV6, _IPV6_AUTOFLOWLABEL, 0)

    def _readable(self, plane: int) -> None:
        for _ in range(READ_MAX):
            try:
                data, extra, _flags, source = self._in[plane].recvmsg(_MAX_BYTES, 64)
            except OSError:  # empty, or an ICMP error about a packet we sent
                return
            arrived = time.time_ns()
            for _level, kind, value in extra:
                if kind == _SO_TIMESTAMPNS:
                    seconds, nanoseconds = _TIMESPEC.unpack(value)
                    arrived = seconds * 1_000_000_000 + nanoseconds
            # The peer may number the plane differently; the rest of the EV is that of the request.
            ev = usid.ev(plane, 0) | source[1] << 16 & _ON_PLANE
            self._on_answer(source[0], ev, data, arrived)

    def send(self, plane: int, path: str, packet: bytes) -> None:
        """Send a packet, which starts with its inner header, to `path`; losing it is no error."""
        if self._encap != ENCAP_FULL:  # the kernel writes the only header
            packet = packet[_IP_LEN[packet[0] >> 4] :]
        with contextlib.suppress(OSError, KeyError):
            self._raw[plane].sendto(packet, (path, 0))


class Endpoint(Placed):
    """Sends endpoint requests to peers and matches the answers."""

    _sockets: EndpointSockets

    def __init__(self, config: Current, open_evs: OpenEvs, key_of: KeyOf) -> None:
        """Announce over the EVs that `open_evs` returns for a peer and a plane.

        `key_of` returns the key of tags of endpoint packets to a peer, and its phase.
        """
        self._config = config
        self._open_evs = open_evs
        self._key_of = key_of
        self._rng = random.Random()
        self._sockets = EndpointSockets(
            config().transport.udp_port,
            self._answered,
            config().fabric.routing.code,
            config().fabric.classes.control,
        )
        self._updates = PortUpdates()
        self._timer: asyncio.TimerHandle | None = None
        self._rounds: dict[str, ProbeRound] = {}
        self._probing = asyncio.Lock()
        self._progress = asyncio.Event()
        self._request_id = 0
        # An EV's way to a peer changes only with the configuration.
        self._way = lru_cache(maxsize=1 << 14)(self._find_way)
        self.configured()

    def configured(self) -> None:
        """Go by the configuration of now: it has other peers, but the same planes and ports."""
        config = self._config()
        self._at = {underlay.of(config.fabric).place(peer.host): peer.name for peer in config.peers}
        self._way.cache_clear()

    @property
    def update_id(self) -> int:
        """The id of the latest Port Status Update."""
        return self._updates.update_id

    @property
    def unanswered(self) -> frozenset[str]:
        """Peers that can be reached, but may not know our mask of usable planes yet."""
        planes = range(self._config().fabric.planes)
        return frozenset(
            peer
            for peer in self._updates.unanswered
            if any(self._open_evs(peer, plane) for plane in planes)
        )

    def start(self, mask: int, update_id: int = 0) -> None:
        """Open the sockets.

        `mask` is the mask of usable planes that peers know; `update_id` is the last id used.
        """
        config = self._config()
        addresses = underlay.of(config.fabric).addresses(config.host)
        for failed in self._sockets.open_planes(config.interfaces, addresses):
            log.warning("plane.not_restored", error=failed)
        self._updates = PortUpdates(mask, update_id)

    def close(self) -> None:
        """Stop the timer and close the sockets."""
        if self._timer is not None:
            self._timer.cancel()
        self._sockets.close()

    # ---- Port Status Updates

    def set_planes(self, mask: int) -> None:
        """Announce our changed mask of usable planes to every peer with a session at once."""
        self._announce(self._updates.set_mask(mask, now_ns=time.monotonic_ns()))

    def peer_established(self, peer: str) -> None:
        """Note that a session began, or that its peer was heard again."""
        self._updates.established(peer)

    def peer_gone(self, peer: str) -> None:
        """Note that the session ended."""
        self._updates.gone(peer)

    def _announce(self, updates: Sequence[SendUpdate]) -> None:
        for update in updates:
            peer = self._config().by_name[update.peer]
            for plane in update.planes:
                evs = self._open_evs(update.peer, plane)
                if not evs:
                    continue
                ev = self._rng.choice(evs)
                erth = Erth(WIRE.MRC_ENDPOINT_PORT_STATUS, update.mask, _stamp(time.time_ns()))
                self._send(peer, ev, update.update_id, erth)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._updates.pending:
            delay = (self._updates.deadline_ns - time.monotonic_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(max(0, delay), self._due)

    def _due(self) -> None:
        self._announce(self._updates.tick(now_ns=time.monotonic_ns()))

    # ---- EV probes

    async def probe(
        self, peer: str, planes: Sequence[int], count: int, *, wait_s: float = PROBE_WAIT_S
    ) -> list[PathResult]:
        """Probe every EV of these planes `count` times, including denied ones.

        One call runs at a time; others wait for it. It takes 10 ms a round, and up to `wait_s`
        seconds more for probes that are late or lost.
        """
        async with self._probing:
            to = self._config().by_name[peer]
            found = ProbeRound(ev for plane in planes for ev in self._evs(to, plane))
            self._rounds[peer] = found
            try:
                for number in range(count):
                    if number:
                        await asyncio.sleep(PROBE_GAP_S)
                    for ev in found.evs:
                        self._send_probe(to, ev, found)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        while not found.complete:
                            self._progress.clear()
                            await self._progress.wait()
            finally:
                del self._rounds[peer]
            return found.results()

    def _send_probe(self, peer: Peer, ev: int, found: ProbeRound) -> None:
        self._request_id = (self._request_id + 1) & 0xFFFF
        mask, now = self._updates.mask, time.time_ns()
        found.sent(self._request_id, ev, now)
        erth = Erth(WIRE.MRC_ENDPOINT_EV_PROBE, mask, _stamp(now))
        self._send(peer, ev, self._request_id, erth)

    # ---- common to both

    def _evs(self, peer: Peer, plane: int) -> Sequence[int]:
        return underlay.of(self._config().fabric).evs(self._config().host, peer.host, plane)

    def _find_way(self, peer: str, ev: int) -> tuple[str, Envelope]:
        """Return the destination of packets on an EV, and the envelope around their BTH."""
        fabric, host, target = (
            self._config().fabric,
            self._config().host,
            self._config().by_name[peer].host,
        )
        plane, port = usid.ev_plane(ev), self._config().transport.udp_port
        across = underlay.of(fabric)
        src, found = across.address(host, plane), across.way(host, target, plane)
        dst = found.address
        if isinstance(src, IPv4Address) or isinstance(dst, IPv4Address):
            return str(dst), Envelope(None, Ip4(src, dst), ev >> 16, port)  # type: ignore[arg-type]
        envelope = Envelope(None, Ip6(src, dst, ev & 0xFFFF), ev >> 16, port)
        return str(found.destination(ev)), envelope

    def _send(self, peer: Peer, ev: int, request_id: int, erth: Erth) -> None:
        path, envelope = self._way(peer.name, ev)
        key, phase = self._key_of(peer.name)
        bth = Bth(WIRE.MRC_OP_ENDPOINT_REQ, WIRE.MRC_QPN_ENDPOINT, request_id, phase=phase)
        self._sockets.send(usid.ev_plane(ev), path, encode(Control(envelope, bth, erth), key))

    def _answered(self, source: str, ev: int, data: bytes, arrived_ns: int) -> None:
        fabric = self._config().fabric
        spot = underlay.of(fabric).spot(source, usid.ev_plane(ev))
        peer = None if spot is None else self._at.get(spot)
        if peer is None:
            return
        try:
            bth, eeth = Bth.unpack(data, 0), Eeth.unpack(data, _BTH_BYTES)
        except DecodeError:
            return
        request_id = bth.psn & 0xFFFF
        if eeth.op == WIRE.MRC_ENDPOINT_PORT_STATUS:
            if self._updates.answered(peer, request_id) and not self._updates.pending:
                self._arm()  # otherwise the timer repeats what is unanswered
        elif peer in self._rounds:
            found = self._rounds[peer]
            found.answered(request_id, ev, arrived_ns)
            if found.complete:
                self._progress.set()
