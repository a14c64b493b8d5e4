# SPDX-License-Identifier: GPL-2.0-only
"""The graph of hosts and what connects their NICs, and the ways from host to host in it (pure).

Each host says by which of its NICs it hears which NIC of whom. Two NICs that hear each other are
joined, be it by a cable or by a switch. A way leads from a NIC of one host to a NIC of another, and
through hosts that hand packets on (`forward = true`) if need be. All hosts find the same ways in
the same graph, so nobody tells a host that hands packets on which ways lead through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Final

from mrcd.fabric.ranking import Rank

RELAYS_MAX: Final = 8
"""The most hosts that hand packets on in one way."""
Joint = tuple[int, str, int]
"""A NIC of a host, another host's name, and the NIC of that which is joined with it."""
_Before = dict[str, tuple[str, int, int, int]]
"""From which host a search came to each, by which NICs of both, and at which rate, Mb/s."""
_UNLIMITED: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Node:
    """A host as it says to be: its NICs' addresses, whom it hears on them, and what it forwards.

    `near` has no order. `mtu` is that of its planes, bytes, and `rates` are those of the NICs in
    Mb/s, 0 where one is unknown.
    """

    name: str
    addresses: tuple[str, ...]
    near: frozenset[Joint]
    forwards: bool = False
    mtu: int = 0
    rates: tuple[int, ...] = ()

    def mbps(self, nic: int) -> int:
        """Return the rate of a NIC in Mb/s, 0 if it is unknown."""
        return self.rates[nic] if nic < len(self.rates) else 0


@dataclass(frozen=True, slots=True)
class Way:
    """A way between two hosts: each host on it, with the NICs by which packets come and leave.

    The first host has no NIC of arrival and the last one none of departure, which are -1. `mbps` is
    the least rate of what it leads through, in Mb/s, 0 if any of these is unknown.
    """

    stops: tuple[tuple[str, int, int], ...]
    mbps: int = 0

    @property
    def relays(self) -> int:
        """The number of hosts that hand packets on."""
        return len(self.stops) - 2

    @property
    def rank(self) -> Rank:
        """What counts of it where it is compared with others."""
        return Rank(self.relays, self.mbps)

    @property
    def ends(self) -> tuple[int, int]:
        """The NICs of the first and of the last host."""
        return self.stops[0][2], self.stops[-1][1]

    @property
    def reversed(self) -> Way:
        """The same way in the other direction."""
        stops = tuple((name, leave, come) for name, come, leave in reversed(self.stops))
        return Way(stops, self.mbps)


@dataclass(frozen=True, slots=True)
class Handed:
    """What a host hands on: packets between two addresses, by one of its NICs to a neighbour's."""

    source: str
    target: str
    nic: int
    via: str


@dataclass(slots=True)
class _Taken:
    """What the ways of a pair of hosts have taken: NICs of both, and joints."""

    left: set[int] = field(default_factory=set)
    right: set[int] = field(default_factory=set)
    joints: set[frozenset[tuple[str, int]]] = field(default_factory=set)

    def add(self, way: Way) -> None:
        """Take what a way leads through."""
        self.left.add(way.ends[0])
        self.right.add(way.ends[1])
        self.joints.update(_joints_of(way))

    def has(self, one: str, other: str, name: str, joint: Joint) -> bool:
        """Return whether a way between these hosts may not leave another one by a joint."""
        nic, there, theirs = joint
        if (name == one and nic in self.left) or (there == other and theirs in self.right):
            return True
        return frozenset({(name, nic), (there, theirs)}) in self.joints


