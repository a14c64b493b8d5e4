# SPDX-License-Identifier: GPL-2.0-only
"""Say Hello to single hosts, and hear them, where there are routers in between (`seeds`)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from mrcd.config.config import Current
from mrcd.handshake import unicast
from mrcd.handshake.hello import BadHello, Hello
from mrcd.handshake.identity import KEY_BYTES
from mrcd.handshake.invitation import ANSWER, REQUEST
from mrcd.handshake.ratelimit import Allowance
from mrcd.handshake.unicast import OTHER_SECRET, TRANSLATED, Cookies, Parcel, Short
from mrcd.handshake.voice import Heard as HeardHello
from mrcd.handshake.voice import Out, Trusted
from mrcd.linux.groupsocket import DATAGRAM_MAX, PORT
from mrcd.linux.unicastsocket import DISCARD_PORT, Address, Returned, open_at, returned
from mrcd.peers.heard import Other
from mrcd.peers.lines import SECOND, Line, Lines
from mrcd.peers.meeting import Meeting
from mrcd.peers.seeds import Seeds, Sign
from mrcd.peers.trust import Trust
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections
from mrcd.service.tasks import Tasks

log = get_logger()

READS_MAX: Final = 64
"""Datagrams that are read at once; the event loop has other work."""
TURN_S: Final = 1.0
"""The longest time between two looks at what is to be sent, and at the NICs' addresses ..."""
SOON_S: Final = 0.02
"""... and the shortest."""
FAREWELLS: Final = 3
SHORTS_PER_S: Final = 100
"""Short answers a second, to all together."""
ROUTE_NS: Final = 3 * SECOND
"""What the kernel says of a route counts for this time."""
ROUTES_MAX: Final = 4096
CONTACT_NS: Final = 90 * SECOND
"""An address that was told counts for this time; it is told again each minute."""
CONTACTS_MAX: Final = 1024
SAID_MAX: Final = 1024
"""Hellos that are kept, so that one which is said again need not be read again."""

OnHello = Callable[[int, str, Hello], None]
Leads = Callable[[str, str, str], Awaitable[bool]]


