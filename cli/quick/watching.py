# SPDX-License-Identifier: GPL-2.0-only
"""Watch the NICs of this host and of all others that do the same, until stopped.

Hosts say their counts to a multicast group of each network, sealed with the secret that all have,
and probe each other by plain UDP (mrcd/survey/). Nothing is left in the kernel afterwards, and mrcd
need neither run nor be able to.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_interface

from cli.quick.gathering import Gathering, NotOurs, Said
from mrcd.linux import rtnl
from mrcd.linux.groupsocket import DATAGRAM_MAX, GROUP, open_on
from mrcd.survey import told
from mrcd.survey.hoststate import SECOND
from mrcd.survey.matrix import Matrix
from mrcd.survey.messages import EvidenceError
from mrcd.survey.named import Changes
from mrcd.survey.prober import TICK_S, Prober, nic_of
from mrcd.survey.probesockets import ProbeSockets
from mrcd.survey.shots import Target

PORT = 4976
"""The UDP port of what hosts say to each other; their probes go to the next one."""
ALONE_S = 5.0
"""After this time it is said who is not heard."""
DEAF_NS = 5 * SECOND
FORGOTTEN_NS = 3600 * SECOND
"""A host that is silent for this long is forgotten."""

Tell = Callable[[str], None]
OnFaults = Callable[[Changes, Matrix, int], None]


class Watching:
    """The watch of this host, `own`, over its NICs, whose places are the planes."""

    def __init__(
        self, own: str, nics: Sequence[str], secret: bytes, pps: int, port: int, tell: Tell
    ) -> None:
        self._nics = tuple(nics)
        self._port = port
        self._tell = tell
        run = secrets.randbits(63)
        self.matrix = Matrix(own, [own], len(nics), pps, run, secrets.randbits(63))
        self._gathering = Gathering(secret, run)
        self._probes = ProbeSockets(port + 1)
        self.prober = Prober(self.matrix, self._probes, pps, self._address, self._name)
        self._group: list[socket.socket] = []
        self._addresses: dict[Target, str] = {}
        self._heard_ns: dict[Target, int] = {}
        self._run_of: dict[str, int] = {}
        self._said: set[str] = set()
        self._silent: dict[str, int] = {}
        self._down: list[int] = []
        self._turn = 0

    def run(self, stop: Callable[[], bool], on_faults: OnFaults) -> None:
        """Watch until `stop` says so; `on_faults` is called with each change of the list."""
        self._group = [open_on(nic, self._port) for nic in self._nics]
        try:
            self._loop(stop, on_faults)
        finally:
            self._say([b""], range(len(self._nics)))
            self._probes.close()
            for sock in self._group:
                sock.close()

    def _loop(self, stop: Callable[[], bool], on_faults: OnFaults) -> None:
        began = due = time.monotonic()
        while not stop():
            now = time.monotonic()
            self._hear()
            self.prober.turn(now)
            if now >= due:
                now_ns = time.monotonic_ns()
                self._interval(now_ns, on_faults)
                due = now + self.matrix.interval_s(now_ns) - TICK_S / 2
                if now - began > ALONE_S:
                    self._say_who_is_missing(now_ns)
            time.sleep(max(0.0, now + TICK_S - time.monotonic()))

    # ---- what is said

    def _interval(self, now_ns: int, on_faults: OnFaults) -> None:
        nics = tuple(nic_of(name) for name in self._nics)
        self._down = [plane for plane, nic in enumerate(nics) if not nic.up]
        self._place()
        datagrams = list(self.matrix.tell(nics, {}, now_ns=now_ns))
        count, self._turn = len(self._nics), self._turn + 1
        self._say(datagrams, {self._turn % count, (self._turn + 1) % count})
        changes, found = self.matrix.judge(now_ns=now_ns)
        self.matrix.aim(found, self._down)
        on_faults(changes, self.matrix, now_ns)

    def _say(self, datagrams: Sequence[bytes], planes: set[int] | range) -> None:
        for plane in planes:
            for datagram in datagrams:
                sealed = self._gathering.seal(plane, datagram)
                try:
                    self._group[plane].sendto(sealed, (GROUP, self._port))
                except OSError:  # no address yet, or no link; it is said again
                    continue

    def _place(self) -> None:
        """Have sockets at the link-local addresses of the NICs."""
        every = rtnl.addresses()
        for plane, nic in enumerate(self._nics):
            try:
                index = socket.if_nametoindex(nic)
            except OSError:
                self._probes.close_plane(plane)
                continue
            local = sorted(text for text in every.get(index, ()) if text.startswith("fe80"))
            if not local:
                self._probes.close_plane(plane)
                continue
            try:
                address = IPv6Address(str(ip_interface(local[0]).ip))
                self._probes.place(plane, index, nic, address)
            except OSError as error:
                self._once(f"{nic}: {error.strerror}; it is tried again")

    # ---- what is heard

    def _hear(self) -> None:
        for plane, sock in enumerate(self._group):
            while True:
                try:
                    sealed, source = sock.recvfrom(DATAGRAM_MAX)
                except OSError:
                    break
                address = source[0].partition("%")[0]
                try:
                    said = self._gathering.open(sealed)
                except NotOurs as error:
                    self._once(f"{address} on {self._nics[plane]}: what it says {error}")
                    continue
                if said is not None:
                    self._take(said, plane, address)

    def _take(self, said: Said, plane: int, address: str) -> None:
        now_ns = time.monotonic_ns()
        if not said.datagram:
            self._leave(said.run)
            return
        try:
            name = told.decode(said.datagram).host
            if self._is_second(name, said.run, now_ns):
                self._once(f"two hosts are called {name}: give one of them another --name")
                return
            if self.matrix.join(name):
                self._tell(f"{name} is here")
            self.matrix.receive(said.datagram, now_ns=now_ns)
        except EvidenceError as error:
            self._once(f"{address} on {self._nics[plane]}: {error}")
            return
        self._run_of[name] = said.run
        if said.plane == plane:
            self._addresses[name, plane] = address
            self._heard_ns[name, plane] = now_ns
        elif (name, plane) not in self._addresses and said.plane < len(self._nics):
            self._heard_ns.setdefault((name, -1 - plane), now_ns)

    def _is_second(self, name: str, run: int, now_ns: int) -> bool:
        known = self._run_of.get(name)
        if name == self.matrix.own:
            return True
        host = self.matrix.hosts.get(name)
        alive = host is not None and now_ns - host.heard_ns < DEAF_NS
        return known is not None and known != run and alive

    def _leave(self, run: int) -> None:
        for name in [name for name, each in self._run_of.items() if each == run]:
            self._forget(name)
            self._tell(f"{name} has ended its watch")

    def _forget(self, name: str) -> None:
        self.matrix.leave(name)
        self._run_of.pop(name, None)
        self._silent.pop(name, None)
        for plane in range(-len(self._nics), len(self._nics)):
            self._addresses.pop((name, plane), None)
            self._heard_ns.pop((name, plane), None)

    # ---- who is missing

    def _say_who_is_missing(self, now_ns: int) -> None:
        if not self._run_of:
            self._once(f"no other host is heard on {', '.join(self._nics)} yet")
        silent = dict(self.matrix.silent(now_ns))
        for name in silent.keys() - self._silent.keys():
            self._tell(f"{name} is silent: nothing is heard of it for 3 s")
        for name in self._silent.keys() - silent.keys():
            self._tell(f"{name} is heard again")
        if silent and len(silent) == len(self._run_of) > len(self._silent):
            self._tell(f"nothing is heard on {', '.join(self._nics)}: faults are not judged")
        self._silent = silent
        for name in [name for name, at in silent.items() if now_ns - at > FORGOTTEN_NS]:
            self._forget(name)
        for name in self._run_of.keys() - silent.keys():
            for plane, nic in enumerate(self._nics):
                if (name, plane) not in self._heard_ns:
                    self._say_deaf(name, plane, nic)

    def _say_deaf(self, name: str, plane: int, nic: str) -> None:
        crossed = (name, -1 - plane) in self._heard_ns
        why = (
            "another of its NICs is: name the NICs of each network at the same place on all hosts"
            if crossed
            else "nothing is known of this way"
        )
        self._once(f"NIC {plane + 1} of {name} is not heard on {nic}: {why}")

    def _once(self, line: str) -> None:
        if line not in self._said and len(self._said) < 1000:
            self._said.add(line)
            self._tell(line)

    # ---- addresses

    def _address(self, peer: str, plane: int) -> str | None:
        return self._addresses.get((peer, plane))

    def _name(self, address: str, plane: int) -> str | None:
        return next(
            (name for (name, k), each in self._addresses.items() if k == plane and each == address),
            None,
        )
