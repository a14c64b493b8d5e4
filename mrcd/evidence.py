# SPDX-License-Identifier: GPL-2.0-only
"""What the hosts' loops saw: messages between daemons, and the windows faults are judged by (pure).

A host tells its peers the running totals of its loops, so a lost message costs nothing but time.
Both sides number a host's loops alike (mrcd/loops.py), as long as they have the same fabric; a
digest in each message says whether they do.

A window reaches back as far as what was seen then agrees with what is seen now, for every link and
switch: a fault that has just begun is not diluted by the quiet before, one that has gone is
forgotten at once, and a small loss that goes on is measured over all of MEMORY.

Intervals older than SINGLE are added up in blocks, so a long memory takes little room: a window's
far end is exact to a block, its near ends to an interval.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mrcd.fabric.description import Fabric
from mrcd.fabric.hosts import HostRange
from mrcd.faultmap import Seen
from mrcd.loops import Element, Loop

MAGIC: Final = b"MRCf"
VERSION: Final = 1
MAX_BYTES: Final = 1200
_HEADER: Final = struct.Struct("!4sH")  # magic, length of what follows
_PER_MESSAGE = 40  # entries of at most 27 bytes each

INTERVAL_NS: Final = 500_000_000
"""Totals are read, told and judged so often."""
RECENT: Final = 3
"""Intervals that are always looked at together ..."""
PROBES_RECENT: Final = 4
"""... or as many as it takes to send this many probes over a loop."""
MEMORY: Final = 64
"""The longest window, in units of the recent one."""
CHUNKS: Final = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16)
"""What a window grows by, in the same units: MEMORY in all, ends at RTT_MEMORY and at SINGLE."""
CALM: Final = 32
"""Without any loss for so many recent windows it is quiet."""
RTT_MEMORY: Final = 8
"""That of round trips, of which the least counts: a queue passes meanwhile, a long way does not."""
SINGLE: Final = 8
"""Intervals of so many recent windows are kept one by one ..."""
BLOCK: Final = 4
"""... and older ones in sums over so many recent windows each."""
CHANGED: Final = 12.0
"""Squares of what is usual by which older counts of an element must differ from newer ones."""

Word64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Index = Annotated[int, Meta(ge=0, lt=1 << 16)]


class EvidenceError(Exception):
    """A datagram holds no acceptable evidence; the text says why. The sender is to blame."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Totals of some loops: (number, sent, returned, round trip in us; 0: not known)."""

    version: int
    host: Annotated[str, Meta(min_length=1, max_length=64)]
    epoch: Word64
    digest: int
    totals: Annotated[
        tuple[tuple[Index, Word64, Word64, Annotated[int, Meta(ge=0, lt=1 << 32)]], ...],
        Meta(max_length=_PER_MESSAGE),
    ]


@dataclass(frozen=True, slots=True)
class Total:
    """A loop since its host's daemon began: probes sent and returned; lately, its round trip."""

    sent: int
    returned: int
    rtt_us: float | None


def digest(fabric: Fabric) -> int:
    """Two fabrics with one digest have the same loops."""
    hosts = fabric.hosts
    if not isinstance(hosts, HostRange):
        hosts = tuple(replace(host, addresses=()) for host in hosts)
    return zlib.crc32(repr((fabric.planes, fabric.t0, fabric.t1, hosts)).encode())


def encode(host: str, epoch: int, digest: int, totals: Mapping[int, Total]) -> list[bytes]:
    """The datagrams that tell these totals."""
    entries = [
        (index, total.sent, total.returned, round(total.rtt_us or 0))
        for index, total in totals.items()
    ]
    datagrams = []
    for at in range(0, len(entries), _PER_MESSAGE):
        message = Message(VERSION, host, epoch, digest, tuple(entries[at : at + _PER_MESSAGE]))
        body = msgspec.msgpack.encode(message)
        assert _HEADER.size + len(body) <= MAX_BYTES
        datagrams.append(_HEADER.pack(MAGIC, len(body)) + body)
    return datagrams


def decode(datagram: bytes) -> Message:
    """The message in a datagram; EvidenceError with the reason if there is none."""
    if not _HEADER.size <= len(datagram) <= MAX_BYTES:
        raise EvidenceError(f"{len(datagram)} bytes")
    magic, length = _HEADER.unpack_from(datagram)
    body = datagram[_HEADER.size :]
    if magic != MAGIC or length != len(body):
        raise EvidenceError("no message of this kind")
    try:
        message = msgspec.msgpack.decode(body, type=Message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"not a message: {error}") from None
    if message.version != VERSION:
        raise EvidenceError(f"version {message.version}, this daemon speaks {VERSION}")
    return message