class Cabling:
    """The graph of some hosts."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = dict(nodes)
        self._found: dict[tuple[str, str], tuple[Way, ...]] = {}

    @cached_property
    def _joints(self) -> Mapping[str, tuple[tuple[Joint, int], ...]]:
        """The joints of each host in a fixed order, of NICs that hear each other, with rates."""
        return {
            name: tuple(
                (joint, self._mbps(name, joint))
                for joint in sorted(node.near)
                if self._is_mutual(name, joint)
            )
            for name, node in self.nodes.items()
        }

    @cached_property
    def _rates(self) -> tuple[int, ...]:
        """The known rates of joints, the lowest first."""
        every = {mbps for joints in self._joints.values() for _joint, mbps in joints}
        return tuple(sorted(every - {0}))

    def _mbps(self, name: str, joint: Joint) -> int:
        """Return the rate of a joint: the least of its NICs, as far as these are known; else 0."""
        nic, other, theirs = joint
        rates = self.nodes[name].mbps(nic), self.nodes[other].mbps(theirs)
        return min(filter(None, rates), default=0)

    @cached_property
    def _forwarding(self) -> bool:
        return any(node.forwards for node in self.nodes.values())

    def _direct(self, one: str, other: str) -> list[Joint]:
        """Return the joints of a host with another one, in the order of `_joints`.

        The host that knows fewer is asked: ours knows all, and most others know ours alone.
        """
        near, there = self.nodes[one].near, self.nodes[other].near
        if len(near) <= len(there):
            found = [joint for joint in near if joint[1] == other]
        else:
            found = [(nic, other, theirs) for theirs, name, nic in there if name == one]
        return sorted(joint for joint in found if joint in near and self._is_mutual(one, joint))

    def _is_mutual(self, name: str, joint: Joint) -> bool:
        nic, other, theirs = joint
        there = self.nodes.get(other)
        known = self.nodes[name].addresses
        if there is None or other == name:
            return False
        if nic >= len(known) or theirs >= len(there.addresses):
            return False
        return (theirs, name, nic) in there.near and bool(known[nic] and there.addresses[theirs])

    def ways(self, one: str, other: str) -> tuple[Way, ...]:
        """Return the ways from one host to another, the best first.

        No two of them share a NIC of either host, or a joint.
        """
        if one > other:
            return tuple(way.reversed for way in self.ways(other, one))
        if one not in self.nodes or other not in self.nodes:
            return ()
        if (one, other) not in self._found:
            self._found[one, other] = self._ways(one, other)
        return self._found[one, other]

    def _ways(self, one: str, other: str) -> tuple[Way, ...]:
        """Find the ways from a host to another one whose name sorts later."""
        found: list[Way] = []
        taken = _Taken()
        while (way := self._best(one, other, taken)) is not None:
            found.append(way)
            taken.add(way)
        return tuple(found)

    def _best(self, one: str, other: str, taken: _Taken) -> Way | None:
        """Return the best way that avoids what is taken: the shortest, or one clearly faster."""
        best = self._shortest(one, other, taken)
        if best is None or not self._forwarding:
            return best
        if not Rank(best.relays + 1, max(self._rates, default=0)).beats(best.rank):
            return best
        for least in self._rates:
            if least <= best.mbps:
                continue
            way = self._shortest(one, other, taken, least)
            if way is None:
                break
            if way.rank.beats(best.rank):
                best = way
        return best

    def _widest(self, one: str, other: str, taken: _Taken, least: int) -> Way | None:
        """Return the direct way of most rate that avoids what is taken, as `_shortest` does."""
        rated = [(joint, self._mbps(one, joint)) for joint in self._direct(one, other)]
        free = [
            (joint, mbps)
            for joint, mbps in rated
            if mbps >= least and not taken.has(one, other, one, joint)
        ]
        if not free:
            return None
        (nic, _other, theirs), mbps = max(free, key=lambda each: each[1] or _UNLIMITED)
        return Way(((one, -1, nic), (other, theirs, -1)), mbps)

    def _shortest(self, one: str, other: str, taken: _Taken, least: int = 0) -> Way | None:
        """Return the shortest way that avoids what is taken; of several, the one of most rate.

        `least`: by joints only that are known to have this rate, in Mb/s, or more. An unknown rate
        limits nothing otherwise. Where ways are alike the first one in the order of joints counts.
        """
        if (direct := self._widest(one, other, taken, least)) is not None:
            return direct
        if not self._forwarding:
            return None
        needed = min(self.nodes[one].mtu, self.nodes[other].mtu)
        before: _Before = {one: ("", -1, -1, 0)}
        width = {one: _UNLIMITED}
        edge = [one]
        for _relays in range(RELAYS_MAX + 1):
            reached: dict[str, None] = {}
            for name in edge:
                for joint, mbps in self._joints[name]:
                    nic, there, theirs = joint
                    wide = min(width[name], mbps or _UNLIMITED)
                    if there in before and (there not in reached or wide <= width[there]):
                        continue
                    if mbps < least or taken.has(one, other, name, joint):
                        continue
                    node = self.nodes[there]
                    if there == other or (node.forwards and node.mtu >= needed):
                        reached[there] = None
                        before[there] = name, nic, theirs, mbps
                        width[there] = wide
            if other in reached:
                return _way(before, other)
            edge = list(reached)
        return None

    def handed_on(self, by: str) -> tuple[Handed, ...]:
        """Return what a host hands on for others."""
        if by not in self.nodes or not self.nodes[by].forwards:
            return ()
        others = sorted(self.nodes.keys() - {by})
        return tuple(
            handed
            for one, other in combinations(others, 2)
            for way in self.ways(one, other)
            for handed in self._handed(by, way)
        )

    def _handed(self, by: str, way: Way) -> Iterator[Handed]:
        """Yield what a host on a way hands on, both ways."""
        for each in (way, way.reversed):
            stops = each.stops
            for place, (name, _come, leave) in enumerate(stops[1:-1], 1):
                if name == by:
                    source = self._address(stops[0][0], stops[0][2])
                    target = self._address(stops[-1][0], stops[-1][1])
                    yield Handed(source, target, leave, self.next_address(each, place))

    def next_address(self, way: Way, place: int = 0) -> str:
        """Return the address to which the host at a place of a way sends."""
        name, come, _leave = way.stops[place + 1]
        return self._address(name, come)

    def last_address(self, way: Way) -> str:
        """Return the address at the end of a way."""
        return self._address(way.stops[-1][0], way.stops[-1][1])

    def _address(self, name: str, nic: int) -> str:
        return self.nodes[name].addresses[nic]


def _joints_of(way: Way) -> Iterator[frozenset[tuple[str, int]]]:
    for (name, _come, leave), (after, come, _leave) in zip(way.stops, way.stops[1:], strict=False):
        yield frozenset({(name, leave), (after, come)})


def _way(before: _Before, last: str) -> Way:
    """Return the way that a search has found to a host."""
    name, nic, theirs, mbps = before[last]
    stops, rates = [(last, theirs, -1)], [mbps]
    while name:
        earlier, before_nic, come, mbps = before[name]
        stops.append((name, come, nic))
        rates += [mbps] if earlier else []
        name, nic = earlier, before_nic
    return Way(tuple(reversed(stops)), min(rates))
