# SPDX-License-Identifier: GPL-2.0-only
"""Say Hello on the planes while mrcd runs, and hear who else is there (`discover = true`)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Final

from mrcd.config.config import Current
from mrcd.datapath import carried
from mrcd.fabric.cabling import Handed
from mrcd.handshake.hello import BadHello, Hello, spaced_s
from mrcd.handshake.invitation import ANSWER, REQUEST
from mrcd.handshake.voice import Heard, Out, Trusted
from mrcd.linux.groupsocket import DATAGRAM_MAX, GROUP, PORT, has_carrier, open_on
from mrcd.peers.meeting import ASKED_S, EAGER_S, Meeting, Met
from mrcd.peers.routed import Leads, Routed
from mrcd.peers.trust import Trust
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks

log = get_logger()

READS_MAX: Final = 64
"""Hellos that are read at once; the event loop has other work."""
FAREWELLS: Final = 3
LOOK_S: Final = 0.05
"""Hellos come in swarms: what follows from them is looked at together after this time ..."""
AGAIN_S: Final = 0.25
"""... and again after this, while some host is not settled or no peer yet ..."""
LOOK_HOST_S: Final = 0.002
"""... but at least this time for each host later, since all are looked at."""
EARLY: Final = 0.25, 0.75
"""An answer comes after between these parts of the time it has: not all hosts answer at once."""
SAID_MAX: Final = 8192
"""Hellos that are kept, so that one which is said again need not be read again."""


class Discovering:
    """The Hellos of one daemon, from `start` until `close`.

    met: is called with a host that may be a peer. left: with the name of one that goes. found: with
    the ways to peers, and what this host hands on for others, whenever they may have changed.
    leads: says whether the kernel has a route by a NIC, to an address, from an address.
    """

    def __init__(
        self,
        config: Current,
        met: Callable[[Met], None],
        left: Callable[[str], None],
        found: Callable[[Sequence[Met], tuple[Handed, ...]], None],
        trust: Trust,
        tasks: Tasks,
        leads: Leads,
    ) -> None:
        self._config = config
        self._trust = trust
        self._met = met
        self._left = left
        self._found = found
        self.meeting = Meeting(config, random.SystemRandom(), time.time_ns())
        self.routed = Routed(config, self.meeting, trust, tasks, self._hear, leads)
        self._version = -1  # of what was looked at last
        self._looking: asyncio.TimerHandle | None = None
        self._sockets: dict[str, tuple[int, socket.socket]] = {}  # by NIC: its index, and socket
        self._timer: asyncio.TimerHandle | None = None
        self._refused: dict[str, str] = {}
        self._said: dict[tuple[str, str], tuple[bytes, bytes, Heard]] = {}

    def start(self) -> None:
        """Begin."""
        self.meeting.begin(now_ns=time.monotonic_ns())
        self._turn()

    def begin(self) -> None:
        """Say Hello often for a moment: there is news."""
        self.meeting.begin(now_ns=time.monotonic_ns())
        self.routed.begin()
        self._hurry(EAGER_S)

    def _turn(self) -> None:
        """Say Hello, and come again."""
        now = time.monotonic_ns()
        self.meeting.forget_silent(now_ns=now)
        if self._routes:
            self.routed.start()
        elif self.routed.running:
            self.routed.close()
        self._open()
        self._feel(now)
        self.meeting.set_rates(carried.says(self._config()))
        self._say()
        self._look_soon(self.meeting.names)
        wanted_s = self.meeting.period_s(now_ns=now)
        if self._ask():
            wanted_s = min(wanted_s, ASKED_S)
        self._timer = asyncio.get_running_loop().call_later(self._spaced_s(wanted_s), self._turn)

    def _spaced_s(self, period_s: float) -> float:
        return spaced_s(period_s, self.meeting.count + 1, len(self._sockets))

    def _feel(self, now_ns: int) -> None:
        """Look which NICs have a link."""
        nics = self._config().interfaces
        for nic, (_index, sock) in self._sockets.items():
            if nic in nics and not has_carrier(sock, nic):
                self.meeting.unplugged(nics.index(nic), now_ns=now_ns)

    def _look_soon(self, names: Iterable[str]) -> None:
        """Look at what has changed, after a moment in which more may come.

        `names` are those of hosts that were heard: all, or the one that has just spoken.
        """
        if self._looking is not None:
            return
        known = self._config().by_name
        changed = self.meeting.version != self._version
        if changed or any(name not in known for name in names):
            self._look_after(LOOK_S)

    def _look_after(self, wait_s: float) -> None:
        wait_s = max(wait_s, LOOK_HOST_S * self.meeting.count)
        self._looking = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        """Say which hosts may be peers, and which ways lead to those that are."""
        self._looking = None
        version, now = self.meeting.version, time.monotonic_ns()
        known = self._config().by_name
        ways: list[Met] = []
        pending = False
        for met in self.meeting.met(now_ns=now):
            pending |= not met.ready or met.name not in known
            self.meeting.reconsider(met.name)
            if met.name not in known:
                self._met(met)
            elif met.ready:
                ways.append(met)
        self._found(ways, self.meeting.handed_on())
        if pending:
            self._look_after(AGAIN_S)
        self._version = version

    def _hurry(self, period_s: float) -> None:
        """Say Hello within this time, or what many hosts leave: somebody waits for an answer."""
        if self._timer is None:
            return
        loop, period_s = asyncio.get_running_loop(), self._spaced_s(period_s)
        if self._timer.when() > loop.time() + period_s:
            self._timer.cancel()
            self._timer = loop.call_later(period_s * random.uniform(*EARLY), self._turn)

    # ---- sockets

    @property
    def _speaks(self) -> bool:
        """Whether hosts find each other here, or this host wants to join those that do."""
        return self._trust.voice() is not None or self._trust.request() is not None

    @property
    def _routes(self) -> bool:
        """Whether there are routers between hosts, so that none hears what is said to all."""
        return self._speaks and bool(self._config().keys.seeds)

    def _open(self) -> None:
        """Have a socket on each plane's NIC that is there, and on no other."""
        wanted = self._config().interfaces if self._speaks and not self._routes else ()
        for nic in [*self._sockets]:
            if nic not in wanted:
                self._shut(nic)
        for nic in wanted:
            try:
                index = socket.if_nametoindex(nic)
            except OSError:
                self._shut(nic)
                continue
            if self._sockets.get(nic, (0,))[0] == index:
                continue
            self._shut(nic)
            try:
                sock = open_on(nic)
            except OSError as error:
                self._name(nic, f"hosts are not found by {nic}: {error}")
                continue
            self._sockets[nic] = index, sock
            asyncio.get_running_loop().add_reader(sock, self._readable, nic)

    def _name(self, nic: str, reason: str) -> None:
        if self._refused.get(nic) != reason:
            self._refused[nic] = reason
            log.warning("discovery.failed", interface=nic, reason=reason)

    def _shut(self, nic: str) -> None:
        if (found := self._sockets.pop(nic, None)) is not None:
            asyncio.get_running_loop().remove_reader(found[1])
            found[1].close()

    # ---- Hellos

    def _say(self, *, leaving: bool = False) -> None:
        voice, nics = self._trust.voice(), self._config().interfaces
        if voice is None:
            return
        for nic in [*self._sockets]:
            hello = self.meeting.hello(nics.index(nic), leaving=leaving)
            hello = replace(hello, told=self._trust.vouched(hello.told))
            self._send(nic, voice.say(hello))

    def _ask(self) -> bool:
        """Ask the host that has invited this one to let it join; return whether that is needed."""
        request = self._trust.request()
        if request is not None:
            for nic in [*self._sockets]:
                self._send(nic, request)
        return request is not None

    def _send(self, nic: str, datagram: bytes) -> None:
        with contextlib.suppress(OSError):  # no address yet, or no link; it is said again
            self._sockets[nic][1].sendto(datagram, (GROUP, PORT))

    def _readable(self, nic: str) -> None:
        nics = self._config().interfaces
        _index, sock = self._sockets[nic]
        if not self._speaks or nic not in nics:  # another configuration is in force
            self._shut(nic)
            return
        plane = nics.index(nic)
        for _ in range(READS_MAX):
            try:
                datagram, source = sock.recvfrom(DATAGRAM_MAX)
            except BlockingIOError:
                return
            except OSError:  # the NIC has gone; the next turn opens it again
                self._shut(nic)
                return
            address = source[0].partition("%")[0]
            if IPv6Address(address).is_link_local:
                self._arrived(nic, plane, address, datagram)

    def _arrived(self, nic: str, plane: int, address: str, datagram: bytes) -> None:
        """Process a datagram of another host."""
        if datagram.startswith(REQUEST):
            if (answer := self._trust.asked(datagram)) is not None:
                self._send(nic, answer)
            return
        if datagram.startswith(ANSWER):
            self._trust.answered(datagram)
            return
        voice = self._trust.voice()
        heard = None if voice is None else self._read(nic, address, datagram, voice)
        if heard is not None:
            self._trust.heard(heard)
            self._hear(plane, address, self._trust.believed(heard.hello))

    def _read(self, nic: str, address: str, datagram: bytes, voice: Trusted) -> Heard | None:
        """Return the Hello in a datagram, if it is one; it is often the same as before."""
        before, known = self._said.get((nic, address)), voice.state
        if before is not None and before[0] == datagram and before[1] == known:
            return before[2]
        try:
            heard = voice.hear(datagram)
        except Out as out:
            if out.untold:
                self.begin()  # it must hear that it is out
            return None
        except BadHello:
            return None
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[nic, address] = datagram, known, heard
        return heard

    def _hear(self, plane: int, source: str, hello: Hello) -> None:
        now = time.monotonic_ns()
        if hello.said.leaving:
            if self.meeting.left(hello):
                self._left(hello.name)
            return
        if self.meeting.hear(plane, source, hello, now_ns=now):
            self._look_soon([hello.name])
        self._hurry(self.meeting.period_s(now_ns=now))

    def warnings(self) -> list[str]:
        """Return what is wrong among the hosts that are heard."""
        if not self._speaks:
            return []
        return [
            *self.meeting.twice(now_ns=time.monotonic_ns()),
            *self.meeting.refusals.values(),
            *self.meeting.refusers,
            *self.meeting.crowded,
            *(self.routed.warnings() if self.routed.running else ()),
            *(reason for nic, reason in self._refused.items() if nic not in self._sockets),
        ]

    def leave(self) -> None:
        """Tell the others that this host goes."""
        self.routed.leave()
        for _ in range(FAREWELLS):
            self._say(leaving=True)

    def close(self) -> None:
        """Say and hear nothing more."""
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()
        self._timer = self._looking = None
        self.routed.close()
        for nic in [*self._sockets]:
            self._shut(nic)
