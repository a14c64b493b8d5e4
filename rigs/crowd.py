# SPDX-License-Identifier: GPL-2.0-only
"""Thousands of peers in one process, which speak the hand-shake with one real mrcd and stay idle.

Run it where a switch sends the packets for all of them, with a NIC for each plane:

    python -m rigs.crowd FABRIC-FILE US

US is the real host; the crowd plays all others of the file. Each runs its own instance of mrcd's
session, and answers probes, EV probes and Port Status Updates. All other packets are ignored: a
crowd carries no data.
"""

from __future__ import annotations

import random
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

from mrcd.fabric import description, underlay, usid
from mrcd.fabric.description import Fabric, Host
from mrcd.fabric.routing import HOPS_SENT
from mrcd.handshake import (
    Command,
    ConfigureReceive,
    HandshakeError,
    Ours,
    Pace,
    SendOffer,
    Session,
    State,
)
from mrcd.handshake import decode as decode_offer
from mrcd.peers.offersockets import udp6
from mrcd.peers.schedule import Agenda
from mrcd.wire.packet import (
    WIRE,
    Bth,
    CcState,
    Control,
    DecodeError,
    Eeth,
    Envelope,
    Erth,
    Ip6,
    Peth,
    Sack,
    Seth,
    decode,
    encode,
)

CONTROL_PORT = 4972
_ETH_IPV6 = 0x86DD
_OUTER, _INNER = 14, 14 + 40
_UDP = _INNER + 40
_BODY = _UDP + 8
_WAIT_MAX_S = 0.5
_GRAIN_NS = 2_000_000
"""Time between two looks at the sessions. It is short enough that hardly any two members speak at
once, as with thousands of real hosts."""


@dataclass(slots=True)
class Member:
    """One host of the crowd; `qpns` maps each of its QPs to the other end's number and PSN."""

    host: Host
    session: Session
    qpns: dict[int, tuple[int, int]]


