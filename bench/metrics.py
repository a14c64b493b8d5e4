# SPDX-License-Identifier: GPL-2.0-only
"""What a record of arrivals says about goodput, gaps and lost capacity (pure).

A record is two arrays of one length: when the application's recv() returned
(CLOCK_MONOTONIC, ns) and how many bytes it returned with.
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
"""Width of the bins recovery is judged by: some 70 packets of 9,000 bytes at 1 Gb/s."""
SUSTAINED_NS = 50 * MS
"""Goodput must stay up, on average, for so long to count as back."""
TOLERANCE = 0.05
"""How near to the surviving rate counts as being back at it."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A record of arrivals, in order of time."""

    times_ns: Ints
    sizes: Ints

    def between(self, start_ns: int, end_ns: int) -> slice:
        """The entries with start <= time < end."""
        low, high = np.searchsorted(self.times_ns, [start_ns, end_ns], side="left")
        return slice(int(low), int(high))

    def bps(self, start_ns: int, end_ns: int) -> float:
        """Mean goodput of an interval, bits per second."""
        return float(self.sizes[self.between(start_ns, end_ns)].sum()) * 8 * S / (end_ns - start_ns)

    def bins_bps(self, start_ns: int, end_ns: int, width_ns: int) -> Floats:
        """Goodput of consecutive bins, bits per second; a last, partial bin is left out."""
        count = (end_ns - start_ns) // width_ns
        inside = self.between(start_ns, start_ns + count * width_ns)
        which = (self.times_ns[inside] - start_ns) // width_ns
        filled = np.bincount(which, weights=self.sizes[inside], minlength=count)
        return filled.astype(np.float64) * 8 * S / width_ns

    def longest_gap_ns(self, start_ns: int, end_ns: int) -> int:
        """The longest time without an arrival that touches the interval.

        A silence that began before counts in full; one that lasts beyond the end is cut there.
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
    """What a fault cost. Rates in bits per second; `lost_ns` is time at the surviving rate.

    `back_ns` is the time from the fault until goodput was at the surviving rate again, None
    if that did not happen in the time looked at; `lost_ns` then covers all of that time.
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

    Goodput before is that from `steady_ns` to the fault, unless `reference_bps` says better.
    Back is the start of the first 5 ms bin, after a dip, that reaches the surviving rate less
    5 % and from which on the mean of 50 ms does so as well. Lost is the sum of
    (surviving rate - goodput) up to there: a burst that follows a pause refunds nothing.
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
    # The dip begins within a few round trips; a slack bin much later has other reasons.
    early = np.flatnonzero(rates[: 2 * span] < enough_bps)
    if not len(early):
        return 0
    for i in range(int(early[0]), len(rates) - span + 1):
        if rates[i] >= enough_bps and rates[i : i + span].mean() >= enough_bps:
            return i * BIN_NS
    return None


def last_at(samples: Sequence[tuple[int, int]], when_ns: int) -> int:
    """The value of a sampled counter at a time: that of the last sample up to it, else 0."""
    value = 0
    for at_ns, sample in samples:
        if at_ns > when_ns:
            break
        value = sample
    return value


@dataclass(frozen=True, slots=True)
class Spread:
    """Repetitions of one figure."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes; there must be a value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def imbalance(counts: Sequence[float]) -> float:
    """The largest deviation from the mean, as a share of the mean."""
    mean = sum(counts) / len(counts)
    return max(abs(count - mean) for count in counts) / mean if mean else 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """What became of numbered datagrams."""

    missing: int
    reordered: int
    duplicated: int


def order_of(sent: int, numbers: Sequence[int] | Ints) -> Order:
    """Judge the numbers 0 .. sent-1 as they arrived; late ones count as reordered."""
    arrived = np.asarray(numbers, dtype=np.int64)
    distinct, first_seen = np.unique(arrived, return_index=True)
    originals = arrived[np.sort(first_seen)]
    highest = np.maximum.accumulate(originals) if len(originals) else originals
    return Order(
        missing=sent - len(distinct),
        reordered=int((originals < highest).sum()),
        duplicated=len(arrived) - len(distinct),
    )
