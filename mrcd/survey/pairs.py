# SPDX-License-Identifier: GPL-2.0-only
"""Infer what loses, delays or changes packets between hosts without a fabric (pure).

The counts of all ways (mrcd/survey/ways.py) go through the same search as those of a fabric's loops
(mrcd/survey/inference.py): the fewest elements that explain them. Ways have a direction, so what is
found has one, too. Loss that a full queue explains has been excused before. What came of the last
probes by kind says more of a fault: only long packets, only some source ports, or damaged ones.

Delays are compared between planes, or, of hosts with one plane, between pairs: the clocks of two
hosts differ, but by the same in all planes, and there and back they cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mrcd.fabric.loops import Element
from mrcd.survey.arrivals import Kinds
from mrcd.survey.cables import BOTH, CABLE
from mrcd.survey.inference import (
    SLOW_TIMES,
    SLOW_US,
    Fault,
    FaultKind,
    Search,
    explaining,
    lower_median,
    noise_of,
)
from mrcd.survey.likelihood import Seen
from mrcd.survey.ways import Way

LEAST: Final = 0.002
"""Least loss that counts as a fault. A way may lose by chance once, a loop at each crossing."""
HOST_COST: Final = 3.0
"""Extra cost of a host as a whole: that one of its NICs fails is far more usual."""
ODD: Final = 0.005
"""Share of packets that come twice from which on it is named."""
MOVED: Final = 0.01
"""Share of pairs whose probes change places from which on it is named."""
DIFFERS: Final = 12.0
"""Twice the log-likelihood ratio from which on two shares differ."""
ALL: Final = 0.9
FEW: Final = 0.1
"""Shares of a port's probes that are lost where it loses all, and where it loses next to none."""
PORT_PROBES: Final = 4
"""Probes of a source port from which on its share of losses tells anything."""
DAMAGED: Final = 0.3
"""Share of the lost that must have arrived damaged for damage to be the fault."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a way's probes did in the window, and what came of its last ones by kind.

    data: a line on what data loses there, if it does. queued: whether a full queue took some.
    """

    seen: Seen
    way: Way
    kinds: Kinds
    data: str = ""
    queued: bool = False


def infer(counted: Sequence[Counted]) -> list[Fault]:
    """Return the fewest faults that explain the counts of all ways."""
    rows = [each for each in counted if each.seen.sent > 0]
    seen = [each.seen for each in rows]
    faults: list[Fault] = []
    if any(each.lost for each in seen):
        found = _Search(seen, noise_of(seen), LEAST).faults()
        faults = [_explained(fault, rows) for fault in found]
    named = {fault.element for fault in faults}
    for kind, least in (("repeat", ODD), ("reorder", MOVED)):
        faults += [f for f in _odd(rows, kind, least) if f.element not in named]
    return faults + _slow(rows, {fault.element for fault in faults})


class _Search(Search):
    """The search among NICs, networks, pairs and hosts."""

    def _cost(self, element: Element) -> float:
        return super()._cost(element) + (HOST_COST if element.kind == "host" else 0.0)

    def _is_kin(self, element: Element, other: Element) -> bool:
        """Return whether both are the same NIC or cable, in one or in both directions."""
        same = element.kind == other.kind in ("nic", "cable")
        return same and whole(element) == whole(other)


def whole(element: Element) -> str:
    """Return the name of a NIC or a cable without the direction."""
    if element.kind == "cable":
        ends = element.name.removeprefix(CABLE).replace(" to ", BOTH).split(BOTH)
        return CABLE + BOTH.join(sorted(ends))
    return element.name.removesuffix(" sending").removesuffix(" receiving")


def is_directed(element: Element) -> bool:
    """Return whether an element stands for one of two directions."""
    if element.kind == "cable":
        return BOTH not in element.name
    if element.kind == "pair":
        return not element.name.startswith("between ")
    return element.name != whole(element)


