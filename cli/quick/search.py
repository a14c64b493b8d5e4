# SPDX-License-Identifier: GPL-2.0-only
"""Say Hello by each NIC and hear the others, by link-local multicast, until all have settled."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence

from cli.quick.discovery import Discovery, Plan
from mrcd.handshake.certificate import Certificate
from mrcd.handshake.hello import BadHello, spaced_s
from mrcd.handshake.invitation import ANSWER, REQUEST, remedy
from mrcd.handshake.voice import Out, Voice
from mrcd.linux.groupsocket import DATAGRAM_MAX, GROUP, PORT, has_carrier, open_on

PERIOD_S = 0.25
LINGER_S = 5.0
"""The longest time for which a settled host still says Hello to those that are not."""
TELL_S = 2.0
"""After this time without an agreement it is said what is missing, and again when it changes."""
PART_S = 2.5
"""For this time a host still says Hello to one with which it can never agree."""


class NotFound(Exception):
    """The hosts did not find each other in time; the message says what is missing."""


def search(
    discovery: Discovery,
    nics: Sequence[str],
    voice: Voice,
    *,
    hosts: int,
    wait_s: float,
    tell: Callable[[str], None],
    shown: dict[str, Certificate],
) -> Plan:
    """Return what was found of other hosts; `hosts` are expected, this one included.

    Some of them may be behind others, and come to be known when mrcd runs. `tell` is called with
    each line for the user. `shown` gets the certificates of the others by their names. Raises
    NotFound, and OSError if a socket cannot be opened.
    """
    with selectors.DefaultSelector() as selector:
        sockets = [open_on(nic) for nic in nics]
        try:
            for place, sock in enumerate(sockets):
                selector.register(sock, selectors.EVENT_READ, place)
            return _Search(discovery, sockets, voice, tell, shown).run(selector, hosts, wait_s)
        finally:
            for sock in sockets:
                sock.close()


class _Search:
    def __init__(
        self,
        discovery: Discovery,
        sockets: Sequence[socket.socket],
        voice: Voice,
        tell: Callable[[str], None],
        shown: dict[str, Certificate],
    ) -> None:
        self._discovery = discovery
        self._sockets = sockets
        self._voice = voice
        self._shown = shown
        self._tell = tell
        self._told: set[str] = set()
        self._strangers: set[str] = set()
        self._missing = ""

    def run(self, selector: selectors.BaseSelector, hosts: int, wait_s: float) -> Plan:
        began = time.monotonic()
        settled_s: float | None = None
        while True:
            self._say()
            count = len(self._discovery.hosts) + 1
            period_s = spaced_s(PERIOD_S, count, len(self._sockets))
            self._hear(selector, time.monotonic() + period_s)
            now = time.monotonic()
            if (found := self._voice.out) is not None:
                name = self._discovery.name
                raise NotFound(f"{name} {found.told}; {remedy(name)}")
            if self._discovery.clash is not None:
                self._part(selector, now)
                if self._discovery.clash is not None:  # else the other host was put out
                    raise NotFound(self._discovery.clash)
            if self._discovery.settled(now_s=now, hosts=hosts):
                settled_s = now if settled_s is None else settled_s
                plan = self._discovery.plan()
                if plan is not None and (self._discovery.all_done or now - settled_s > LINGER_S):
                    self._say()  # that we are settled
                    self._tell_of_quiet()
                    return plan
            else:
                settled_s = None
            if now - began > wait_s:
                raise NotFound(f"not within {wait_s:.0f} s: {self._why(hosts)}")
            if settled_s is None and now - began > TELL_S and self._why(hosts) != self._missing:
                self._missing = self._why(hosts)
                self._tell(f"waiting: {self._missing}")

    def _tell_of_quiet(self) -> None:
        """Say which NICs hear nobody: they are planes that are in use once somebody is there."""
        for nic in self._discovery.quiet_nics:
            place = self._discovery.nics.index(nic)
            dark = "" if has_carrier(self._sockets[place], nic) else ", and it has no carrier"
            self._once(f"{nic}: nobody is heard there so far{dark}")

    def _part(self, selector: selectors.BaseSelector, now: float) -> None:
        """Say what is wrong at once, and go on for a moment, so that the other host hears it, too.

        Addresses of NICs that have just come up cannot send yet.
        """
        self._once(f"this cannot be: {self._discovery.clash}")
        while time.monotonic() < now + PART_S:
            self._say()
            self._hear(selector, time.monotonic() + PERIOD_S)

    def _why(self, hosts: int) -> str:
        """Return what is missing, with what the NICs and the others' Hellos tell of it."""
        why = self._discovery.missing(hosts)
        if self._strangers and not self._discovery.hosts:
            why = f"{why} that has the same secret; others are, at {', '.join(self._strangers)}"
        both = zip(self._sockets, self._discovery.nics, strict=True)
        if dark := [nic for sock, nic in both if not has_carrier(sock, nic)]:
            why += f"; {', '.join(dark)}: no carrier, as without a cable or an end that is up"
        elif not self._discovery.hosts and not self._strangers:
            why += "; if routers are in between, name an address of one host's NICs on all: --seed"
        return why

    def _say(self) -> None:
        for place, sock in enumerate(self._sockets):
            try:
                sock.sendto(self._voice.say(self._discovery.hello(place)), (GROUP, PORT))
            except OSError:  # no address yet, or no link; it is said again
                continue

    def _hear(self, selector: selectors.BaseSelector, until_s: float) -> None:
        while (left := until_s - time.monotonic()) > 0:
            for key, _events in selector.select(left):
                self._read(int(key.data), self._sockets[int(key.data)])

    def _read(self, place: int, sock: socket.socket) -> None:
        try:
            datagram, source = sock.recvfrom(DATAGRAM_MAX)
        except OSError:
            return
        address = source[0].partition("%")[0]
        if datagram.startswith((REQUEST, ANSWER)):
            return  # another host joins
        try:
            heard = self._voice.hear(datagram)
        except Out as error:
            self._discovery.forget(error.name)
            self._once(f"{address}: {error}")
            return
        except BadHello as error:
            self._strangers.add(address)
            self._once(f"{address}: a Hello was refused: {error}")
            return
        hello = heard.hello
        if heard.certificate is not None:
            self._shown[hello.name] = heard.certificate
        self._discovery.hear(place, address, hello, now_s=time.monotonic())
        if hello.name in self._discovery.hosts:
            self._once(f"heard {hello.name}")

    def _once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)
