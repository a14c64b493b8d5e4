# SPDX-License-Identifier: GPL-2.0-only
"""Compute goodput, gaps and lost capacity from a record of arrivals (pure).

A record is two arrays of equal length: when the application's recv() returned (CLOCK_MONOTONIC,
ns), and how many bytes it returned.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MS = 1_000_000
S = 1_000_000_000

BIN_NS = 5 * MS
"""The width of the bins for judging recovery: some 70 packets of 9,000 bytes at 1 Gb/s."""
SUSTAINED_NS = 50 * MS
"""Goodput counts as back only if its mean over this time is high enough, too."""
TOLERANCE = 0.05
"""Goodput within this share of the surviving rate counts as back."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A record of arrivals in time order."""

    times_ns: Ints
    sizes: Ints

    def between(self, start_ns: int, end_ns: int) -> slice:
        """Return the entries with start <= time < end."""
        low, high = np.searchsorted(self.times_ns, [start_ns, end_ns], side="left")
        return slice(int(low), int(high))

    def bps(self, start_ns: int, end_ns: int) -> float:
        """Return the mean goodput of an interval in bits per second."""
        return float(self.sizes[self.between(start_ns, end_ns)].sum()) * 8 * S / (end_ns - start_ns)

    def bins_bps(self, start_ns: int, end_ns: int, width_ns: int) -> Floats:
        """Return the goodput of consecutive bins in bits per second, without a partial last bin."""
        count = (end_ns - start_ns) // width_ns
        inside = self.between(start_ns, start_ns + count * width_ns)
        which = (self.times_ns[inside] - start_ns) // width_ns
        filled = np.bincount(which, weights=self.sizes[inside], minlength=count)
        return filled.astype(np.float64) * 8 * S / width_ns

    def longest_gap_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the longest time without an arrival that overlaps the interval.

        A gap that began before the interval counts in full; one that lasts longer ends with it.
        """
        inside = self.between(start_ns, end_ns)
        before = self.times_ns[inside.start - 1] if inside.start else start_ns
        after = min(int(self.times_ns[inside.stop]), end_ns) if self._goes_on(inside) else end_ns
        edges = np.concatenate(([before], self.times_ns[inside], [after]))
        return int(np.diff(edges).max())

    def _goes_on(self, inside: slice) -> bool:
        return bool(inside.stop < len(self.times_ns))


@dataclass(frozen=True, slots=True)
class Outage:
    """The cost of a fault. Rates are in bits per second; `lost_ns` is time at the surviving rate.

    `back_ns` is the time from the fault until goodput was at the surviving rate again. It is None
    if that did not happen in the interval; `lost_ns` then covers the whole interval.
    """

    before_bps: float
    surviving_bps: float
    after_bps: float
    gap_ns: int
    back_ns: int | None
    lost_ns: int


def outage(
    arrivals: Arrivals,
    *,
    steady_ns: int,
    fault_ns: int,
    until_ns: int,
    left: float = 0.75,
    reference_bps: float | None = None,
) -> Outage:
    """Judge a fault at `fault_ns` that left the share `left` of the capacity.

    Goodput before the fault is measured from `steady_ns`, unless `reference_bps` gives it.
    Goodput is back, after a dip, at the start of the first 5 ms bin that reaches the surviving
    rate less 5 % if the mean of the 50 ms from there does so, too. The loss is the sum of
    (surviving rate - goodput) up to then; a burst after a pause does not reduce it.
    """
    before = arrivals.bps(steady_ns, fault_ns) if reference_bps is None else reference_bps
    surviving = before * left
    back = _back_ns(arrivals, fault_ns, until_ns, surviving * (1 - TOLERANCE))
    reached = until_ns if back is None else fault_ns + back
    lost = 0.0
    if reached > fault_ns and surviving:
        lost = (reached - fault_ns) * (1 - arrivals.bps(fault_ns, reached) / surviving)
    return Outage(
        before_bps=before,
        surviving_bps=surviving,
        after_bps=arrivals.bps(reached, until_ns) if reached < until_ns else 0.0,
        gap_ns=arrivals.longest_gap_ns(fault_ns, until_ns),
        back_ns=back,
        lost_ns=max(0, round(lost)),
    )


def _back_ns(arrivals: Arrivals, fault_ns: int, until_ns: int, enough_bps: float) -> int | None:
    rates = arrivals.bins_bps(fault_ns, until_ns, BIN_NS)
    span = SUSTAINED_NS // BIN_NS
    # The dip begins within a few round trips. A low bin much later has other causes.
    early = np.flatnonzero(rates[: 2 * span] < enough_bps)
    if not len(early):
        return 0
    for i in range(int(early[0]), len(rates) - span + 1):
        if rates[i] >= enough_bps and rates[i : i + span].mean() >= enough_bps:
            return i * BIN_NS
    return None


def last_at(samples: Sequence[tuple[int, int]], when_ns: int) -> int:
    """Return the value of a sampled counter at a time: that of the last sample before, else 0."""
    value = 0
    for at_ns, sample in samples:
        if at_ns > when_ns:
            break
        value = sample
    return value


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and extremes of one figure's repetitions."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Return the median and extremes of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def imbalance(counts: Sequence[float]) -> float:
    """Return the largest deviation from the mean as a share of the mean."""
    mean = sum(counts) / len(counts)
    return max(abs(count - mean) for count in counts) / mean if mean else 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """Counts of numbered datagrams by their fate."""

    missing: int
    reordered: int
    duplicated: int


def order_of(sent: int, numbers: Sequence[int] | Ints) -> Order:
    """Count how the numbers 0 .. sent-1 arrived; late ones count as reordered."""
    arrived = np.asarray(numbers, dtype=np.int64)
    distinct, first_seen = np.unique(arrived, return_index=True)
    originals = arrived[np.sort(first_seen)]
    highest = np.maximum.accumulate(originals) if len(originals) else originals
    return Order(
        missing=sent - len(distinct),
        reordered=int((originals < highest).sum()),
        duplicated=len(arrived) - len(distinct),
    )
