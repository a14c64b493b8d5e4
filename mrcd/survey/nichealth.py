# SPDX-License-Identifier: GPL-2.0-only
"""Decide which NIC links of this host lose too much to be used (pure).

The fault map names the NIC links that lose packets. A link with a bad cable or port is taken out of
use. An overflowing queue is no reason to give up a plane: its paths are used less anyway, and the
traffic that fills it may stop at any moment. Delay distinguishes the two. Probes that survive a
full queue come back late, whereas probes that survive a bad cable are as prompt as ever. Each late
probe of the near loop therefore offsets one lost probe, which its queue may have dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mrcd.fabric import naming
from mrcd.survey.evidence import quantile
from mrcd.survey.inference import Fault
from mrcd.survey.messages import Total

NIC_LOSS = 0.01
"""Loss above which a NIC link of ours is taken out of use, if the loss is certain."""
NIC_LIVE_INTERVALS = 6
"""Consecutive intervals in which probes must have come back before losses count against a link. A
dead link needs no verdict here: the paths over it are withdrawn, and used again, within
milliseconds rather than seconds."""
NIC_READ_PROBES = 4
"""Least number of near-loop probes in an interval; the interval lasts until they were sent."""
NIC_PROBES = 200
"""Number of near-loop probes after which all counts are halved, so that a long time without loss
does not hide the present loss."""
NIC_LATE_BUCKETS = 3
"""A round trip is late if it is this many powers of two above the usual one (4 to 8 times)."""
NIC_LATE_MIN_BUCKET = 10
"""A late round trip takes at least 512 us. Probes leave in bursts, and a burst's last ones come
back after some 250 us."""
NIC_PROMPT_SHARE = 0.01
"""The usual round trip is this low quantile: the round trip without a queue."""
NIC_CLEAN_S = 5.0
NIC_CLEAN_MAX_S = 80.0
"""Time without loss after which a link is used again. It doubles with each relapse, up to the
maximum."""


@dataclass(slots=True)
class _Near:
    """The near loop of a plane: the totals of the last reading, and decayed counts since."""

    sent: int = 0
    returned: int = 0
    round_trips: tuple[int, ...] = ()
    intervals: int = 0  # since the link was last dead
    probes: float = 0.0  # sent in these intervals; older ones count half
    lost: float = 0.0
    late: float = 0.0

    def read(self, total: Total, round_trips: Sequence[int]) -> None:
        """Evaluate the probes since the last reading, given the totals so far."""
        sent, returned = total.sent - self.sent, total.returned - self.returned
        if sent < NIC_READ_PROBES:
            return
        before = self.round_trips or (0,) * len(round_trips)
        fresh = [new - old for new, old in zip(round_trips, before, strict=True)]
        self.sent, self.returned, self.round_trips = total.sent, total.returned, tuple(round_trips)
        if returned <= 0:
            self.intervals, self.probes, self.lost, self.late = 0, 0.0, 0.0, 0.0
            return
        if self.intervals:  # for part of the first interval the link was still dead
            # Round trips are not known for every probe, so scale their late share to all returned.
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
        """Return whether the link, since it was last dead, lost more than a queue explains."""
        allowed = self.late + max(2.0, NIC_LOSS * self.probes)
        return self.intervals >= NIC_LIVE_INTERVALS and self.lost > allowed


def _late_from(round_trips: Sequence[int]) -> int:
    """Return the first bucket of late round trips; bucket i holds 2^(i-1) to 2^i us."""
    usual, _ = quantile(round_trips, NIC_PROMPT_SHARE) or (0, 0.0)
    return max(NIC_LATE_MIN_BUCKET, usual + NIC_LATE_BUCKETS)


class NicHealth:
    """The health of this host's NIC links.

    `on_nic` is called with plane, health and reason when a link loses too much, and when it has
    been clean for long enough. The last healthy plane is never given up.
    """

    def __init__(self, host: str, planes: int, on_nic: Callable[[int, bool, str], None]) -> None:
        self._on_nic = on_nic
        self._planes = {naming.nic(plane, host): plane for plane in range(planes)}
        self._bad_ns: dict[int, int] = {}  # unhealthy planes: when they were last seen to lose
        self._hold_s = dict.fromkeys(range(planes), NIC_CLEAN_S)
        self._back_ns: dict[int, int] = {}
        self._near = [_Near() for _ in range(planes)]

    def near(self, plane: int, total: Total, round_trips: Sequence[int]) -> None:
        """Take the totals so far of the near loop over the NIC link of a plane.

        `round_trips` counts them by power of two of a microsecond; these are totals, too.
        """
        self._near[plane].read(total, round_trips)

    def update(self, faults: Iterable[Fault], *, now_ns: int) -> None:
        """Update the health of the NIC links from the faults that are named now."""
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
                back_ns = self._back_ns.get(plane)
                if back_ns is not None and now_ns - back_ns < 1e9 * 4 * self._hold_s[plane]:
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
