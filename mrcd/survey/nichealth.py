# SPDX-License-Identifier: GPL-2.0-only
"""Which NIC links of this host lose too much to be used (pure).

The fault map names what loses. A cable or a port that does is not used; a queue that overflows is
no reason to give a plane up, for the paths over it are used less anyway, and whatever fills it may
be gone in a moment. What tells them apart is time: of the probes that meet a full queue those that
are not dropped come back late, a bad cable leaves those it does not lose as prompt as ever. So each
probe of the near loop that came back late stands for one that its queue may have dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mrcd.fabric import naming
from mrcd.survey.evidence import quantile
from mrcd.survey.inference import Fault
from mrcd.survey.messages import Total

NIC_LOSS = 0.01
"""A NIC link of ours that certainly loses more is not used."""
NIC_LIVE_INTERVALS = 6
"""... and has lost while something came back over it in each of so many intervals: a link that is
dead is left, and found again, by the paths over it within milliseconds, not within seconds."""
NIC_READ_PROBES = 4
"""An interval lasts until so many probes of the near loop have been sent."""
NIC_PROBES = 200
"""Probes of the near loop after which what became of them counts half: a long time without loss
must not hide what is lost now."""
NIC_LATE_BUCKETS = 3
"""Late: a round trip of so many powers of two more than the usual, 4 to 8 times as long, ..."""
NIC_LATE_MIN_BUCKET = 10
"""... 512 us at least: probes leave in bursts, whose last ones come back after some 250 us."""
NIC_PROMPT_SHARE = 0.01
"""Usual is what so small a share of round trips is at most: what there is without a queue."""
NIC_CLEAN_S = 5.0
NIC_CLEAN_MAX_S = 80.0
"""It is used again after so long without loss, twice as long after each relapse."""


@dataclass(slots=True)
class _Near:
    """The near loop of a plane: totals when it was read last, and what it did since."""

    sent: int = 0
    returned: int = 0
    round_trips: tuple[int, ...] = ()
    intervals: int = 0  # since the link was dead last
    probes: float = 0.0  # in these, old ones by halves
    lost: float = 0.0
    late: float = 0.0

    def read(self, total: Total, round_trips: Sequence[int]) -> None:
        """What came of the probes so far."""
        sent, returned = total.sent - self.sent, total.returned - self.returned
        if sent < NIC_READ_PROBES:
            return
        before = self.round_trips or (0,) * len(round_trips)
        fresh = [new - old for new, old in zip(round_trips, before, strict=True)]
        self.sent, self.returned, self.round_trips = total.sent, total.returned, tuple(round_trips)
        if returned <= 0:
            self.intervals, self.probes, self.lost, self.late = 0, 0.0, 0.0, 0.0
            return
        if self.intervals:  # in the first one it was still dead for a part
            # Not every probe's round trip is known.
            late = sum(fresh[_late_from(round_trips) :]) / max(1, sum(fresh))
            self._add(sent, sent - returned, late * returned)
        self.intervals += 1

    def _add(self, sent: int, lost: int, late: float) -> None:
        if self.probes > NIC_PROBES:
            self.probes, self.lost, self.late = self.probes / 2, self.lost / 2, self.late / 2
        self.probes += sent
        self.lost += lost
        self.late += late

    @property
    def lossy(self) -> bool:
        """Whether the link has lost more since it was dead last than a queue explains."""
        allowed = self.late + max(2.0, NIC_LOSS * self.probes)
        return self.intervals >= NIC_LIVE_INTERVALS and self.lost > allowed


def _late_from(round_trips: Sequence[int]) -> int:
    """The first bucket of those that are late; bucket i holds 2^(i-1) to 2^i us."""
    usual, _ = quantile(round_trips, NIC_PROMPT_SHARE) or (0, 0.0)
    return max(NIC_LATE_MIN_BUCKET, usual + NIC_LATE_BUCKETS)


class NicHealth:
    """Tells the planes when a NIC link of ours loses, and when it has been clean for long enough.

    The last plane that is left is never given up.
    """

    def __init__(self, host: str, planes: int, on_nic: Callable[[int, bool, str], None]) -> None:
        self._on_nic = on_nic
        self._planes = {naming.nic(plane, host): plane for plane in range(planes)}
        self._bad_ns: dict[int, int] = {}  # unhealthy planes: when they were last seen to lose
        self._hold_s = dict.fromkeys(range(planes), NIC_CLEAN_S)
        self._back_ns: dict[int, int] = {}
        self._near = [_Near() for _ in range(planes)]

    def near(self, plane: int, total: Total, round_trips: Sequence[int]) -> None:
        """What came back over the NIC link of a plane in an interval: totals so far.

        round_trips: how many there were in each power of two of a microsecond, totals too.
        """
        self._near[plane].read(total, round_trips)

    def update(self, faults: Iterable[Fault], *, now_ns: int) -> None:
        """The faults named now."""
        losing = {
            self._planes[fault.element.name]: fault
            for fault in faults
            if fault.element.name in self._planes and fault.low > NIC_LOSS
        }
        for plane in [p for p in losing if p not in self._bad_ns and not self._near[p].lossy]:
            del losing[plane]
        for plane, fault in sorted(losing.items()):
            if plane not in self._bad_ns:
                if len(self._bad_ns) + 1 >= len(self._planes):
                    continue
                if now_ns - self._back_ns.get(plane, 0) < 1e9 * 4 * self._hold_s[plane]:
                    self._hold_s[plane] = min(2 * self._hold_s[plane], NIC_CLEAN_MAX_S)
                else:
                    self._hold_s[plane] = NIC_CLEAN_S
                reason = f"NIC link {fault.element.name} loses {fault.loss:.1%}"
                self._on_nic(plane, False, reason)
            self._bad_ns[plane] = now_ns
        for plane in [p for p in self._bad_ns if p not in losing]:
            if now_ns - self._bad_ns[plane] > 1e9 * self._hold_s[plane]:
                del self._bad_ns[plane]
                self._back_ns[plane] = now_ns
                self._on_nic(plane, True, "NIC link is clean again")