class Crowd:
    """All hosts but one, behind one NIC of each plane."""

    def __init__(self, fabric: Fabric, us: Host, seed: int) -> None:
        self._fabric, self._us = fabric, us
        self._rng = random.Random(seed)
        others = [host for host in fabric.hosts if host.name != us.name]
        self._pace = Pace(answering=len(others))  # each member has the same number of peers
        self._members: dict[str, Member] = {}
        self._at = {
            underlay.of(fabric).packed(host, plane): host
            for host in others
            for plane in range(fabric.planes)
        }
        self._agenda = Agenda(now_ns=time.monotonic_ns(), grain_ns=_GRAIN_NS)
        self._sockets = [self._socket(plane) for plane in range(fabric.planes)]
        self._macs: dict[int, bytes] = {}  # Ethernet header of sent frames, by plane

    @staticmethod
    def _socket(plane: int) -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_IPV6))
        sock.bind((f"plane{plane}", _ETH_IPV6))
        sock.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        sock.setblocking(False)
        return sock

    def run(self) -> None:
        """Run until the process is ended."""
        planes = {sock.fileno(): plane for plane, sock in enumerate(self._sockets)}
        poll = select.poll()
        for fd in planes:
            poll.register(fd, select.POLLIN)
        while True:
            now = time.monotonic_ns()
            wait_s = (self._agenda.deadline_ns(now_ns=now) - now) / 1e9
            for fd, _ in poll.poll(1000 * min(_WAIT_MAX_S, max(0, wait_s))):
                self._read(planes[fd])
            now = time.monotonic_ns()
            for name in self._agenda.take(now_ns=now):
                member = self._members[name]
                self._obey(member, member.session.tick(now_ns=now))
                self._arm(member)

    def _read(self, plane: int) -> None:
        for _ in range(64):
            try:
                frame, (*_, kind, _type, _mac) = self._sockets[plane].recvfrom(2048)
            except BlockingIOError:
                return
            if kind != socket.PACKET_OUTGOING:
                self._frame(plane, frame)

    def _frame(self, plane: int, frame: bytes) -> None:
        host = self._at.get(frame[_INNER + 24 : _INNER + 40])
        if host is None or len(frame) < _BODY:
            return
        self._macs[plane] = frame[6:12] + frame[:6] + frame[12:14]
        if int.from_bytes(frame[_UDP + 2 : _UDP + 4], "big") == CONTROL_PORT:
            self._offer(host, frame[_BODY:])
            return
        try:
            packet = decode(frame[_OUTER:])
        except DecodeError:
            return
        if isinstance(packet, Control):
            self._answer(plane, host, packet)

    # ---- the hand-shake

    def _offer(self, host: Host, datagram: bytes) -> None:
        try:
            offer = decode_offer(datagram)
            member = self._members.get(host.name) or self._join(host)
            commands = member.session.receive(offer, now_ns=time.monotonic_ns())
        except HandshakeError:
            return
        self._obey(member, commands)
        self._arm(member)

    def _join(self, host: Host) -> Member:
        ours = Ours(host.name, self._rng.getrandbits(64), 1280, 128, 0, 4)
        planes = (1 << self._fabric.planes) - 1
        session = Session(ours, self._us.name, planes, self._rng, self._pace)
        member = self._members[host.name] = Member(host, session, {})
        return member

    def _obey(self, member: Member, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case SendOffer():
                    for plane in command.planes:
                        self._send_offer(member.host, plane, command.datagram)
                case ConfigureReceive():
                    member.qpns = {
                        local.qpn: (remote.qpn, remote.psn) for local, remote in command.qps
                    }

    def _arm(self, member: Member) -> None:
        prompt = member.session.state in (State.BOUND, State.ESTABLISHED)
        self._agenda.put(member.host.name, member.session.deadline_ns, prompt=prompt)

    def _send_offer(self, host: Host, plane: int, datagram: bytes) -> None:
        ev = self._rng.choice(underlay.of(self._fabric).evs(host, self._us, plane))
        around = self._envelope(host, ev)
        assert around.outer is not None
        inner = udp6(*self._ends(host, plane), CONTROL_PORT, CONTROL_PORT, datagram)
        outer = (
            (6 << 28).to_bytes(4, "big") + len(inner).to_bytes(2, "big") + bytes((41, HOPS_SENT))
        )
        self._send(plane, outer + around.outer.src.packed + around.outer.dst.packed + inner)

    # ---- other requests

    def _answer(self, plane: int, host: Host, packet: Control) -> None:
        body, ev = packet.body, packet.envelope.ev
        if isinstance(body, Peth):
            member = self._members.get(host.name)
            found = member.qpns.get(packet.bth.dqpn) if member is not None else None
            if found is None:
                return
            qpn, psn = found
            seth = Seth(
                (psn - 1) & 0xFFFFFF,
                ev,
                probe_id=body.probe_id,
                probe_reply=True,
                cc_flags=WIRE.MRC_CC_FLAG_DELAYED,
            )
            reply = Sack(
                self._envelope(host, ev),
                Bth(WIRE.MRC_OP_SACK, qpn),
                seth,
                CcState(tx_timestamp=body.timestamp.tx_timestamp),
            )
            self._send(plane, encode(reply))
        elif isinstance(body, Erth):
            bth = Bth(WIRE.MRC_OP_ENDPOINT_RSP, packet.bth.dqpn, packet.bth.psn)
            eeth = Eeth(body.op, body.timestamp.tx_timestamp)
            self._send(plane, encode(Control(self._envelope(host, ev), bth, eeth)))

    def _ends(self, host: Host, plane: int) -> tuple[IPv6Address, IPv6Address]:
        return self._fabric.address6(host, plane), self._fabric.address6(self._us, plane)

    def _envelope(self, host: Host, ev: int) -> Envelope:
        src, dst = self._ends(host, usid.ev_plane(ev))
        path = usid.da_bytes(self._fabric.block, usid.path_usids(host, self._us, ev))
        return Envelope(
            Ip6(src, IPv6Address(path)), Ip6(src, dst), ev >> 16, WIRE.MRC_UDP_PORT_DEFAULT
        )

    def _send(self, plane: int, packet: bytes) -> None:
        if plane in self._macs:  # otherwise no packet ever arrived there
            self._sockets[plane].send(self._macs[plane] + packet)


def main() -> None:
    """Play the crowd of a fabric file."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    fabric = description.load(Path(sys.argv[1]))
    Crowd(fabric, fabric.host(sys.argv[2]), seed=1).run()


if __name__ == "__main__":
    main()