def _across(element: Element, rows: Iterable[Counted]) -> list[Counted]:
    return [each for each in rows if element in each.way.crossings]


def _explained(fault: Fault, rows: Sequence[Counted]) -> Fault:
    """Return a fault with what the probes across it tell, in numbers."""
    across = _across(fault.element, rows)
    lost = sum(each.seen.lost for each in across)
    sent = sum(each.seen.sent for each in across)
    kinds = total([each.kinds for each in across])
    lines = [f"{lost:,} of {sent:,} probes lost", *_patterns(kinds)]
    kind: FaultKind = fault.kind
    if kinds.damaged > DAMAGED * (kinds.short[1] + kinds.long[1]) and kinds.damaged >= 2:
        kind = "damage"
        lines.append(f"{kinds.damaged:.0f} arrived with other bytes than they were sent with")
    data = [each.data for each in across if each.data]
    return replace(fault, kind=kind, evidence=(*lines, *fault.evidence, *data[:4]))


def total(kinds: Iterable[Kinds]) -> Kinds:
    """Return the sum of what came of several ways' probes."""
    found = Kinds()
    for each in kinds:
        pairs = zip(
            (found.short, found.long, *found.ports),
            (each.short, each.long, *each.ports),
            strict=True,
        )
        for pair, other in pairs:
            pair[0] += other[0]
            pair[1] += other[1]
        found.repeated += each.repeated
        found.moved += each.moved
        found.damaged += each.damaged
    return found


def _patterns(kinds: Kinds) -> list[str]:
    """Return lines on which probes are lost, if not all are alike."""
    lines = []
    (short, short_lost), (long, long_lost) = kinds.short, kinds.long
    if _differ(short, short_lost, long, long_lost) and min(short, long):
        worse = "long" if long_lost / long > short_lost / short else "short"
        lines.append(
            f"mostly {worse} packets: {long_lost:.0f} of {long:.0f} long and "
            f"{short_lost:.0f} of {short:.0f} short probes"
        )
    told = [(sent, lost) for sent, lost in kinds.ports if sent >= PORT_PROBES]
    dead = [each for each in told if each[1] >= ALL * each[0]]
    well = [each for each in told if each[1] <= FEW * each[0]]
    if dead and well and len(dead) + len(well) == len(told):
        lines.append(
            f"{len(dead)} of {len(told)} UDP source ports lose all, the others next to none: "
            "one of several links or ways that a hash chooses from, as of a bond"
        )
    return lines


def _differ(sent: float, lost: float, other_sent: float, other_lost: float) -> bool:
    """Return whether two shares of losses differ by more than chance."""
    apart = _loglike(sent, lost) + _loglike(other_sent, other_lost)
    return 2 * (apart - _loglike(sent + other_sent, lost + other_lost)) > DIFFERS


def _loglike(sent: float, lost: float) -> float:
    return sum(part * math.log(part / sent) for part in (lost, sent - lost) if part > 0)


def _odd(rows: Sequence[Counted], kind: FaultKind | str, least: float) -> list[Fault]:
    """Return what repeats packets, or lets them overtake each other."""
    assert kind in ("repeat", "reorder")
    seen, whole = [], 0
    for each in rows:
        sent = round(each.kinds.sent) or each.seen.sent
        happened = round(each.kinds.repeated if kind == "repeat" else each.kinds.moved)
        whole += happened
        seen.append(Seen(each.seen.loop, sent, min(sent, happened)))
    if whole < 3:
        return []
    found = []
    for fault in _Search(seen, noise_of(seen)).faults():
        if fault.low <= least:
            continue
        across = [one for one in seen if fault.element in one.loop.crossings]
        count, sent = sum(one.lost for one in across), sum(one.sent for one in across)
        what = "came twice" if kind == "repeat" else "were overtaken by later ones of their port"
        line = f"{count:,} of {sent:,} probes {what}"
        named: FaultKind = "repeat" if kind == "repeat" else "reorder"
        found.append(replace(fault, kind=named, evidence=(line,)))
    return found


