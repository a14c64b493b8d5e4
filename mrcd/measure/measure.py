# SPDX-License-Identifier: GPL-2.0-only
"""Measure what a plane carries to and from a peer, together with the peer's daemon.

What the daemons say goes by their ordinary messages, sealed where there are keys, and on all planes
that lead to the peer, since one of them is full. A host takes part in one measurement at a time,
only with a peer whose session is established, and for LIMIT_S at most, whatever the other one does.
It sends nothing but small packets until one of the other side's has arrived on the plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from mrcd.config.config import Current
from mrcd.fabric import underlay
from mrcd.linux import ethtool
from mrcd.measure import messages
from mrcd.measure.load import Load, LoadError, Outcome
from mrcd.measure.messages import Ask, Body, End, Ready, Refuse, Send, Sent, Tell, Told
from mrcd.measure.tally import EASED, Tally, limited_by_host, lost
from mrcd.model import Direction, PlaneRate
from mrcd.peers.peers import Peers
from mrcd.planes.plane import Plane
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections
from mrcd.wording import CUT, falls_short

log = get_logger()

LIMIT_S: Final = 25.0
"""A measurement ends after this time, however far it is."""
FULL_S: Final = 1.0
EASED_S: Final = 0.5
"""How long a plane is filled, and how long it is loaded with less, each way."""
AGAIN_S: Final = 0.25
ANSWER_S: Final = 3.0
"""A request is sent again after AGAIN_S, and given up after ANSWER_S."""
RUN_S: Final = 9.0
"""The same for a run of the other side: it lasts a second, queues have to drain, and before the
first one the largest packet is searched for."""

_T = TypeVar("_T", bound=Body)
_R = TypeVar("_R")
_Key = tuple[str, int]


class CannotMeasure(Exception):
    """Nothing can be measured; the message says why and what to do."""


@dataclass(slots=True)
class _Part:
    """This host's part in a measurement with a peer. `own`: this host has begun it."""

    peer: str
    plane: int
    nonce: int
    own: bool
    load: Load
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="measure")
    )
    outcomes: dict[int, asyncio.Task[Body]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class Measuring:
    """What this host measures, and what it does for peers that measure.

    `config` returns the configuration as it is now.
    """

    def __init__(self, config: Current, planes: Callable[[], list[Plane]], peers: Peers) -> None:
        self._config = config
        self._planes = planes
        self._peers = peers
        self._part: _Part | None = None
        self._asking = False  # this host has begun a measurement, or is about to
        self._waiting: dict[int, asyncio.Future[Body]] = {}  # for answers, by request
        self._number = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._rejections = Rejections("measure.rejected")
        self._found: dict[_Key, tuple[PlaneRate, ...]] = {}
        peers.on_message(messages.MAGIC, self._receive)

    @property
    def short(self) -> dict[int, str]:
        """The planes that carried clearly less than their NICs say when they were last measured.

        Of several measurements of a plane, that with the lowest rate is told. What the fabric file
        says of its planes (rate_mbps) is no surprise.
        """
        config = self._config()
        peers, known = {peer.name for peer in config.peers}, config.fabric.rate_mbps
        rates = (rate for (peer, _), both in self._found.items() if peer in peers for rate in both)
        found: dict[int, str] = {}
        for rate in sorted(rates, key=lambda rate: rate.mbps):
            text = falls_short(rate)
            if text is not None and not (known and rate.mbps >= CUT * known):
                found.setdefault(rate.plane, text)
        return found

    async def close(self) -> None:
        """End what is going on."""
        if self._part is not None:
            self._leave(self._part)
        await asyncio.gather(*self._closing, return_exceptions=True)

    # ---- measuring

    async def measure(self, peer: str, plane: int) -> list[PlaneRate]:
        """Fill a plane to a peer for about a second, then from it; return what got through.

        Raises CannotMeasure.
        """
        self._check(peer, plane)
        self._asking = True
        try:
            async with asyncio.timeout(LIMIT_S):
                rates = await self._measure(peer, plane)
        except TimeoutError:
            raise CannotMeasure(f"it was not done after {LIMIT_S:.0f} s") from None
        except (LoadError, OSError) as error:
            raise CannotMeasure(f"plane {plane}: {error}") from error
        finally:
            self._asking = False
            if self._part is not None and self._part.own:
                self._say(self._part, 0, End())
                self._leave(self._part)
                await asyncio.gather(*self._closing, return_exceptions=True)
        self._found[peer, plane] = tuple(rates)
        for rate in rates:
            log.info("plane.measured", peer=peer, plane=plane, direction=rate.direction,
                     mbps=rate.mbps, nic_mbps=rate.nic_mbps, loss=rate.loss)  # fmt: skip
        return rates

    def _check(self, peer: str, plane: int) -> None:
        """Raise CannotMeasure unless a measurement can begin."""
        if self._busy is not None:
            raise CannotMeasure(f"{self._busy}; try again in a few seconds")
        if peer not in self._peers.established:
            raise CannotMeasure(f"there is no session with {peer}: see `mrcctl peer show {peer}`")
        reason = self._unfit(plane)
        if reason is not None:
            raise CannotMeasure(reason)
        if plane not in self._peers.usable_planes(peer):
            raise CannotMeasure(f"plane {plane} is not usable at {peer}, or all of it is denied")

    @property
    def _busy(self) -> str | None:
        """Why no other measurement can begin; None if one can."""
        if self._part is not None:
            part = self._part
            return f"plane {part.plane} is being measured with {part.peer} already"
        return "another measurement has begun already" if self._asking else None

    def _unfit(self, plane: int) -> str | None:
        """Return why a plane of this host cannot be measured; None if it can."""
        if self._config().fabric.routing.mode == "srv6":
            return (
                "planes of a fabric with uSIDs cannot be measured: nothing but MRC's packets "
                'crosses it (routing = "srv6")'
            )
        planes = self._planes()
        if plane >= len(planes):
            return f"there is no plane {plane}"
        found = planes[plane]
        if not found.usable:
            return f"plane {plane} ({found.link.name}) is not usable: see `mrcctl plane list`"
        return None

    async def _measure(self, peer: str, plane: int) -> list[PlaneRate]:
        part = self._take_part(peer, plane, secrets.randbits(63), own=True)
        load = part.load
        ready = await self._request(part, Ask(plane, load.port), Ready, ANSWER_S)
        self._connect(part, ready.port)
        if not await self._run(part, load.meet):
            raise CannotMeasure(self._unheard(part, ready.port))
        out = await self._outward(part)
        back = await self._inward(part)
        nic = self._nic_mbps(plane)
        rtt_us = statistics.median(load.rtts_ns) / 1e3 if load.rtts_ns else None
        name = self._planes()[plane].link.name

        def rate(way: Direction, full: _Seen, eased: _Seen) -> PlaneRate:
            sent, told = full
            whole = lost(sent.packets, told.packets)
            at_work = sent.cpu_ns / sent.ns if sent.ns else 0.0
            blind = eased[1].behind or not eased[0].packets
            return PlaneRate(
                peer=peer,
                plane=plane,
                interface=name,
                direction=way,
                nic_mbps=nic,
                peer_nic_mbps=ready.nic_mbps or None,
                sent_mbps=_rate(sent),
                mbps=round(told.mbps, 1),
                at_least=limited_by_host(at_work=at_work, loss=whole, behind=told.behind),
                loss=None if blind else lost(eased[0].packets, eased[1].packets),
                loss_mbps=_rate(eased[0]),
                rtt_us=None if rtt_us is None else round(rtt_us, 1),
                queue_median_us=round(told.median_us, 1),
                queue_p99_us=round(told.p99_us, 1),
                largest=sent.size,
            )

        return [rate("tx", *out), rate("rx", *back)]

    def _unheard(self, part: _Part, port: int) -> str:
        """Return what is wrong where no small packet was answered."""
        name = self._planes()[part.plane].link.name
        if part.load.heard.is_set():
            return (
                f"what this host sends on {name} to UDP port {port} of {part.peer} does not "
                f"arrive, and what {part.peer} sends does: a firewall in between, or at "
                f"{part.peer}, drops it"
            )
        return (
            f"nothing arrives on {name} between UDP port {part.load.port} of this host and UDP "
            f"port {port} of {part.peer}: a firewall at one of them, or in between, drops it; let "
            "UDP between the planes' addresses pass while you measure"
        )

    async def _outward(self, part: _Part) -> tuple[_Seen, _Seen]:
        """Send at full rate, then at less, and ask what has arrived."""
        seen: list[_Seen] = []
        mbps = 0.0
        for run, seconds in ((1, FULL_S), (2, EASED_S)):
            sent = _sent(run, await self._run(part, partial(part.load.send, run, mbps, seconds)))
            await self._run(part, part.load.drain)
            told = await self._request(part, Tell(run), Told, ANSWER_S)
            seen.append((sent, told))
            mbps = told.mbps * EASED
            if not told.packets:
                raise CannotMeasure(f"nothing of what was sent has arrived at {part.peer}")
        return seen[0], seen[1]

    async def _inward(self, part: _Part) -> tuple[_Seen, _Seen]:
        """Have the peer send at full rate, then at less, and count what arrives."""
        seen: list[_Seen] = []
        mbps = 0.0
        for run, seconds in ((3, FULL_S), (4, EASED_S)):
            sent = await self._request(part, Send(run, mbps, round(1000 * seconds)), Sent, RUN_S)
            told = _told(run, part.load)
            seen.append((sent, told))
            mbps = told.mbps * EASED
            if not told.packets:
                raise CannotMeasure(f"nothing of what {part.peer} has sent arrived")
        return seen[0], seen[1]

    async def _request(self, part: _Part, body: Body, kind: type[_T], seconds: float) -> _T:
        """Return the answer to a request. Raises CannotMeasure if there is none, or a refusal."""
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                while not answer.done():
                    self._say(part, number, body)
                    await asyncio.wait([answer], timeout=AGAIN_S)
        except TimeoutError:
            if isinstance(body, Ask):
                why = "does not answer; its mrcd may be older than `mrcctl plane measure`"
            else:
                why = "does not answer any more"
            raise CannotMeasure(f"{part.peer} {why}") from None
        finally:
            del self._waiting[number]
        found = answer.result()
        if isinstance(found, Refuse):
            raise CannotMeasure(f"{part.peer} refuses: {found.reason}")
        if not isinstance(found, kind):
            raise CannotMeasure(f"{part.peer} does not answer what it was asked")
        return found

    # ---- what both sides do

    def _nic_mbps(self, plane: int) -> int | None:
        return ethtool.link_mbps(self._planes()[plane].link.name) or None

    def _take_part(self, peer: str, plane: int, nonce: int, *, own: bool) -> _Part:
        """Open a socket on a plane; the measurement ends by itself. Raises OSError."""
        config, link = self._config(), self._planes()[plane].link
        address = underlay.of(config.fabric).address(config.host, plane)
        part = _Part(peer, plane, nonce, own, Load(nonce, link.name, address, link.mtu))
        if not own:  # the other side may never say that it is over
            part.timer = asyncio.get_running_loop().call_later(LIMIT_S, self._leave, part)
        self._part = part
        return part

    def _connect(self, part: _Part, port: int) -> None:
        config = self._config()
        peer = config.by_name.get(part.peer)
        if peer is None:
            raise CannotMeasure(f"{part.peer} is no peer any more")
        part.load.connect(underlay.of(config.fabric).address(peer.host, part.plane), port)

    def _leave(self, part: _Part) -> None:
        """End this host's part in a measurement."""
        if self._part is not part:
            return
        self._part = None
        if part.timer is not None:
            part.timer.cancel()
        for task in part.outcomes.values():
            task.cancel()
        closing = asyncio.create_task(self._shut(part))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _shut(self, part: _Part) -> None:
        """Close the socket and end the threads, which takes a tenth of a second."""
        part.load.stop()
        await asyncio.to_thread(part.pool.shutdown)
        await asyncio.to_thread(part.load.close)

    async def _run(self, part: _Part, work: Callable[[], _R]) -> _R:
        """Do work that blocks. Raises CannotMeasure if the measurement was ended."""
        if self._part is not part:
            raise CannotMeasure("mrcd stops, or builds its data path anew")
        return await asyncio.get_running_loop().run_in_executor(part.pool, work)

    def _say(self, part: _Part, number: int, body: Body) -> None:
        self._tell(part.peer, part.nonce, number, body)

    def _tell(self, peer: str, nonce: int, number: int, body: Body) -> None:
        """Say something to a peer on every plane that leads to it."""
        datagram = messages.encode(self._config().host.name, nonce, number, body)
        for plane in self._peers.usable_planes(peer):
            self._peers.send(peer, plane, datagram)

    def _receive(self, sender: str | None, datagram: bytes, plane: int) -> None:
        """Take a message: an answer to this host's request, or a request."""
        try:
            message = messages.decode(datagram)
        except messages.MeasureError as error:
            self._reject(plane, str(error))
            return
        peer = sender or message.host
        if peer != message.host or peer not in self._peers.established:
            self._reject(plane, f"in the name of {message.host}, which has no session")
            return
        part = self._part
        if part is not None and (part.peer, part.nonce) != (peer, message.nonce):
            part = None
        match message.body:
            case Ask():
                self._asked(peer, message, message.body, part)
            case Ready() | Refuse() | Sent() | Told():
                waiting = self._waiting.get(message.number)
                if part is not None and part.own and waiting is not None and not waiting.done():
                    waiting.set_result(message.body)
            case End():
                if part is not None and not part.own:
                    self._leave(part)
            case _ if part is None or part.own:
                self._tell(peer, message.nonce, message.number, Refuse("it is over"))
            case Send():
                self._serve(part, message.number, message.body)
            case Tell():
                self._say(part, message.number, _told(message.body.run, part.load))

    def _reject(self, plane: int, why: str) -> None:
        loop = asyncio.get_running_loop()
        self._rejections.add(plane, why, now_ns=round(loop.time() * 1e9))

    # ---- a peer measures

    def _asked(self, peer: str, message: messages.Message, ask: Ask, part: _Part | None) -> None:
        """Take part in a peer's measurement, or refuse."""
        try:
            part = part or self._join(peer, message.nonce, ask)
            if part.own:
                raise CannotMeasure("it is this host that measures")
        except CannotMeasure as error:
            refusal = Refuse(str(error)[: messages.REASON_MAX])
            self._tell(peer, message.nonce, message.number, refusal)
        else:
            ready = Ready(part.load.port, self._nic_mbps(ask.plane) or 0)
            self._say(part, message.number, ready)

    def _join(self, peer: str, nonce: int, ask: Ask) -> _Part:
        """Take part in a peer's measurement, and send small packets. Raises CannotMeasure."""
        if refusal := self._busy or self._unfit(ask.plane):
            raise CannotMeasure(refusal)
        part = None
        try:
            part = self._take_part(peer, ask.plane, nonce, own=False)
            self._connect(part, ask.port)
        except (OSError, CannotMeasure) as error:
            if part is not None:
                self._leave(part)
            raise CannotMeasure(f"plane {ask.plane}: {error}") from error
        part.pool.submit(part.load.greet)
        return part

    def _serve(self, part: _Part, number: int, send: Send) -> None:
        """Send for a peer, once, and say when it is done."""
        if not part.load.heard.is_set():
            self._say(part, number, Refuse("nothing of what you sent on the plane has arrived"))
            return
        task = part.outcomes.get(send.run)
        if task is None:
            task = asyncio.create_task(self._send(part, send))
            part.outcomes[send.run] = task
            task.add_done_callback(lambda done: self._done(part, number, done))
        elif task.done():
            self._done(part, number, task)

    async def _send(self, part: _Part, send: Send) -> Body:
        load = part.load
        work = partial(load.send, send.run, send.mbps, send.ms / 1000)
        try:
            outcome = await self._run(part, work)
            await self._run(part, load.drain)
        except (LoadError, OSError, CannotMeasure) as error:
            return Refuse(str(error)[: messages.REASON_MAX])
        return _sent(send.run, outcome)

    def _done(self, part: _Part, number: int, task: asyncio.Task[Body]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._say(part, number, task.result())


_Seen = tuple[Sent, Told]


def _sent(run: int, outcome: Outcome) -> Sent:
    return Sent(run, outcome.packets, outcome.size, outcome.ns, outcome.cpu_ns)


def _told(run: int, load: Load) -> Told:
    tally = load.tallies.get(run, Tally())
    return Told(
        run,
        tally.packets,
        tally.mbps,
        tally.waited_us(0.5),
        tally.waited_us(0.99),
        tally.behind,
    )


def _rate(sent: Sent) -> float:
    """Return the rate at which something was sent, Mb/s of IP packets."""
    return round(sent.packets * sent.size * 8e3 / sent.ns, 1) if sent.ns else 0.0
