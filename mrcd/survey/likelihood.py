# SPDX-License-Identifier: GPL-2.0-only
"""How likely a set of suspects makes what loops lost (pure).

An element e lets a packet through with probability exp(-s_e) each time the packet crosses it. A
loop that crosses it n_e times then returns with probability exp(-sum n_e s_e), and what it loses of
what it sent is binomial. The logarithm of the likelihood is concave in s, so for a given set of
suspects the best s is found by climbing one coordinate after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrcd.fabric.loops import Element, Loop

SAME = 0.05
"""Log-likelihood that an explanation may lack on another's expected counts to be the same as it."""
S_MAX = 9.0  # exp(-9): one in eight thousand passes, as good as dead


@dataclass(frozen=True, slots=True)
class Seen:
    """What one loop lost in the window; `rtt_us` is a low quantile of its round trips."""

    loop: Loop
    sent: int
    lost: int
    rtt_us: float | None = None


@dataclass(slots=True)
class Row:
    """A loop's counts; x is the exponent that noise alone gives."""

    crossings: dict[int, int]
    sent: int
    lost: float
    noise: float

    def exponent(self, s: Mapping[int, float]) -> float:
        """x, where exp(-x) of the packets return if these suspects lose so much."""
        return self.noise + sum(s[e] * n for e, n in self.crossings.items() if e in s)

    def likelihood(self, x: float) -> float:
        """Logarithm of the probability of what was seen, if exp(-x) of the packets return."""
        value = -x * (self.sent - self.lost)
        if self.lost:
            value += self.lost * math.log(-math.expm1(-x))
        return value


@dataclass(frozen=True, slots=True)
class Fit:
    """The most likely s of each suspect, and the logarithm of the likelihood then."""

    likelihood: float
    s: Mapping[int, float]


class Likelihood:
    """Of one plane: its elements by number, what each loop saw, and who is likely to blame."""

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
            row = Row(crossings, one.sent, one.lost, per_crossing * sum(crossings.values()))
            self.rows.append(row)
            for number in crossings:
                self.crossing[number].append(row)
        self._fits: dict[frozenset[int], Fit] = {}

    def fit(self, suspects: frozenset[int]) -> Fit:
        """The most likely losses of these suspects, everything else being healthy."""
        known = self._fits.get(suspects)
        if known is None:
            known = self._fits[suspects] = self.climb(suspects, {})
        return known

    def climb(self, suspects: frozenset[int], fixed: Mapping[int, float]) -> Fit:
        """The same with the s of some elements given."""
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
        """The most likely s of one element, all others given."""
        terms = []
        for row in self.crossing[e]:
            others = sum(s[o] * n for o, n in row.crossings.items() if o in s and o != e)
            terms.append((row.crossings[e], row.noise + others, row.sent, row.lost))

        def slope(at: float) -> tuple[float, float]:
            """First and second derivative of the log-likelihood."""
            first = second = 0.0
            for n, x, sent, lost in terms:
                first -= n * (sent - lost)
                if lost:
                    odds = 1 / math.expm1(x + n * at)
                    first += n * lost * odds
                    second -= n * n * lost * odds * (1 + odds)
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

    def telling(self, one: frozenset[int], other: frozenset[int]) -> list[tuple[float, int]]:
        """What a probe of each loop tells about which of two explanations is true, if it is `one`.

        The gain in log-likelihood to be expected (Kullback and Leibler's divergence), and the
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
        """The plane as it would look if these suspects were all there is, without any chance."""
        s = self.fit(suspects).s
        ideal = Likelihood(self._seen, self._noise)
        for row in ideal.rows:
            row.lost = -math.expm1(-row.exponent(s)) * row.sent
        return ideal

    def reproduced_by(self, suspects: frozenset[int]) -> bool:
        """Whether these suspects, with the right losses, lead to the counts of every loop."""
        best = sum(
            part * math.log(part / row.sent)
            for row in self.rows
            for part in (row.lost, row.sent - row.lost)
            if part > 0
        )
        return best - self.fit(suspects).likelihood < SAME
