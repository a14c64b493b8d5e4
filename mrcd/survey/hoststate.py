# SPDX-License-Identifier: GPL-2.0-only
"""What a host has said last of itself and of the ways at it (pure). Times are nanoseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mrcd.survey import told
from mrcd.survey.arrivals import Kinds
from mrcd.survey.shots import Target
from mrcd.survey.told import Nic

SECOND: Final = 1_000_000_000
FLAPS: Final = 3
FLAPS_NS: Final = 60 * SECOND
"""A NIC that loses its carrier as often as this in this time flaps."""
ERRORS_NS: Final = 60 * SECOND
QUEUED_NS: Final = 20 * SECOND
"""What goes by a queue that was full within this time is not called slow."""
GAPS: Final = 8
"""Times between messages of a host that are remembered."""


@dataclass(slots=True)
class HostState:
    """What another host, or this one, has said last.

    Targets are a peer and the host's own number of a NIC. reached: the probes of a peer that came
    to a NIC. grew_ns: when more of them had come than before. joined: the NIC of a peer that a NIC
    leads to. refused: hosts that answer probes with an error, as where no mrcd runs.
    """

    run: int
    token: int
    nics: tuple[Nic, ...]
    heard_ns: int
    sent: dict[Target, deque[tuple[int, int]]] = field(default_factory=dict)
    data_ppm: dict[Target, int] = field(default_factory=dict)
    kinds: dict[Target, Kinds] = field(default_factory=dict)
    queued: dict[Target, deque[tuple[int, int]]] = field(default_factory=dict)
    reached: dict[Target, int] = field(default_factory=dict)
    grew_ns: dict[Target, int] = field(default_factory=dict)
    joined: dict[Target, int] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    downs: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    errors: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    gaps: deque[int] = field(default_factory=lambda: deque(maxlen=GAPS))

    def note_heard(self, now_ns: int) -> None:
        """Remember when it has spoken."""
        if now_ns > self.heard_ns:
            self.gaps.append(now_ns - self.heard_ns)
        self.heard_ns = now_ns

    def note_nics(self, nics: tuple[Nic, ...], now_ns: int) -> None:
        """Remember what the kernel counts of the NICs."""
        self.nics = nics
        for nic, facts in enumerate(nics):
            _remember(self.downs, nic, (now_ns, facts.downs), FLAPS_NS)
            _remember(self.errors, nic, (now_ns, facts.errors), ERRORS_NS)

    def note_way(self, target: Target, way: told.Way, now_ns: int) -> None:
        """Remember what it tells of the ways from and to a peer."""
        times = self.sent.setdefault(target, deque(maxlen=8))
        if not times or way.sent >= times[-1][1]:
            times.append((now_ns, way.sent))
        self.data_ppm[target] = way.data_ppm
        self.kinds[target] = told.kinds_of(way.kinds)
        if way.received > self.reached.get(target, 0):
            self.grew_ns[target] = now_ns
        self.reached[target] = way.received
        _remember(self.queued, target, (now_ns, way.excused), QUEUED_NS)

    def has_errors(self, nic: int) -> int:
        """Return how many errors of a NIC the kernel has counted lately."""
        return _grown(self.errors.get(nic))

    def was_full(self, target: Target) -> bool:
        """Return whether a full queue has taken probes from a peer lately."""
        return _grown(self.queued.get(target)) > 0

    def flaps(self, nic: int) -> int:
        """Return how often a NIC has lost its carrier lately."""
        return _grown(self.downs.get(nic))

    def changed_ns(self, nic: int) -> int | None:
        """Return when a NIC's carrier was lost last, as far as known."""
        times = self.downs.get(nic)
        if not times:
            return None
        last = times[-1][1]
        return next((at for at, count in times if count == last and times[0][1] != last), None)


_Key = TypeVar("_Key")


def _remember(
    kept: dict[_Key, deque[tuple[int, int]]], key: _Key, now: tuple[int, int], for_ns: int
) -> None:
    times = kept.setdefault(key, deque())
    times.append(now)
    while len(times) > 2 and times[1][0] < now[0] - for_ns:
        times.popleft()


def _grown(times: Sequence[tuple[int, int]] | None) -> int:
    return max(0, times[-1][1] - times[0][1]) if times else 0
