# SPDX-License-Identifier: GPL-2.0-only
"""Try what gets through to peers, plane by plane: data, and how long a packet of it.

Probes are short packets of MRC's, and prove the hand-shake's way only. A trial looks like data: it
is a stub in the framing of data, as long as asked, that the receiver answers as a packet that has
arrived before (bpf/probe.c). One as long as mrc0 allows is sent on each plane when a session begins
and every CHECK_S, and at once when a path loses all data. Where it is lost, the largest packet that
gets through is searched for.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from mrcd.datapath import view
from mrcd.datapath.control import CommandRefused, Commands
from mrcd.datapath.datapath import Datapath
from mrcd.paths import largest
from mrcd.peers.peer import Tried
from mrcd.service.log import get_logger
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker

log = get_logger()

CHECK_S = 30.0
"""Time between two trials of full length of a peer's plane, where nothing is wrong."""
AGAIN_S = 2.0
"""The same where data is lost."""
PAUSE_S = 0.05
"""Least time between two planes that are looked at in turn: with many, a round takes longer."""
WAITS_S = (0.025, 0.025, 0.06, 0.1)
"""Waits for an answer, one for each try of a length; it does not pass if all are in vain."""
HASTY = 2
"""Number of tries where data has just been lost."""
LONG_LOST = 3
"""Packets lost in a row on a path, all longer than what passes, that confirm a length."""
ROUNDS = 3
"""Times in a row that data is lost between two probes that get through, before a plane counts as
one that swallows data: a plane that comes and goes loses both."""
SHORT = 128
"""Bytes of a packet that nobody takes for long. Where such packets arrive and none of the least
length that matters does, it is their length by which they are lost, and not a full queue."""
_POLL_S = 0.002
"""First pause between two looks for an answer; most come at once."""

IN_VAIN: Final = 2
"""Doubts of a plane in a row that may be in vain, each of which is looked into at once ..."""
REST_S, REST_MAX_S = 0.1, 1.0
"""... after which the next one waits, each twice as long as the one before: a host or a switch
without time loses data again and again, and to look into it costs more of what is short."""
FORGOTTEN_S: Final = 10.0
"""Time after which doubts in vain do not count any more."""

_TX = ABI.structs["mrc_tx"]
_PATH = ABI.structs["mrc_path"]
_NAMES = ("delivered_ns", "probe_id", "gone", "gone_len", "fits", "answered_ns")
_TRIAL = picker(_PATH, *_NAMES)
_WORDS = ABI.MRC_EV_WORDS
_ALL_AT = _TX.fields["all"].offset
_SETS = struct.Struct(f"={_WORDS}Q")


def _pauses(ends: float) -> Iterator[float]:
    """Yield pauses between looks, in seconds, until a monotonic time: the longer, the later."""
    began = time.monotonic()
    while (now := time.monotonic()) < ends:
        yield min(max(_POLL_S, (now - began) / 2), ends - now)


@dataclass(frozen=True, slots=True)
class Way:
    """What is known of the way to a peer on a plane.

    most: the longest packet of an application that gets through, bytes; None: as long as any.
    swallowed_ns: since when probes are answered there and data is lost; None: it is not.
    """

    most: int | None = None
    swallowed_ns: int | None = None


class Sessions(Protocol):
    """What trials need to know of the sessions with peers, and tell them."""

    def tried(self, peer: str) -> Tried | None:
        """Return what is to be tried; None without a session."""

    def set_most(self, peer: str, plane: int, most: int | None) -> None:
        """Send a peer no longer packets than these on a plane, bytes."""

    def set_swallowed(self, peer: str, planes: Mapping[int, bool]) -> None:
        """Hear on which planes data in cells is lost although probes are answered."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where QPs and paths of peers are in the maps."""

    qps: Callable[[str], Sequence[int]]
    index: Callable[[str], int]
    planes: Callable[[str], int]  # the mask of planes that lead to a peer