@dataclass(slots=True)
class _Count:
    sent: int = 0
    lost: int = 0
    rtt_us: float | None = None

    def add(self, other: _Count) -> None:
        self.sent += other.sent
        self.lost += other.lost
        if other.rtt_us is not None:
            self.rtt_us = min(other.rtt_us, self.rtt_us or other.rtt_us)


_Key = tuple[str, int]  # host, number of the loop


class Evidence:
    """What every host's loops saw lately. Times are a monotonic clock, nanoseconds."""

    def __init__(
        self, loops: Mapping[str, Callable[[], Sequence[Loop]]], fabric_digest: int
    ) -> None:
        """`loops`: for each host that may tell something, how to get its loops."""
        self._makers = loops
        self._loops: dict[str, Sequence[Loop]] = {}
        self._digest = fabric_digest
        self._totals: dict[_Key, Total] = {}
        self._epochs: dict[str, int] = {}
        self._intervals: dict[int, dict[_Key, _Count]] = {}  # a block is at its last interval
        self._lossy: set[int] = set()  # intervals in which anything was lost
        self.heard_ns: dict[str, int] = {}

    def loops(self, host: str) -> Sequence[Loop]:
        """The loops of one host."""
        if host not in self._loops:
            self._loops[host] = self._makers[host]()
        return self._loops[host]

    def receive(self, datagram: bytes, *, now_ns: int) -> None:
        """Take in a peer's datagram; EvidenceError says why it is refused."""
        message = decode(datagram)
        if message.host not in self._makers:
            raise EvidenceError(f"no host {message.host!r} is a peer")
        if message.digest != self._digest:
            raise EvidenceError(f"{message.host} has another fabric file")
        count = len(self.loops(message.host))
        for index, sent, returned, _rtt in message.totals:
            if index >= count or returned > sent:
                raise EvidenceError(f"{message.host}: loop {index} sent {sent}, {returned} back")
        totals = {
            index: Total(sent, returned, rtt or None)
            for index, sent, returned, rtt in message.totals
        }
        self.add(message.host, message.epoch, totals, now_ns=now_ns)

    def add(self, host: str, epoch: int, totals: Mapping[int, Total], *, now_ns: int) -> None:
        """A host's totals, as of now. What its loops did before it was first heard is unknown."""
        self.heard_ns[host] = now_ns
        if self._epochs.get(host) != epoch:
            self._epochs[host] = epoch
            self._totals = {key: total for key, total in self._totals.items() if key[0] != host}
        number = now_ns // INTERVAL_NS
        for index, total in totals.items():
            key = (host, index)
            before = self._totals.get(key)
            if before is not None and total.sent < before.sent:
                continue  # overtaken by a newer message
            self._totals[key] = total
            if before is not None:
                sent = total.sent - before.sent
                lost = sent - (total.returned - before.returned)
                self._count(number, key, _Count(sent, lost, total.rtt_us))

    def _count(self, number: int, key: _Key, new: _Count) -> None:
        if new.lost < 0:  # came back after its interval had been counted: it was not lost then
            for earlier in (number, number - 1, number - 2):
                old = self._intervals.get(earlier, {}).get(key)
                if old is not None and new.lost < 0:
                    back = min(old.lost, -new.lost)
                    old.lost -= back
                    new.lost += back
            new.lost = max(0, new.lost)
        if new.lost:
            self._lossy.add(number)
        self._intervals.setdefault(number, {}).setdefault(key, _Count()).add(new)

    # ---- windows

    def quiet(self, recent: int, *, now_ns: int) -> bool:
        """Whether nothing at all was lost for CALM."""
        return not self._lost_within(recent * CALM, now_ns=now_ns)

    def _lost_within(self, intervals: int, *, now_ns: int) -> bool:
        oldest = now_ns // INTERVAL_NS - intervals
        return any(number > oldest for number in self._lossy)

    def seen(self, recent: int, *, now_ns: int) -> list[Seen]:
        """What all loops saw, each plane in a window of its own. `recent`: intervals, at least."""
        newest = now_ns // INTERVAL_NS
        self._age(recent, newest)
        # Rates that are all zero agree: nothing needs to be compared.
        sizes = [recent * RTT_MEMORY, recent * (MEMORY - RTT_MEMORY)]
        lossless = not self._lost_within(recent * MEMORY, now_ns=now_ns)
        if not lossless:
            sizes = [recent * units for units in CHUNKS]
        planes: dict[int, dict[_Key, _Count]] = {}
        closed: set[int] = set()
        rtts_since = newest - recent * RTT_MEMORY
        for size in sizes:
            for plane, older in self._chunk(newest, size).items():
                if plane in closed:
                    continue
                window = planes.setdefault(plane, {})
                if window and not lossless and self._disagree(window, older):
                    closed.add(plane)
                    continue
                for key, count in older.items():
                    if newest <= rtts_since:
                        count.rtt_us = None
                    window.setdefault(key, _Count()).add(count)
            newest -= size
        return [
            Seen(self.loops(host)[index], count.sent, count.lost, count.rtt_us)
            for plane in sorted(planes)
            for (host, index), count in sorted(planes[plane].items())
        ]

    def _age(self, recent: int, newest: int) -> None:
        """Forget what is beyond MEMORY, add up what is beyond SINGLE."""
        length = recent * BLOCK
        for number in sorted(self._intervals):
            last = number - number % length + length - 1
            if number <= newest - recent * MEMORY:
                del self._intervals[number]
                self._lossy.discard(number)
            elif number < last <= newest - recent * SINGLE:
                if number in self._lossy:
                    self._lossy.remove(number)
                    self._lossy.add(last)
                block = self._intervals.setdefault(last, {})
                for key, count in self._intervals.pop(number).items():
                    so_far = block.setdefault(key, count)
                    if so_far is not count:
                        so_far.add(count)

    def _chunk(self, newest: int, size: int) -> dict[int, dict[_Key, _Count]]:
        """Counts of some intervals, by plane."""
        sums: dict[_Key, _Count] = {}
        for number in range(newest - size + 1, newest + 1):
            for key, count in self._intervals.get(number, {}).items():
                so_far = sums.get(key)
                if so_far is None:
                    sums[key] = replace(count)
                else:
                    so_far.add(count)
        found: dict[int, dict[_Key, _Count]] = {}
        for key, count in sums.items():
            found.setdefault(self.loops(key[0])[key[1]].plane, {})[key] = count
        return found

    def _disagree(self, newer: Mapping[_Key, _Count], older: Mapping[_Key, _Count]) -> bool:
        """Whether some element lost at another rate before, each of its loops held against itself.

        Cochran, Mantel and Haenszel's test: how the probes of an element are shared among its loops
        may change.
        """
        surplus: dict[Element, float] = {}
        variance: dict[Element, float] = {}
        for (host, index), after in newer.items():
            before = older.get((host, index))
            sent = after.sent + before.sent if before else 0
            if before is None or not before.sent or sent < 2 or not after.lost + before.lost:
                continue
            share = (after.lost + before.lost) / sent
            spread = after.sent * before.sent / (sent - 1) * share * (1 - share)
            for element in self.loops(host)[index].crossings:
                more = after.lost - after.sent * share
                surplus[element] = surplus.get(element, 0.0) + more
                variance[element] = variance.get(element, 0.0) + spread
        return any(more * more > CHANGED * variance[element] for element, more in surplus.items())


def recent_intervals(loops: int, pps: int) -> int:
    """How many intervals the shortest window needs."""
    return max(RECENT, math.ceil(PROBES_RECENT * loops / pps * 1e9 / INTERVAL_NS))


def quantile(histogram: Sequence[int], share: float) -> tuple[int, float] | None:
    """The bucket that a quantile is in, and how far (0 to 1) into it; None if all are empty."""
    rest = share * sum(histogram)
    for i, count in enumerate(histogram):
        if count and rest <= count:
            return i, rest / count
        rest -= count
    return None


def quantile_us(histogram: Sequence[int], share: float = 0.25) -> float | None:
    """A quantile of round trips counted in powers of two of a microsecond; None without any."""
    found = quantile(histogram, share)
    if found is None:
        return None
    bucket, part = found
    low = 2.0 ** (bucket - 1) if bucket else 0.0
    return low + (2.0**bucket - low) * part