# ---- delays


def _slow(rows: Sequence[Counted], lossy: set[Element]) -> list[Fault]:
    """Return the elements all of whose ways take far longer than others.

    A long queue delays, too. Where one was full, the ways that share an end of it are not judged.
    """
    full = [each.way for each in rows if each.queued]
    leaving = {(way.sender, way.plane) for way in full}
    arriving = {(way.host.name, way.plane) for way in full}
    extra, timed, alone = _extra(rows)
    if not extra:  # the usual case
        return []
    known = []
    for way in timed:
        if (way.sender, way.plane) in leaving or (way.host.name, way.plane) in arriving:
            extra.pop(way, None)
        else:
            known.append(way)
    guilty: dict[Element, list[Way]] = {}
    for way in known:
        for element in way.crossings:
            if way not in alone or not is_directed(element):
                guilty.setdefault(element, []).append(way)
    guilty = {e: ways for e, ways in guilty.items() if all(way in extra for way in ways)}
    found = []
    for element, ways in explaining(guilty, extra):
        if element in lossy:
            continue
        each = lower_median(extra[way] for way in ways)
        lines = tuple(f"{way.title}: {extra[way] / 1000:.1f} ms more" for way in ways[:4])
        found.append(Fault(element, "slow", 0.0, 0.0, 0.0, each, math.inf, lines, ()))
    return found


def _extra(rows: Sequence[Counted]) -> tuple[dict[Way, float], list[Way], set[Way]]:
    """Return how much too long the slow ways take, in microseconds, and the ways that are known.

    The last are those of hosts with one plane, of which only there and back together is known.
    """
    took: dict[tuple[str, str], dict[int, tuple[float, Way]]] = {}
    for each in rows:
        if each.seen.rtt_us is not None:
            ends = (each.way.sender, each.way.host.name)
            took.setdefault(ends, {})[each.way.plane] = (each.seen.rtt_us, each.way)
    trips = _round_trips(took)
    extra: dict[Way, float] = {}
    known: list[Way] = []
    alone: set[Way] = set()
    for (sender, host), planes in took.items():
        back = took.get((host, sender), {})
        both = planes.keys() & back.keys()
        best = min(both, key=lambda k: planes[k][0] + back[k][0], default=None)
        for plane in sorted(both):
            way = planes[plane][1]
            known.append(way)
            if len(both) == 1:
                alone.add(way)
            trip = planes[plane][0] + back[plane][0]
            usual = trips.get((sender, host, plane))
            if best is None or usual is None:
                continue
            if trip <= max(SLOW_TIMES * usual, usual + SLOW_US):
                continue
            if len(both) > 1:
                more = planes[plane][0] - planes[best][0]
                if more > (trip - usual) / 4:  # this is the way, or one of both ways
                    extra[way] = more
            else:
                extra[way] = (trip - usual) / 2
    return extra, known, alone


def _round_trips(
    took: Mapping[tuple[str, str], Mapping[int, tuple[float, Way]]],
) -> dict[tuple[str, str, int], float]:
    """Return what there and back takes usually, by the other planes or else by the other pairs.

    Pairs of one network are compared: another one, as a cable elsewhere, may be of any length.
    """
    every: dict[tuple[str, str], dict[int, float]] = {}
    for (sender, host), planes in took.items():
        back = took.get((host, sender), {})
        both = planes.keys() & back.keys()
        every[sender, host] = {k: planes[k][0] + back[k][0] for k in both}
    singles: dict[int, list[float]] = {}
    for trips in every.values():
        if len(trips) == 1:
            for plane, trip in trips.items():
                singles.setdefault(plane, []).append(trip)
    found = {}
    for (sender, host), trips in every.items():
        for plane in trips:
            if len(trips) > 1:
                found[sender, host, plane] = lower_median(trips.values())
            elif len(singles[plane]) > 2:
                found[sender, host, plane] = lower_median(singles[plane])
    return found