class InVain:
    """Remembers of which planes doubts were in vain lately (pure). Times are seconds."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}

    def rest_s(self, key: tuple[str, int], now: float) -> float:
        """Return how long to wait before a doubt of a plane is looked into."""
        count, at = self._seen.get(key, (0, now))
        if count < IN_VAIN or now - at > FORGOTTEN_S:
            return 0.0
        ready = at + min(REST_MAX_S, REST_S * 2.0 ** (count - IN_VAIN))
        return max(0.0, ready - now)

    def looked(self, key: tuple[str, int], now: float, *, vain: bool) -> None:
        """Note that a doubt has been looked into, and whether nothing was wrong."""
        count, at = self._seen.pop(key, (0, now))
        if vain:
            self._seen[key] = (1 if now - at > FORGOTTEN_S else count + 1), now

    def forget(self, key: tuple[str, int]) -> None:
        """Forget a plane of a peer that is gone."""
        self._seen.pop(key, None)


class Trials:
    """The trials of all peers. `names` returns those that have a session."""

    def __init__(
        self,
        datapath: Datapath,
        places: Places,
        sessions: Sessions,
        names: Callable[[], Sequence[str]],
    ) -> None:
        self._dp = datapath
        self._commands = Commands(datapath)
        self._places = places
        self._sessions = sessions
        self._names = names
        self._ways: dict[tuple[str, int], Way] = {}
        self._mute: set[tuple[str, int]] = set()  # probes are not answered either
        self._due: dict[tuple[str, int], float] = {}  # when each is looked at next
        self._queue: deque[tuple[str, int]] = deque()  # what is to be looked at in this round
        self._looking: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._doubted: set[tuple[str, int]] = set()  # is looked at because data was lost
        self._in_vain = InVain()
        self._woken = asyncio.Event()

    @property
    def ways(self) -> Mapping[tuple[str, int], Way]:
        """What was found, by peer and plane."""
        return self._ways

    def begin(self, peer: str) -> None:
        """Look at a peer's planes soon: a session has begun."""
        for plane in self._planes(peer):
            self._due.pop((peer, plane), None)
        self._woken.set()

    def doubt(self, peer: str, plane: int | None) -> None:
        """Look at a peer's plane at once, where a path loses all data; or at all of its planes.

        Where that was in vain again and again, it is done a little later. One that is being looked
        at without such a reason, and takes its time, is begun again.
        """
        for each in self._planes(peer) if plane is None else [plane]:
            key = peer, each
            if key in self._doubted:
                continue
            if key in self._looking:
                self._looking[key].cancel()
            self._doubted.add(key)
            self._looking[key] = asyncio.create_task(self._visit(key, lost=True))

    def forget(self, peer: str) -> None:
        """Forget a peer that is gone."""
        for plane in range(ABI.MRC_MAX_PLANES):
            self._ways.pop((peer, plane), None)
            self._due.pop((peer, plane), None)
            self._mute.discard((peer, plane))
            self._in_vain.forget((peer, plane))

    async def follow(self) -> None:
        """Go on trying."""
        while True:
            key = self._next()
            if key is None:
                self._woken.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), 1.0)
                continue
            task = asyncio.create_task(self._visit(key, lost=False))
            self._looking[key] = task
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
            await asyncio.sleep(PAUSE_S)

    def close(self) -> None:
        """End what is going on."""
        for task in self._looking.values():
            task.cancel()

    async def _visit(self, key: tuple[str, int], *, lost: bool) -> None:
        """Look at a peer's plane, and say when to do so again. `lost`: because data was lost."""
        try:
            if lost and (rest_s := self._in_vain.rest_s(key, time.monotonic())):
                await asyncio.sleep(rest_s)
            known = await self._look(*key, lost=lost)
            now, good = time.monotonic(), known is not None and self._way(*key) == Way()
            if lost:
                self._in_vain.looked(key, now, vain=good and key not in self._mute)
            self._due[key] = now + (CHECK_S if good and not lost else AGAIN_S)
        finally:
            if self._looking.get(key) is asyncio.current_task():
                del self._looking[key]
            if lost:
                self._doubted.discard(key)

    def _planes(self, peer: str) -> list[int]:
        mask = self._places.planes(peer)
        return [plane for plane in range(ABI.MRC_MAX_PLANES) if mask >> plane & 1]

    def _next(self) -> tuple[str, int] | None:
        if not self._queue:
            now = time.monotonic()
            for name in self._names():
                keys = ((name, plane) for plane in self._planes(name))
                self._queue.extend(key for key in keys if self._due.get(key, 0.0) <= now)
        while self._queue:
            key = self._queue.popleft()
            if key not in self._looking:
                return key
        return None

    async def _look(self, peer: str, plane: int, *, lost: bool) -> bool | None:
        """Find out what gets through to a peer on a plane.

        Return whether that is known; None if it cannot be tried now.
        That data is lost altogether is believed only where it was, and not of trials alone.
        """
        tries = HASTY if lost else len(WAITS_S)
        tried = self._sessions.tried(peer)
        if tried is None:
            return None
        began = time.monotonic_ns()
        search = largest.search(tried.longest, largest.likely(tried.headers))
        length = next(search)
        try:
            while True:
                passes = await self._passes(peer, plane, length, tried, tries)
                if passes is None:
                    return None
                if not passes and length <= largest.LEAST and tries < len(WAITS_S):
                    tries = len(WAITS_S)  # long queues lose a few of anything
                    continue
                length = search.send(passes)
                if length == tried.longest and not lost:
                    tries = len(WAITS_S)  # it is tried again soon where data was lost
        except StopIteration as end:
            most: int = end.value
        if self._sessions.tried(peer) != tried:
            return None  # while a session is set up, nothing is answered
        old = self._way(peer, plane)
        if 0 < most < tried.longest and not self._believed(peer, plane, began, most):
            return False
        if most:
            self._mute.discard((peer, plane))
            new = Way(None if most == tried.longest else most)
        elif old.swallowed_ns is not None:
            new = old
        elif not lost and not tried.plain:
            return False
        else:
            swallowed = await self._swallows(peer, plane, tried, began)
            if swallowed is None:
                self._mute.add((peer, plane))  # nothing is known of data
                self._tell(peer)
                return False
            self._mute.discard((peer, plane))
            if not swallowed:
                return False
            new = replace(old, swallowed_ns=began)
        if self._sessions.tried(peer) != tried:
            return False
        noted = self._note(peer, plane, old, new)
        return None if tried.plain else noted  # cells are to come back soon

    async def _swallows(self, peer: str, plane: int, tried: Tried, began: int) -> bool | None:
        """Return whether a plane swallows data, which was lost since `began`; None: it is dead.

        A plane that is dead for a moment loses trials, and answers probes a moment later. So data
        has to be lost again and again while others get through before and after it. Where data does
        get through, short packets of it are tried as well: if they are lost, too, a queue is full.
        """
        for _ in range(ROUNDS):
            arrives = self._since(peer, plane, "delivered_ns", began) and not tried.plain
            if arrives and not await self._passes(peer, plane, SHORT, tried, 1):
                return False
            if not await self._reached(peer, plane):
                return None
            if await self._passes(peer, plane, largest.LEAST, tried, HASTY):
                return False
        return True if await self._reached(peer, plane) else None

    async def _reached(self, peer: str, plane: int) -> bool:
        """Return whether a probe of MRC's gets through now."""
        for wait_s, qp, slot in self._turns(peer, plane, len(WAITS_S)):
            began, ends = time.monotonic_ns(), time.monotonic() + wait_s
            try:
                self._commands.probe(qp, plane, slot)
            except CommandRefused:
                return False
            for pause_s in _pauses(ends):
                await asyncio.sleep(pause_s)
                if self._path(qp, plane, slot)["answered_ns"] > began:
                    return True
        return False

    def _believed(self, peer: str, plane: int, began: int, most: int) -> bool:
        """Return whether data agrees that packets longer than `most` are lost, or says nothing.

        An overloaded switch drops or trims trials, too, and most of all long ones. Where data
        arrives, it is the data that tells: packets as long were lost in a row.
        """
        paths = list(self._all_paths(peer, plane))
        if all(path["delivered_ns"] <= began for path in paths):
            return True
        # A stalled sender loses few, and all that was lost is longer than what passes.
        return any(
            path["gone"] >= (LONG_LOST if path["gone_len"] > most else ABI.MRC_DEAF_AFTER)
            for path in paths
        )

    def _note(self, peer: str, plane: int, old: Way, new: Way) -> bool:
        first = (peer, plane) not in self._ways
        self._ways[peer, plane] = new
        if first or new.most != old.most:
            try:
                self._commands.set_most(self._places.index(peer), plane, new.most or 0)
            except CommandRefused:
                return False
            self._sessions.set_most(peer, plane, new.most)
        if new.most != old.most:
            log.warning("path.largest", peer=peer, plane=plane, most=new.most)
        if (new.swallowed_ns is None) != (old.swallowed_ns is None):
            lost = new.swallowed_ns is not None
            log.warning("path.data_lost" if lost else "path.data_arrives", peer=peer, plane=plane)
            for each in self._planes(peer) if lost else ():
                if each != plane and self._way(peer, each).swallowed_ns is None:
                    self.doubt(peer, each)  # what loses it here may do so everywhere
        self._tell(peer)
        return True

    def _tell(self, peer: str) -> None:
        """Say on which planes data to a peer is lost.

        A plane of which nothing is known yet is no reason to leave cells, since it may carry them.
        One on which nothing gets through carries none, but is none either by itself.
        """
        planes = self._planes(peer)
        lost = {each for each in planes if self._way(peer, each).swallowed_ns is not None}
        mute = {each for each in planes if (peer, each) in self._mute} if lost else set()
        self._sessions.set_swallowed(peer, {each: each in lost | mute for each in planes})

    def _way(self, peer: str, plane: int) -> Way:
        return self._ways.get((peer, plane), Way())

    # ---- single trials

    def _paths(self, qp: int, plane: int) -> list[int]:
        """Return the slots of a QP's paths on a plane."""
        raw = self._dp.read_raw("txs", qp, _TX.size)
        words = _SETS.unpack_from(raw, _ALL_AT + plane * _SETS.size)
        return [
            64 * k + bit for k, word in enumerate(words) for bit in range(64) if word >> bit & 1
        ]

    async def _passes(
        self, peer: str, plane: int, length: int, tried: Tried, tries: int
    ) -> bool | None:
        """Return whether a packet gets through by some path.

        None if none can be sent, or if what is to be tried is another one by now.
        """
        result = None
        for wait_s, qp, slot in self._turns(peer, plane, tries):
            if self._sessions.tried(peer) != tried:
                return None
            try:
                self._commands.try_path(qp, plane, slot, length, tried.framing)
            except CommandRefused:
                return None
            if await self._answered(qp, plane, slot, length, wait_s):
                return True
            result = False
        return result

    def _turns(self, peer: str, plane: int, tries: int) -> Iterator[tuple[float, int, int]]:
        """Yield what to wait for each try, in seconds, and a QP and a path of it to try."""
        qps = self._places.qps(peer)
        for number, wait_s in enumerate(WAITS_S[:tries]):
            qp = qps[number % len(qps)]
            slots = self._paths(qp, plane)
            if not slots:
                return
            yield wait_s, qp, slots[number * (len(slots) // len(WAITS_S) + 1) % len(slots)]

    def _path(self, qp: int, plane: int, slot: int) -> dict[str, int]:
        index = view.path_index(self._dp, qp, plane, slot)
        return dict(zip(_NAMES, _TRIAL(self._dp.read_raw("paths", index, _PATH.size)), strict=True))

    async def _answered(self, qp: int, plane: int, slot: int, length: int, wait_s: float) -> bool:
        sent = self._path(qp, plane, slot)
        for pause_s in _pauses(time.monotonic() + wait_s):
            now = self._path(qp, plane, slot)
            if now["fits"] == length:
                return True
            if now["probe_id"] != sent["probe_id"]:
                return False
            await asyncio.sleep(pause_s)
        return self._path(qp, plane, slot)["fits"] == length

    def _since(self, peer: str, plane: int, member: str, least: int) -> bool:
        """Return whether a member of some path of a plane is greater: later, if it is a time."""
        return any(path[member] > least for path in self._all_paths(peer, plane))

    def _all_paths(self, peer: str, plane: int) -> Iterator[dict[str, int]]:
        """Yield what the programs know of the paths of a plane, of all QPs."""
        for qp in self._places.qps(peer):
            for slot in self._paths(qp, plane):
                yield self._path(qp, plane, slot)
