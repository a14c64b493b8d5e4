# SPDX-License-Identifier: GPL-2.0-only
"""Send probes to other hosts, and read those that arrive: one turn of both at a time.

mrcd (mrcd/survey/pairsurvey.py) and `mrcctl watch` call it from their loops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from mrcd.linux.nicfacts import nic_facts
from mrcd.survey import shots
from mrcd.survey.arrivals import port_of
from mrcd.survey.matrix import Matrix
from mrcd.survey.probesockets import ProbeSockets
from mrcd.survey.shots import Probe
from mrcd.survey.told import Nic

TICK_S = 0.05
"""Time between two turns."""
KNOCK_S = 0.2
"""Time between two knocks at a host that says nothing."""
LONG_MAX = 9000
"""The longest packet of a probe, with its IP header."""
_MTU_MIN = 1280

AddressOf = Callable[[str, int], str | None]
"""Returns the address of a peer's NIC of a plane; None while it is not known."""
NameOf = Callable[[str, int], str | None]
"""Returns the peer that has an address on a plane."""


class Prober:
    """The probes of this host, at most `pps` a second."""

    def __init__(
        self, matrix: Matrix, sockets: ProbeSockets, pps: int, address: AddressOf, name: NameOf
    ) -> None:
        self._matrix = matrix
        self._sockets = sockets
        self._pps = pps
        self._address = address
        self._name = name
        self._credit = self._knocked_s = 0.0
        self._paid_s: float | None = None
        self.sent = self.received = self.strange = 0

    def turn(self, now_s: float) -> None:
        """Read what has arrived, and send what is due."""
        self.received += self._sockets.read(self._arrived)
        if self._paid_s is not None:
            due = self._credit + self._pps / 2 * (now_s - self._paid_s)
            self._credit = min(due, max(1.0, self._pps * TICK_S))
        self._paid_s = now_s
        while self._credit >= 1:
            self._credit -= 1
            if not self._shoot():
                break
        if now_s - self._knocked_s >= KNOCK_S:
            self._knocked_s = now_s
            for peer, plane in self._matrix.hushed(time.monotonic_ns()):
                if (there := self._address(peer, plane)) is not None:
                    self._sockets.knock(plane, there)
        for plane, address in self._sockets.take_refused():
            name = self._name(address, plane)
            if name is not None:
                self._matrix.refused(name, time.monotonic_ns())

    def _shoot(self) -> bool:
        """Send one shot; return whether there is anybody to send to."""
        matrix = self._matrix
        target = matrix.shots.next()
        if target is None:
            return False
        peer, plane = target
        address, host = self._address(peer, plane), matrix.hosts.get(peer)
        nic = matrix.nic_of(peer, plane)
        if address is None or host is None or nic is None:
            return True
        number = matrix.shots.number(target)
        long = self._length(address, plane, nic)
        for each, length in ((number, shots.SHORT), (number + 1, long)):
            probe = Probe(host.token, matrix.run, plane, each, time.time_ns())
            datagram = shots.encode(probe, length)
            if not self._sockets.send(plane, port_of(each), address, datagram) and each == number:
                return True  # none of the pair has left, and none counts
        matrix.shots.sent(target)
        self.sent += 2
        return True

    def _length(self, address: str, plane: int, theirs: Nic) -> int:
        """Return the bytes in the long probe of a pair."""
        own = self._matrix.hosts.get(self._matrix.own)
        ours = own.nics[plane].mtu if own is not None else _MTU_MIN
        most = max(_MTU_MIN, min(ours, theirs.mtu, LONG_MAX))
        return most - (48 if isinstance(ip_address(address), IPv6Address) else 28)

    def _arrived(self, datagram: bytes, plane: int, source: str, at_ns: int) -> None:
        now_ns = time.monotonic_ns()
        try:
            probe = shots.decode(datagram)
        except shots.NoProbe:
            self.strange += 1
            return
        if probe is None:
            name = self._name(source, plane)
            if name is not None:
                self._matrix.damaged(name, plane, now_ns)
        elif not self._matrix.probe(probe, plane, at_ns, now_ns):
            self.strange += 1


def nic_of(name: str) -> Nic:
    """Return what a host tells of one of its NICs."""
    facts = nic_facts(name)
    return Nic(name[:16], facts.mtu, facts.up, facts.downs, facts.errors)
