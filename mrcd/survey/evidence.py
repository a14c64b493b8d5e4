# SPDX-License-Identifier: GPL-2.0-only
"""The counts of all hosts' loops, and the windows of time in which faults are judged (pure).

Hosts tell each other the running totals of their loops (mrcd/survey/messages.py).

A window reaches back as far as older counts agree with the present ones, for every link and switch.
Thus a quiet time before a fault does not dilute it, a fault that has gone is forgotten at once, and
a small loss that continues is measured over all of MEMORY.

The older end of a window is exact to a block of the history (mrcd/survey/history.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mrcd.fabric.loops import Element, Trip
from mrcd.survey import messages
from mrcd.survey.history import MEMORY, RECENT, History, Tally
from mrcd.survey.inference import Seen
from mrcd.survey.messages import EvidenceError, Total

INTERVAL_NS: Final = 500_000_000
"""Totals are read, told and judged once in this time; an interval of counts is never shorter."""
PROBES_RECENT: Final = 4
"""A unit, RECENT intervals, lasts as long as it takes to send this many probes over a loop."""
CHUNKS: Final = (1, 1, 2, 4, 4, 4, 8, 8, 16, 16)
"""Units by which a window grows, MEMORY in all; steps end at RTT_MEMORY and at history.SINGLE.

