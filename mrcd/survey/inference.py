# SPDX-License-Identifier: GPL-2.0-only
"""Infer which links and switches explain the losses of loops (pure).

Theory of operation
-------------------
mrcd/survey/likelihood.py computes how likely a set of suspects makes the observations, and how much
each suspect then loses. Parsimony (Occam) chooses the set itself: a suspect that does not raise the
log-likelihood by SUSPECT_COST is not needed. The search adds, drops and exchanges suspects, and
replaces two by one, until nothing improves. A switch is therefore named instead of its links
exactly when all its observed links agree: one suspect then replaces several.

A remaining suspect is reported only if the least loss compatible with the observations exceeds
LOSS_NAMED. The model includes noise of the machines, which is never reported as a fault: NOISE for
each crossing, and more where a host sees the same loss on most of its planes.

Planes share only hosts, so each plane is solved separately.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeVar

from mrcd.fabric.loops import Element, Trip
from mrcd.survey.likelihood import S_MAX, Likelihood
from mrcd.survey.likelihood import Seen as Seen

_Late = TypeVar("_Late", bound=Hashable)

SUSPECT_COST = 9.0
"""Gain in log-likelihood that justifies one more suspect: odds of 8000 to 1."""
SWITCH_COST = 0.3
"""Extra cost of a suspected switch. It makes the search prefer links between otherwise equal
explanations, because links break more often than switches."""
LOSS_NAMED = 0.005
"""Least loss per crossing that counts as a fault."""
TELLING = 0.25
"""A loop is telling if its probes yield at least this share of the most telling loop's information.
"""
LOSS_DEAD = 0.95
"""Loss at and above which an element counts as dead."""
SURE = 3.0
"""Drop in log-likelihood at the bounds of compatible losses: about 99 % one-sided."""
NOISE = 2e-4
NOISE_MAX = 1e-3
"""Loss of a healthy element per crossing, and its maximum with the noise of the host added."""
SLOW_TIMES = 5.0
SLOW_US = 2000.0
"""A loop is slow when its round trip exceeds that of the like loops on other planes both by this
factor and by this time."""
_SUSPECTS_MAX = 12  # per plane
_SCREEN = 4  # candidates that each move fits in full

FaultKind = Literal["dead", "loss", "slow", "damage", "repeat", "reorder", "flap"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A link or a switch that is at fault.

    `loss` (0 to 1) is per crossing: of a link in either direction, or of a switch by any packet
    that enters it. `low` and `high` bound it. `certainty` is the margin (logarithm of the odds) by
    which every explanation without this element falls behind. `alternatives` are sets of elements
    that each explain the observations exactly as well in its place. `telling` holds the loops of
    all hosts whose probes best distinguish this element from the next best explanation. `extra_us`
    is the excess time of one crossing, in microseconds (slow).
    """

    element: Element
    kind: FaultKind
    loss: float
    low: float
    high: float
    extra_us: float
    certainty: float
    evidence: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...]
    telling: tuple[Trip, ...] = ()


def infer(seen: Sequence[Seen]) -> list[Fault]:
    """Return the fewest faults that explain the counts of all hosts' loops, plane by plane."""
    useful = [one for one in seen if one.sent > 0]
    noise = noise_of(useful)
    planes: dict[int, list[Seen]] = {}
    for one in useful:
        planes.setdefault(one.loop.plane, []).append(one)
    faults = [fault for plane in sorted(planes) for fault in Search(planes[plane], noise).faults()]
    return faults + _slow(useful, {fault.element for fault in faults})


