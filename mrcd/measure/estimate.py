# SPDX-License-Identifier: GPL-2.0-only
"""Estimate what planes carry from what data does (pure).

Where packets to a peer wait in queues on a plane, second after second at the same rate, and neither
NIC is full and neither host at its end, something between them carries no more than that. The peer
says what arrives: it has to be about what is sent, or others share what is in between, and nobody
can tell whose part it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from mrcd.wording import CUT

SPAN: Final = 3
"""Number of looks in a row at which packets have to wait ..."""
STEADY: Final = 1.25
"""... at rates that differ by no more than this factor. What arrives may differ by as much."""
SMOOTH: Final = 1.5
"""What arrives in a short time exceeds the mean by this factor at most."""
MORE: Final = 1.05
"""A rate that exceeds an estimate by this factor refutes it."""
LEAST_MBPS: Final = 1.0
"""Less than this says nothing of a plane."""
BUSY: Final = 0.8
"""Where a CPU is at work for the kernel for more than this part of its time, the host may be what
limits the rate."""
AGAIN_S: Final = 10.0
"""A peer is asked again about a plane after this time."""
LASTS_S: Final = 3600.0
"""Time for which an estimate is told after it was confirmed."""
ASKED_MOST: Final = 4
"""Peers that are asked about a plane at once."""
WAIT_NS: Final = 300_000
"""A packet that waits for less than this may have met a busy CPU."""
FRESH_NS: Final = 300_000_000
"""An older round trip says nothing of the present."""


def waits(srtt_ns: int, at_ns: int, idle_ns: int, now_ns: int) -> bool:
    """Return whether packets wait in queues, by their round trip of late.

    `srtt_ns` was measured last at `at_ns`, and is 0 if there is none; `idle_ns` is the shortest
    round trip of a probe, 0 if it is not known.
    """
    most = idle_ns + max(WAIT_NS, idle_ns // 2)
    return idle_ns > 0 and srtt_ns > most and now_ns - at_ns < FRESH_NS


@dataclass(frozen=True, slots=True)
class Second:
    """What this host saw of a plane in a second.

    says: the rate that the plane should have, Mb/s, 0 if unknown. mbps: what its NIC sent. busy:
    the part of its time for which the busiest CPU was at work for the kernel. queued: peers to
    which packets waited in queues on this plane. full: those to which they waited on some plane,
    and more was offered than windows took, or this plane got less than others.
    """

    says: int
    mbps: float
    busy: float
    full: frozenset[str]
    queued: frozenset[str]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The same of a peer that is asked: what its NIC received, and the most in a short time."""

    says: int
    mbps: float
    peak: float
    busy: float


@dataclass(frozen=True, slots=True)
class Found:
    """What gets through to a peer on a plane, Mb/s, and what its NICs or the file say."""

    mbps: float
    says: int
    at_s: float


class Estimates:
    """What is known of the planes of a host. Times are those of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._runs: dict[int, deque[Second]] = {}
        self._asked: dict[tuple[str, int], float] = {}
        self._found: dict[tuple[str, int], Found] = {}
        self._rates: dict[int, float] = {}

    def look(self, plane: int, second: Second, now_s: float) -> list[str]:
        """Take what was seen of a plane in the last second; return the peers to ask about it."""
        self._refute(plane, second)
        run = self._runs.setdefault(plane, deque(maxlen=SPAN))
        run.append(second)
        wanted = self._suspects(plane) | {
            peer
            for (peer, at), found in self._found.items()
            if at == plane and second.mbps > found.mbps * MORE
        }
        due = sorted(
            peer for peer in wanted if now_s - self._asked.get((peer, plane), -AGAIN_S) >= AGAIN_S
        )[:ASKED_MOST]
        for peer in due:
            self._asked[peer, plane] = now_s
        return due

    def _refute(self, plane: int, second: Second) -> None:
        """Raise, or drop, the rate of a plane that carries more than that."""
        known = self._rates.get(plane)
        if known is None or second.mbps <= known * MORE:
            return
        whole = second.mbps >= CUT * second.says
        del self._rates[plane]
        if not whole:
            self._rates[plane] = second.mbps
        for key, found in list(self._found.items()):
            if key[1] == plane and found.mbps == known:
                del self._found[key]
                if not whole:
                    self._found[key] = replace(found, mbps=second.mbps)

    def _suspects(self, plane: int) -> AbstractSet[str]:
        """Return the peers to which something between the NICs may limit the rate."""
        run = self._runs.get(plane, ())
        if len(run) < SPAN:
            return frozenset()
        rates = [second.mbps for second in run]
        if any(
            second.busy > BUSY or second.mbps < LEAST_MBPS or second.mbps >= CUT * second.says
            for second in run
        ) or max(rates) > STEADY * min(rates):
            return frozenset()
        full = frozenset.intersection(*(second.full for second in run))
        return full & frozenset.union(*(second.queued for second in run))

    def answered(self, peer: str, plane: int, arrived: Arrivals, now_s: float) -> None:
        """Take what a peer says of a plane."""
        run = self._runs.get(plane)
        if not run:
            return
        key = peer, plane
        says = min(run[-1].says, arrived.says or run[-1].says)
        known = self._found.get(key)
        if arrived.peak >= CUT * says:
            self._found.pop(key, None)
            return
        if known is not None and arrived.mbps > known.mbps * MORE:
            self._found[key] = Found(arrived.mbps, says, now_s)
        most = max(second.mbps for second in run)
        if peer not in self._suspects(plane) or arrived.busy > BUSY:
            return
        if arrived.peak > SMOOTH * arrived.mbps:
            return  # it comes in bursts, each as fast as the plane is
        if not most / STEADY <= arrived.mbps <= most * STEADY:
            return
        self._found[key] = Found(most, says, now_s)
        self._rates[plane] = most

    def keep(self, peers: AbstractSet[str], now_s: float) -> None:
        """Forget other peers, and what was confirmed too long ago."""
        self._found = {
            key: found
            for key, found in self._found.items()
            if key[0] in peers and now_s - found.at_s < LASTS_S
        }
        self._asked = {key: at for key, at in self._asked.items() if key[0] in peers}
        confirmed = {plane for _peer, plane in self._found}
        self._rates = {k: mbps for k, mbps in self._rates.items() if k in confirmed}

    @property
    def found(self) -> Mapping[tuple[str, int], Found]:
        """What gets through, by peer and plane, where that is clearly less than it should be."""
        return self._found

    @property
    def rates(self) -> Mapping[int, float]:
        """What planes carry in all, Mb/s, where that is known to be less than it should be."""
        return self._rates


def carried_mbps(rates: Mapping[int, float], says: Sequence[int]) -> tuple[int, ...] | None:
    """Return what each plane carries, Mb/s, where some carry less than they say.

    None: all carry what they say, or none says anything. One that says nothing has 0.
    """
    if not any(says[plane] for plane in rates.keys() & set(range(len(says)))):
        return None
    return tuple(
        max(1, round(min(rates.get(plane, most), most))) if most else 0
        for plane, most in enumerate(says)
    )
