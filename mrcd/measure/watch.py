# SPDX-License-Identifier: GPL-2.0-only
"""Follow what planes carry, and ask peers where it is less than the NICs say.

Once a second the counters of the planes' NICs are read, and, while there is traffic, the round
trips to peers that the programs measure. What follows from both is in mrcd/measure/estimate.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from mrcd.config.config import Current
from mrcd.datapath import carried
from mrcd.datapath.view import Balance
from mrcd.linux import cputime, interfaces
from mrcd.linux.interfaces import Traffic
from mrcd.measure import question
from mrcd.measure.estimate import LEAST_MBPS, Arrivals, Estimates, Second, carried_mbps, waits
from mrcd.measure.question import Arrived, Arrives
from mrcd.peers.peers import Peers
from mrcd.planes.plane import Plane
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections
from mrcd.shortlist import InTurn
from mrcd.wording import CUT, carries_less

log = get_logger()

LOOK_S: Final = 1.0
LOOKED_AT: Final = 64
"""Peers whose round trips are looked at in turn, besides those to which packets wait."""
PRESSED_S: Final = 10.0
"""Time for which TCP may leave it at what gets through after more was offered than that."""
SAMPLE_S: Final = 0.04
SAMPLES: Final = 25
"""Samples of what arrives, of which a peer that asks is told the mean and the most."""
_MBPS: Final = 125_000  # bytes a second

_ByPlane = dict[int, set[str]]


class Watch:
    """Follows the planes of a host. `config` returns the configuration as it is now.

    balance: returns how the programs rate a peer's planes. held: returns how often packets had to
    wait for a window so far, or their senders were told of a queue. on_rate: is awaited when planes
    carry other rates than before; it takes that of each in Mb/s, or None for what NICs say.
    """

    def __init__(
        self,
        config: Current,
        planes: Callable[[], Sequence[Plane]],
        peers: Peers,
        balance: Callable[[str], Balance],
        held: Callable[[], int],
        on_rate: Callable[[tuple[int, ...] | None], Awaitable[None]],
    ) -> None:
        self._config = config
        self._planes = planes
        self._peers = peers
        self._balance = balance
        self._held = held
        self._on_rate = on_rate
        self._estimates = Estimates()
        self._waited: frozenset[str] = frozenset()  # peers to which packets wait in queues
        self._times_held = 0
        self._pressed_s = -PRESSED_S
        self._busy = 0.0
        self._sampling: dict[int, tuple[set[str], asyncio.Task[None]]] = {}
        self._in_turn = InTurn(LOOKED_AT)
        self._carried: tuple[int, ...] | None = None
        self._before: tuple[float, dict[str, Traffic], cputime.Times] = (0.0, {}, {})
        self._rejections = Rejections("measure.rejected")
        peers.on_message(question.MAGIC, self._receive)

    @property
    def short(self) -> dict[int, str]:
        """The planes that carry clearly less than they should, each with the least that it does."""
        found: dict[int, str] = {}
        names = {plane.index: plane.link.name for plane in self._planes()}
        written = self._config().fabric.rate_mbps > 0
        for (peer, plane), one in sorted(
            self._estimates.found.items(), key=lambda item: item[1].mbps
        ):
            if plane not in names:
                continue
            who, whither = names[plane], f"to {peer}"
            if written:
                who, whither = "the configuration", f"to {peer} by {who}"
            found.setdefault(plane, carries_less(who, one.says, one.mbps, whither))
        return found

    async def follow(self) -> None:
        """Look every second; runs until cancelled."""
        self._before = time.monotonic(), interfaces.traffic(), cputime.read()
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        then, before, times = self._before
        now, after = time.monotonic(), interfaces.traffic()
        self._before = now, after, cputime.read()
        busy = self._busy = cputime.busiest(times, self._before[2])
        real, planes = interfaces.real(), self._planes()
        says = [self._says(plane) for plane in planes]
        sent: list[float] = []
        for plane in planes:
            name = real.get(plane.link.name, plane.link.name)
            one, other = before.get(name, Traffic()), after.get(name, Traffic())
            sent.append(max(0.0, (other.tx_bytes - one.tx_bytes) / _MBPS / (now - then)))
        held, self._times_held = self._times_held, self._held()
        if self._times_held > held:
            self._pressed_s = now
        full: _ByPlane = {}
        queued: _ByPlane = {}
        if any(LEAST_MBPS <= mbps < CUT * most for mbps, most in zip(sent, says, strict=True)):
            full, queued = self._where_packets_wait(pressed=now - self._pressed_s < PRESSED_S)
        self._waited = frozenset().union(*queued.values())
        for index, (most, mbps) in enumerate(zip(says, sent, strict=True)):
            peers, waiting = (frozenset(found.get(index, ())) for found in (full, queued))
            second = Second(most, mbps, busy, peers, waiting)
            for peer in self._estimates.look(index, second, now):
                self._say(peer, index, Arrives(index))
        self._estimates.keep(self._config().by_name.keys(), now)
        await self._follow_rates(says)

    def _says(self, plane: Plane) -> int:
        """Return what a plane should carry: by the configuration, or what its NIC says."""
        return carried.plane_says(self._config(), plane.index)

    def _where_packets_wait(self, *, pressed: bool) -> tuple[_ByPlane, _ByPlane]:
        """Return the peers to which planes may be full, and those to which packets wait, by plane.

        pressed: more was offered than windows took.
        """
        peers = self._peers.established
        full: _ByPlane = {}
        queued: _ByPlane = {}
        for peer in {*self._in_turn.take(peers), *(self._waited & set(peers))}:
            balance, now_ns = self._balance(peer), time.monotonic_ns()
            there = [
                plane
                for plane, trip in enumerate(balance.trips)
                if waits(trip.srtt_ns, trip.at_ns, balance.probed_ns, now_ns)
            ]
            for plane in there:
                queued.setdefault(plane, set()).add(peer)
            for plane, share in enumerate(balance.shares):
                if there and (pressed or share < 1.0):
                    full.setdefault(plane, set()).add(peer)
        return full, queued

    async def _follow_rates(self, says: Sequence[int]) -> None:
        """Tell what planes carry, where nobody has written it down and it is not what they say."""
        if self._config().fabric.rate_mbps:
            return
        rates = self._estimates.rates
        found = carried_mbps(rates, says)
        if found == self._carried:
            return
        self._carried = found
        mean = None if found is None else carried.mean_mbps(found, self._config().standby)
        log.info("planes.carry", mbps=mean, planes={str(k): round(v) for k, v in rates.items()})
        await self._on_rate(found)

    # ---- with peers

    def _say(self, peer: str, plane: int, body: Arrives | Arrived) -> None:
        self._peers.send(peer, plane, question.encode(self._config().host.name, body))

    def _receive(self, sender: str | None, datagram: bytes, plane: int) -> None:
        """Answer a question, or take an answer."""
        now = time.monotonic()
        try:
            message = question.decode(datagram)
        except question.QuestionError as error:
            self._rejections.add(plane, str(error), now_ns=round(now * 1e9))
            return
        peer, body = sender or message.host, message.body
        if peer != message.host or peer not in self._peers.established:
            reason = f"in the name of {message.host}, which has no session"
            self._rejections.add(plane, reason, now_ns=round(now * 1e9))
        elif isinstance(body, Arrived):
            came = Arrivals(body.says_mbps, body.mbps, body.peak_mbps, body.busy)
            self._estimates.answered(peer, body.plane, came, now)
        else:
            self._sample_for(peer, body.plane)

    def _sample_for(self, peer: str, plane: int) -> None:
        """Look for a second what arrives on a plane, and tell a peer."""
        if plane in self._sampling:
            self._sampling[plane][0].add(peer)
        elif plane < len(self._planes()):
            self._sampling[plane] = {peer}, asyncio.create_task(self._sample(plane))

    async def _sample(self, plane: int) -> None:
        """Look what arrives on a plane, and tell who has asked meanwhile."""
        rates: list[float] = []
        here = self._planes()[plane]
        name = interfaces.real().get(here.link.name, here.link.name)
        began, first = when, received = time.monotonic(), _received(name)
        try:
            for _ in range(SAMPLES):
                await asyncio.sleep(SAMPLE_S)
                now, latest = time.monotonic(), _received(name)
                rates.append(max(0.0, (latest - received) / _MBPS / (now - when)))
                when, received = now, latest
        finally:
            asked, _task = self._sampling.pop(plane)
        mean = max(0.0, (received - first) / _MBPS / (when - began))
        says, busy = self._says(here), min(1.0, self._busy)
        answer = Arrived(plane, round(mean, 1), round(max(rates), 1), says, busy)
        for peer in asked & set(self._peers.established):
            self._say(peer, plane, answer)

    def close(self) -> None:
        """End what goes on."""
        for _asked, task in list(self._sampling.values()):
            task.cancel()


def _received(interface: str) -> int:
    """Return the bytes that an interface has received so far."""
    return interfaces.traffic().get(interface, Traffic()).rx_bytes
