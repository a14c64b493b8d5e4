# SPDX-License-Identifier: GPL-2.0-only
"""Compute how likely a set of suspects makes the losses of loops (pure).

An element e passes a packet with probability exp(-s_e) at each crossing. A probe of a loop that
crosses the elements n_e times then returns with probability exp(-sum n_e s_e), and the number of
lost probes is binomial. The log-likelihood is concave in s, so coordinate ascent finds the best s
for a given set of suspects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrcd.fabric.loops import Element, Trip

SAME = 0.05
"""Deficit in log-likelihood, on another explanation's expected counts, up to which both explain the
same."""
S_MAX = 9.0  # exp(-9): one packet in eight thousand passes, as good as dead


@dataclass(frozen=True, slots=True)
class Seen:
    """The counts of one loop in the window; `rtt_us` is a low quantile of its round trips."""

    loop: Trip
    sent: int
    lost: int
    rtt_us: float | None = None


@dataclass(slots=True)
class Row:
    """The counts of one loop; `noise` is the exponent that noise alone contributes."""

    crossings: dict[int, int]
    sent: int
    lost: float
    noise: float

    def exponent(self, s: Mapping[int, float]) -> float:
        """Return x such that a share exp(-x) of the packets returns, given the suspects' s."""
        x, crossings = self.noise, self.crossings
        for e, each in s.items():  # suspects are fewer than what a loop crosses
            if e in crossings:
                x += each * crossings[e]
        return x

    def likelihood(self, x: float) -> float:
        """Return the log-likelihood of the counts if a share exp(-x) of the packets returns."""
        value = -x * (self.sent - self.lost)
        if self.lost:
            value += self.lost * math.log(-math.expm1(-x))
        return value


@dataclass(frozen=True, slots=True)
class Fit:
    """The most likely s of each suspect, and the resulting log-likelihood."""

    likelihood: float
    s: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class _Part:
    """Of the loops over an element: crossings of probes that came back, and the loops that lose.

    lossy: how often each crosses the element, and its counts. The others add only to `came_back`.
    """

    came_back: float
    lossy: Sequence[tuple[int, Row]]


class Likelihood:
    """The model of one plane: its numbered elements, its loops' counts, and fits of suspects."""

    def __init__(self, seen: Sequence[Seen], noise: Mapping[str, float]) -> None:
        self._seen = seen
        self._noise = noise
        self.elements: list[Element] = []
        numbers: dict[Element, int] = {}
        self.rows: list[Row] = []
        self.crossing: list[list[Row]] = []
        for one in seen:
            crossings = {}
            for element, times in one.loop.crossings.items():
                if element not in numbers:
                    numbers[element] = len(self.elements)
                    self.elements.append(element)
                    self.crossing.append([])
                crossings[numbers[element]] = times
            per_crossing = noise[one.loop.host.name]
            row = Row(crossings, one.sent, one.lost, per_crossing * one.loop.hops)
            self.rows.append(row)
            for number in crossings:
                self.crossing[number].append(row)
        self._fits: dict[frozenset[int], Fit] = {}
        self._parts: dict[int, _Part] = {}

    def fit(self, suspects: frozenset[int]) -> Fit:
        """Return the most likely losses of these suspects if every other element is healthy."""
        known = self._fits.get(suspects)
        if known is None:
            known = self._fits[suspects] = self.climb(suspects, {})
        return known

    def climb(self, suspects: frozenset[int], fixed: Mapping[int, float]) -> Fit:
        """Return the same fit with the s of some elements fixed."""
        s = dict.fromkeys(sorted(suspects - fixed.keys()), 0.0) | dict(fixed)
        free = [e for e in s if e not in fixed]
        before = -math.inf
        for _ in range(60):
            for e in free:
                s[e] = self.best(e, s)
            now = self._likelihood(s)
            if now - before < 1e-3:
                break
            before = now
        return Fit(self._likelihood(s), s)

    def _likelihood(self, s: Mapping[int, float]) -> float:
        return sum(row.likelihood(row.exponent(s)) for row in self.rows)

    def best(self, e: int, s: Mapping[int, float]) -> float:
        """Return the most likely s of one element, given that of all others."""
        part = self._part(e)
        others = {o: each for o, each in s.items() if o != e and each}
        terms = [(n, row.exponent(others), n * row.lost) for n, row in part.lossy]

        def slope(at: float) -> tuple[float, float]:
            """Return the first and second derivative of the log-likelihood."""
            first, second = -part.came_back, 0.0
            for n, x, lost in terms:
                odds = 1 / math.expm1(x + n * at)
                first += lost * odds
                second -= n * lost * odds * (1 + odds)
            return first, second

        low, high = 0.0, S_MAX
        if slope(low)[0] <= 0:
            return low
        if slope(high)[0] >= 0:
            return high
        at = min(max(s.get(e, 0.0), 0.01), high / 2)
        for _ in range(40):
            first, second = slope(at)
            if first > 0:
                low = at
            else:
                high = at
            step = at - first / second if second else low
            if not low < step < high:
                step = (low + high) / 2
            if abs(step - at) < 1e-4 * at:
                return step
            at = step
        return at

    def _part(self, e: int) -> _Part:
        """Return what the loops over an element contribute, which no fit changes."""
        known = self._parts.get(e)
        if known is None:
            rows = [(row.crossings[e], row) for row in self.crossing[e]]
            known = self._parts[e] = _Part(
                sum(n * (row.sent - row.lost) for n, row in rows),
                [(n, row) for n, row in rows if row.lost],
            )
        return known

    def telling(self, one: frozenset[int], other: frozenset[int]) -> list[tuple[float, int]]:
        """Return how well a probe of each loop distinguishes two explanations if `one` is true.

        Each item is the expected gain in log-likelihood (Kullback-Leibler divergence) and the
        number of the loop.
        """
        these, those = self.fit(one).s, self.fit(other).s
        found = []
        for number, row in enumerate(self.rows):
            x, y = row.exponent(these), row.exponent(those)
            lost = -math.expm1(-x)
            found.append(((1 - lost) * (y - x) + lost * math.log(lost / -math.expm1(-y)), number))
        return found

    def expected(self, suspects: frozenset[int]) -> Likelihood:
        """Return the plane with the counts expected from these suspects, without randomness."""
        s = self.fit(suspects).s
        ideal = Likelihood(self._seen, self._noise)
        for row in ideal.rows:
            row.lost = -math.expm1(-row.exponent(s)) * row.sent
        return ideal

    def reproduced_by(self, suspects: frozenset[int]) -> bool:
        """Return whether these suspects, with the right losses, explain every loop's counts."""
        best = sum(
            part * math.log(part / row.sent)
            for row in self.rows
            for part in (row.lost, row.sent - row.lost)
            if part > 0
        )
        return best - self.fit(suspects).likelihood < SAME