A window doubles while it is short. In half a step, the few probes from before a change could not be
told from those after it.
"""
CALM: Final = 32
"""The survey is quiet after this many units without any loss."""
RTT_MEMORY: Final = 8
"""The least round trip of this many units counts: by then a queue has gone, a long way has not."""
CHANGED: Final = 12.0
"""Square of the surplus of losses, over its variance, above which older counts disagree."""


class Evidence:
    """The recent counts of every host's loops. Times are nanoseconds of a monotonic clock."""

    def __init__(
        self,
        loops: Mapping[str, Callable[[], Sequence[Trip]]],
        fabric_digest: int,
        interval_ns: int = INTERVAL_NS,
    ) -> None:
        """Hold no counts yet; `loops` makes the loops of each host that may send totals."""
        self._makers = loops
        self._loops: dict[str, Sequence[Trip]] = {}
        self._digest = fabric_digest
        self._interval_ns = interval_ns
        self._totals: dict[str, dict[int, Total]] = {}
        self._epochs: dict[str, int] = {}
        self._history = History()
        self.heard_ns: dict[str, int] = {}

    def loops(self, host: str) -> Sequence[Trip]:
        """Return the loops of one host."""
        if host not in self._loops:
            self._loops[host] = self._makers[host]()
            self._history.know(host, self._loops[host])
        return self._loops[host]

    def receive(self, datagram: bytes, *, now_ns: int, sender: str | None = None) -> None:
        """Add the totals in a peer's datagram; EvidenceError tells why it is refused.

        `sender` is the peer that has said it, None where nobody can know.
        """
        message = messages.decode(datagram)
        if sender not in (None, message.host):
            raise EvidenceError(f"totals in the name of {message.host}, from {sender}")
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
        """Add a host's totals, as of now.

        What its loops did before its first totals is unknown.
        """
        self.heard_ns[host] = now_ns
        self.loops(host)
        if self._epochs.get(host) != epoch:
            self._epochs[host] = epoch
            self._totals[host] = {}
        number, known = now_ns // self._interval_ns, self._totals[host]
        for index, total in totals.items():
            before = known.get(index)
            if before is not None and total.sent < before.sent:
                continue  # overtaken by a newer message
            known[index] = total
            if before is not None:
                sent = total.sent - before.sent
                lost = sent - (total.returned - before.returned)
                self._history.add(number, host, index, sent, lost, total.rtt_us)

    # ---- windows

    def quiet(self, *, now_ns: int) -> bool:
        """Return whether nothing was lost for CALM units."""
        return not self._history.lost_since(now_ns // self._interval_ns - RECENT * CALM + 1)

    def seen(self, *, now_ns: int, most: int = MEMORY) -> list[Seen]:
        """Return what all loops saw, each plane in a window of its own of at most `most` units."""
        newest = now_ns // self._interval_ns
        self._history.age(newest)
        lossless = not self._history.lost_since(newest - RECENT * MEMORY + 1)
        # If nothing was lost, all rates are zero and agree: nothing needs to be compared.
        units = (RTT_MEMORY, MEMORY - RTT_MEMORY) if lossless else CHUNKS
        planes: dict[int, dict[str, Tally]] = {}
        closed: set[int] = set()
        rtts_since = newest - RECENT * RTT_MEMORY
        for size in units:
            if size > most:
                break
            most -= size
            for plane, older in self._history.total(newest, RECENT * size).items():
                if plane in closed:
                    continue
                window = planes.setdefault(plane, {})
                if window and not lossless and self._disagree(plane, window, older):
                    closed.add(plane)
                    continue
                for host, tally in older.items():
                    if newest <= rtts_since:
                        tally.forget_round_trips()
                    window[host] = Tally.total([window[host], tally] if host in window else [tally])
            newest -= RECENT * size
        return [
            Seen(loop, sent, lost, None if rtt_us == math.inf else rtt_us)
            for plane, window in sorted(planes.items())
            for host, tally in sorted(window.items())
            for loop, sent, lost, rtt_us in zip(
                self._history.loops((host, plane)),
                tally.sent,
                tally.lost,
                tally.rtt_us,
                strict=True,
            )
            if sent
        ]

    def _disagree(self, plane: int, newer: Mapping[str, Tally], older: Mapping[str, Tally]) -> bool:
        """Return whether some element lost at another rate before.

        By Cochran, Mantel and Haenszel's test each loop over the element is compared with itself,
        because the share of the element's probes that each loop gets may change.
        """
        surplus: dict[Element, float] = {}
        variance: dict[Element, float] = {}
        for host in newer.keys() & older.keys():
            after, before = newer[host], older[host]
            if not (any(after.lost) or any(before.lost)):
                continue  # true of nearly all hosts of a large fabric
            for at, loop in enumerate(self._history.loops((host, plane))):
                lost = after.lost[at] + before.lost[at]
                if not lost or not after.sent[at] or not before.sent[at]:
                    continue
                sent = after.sent[at] + before.sent[at]
                more = after.lost[at] - after.sent[at] * lost / sent
                spread = (
                    after.sent[at] * before.sent[at] * lost * (sent - lost) / sent**2 / (sent - 1)
                )
                for element in loop.crossings:
                    surplus[element] = surplus.get(element, 0.0) + more
                    variance[element] = variance.get(element, 0.0) + spread
        return any(more * more > CHANGED * variance[element] for element, more in surplus.items())


def interval_ns(loops: int, pps: int) -> int:
    """Return an interval, in ns, of which RECENT hold enough probes of all loops."""
    readings = math.ceil(PROBES_RECENT * loops / pps * 1e9 / INTERVAL_NS)
    return INTERVAL_NS * max(1, math.ceil(readings / RECENT))


def quantile(histogram: Sequence[int], share: float) -> tuple[int, float] | None:
    """Return the bucket of a quantile and how far (0 to 1) into it; None if all are empty."""
    rest = share * sum(histogram)
    for i, count in enumerate(histogram):
        if count and rest <= count:
            return i, rest / count
        rest -= count
    return None


def quantile_us(histogram: Sequence[int], share: float = 0.25) -> float | None:
    """Return a quantile, in microseconds, of round trips; None if there are none.

    The buckets of the histogram are powers of two of a microsecond.
    """
    found = quantile(histogram, share)
    if found is None:
        return None
    bucket, part = found
    low = 2.0 ** (bucket - 1) if bucket else 0.0
    return low + (2.0**bucket - low) * part