def noise_of(seen: Iterable[Seen]) -> dict[str, float]:
    """Return each host's loss per crossing, estimated from its better planes.

    With four planes the second best counts, and with eight the fourth, so that faults on half of
    the planes do not raise the estimate. With three planes the best counts. Two planes or fewer
    allow no estimate.
    """
    sums: dict[str, dict[int, tuple[int, int]]] = {}
    for one in seen:
        planes = sums.setdefault(one.loop.host.name, {})
        lost, crossed = planes.get(one.loop.plane, (0, 0))
        planes[one.loop.plane] = (lost + one.lost, crossed + one.sent * one.loop.hops)
    found = {}
    for host, planes in sums.items():
        rates = sorted(lost / crossed for lost, crossed in planes.values())
        rate = rates[max(0, len(rates) // 2 - 1)] if len(rates) > 2 else 0.0
        found[host] = min(NOISE_MAX, NOISE + rate)
    return found


class Search:
    """One plane: the counts of its loops, and the search for suspects."""

    def __init__(
        self, seen: Sequence[Seen], noise: Mapping[str, float], least: float = LOSS_NAMED
    ) -> None:
        """Search what loses more than `least` at each crossing."""
        self._seen = seen
        self._least = least
        self._model = Likelihood(seen, noise)
        self._elements = self._model.elements

    # ---- the search

    def _score(self, suspects: frozenset[int]) -> float:
        costs = sum(self._cost(self._elements[e]) for e in suspects)
        return self._model.fit(suspects).likelihood - costs

    def _cost(self, element: Element) -> float:
        """Return the gain in log-likelihood that justifies a suspect."""
        return SUSPECT_COST + (SWITCH_COST if element.is_switch else 0.0)

    def _is_kin(self, element: Element, other: Element) -> bool:
        """Return whether naming one for the other is no mistake, only less exact."""
        return False

    def _candidates(self) -> list[int]:
        """Return the elements that may be suspected: those whose loops lose more than a little."""
        found = []
        for e, rows in enumerate(self._model.crossing):
            lost, sent = sum(row.lost for row in rows), sum(row.sent for row in rows)
            if lost >= 3 and lost > self._least * sent:
                found.append(e)
        return found

    def _screened(self, suspects: frozenset[int], candidates: Iterable[int]) -> list[int]:
        """Return the candidates that would improve this set most, estimated without a new fit."""
        s = dict(self._model.fit(suspects).s)
        gains = []
        for e in candidates:
            if e in suspects:
                continue
            best = self._model.best(e, s)
            gain = 0.0
            for row in self._model.crossing[e] if best else ():
                x = row.exponent(s)
                gain += row.likelihood(x + best * row.crossings[e]) - row.likelihood(x)
            gains.append((-gain, self._elements[e].is_switch, e))
        return [e for _gain, _switch, e in sorted(gains)[:_SCREEN]]

    def _moves(self, now: frozenset[int], candidates: Sequence[int]) -> set[frozenset[int]]:
        found = {now - {e} for e in now}
        if len(now) < _SUSPECTS_MAX:
            found |= {now | {e} for e in self._screened(now, candidates)}
        for e in now:
            found |= {now - {e} | {c} for c in self._screened(now - {e}, candidates)}
        if 2 <= len(now) <= 6:
            for a, b in combinations(sorted(now), 2):
                rest = now - {a, b}
                found |= {rest | {c} for c in self._screened(rest, candidates)}
        return found - {now}

    def suspects(self) -> frozenset[int]:
        """Return the set of suspects with the best score."""
        now: frozenset[int] = frozenset()
        candidates = self._candidates()
        while candidates:
            best = max(
                self._moves(now, candidates), key=lambda s: (self._score(s), sorted(s)), default=now
            )
            if self._score(best) <= self._score(now) + 1e-6:
                break
            now = best
        return now

    # ---- the answer

    def faults(self) -> list[Fault]:
        """Return the suspects that certainly lose packets, with the evidence."""
        suspects = self.suspects()
        fit = self._model.fit(suspects)
        found = []
        for e in sorted(suspects, key=lambda e: self._elements[e].name):
            low, high = self._bounds(suspects, e)
            if low <= self._least:
                continue
            loss = -math.expm1(-fit.s[e])
            certainty, alternatives, rival = self._judged(e, suspects)
            found.append(
                Fault(
                    element=self._elements[e],
                    kind="dead" if loss >= LOSS_DEAD else "loss",
                    loss=loss,
                    low=low,
                    high=high,
                    extra_us=0.0,
                    certainty=certainty,
                    evidence=self._evidence(e, suspects),
                    alternatives=alternatives,
                    telling=self._telling(suspects, rival),
                )
            )
        return found

    def _bounds(self, suspects: frozenset[int], e: int) -> tuple[float, float]:
        """Return the least and greatest loss of a suspect compatible with the observations."""
        fit = self._model.fit(suspects)

        def compatible(loss: float) -> bool:
            s = min(S_MAX, -math.log1p(-loss)) if loss < 1 else S_MAX
            return self._model.climb(suspects, {e: s}).likelihood >= fit.likelihood - SURE

        def bound(inside: float, outside: float) -> float:
            if compatible(outside):
                return outside
            for _ in range(9):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if compatible(middle) else (inside, middle)
            return (inside + outside) / 2

        loss = -math.expm1(-fit.s[e])
        return bound(loss, 0.0), bound(loss, 1.0)

    def _rivals(self, e: int, suspects: frozenset[int]) -> set[frozenset[int]]:
        """Return the most promising explanations that do not contain one of the suspects."""
        rest = suspects - {e}
        candidates = [c for c in self._candidates() if c != e]
        found = {rest}
        for one in self._screened(rest, candidates):
            found.add(rest | {one})
            found |= {rest | {one, two} for two in self._screened(rest | {one}, candidates)}
        return found

    def _judged(
        self, e: int, suspects: frozenset[int]
    ) -> tuple[float, tuple[tuple[str, ...], ...], frozenset[int]]:
        """Return the certainty, the equivalent alternatives, and the next best explanation."""
        certainty, same, nearest = math.inf, set(), suspects
        expected = self._model.expected(suspects)
        for rival in self._rivals(e, suspects):
            if any(self._is_kin(self._elements[e], self._elements[r]) for r in rival - suspects):
                continue
            behind = self._score(suspects) - self._score(rival)
            if behind < 2 * SUSPECT_COST and expected.reproduced_by(rival):
                same.add(rival - suspects)
            elif behind < certainty:
                certainty, nearest = behind, rival
        names = [tuple(sorted(self._elements[x].name for x in sets)) for sets in _minimal(same)]
        return certainty, tuple(sorted(names, key=lambda n: (len(n), n))), nearest

    def _telling(self, suspects: frozenset[int], rival: frozenset[int]) -> tuple[Trip, ...]:
        """Return the loops that distinguish the two explanations, the most telling first."""
        told = sorted(self._model.telling(suspects, rival), reverse=True)
        return tuple(
            self._seen[number].loop for gain, number in told if gain > max(0, TELLING * told[0][0])
        )

    def _evidence(self, e: int, suspects: frozenset[int]) -> tuple[str, ...]:
        """Return lines on loops that cross it and lose, and on loops that cross no suspect."""
        across, beside = [], []
        for one, row in zip(self._seen, self._model.rows, strict=True):
            if e in row.crossings and one.lost:
                only = len(suspects & row.crossings.keys()) == 1
                across.append((not only, -one.lost / one.sent, one))
            elif not suspects & row.crossings.keys():
                shared = set(row.crossings) & {
                    x for r in self._model.crossing[e] for x in r.crossings
                }
                beside.append((-len(shared), one.lost / one.sent, one))
        lines = [_line(one) for *_, one in sorted(across, key=lambda item: item[:2])[:4]]
        lines += [_line(one) for *_, one in sorted(beside, key=lambda item: item[:2])[:2]]
        return tuple(lines)


def _minimal(sets: set[frozenset[int]]) -> list[frozenset[int]]:
    """Return the non-empty sets that contain no other of the sets."""
    sets = {each for each in sets if each}
    return [each for each in sets if not any(other < each for other in sets)]


def _line(one: Seen) -> str:
    return f"{one.loop.title}: lost {one.lost} of {one.sent}"


def _slow(seen: Sequence[Seen], lossy: set[Element]) -> list[Fault]:
    """Return the elements all of whose loops take far longer than like loops on other planes."""
    like: dict[tuple[str, str], dict[int, list[float]]] = {}
    for one in seen:
        if one.rtt_us is not None:
            planes = like.setdefault((one.loop.host.name, one.loop.kind), {})
            planes.setdefault(one.loop.plane, []).append(one.rtt_us)
    usual = {key: lower_median(min(rtts) for rtts in p.values()) for key, p in like.items()}
    extra: dict[int, float] = {}
    across: dict[Element, list[int]] = {}
    for i, one in enumerate(seen):
        if one.rtt_us is None:
            continue
        base = usual[one.loop.host.name, one.loop.kind]
        if one.rtt_us > max(SLOW_TIMES * base, base + SLOW_US):
            extra[i] = one.rtt_us - base
        for element in one.loop.crossings:
            across.setdefault(element, []).append(i)
    guilty = {e: loops for e, loops in across.items() if all(i in extra for i in loops)}
    found = []
    for element, loops in explaining(guilty, extra):
        if element in lossy:
            continue
        each = lower_median(extra[i] / seen[i].loop.crossings[element] for i in loops)
        lines = tuple(f"{seen[i].loop.title}: {seen[i].rtt_us:.0f} us" for i in loops[:4])
        found.append(Fault(element, "slow", 0.0, 0.0, 0.0, each, math.inf, lines, ()))
    return found


def explaining(
    guilty: Mapping[Element, Sequence[_Late]], late: Iterable[_Late]
) -> Iterator[tuple[Element, Sequence[_Late]]]:
    """Yield few elements that explain all that is late, with what crosses each.

    `guilty` has the elements that delay all that crosses them. The one that explains most is first.
    """
    unexplained, left = set(late), dict(guilty)
    while unexplained and left:
        element = max(
            left, key=lambda e: (len(unexplained.intersection(left[e])), not e.is_switch, e.name)
        )
        crossing = left.pop(element)
        if not unexplained.intersection(crossing):
            return
        unexplained.difference_update(crossing)
        yield element, crossing


def lower_median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