class Routed:
    """The Hellos of one daemon to single hosts, from `start` until `close`."""

    def __init__(
        self,
        config: Current,
        meeting: Meeting,
        trust: Trust,
        tasks: Tasks,
        heard: OnHello,
        leads: Leads,
    ) -> None:
        """Call `heard` with the plane, the source and the content of each good Hello.

        leads: says whether the kernel has a route by a NIC, to an address, from an address.
        """
        self._config = config
        self._meeting = meeting
        self._trust = trust
        self._tasks = tasks
        self._heard = heard
        self._leads = leads
        self._cookies = Cookies(secrets.token_bytes(KEY_BYTES))
        self.lines = Lines()
        self.seeds = Seeds(PORT)
        self._sockets: dict[int, tuple[tuple[str, int, Address], socket.socket]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sending = False
        self._routes: dict[tuple[str, str, str], tuple[bool, int]] = {}
        self._pace = Allowance(SECOND // SHORTS_PER_S, SHORTS_PER_S)
        self._rejections = Rejections("discovery.rejected")
        self._failed: dict[int, str] = {}
        self._contacts: dict[str, tuple[str, int]] = {}  # names, and when they were told
        self._owners: dict[str, str] = {}  # names by address
        self._aimed = -1  # the version of the meeting then
        self._refusals: dict[str, str] = {}
        self._said: dict[Line, tuple[bytes, bytes, HeardHello]] = {}
        self._asked: dict[tuple[str, str], int] = {}  # when hosts of these names and runs were new

    # ---- turns

    @property
    def running(self) -> bool:
        """Whether Hellos are said to single hosts."""
        return self._timer is not None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._timer is None:
            self._turn()

    def begin(self) -> None:
        """Say Hello often for a moment: there is news."""
        if self._timer is not None:
            self.lines.begin(time.monotonic_ns())
            self._again_in(SOON_S)

    def _again_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._turn)

    def _turn(self) -> None:
        """Send what is due, and come again."""
        now = time.monotonic_ns()
        if self._open():
            self.lines.begin(now)
        self._aim(now)
        self._hurry_refusals(now)
        for seed in self.seeds.probe(now):
            self._probe(seed)
        due = [] if self._sending else self.lines.due(now)
        if due:
            self._sending = True
            self._tasks.spawn(self._say_all(due))
        wait_s = (self.lines.next_ns(now) - now) / SECOND
        self._again_in(min(max(wait_s, SOON_S), TURN_S))

    def _hurry_refusals(self, now_ns: int) -> None:
        """Tell hosts soon why they are no peers, where that is news."""
        before, self._refusals = self._refusals, dict(self._meeting.refusals)
        news = {name for name, why in self._refusals.items() if before.get(name) != why}
        for address, name in self._owners.items() if news else ():
            if name in news:
                for plane in self._sockets:
                    self.lines.hurry((plane, address), now_ns)

    def _aim(self, now_ns: int) -> None:
        """Send to the seeds, to the hosts that are heard, and to those that were peers before."""
        config = self._config()
        own = [str(sock_at[2]) for sock_at, _sock in self._sockets.values()]
        known = [str(each) for each in config.host.endpoints]
        self.seeds.set(config.keys.seeds, [*own, *known])
        heard = self._meeting.addresses()
        names, version = {*heard.values()}, config.fabric.routing.underlay
        told = [(str(end), name) for name in config.admitted
                for _plane, end in config.by_name[name].host.places]  # fmt: skip
        self._contacts = {
            address: (name, at)
            for address, (name, at) in self._contacts.items()
            if now_ns - at < CONTACT_NS
        }
        told += [(address, name) for address, (name, _at) in self._contacts.items()]
        owners = {seed: seed for seed in self.seeds.addresses}
        owners |= {address: name for address, name in told if name not in names}
        owners |= heard
        self._owners = {
            address: name
            for address, name in owners.items()
            if address not in (*own, *known) and ip_address(address).version == version
        }
        self._aimed = self._meeting.version
        self.lines.aim(self._owners, list(self._sockets), config.keys.seeds, now_ns)

    # ---- sockets

    def _open(self) -> bool:
        """Have a socket at the address of each plane's NIC; return whether that has changed."""
        config, new = self._config(), False
        both = zip(config.interfaces, config.host.endpoints, strict=True)
        wanted = {p: (nic, at) for p, (nic, at) in enumerate(both) if not at.is_unspecified}
        for plane in [plane for plane in self._sockets if plane not in wanted]:
            self._shut(plane)
            new = True
        for plane, (nic, address) in wanted.items():
            try:
                place = nic, socket.if_nametoindex(nic), address
            except OSError:
                self._shut(plane)
                continue
            if plane in self._sockets and self._sockets[plane][0] == place:
                continue
            self._shut(plane)
            try:
                sock = open_at(nic, address, PORT)
            except OSError as error:
                self._fail(plane, f"hosts are not found by {nic}: {address}: {error.strerror}")
                continue
            self._failed.pop(plane, None)
            self._sockets[plane] = place, sock
            asyncio.get_running_loop().add_reader(sock, self._readable, plane)
            new = True
        return new

    def _fail(self, plane: int, reason: str) -> None:
        if self._failed.get(plane) != reason:
            self._failed[plane] = reason
            log.warning("discovery.failed", interface=self._config().interfaces[plane],
                        reason=reason)  # fmt: skip

    def _shut(self, plane: int) -> None:
        if (found := self._sockets.pop(plane, None)) is not None:
            asyncio.get_running_loop().remove_reader(found[1])
            found[1].close()

    # ---- what is said

    async def _say_all(self, lines: list[Line]) -> None:
        """Say Hello on some lines, as far as the kernel has routes."""
        try:
            for line in lines:
                routed = await self._is_routed(line)
                now = time.monotonic_ns()
                if line[1] in self.seeds:
                    self.seeds.asked(line[1], line[0], routed=routed, now_ns=now)
                if routed:
                    self._say(line, now)
        finally:
            self._sending = False

    async def _is_routed(self, line: Line) -> bool:
        plane, address = line
        now = time.monotonic_ns()
        if plane not in self._sockets:
            return False
        if self.lines.is_heard(line, now):
            return True
        (nic, _index, own), _sock = self._sockets[plane]
        key = nic, address, str(own)
        known = self._routes.get(key)
        if known is None or now - known[1] > ROUTE_NS:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            known = self._routes[key] = await self._leads(*key), now
        return known[0]

    def _say(self, line: Line, now_ns: int, *, leaving: bool = False) -> None:
        """Say Hello on a line, with what its host is to know of others; or ask to join."""
        voice, request = self._trust.voice(), self._trust.request()
        plane, address = line
        if request is not None and address in self.seeds:
            self._send(line, request)
        if voice is None:
            return
        name = self._owners.get(address, "")
        name = "" if name == address else name
        every = [{}] if leaving else self._meeting.contacts_for(name, now_ns=now_ns)
        for contacts in every:
            hello = self._meeting.hello_to(name, plane, contacts, leaving=leaving)
            self._send(line, voice.say(hello))

    def _send(self, line: Line, content: bytes, given: bytes | None = None) -> None:
        """Send a parcel with the cookie of the line, or the one that was given just now."""
        plane, address = line
        mine = self._cookies.of(plane, address)
        brought = self.lines.given(line) if given is None else given
        self._put(plane, address, Parcel(brought, mine, content).pack())

    def _put(self, plane: int, address: str, datagram: bytes, port: int = PORT) -> None:
        if (found := self._sockets.get(plane)) is None:
            return
        for _ in range(2):  # the first attempt may meet the error of another datagram
            with contextlib.suppress(OSError):  # no route any more; it is said again
                found[1].sendto(datagram, (address, port))
                return

    def _probe(self, seed: str) -> None:
        """Send a byte to a port of a seed that nothing has, so that it says that it is there."""
        for plane in self._sockets:
            self._put(plane, seed, b"\0", DISCARD_PORT)

    # ---- what is heard

    def _readable(self, plane: int) -> None:
        found = self._sockets.get(plane)
        if found is None:
            return
        (nic, _index, own), sock = found
        for error in returned(sock):
            self._take_error(error, nic, str(own))
        for _ in range(READS_MAX):
            try:
                datagram, source = sock.recvfrom(DATAGRAM_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # an ICMP error, which was taken above
            except OSError:  # as well; or the NIC has gone, and the next turn opens it again
                return
            if source[1] == PORT:
                self._arrived((plane, source[0].partition("%")[0]), datagram)

    def _take_error(self, error: Returned, nic: str, own: str) -> None:
        now, by = time.monotonic_ns(), error.by
        if error.port == DISCARD_PORT:
            if error.closed and by == error.target:
                self.seeds.noted(error.target, Sign.THERE, by, now)
        elif error.port == PORT:
            sign = Sign.LOST
            if by == own:
                sign, by = Sign.SILENT, nic
            elif error.closed and by == error.target:
                sign = Sign.CLOSED
            elif error.closed or error.prohibited:
                sign = Sign.FILTERED
            self.seeds.noted(error.target, sign, by, now)

    def _arrived(self, line: Line, datagram: bytes) -> None:
        """Process a datagram; nothing is answered at length before its cookie is ours."""
        said, now = unicast.read(datagram), time.monotonic_ns()
        if isinstance(said, Short):
            if self._cookies.is_of(said.answered, *line):
                self._take_short(line, said, now)
            return
        if said is None:
            return
        voice = self._trust.voice()
        if not said.content.startswith((REQUEST, ANSWER)):
            if voice is None:
                return
            if not voice.is_ours(said.content):
                self._refuse(line, said, OTHER_SECRET, "of another secret, or of none")
                return
        if not self._cookies.is_of(said.given, *line):
            if self._pace.take(now):
                self._put(*line, unicast.cookie(said, self._cookies.of(*line)))
            return
        self.lines.give(line, said.cookie)
        if said.content.startswith(REQUEST):
            if (answer := self._trust.asked(said.content)) is not None:
                self._send(line, answer, said.cookie)
        elif said.content.startswith(ANSWER):
            self._trust.answered(said.content)
        elif voice is not None:
            self._take(line, said, voice, now)

    def _take_short(self, line: Line, said: Short, now_ns: int) -> None:
        if said.kind == unicast.REFUSED:
            reason = int.from_bytes(said.value, "big")
            self.seeds.refused(line[1], reason, now_ns)
        elif self.lines.give(line, said.value):
            self._say(line, now_ns)  # with the cookie now

    def _refuse(self, line: Line, parcel: Parcel, reason: int, shown: str) -> None:
        now = time.monotonic_ns()
        self._rejections.add(line[0], f"{line[1]}: a Hello {shown}", now_ns=now)
        if self._pace.take(now):
            self._put(*line, unicast.refused(parcel, reason))

    def _take(self, line: Line, said: Parcel, voice: Trusted, now_ns: int) -> None:
        """Take a Hello of who can receive where it is from."""
        plane, source = line
        try:
            heard = self._read(line, said.content, voice)
        except Out:
            self._tell(line, said.cookie, voice)  # it must hear it
            return
        except BadHello as error:
            self._rejections.add(plane, f"{source}: {error}", now_ns=now_ns)
            return
        hello = replace(heard.hello, told=())
        if source not in hello.said.addresses[hello.nic : hello.nic + 1]:
            shown = f"of {hello.name} from another address than it has"
            self._refuse(line, said, TRANSLATED, shown)
            return
        if hello.name == self._config().host.name and hello.run != self._meeting.run:
            self._tell(line, said.cookie, voice)  # it must hear that the name is taken
        if self._meeting.is_old(hello):
            return
        first = self._meeting.before(hello, now_ns=now_ns)
        if first is not None and self._is_second(line, said.cookie, voice, hello, first, now_ns):
            return
        self.lines.heard(line, hello.name, now_ns)
        self.seeds.heard(source, now_ns)
        self._trust.heard(heard)
        self._note_contacts(hello, now_ns)
        self._heard(plane, source, hello)
        if (why := self._meeting.why_second(hello)) is not None:
            self._tell(line, said.cookie, voice, **{hello.name: why})
        if hello.contacts or self._meeting.version != self._aimed:
            self._aim(now_ns)
        self._answer(line, hello, now_ns)

    def _is_second(
        self, line: Line, given: bytes, voice: Trusted, hello: Hello, first: Other, now_ns: int
    ) -> bool:
        """Return whether a host is not to be heard, because another one with its name is there.

        That one is asked, and has a moment to answer: it may have been switched off.
        """
        key = hello.name, hello.run
        if key not in self._asked:
            if len(self._asked) >= SAID_MAX:
                self._asked.clear()
            self._asked[key] = now_ns
            for plane in self._sockets:
                asking = voice.say(self._meeting.hello_to("", plane, {}))  # as if it were not heard
                for address in filter(None, first.said.addresses):
                    if self.lines.is_heard((plane, address), now_ns):
                        self._send((plane, address), asking)
        if first.heard_ns > self._asked[key]:
            why = self._meeting.note_second(hello, line[1], first, now_ns=now_ns)
            self._tell(line, given, voice, **{hello.name: why})
            return True
        return now_ns - self._asked[key] < SECOND

    def _tell(self, line: Line, given: bytes, voice: Trusted, **refused: str) -> None:
        """Say Hello to a host that is no member, and brings the cookie of its address."""
        hello = self._meeting.hello_to("", line[0], {})
        self._send(line, voice.say(replace(hello, refused=refused)), given)

    def _read(self, line: Line, content: bytes, voice: Trusted) -> HeardHello:
        """Return a Hello, which is often the same as before. Raises BadHello."""
        before, state = self._said.get(line), voice.state
        if before is not None and before[:2] == (content, state):
            return before[2]
        heard = voice.hear(content)
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[line] = content, state, heard
        return heard

    def _note_contacts(self, hello: Hello, now_ns: int) -> None:
        """Keep the addresses of others that a host tells; forget those of one that leaves."""
        own = self._config().host.name
        if hello.said.leaving:
            kept = self._contacts.items()
            self._contacts = {address: at for address, at in kept if at[0] != hello.name}
        for name, addresses in hello.contacts.items():
            if name != own and len(self._contacts) < CONTACTS_MAX:
                self._contacts |= {address: (name, now_ns) for address in addresses if address}

    def _answer(self, line: Line, hello: Hello, now_ns: int) -> None:
        """Say Hello soon on a line whose other end does not know yet that it is heard there."""
        ours = self._config().host.name
        pair = hello.nic, line[0]
        if not hello.said.leaving and pair not in hello.said.heard.get(ours, ()):
            self.lines.hurry(line, now_ns)
        self._soon()

    def _soon(self) -> None:
        """Have a turn soon, if anything is due then."""
        now, loop = time.monotonic_ns(), asyncio.get_running_loop()
        wait_s = max((self.lines.next_ns(now) - now) / SECOND, SOON_S)
        if self._timer is not None and self._timer.when() > loop.time() + wait_s:
            self._again_in(wait_s)

    # ---- what is to be told, and the end

    def warnings(self) -> list[str]:
        """Return which seeds do not answer, and why."""
        nics = {plane: place[0] for plane, (place, _sock) in self._sockets.items()}
        config, now = self._config(), time.monotonic_ns()
        version = config.fabric.routing.underlay
        bare = [nic for plane, nic in enumerate(config.interfaces) if plane not in nics]
        return [
            *(
                f"{nic} has no IPv{version} address: hosts are not found by it; give it one that "
                "routers lead to"
                for nic in bare
            ),
            *self._failed.values(),
            *(self.seeds.warnings(nics, now_ns=now) if nics else ()),
        ]

    def leave(self) -> None:
        """Tell the others that this host goes."""
        now = time.monotonic_ns()
        heard = [line for line in self.lines.all if self.lines.is_heard(line, now)]
        for _ in range(FAREWELLS):
            for line in heard:
                self._say(line, now, leaving=True)

    def close(self) -> None:
        """Say and hear nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for plane in [*self._sockets]:
            self._shut(plane)
