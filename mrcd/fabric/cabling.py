# SPDX-License-Identifier: GPL-2.0-only
"""The graph of hosts and what connects their NICs, and the ways from host to host in it (pure).

Each host says by which of its NICs it hears which NIC of whom. Two NICs that hear each other are
joined, be it by a cable or by a switch. A way leads from a NIC of one host to a NIC of another, and
through hosts that hand packets on (`forward = true`) if need be. All hosts find the same ways in
the same graph, so nobody tells a host that hands packets on which ways lead through it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final

RELAYS_MAX: Final = 8
"""The most hosts that hand packets on in one way."""
Joint = tuple[int, str, int]
"""A NIC of a host, another host's name, and the NIC of that which is joined with it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A host as it says to be: its NICs' addresses, whom it hears on them, and what it forwards.

    `near` has no order. `mtu` is that of its planes, bytes.
    """

    name: str
    addresses: tuple[str, ...]
    near: frozenset[Joint]
    forwards: bool = False
    mtu: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """A way between two hosts: each host on it, with the NICs by which packets come and leave.

    The first host has no NIC of arrival and the last one none of departure, which are -1.
    """

    stops: tuple[tuple[str, int, int], ...]

    @property
    def relays(self) -> int:
        """The number of hosts that hand packets on."""
        return len(self.stops) - 2

    @property
    def ends(self) -> tuple[int, int]:
        """The NICs of the first and of the last host."""
        return self.stops[0][2], self.stops[-1][1]

    @property
    def reversed(self) -> Way:
        """The same way in the other direction."""
        return Way(tuple((name, leave, come) for name, come, leave in reversed(self.stops)))


@dataclass(frozen=True, slots=True)
class Handed:
    """What a host hands on: packets between two addresses, by one of its NICs to a neighbour's."""

    source: str
    target: str
    nic: int
    via: str


class Cabling:
    """The graph of some hosts."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = dict(nodes)
        self._found: dict[tuple[str, str], tuple[Way, ...]] = {}

    @cached_property
    def _joints(self) -> Mapping[str, tuple[Joint, ...]]:
        """The joints of each host in a fixed order, of NICs that hear each other."""
        return {
            name: tuple(sorted(joint for joint in node.near if self._is_mutual(name, joint)))
            for name, node in self.nodes.items()
        }

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
        """Return the ways from one host to another, the shortest first.

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
        used: set[frozenset[tuple[str, int]]] = set()
        left, right = set[int](), set[int]()
        while (way := self._shortest(one, other, used, left, right)) is not None:
            found.append(way)
            left.add(way.ends[0])
            right.add(way.ends[1])
            used.update(_joints_of(way))
        return tuple(found)

    def _shortest(
        self,
        one: str,
        other: str,
        used: set[frozenset[tuple[str, int]]],
        left: set[int],
        right: set[int],
    ) -> Way | None:
        """Return the shortest way that avoids joints, and NICs at both ends: one of several."""
        needed = min(self.nodes[one].mtu, self.nodes[other].mtu)
        before: dict[str, tuple[str, int, int]] = {one: ("", -1, -1)}
        queue = deque([(one, 0)])
        while queue:
            name, relays = queue.popleft()
            for nic, there, theirs in self._joints[name]:
                if there in before or frozenset({(name, nic), (there, theirs)}) in used:
                    continue
                if name == one and nic in left:
                    continue
                if there == other:
                    if theirs in right:
                        continue
                    before[there] = name, nic, theirs
                    return _way(before, other)
                node = self.nodes[there]
                if node.forwards and relays < RELAYS_MAX and node.mtu >= needed:
                    before[there] = name, nic, theirs
                    queue.append((there, relays + 1))
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


def _way(before: Mapping[str, tuple[str, int, int]], last: str) -> Way:
    """Return the way that a search has found to a host."""
    stops = [(last, before[last][2], -1)]
    name, nic, _theirs = before[last]
    while name:
        come = before[name][2]
        stops.append((name, come, nic))
        name, nic, _ = before[name]
    return Way(tuple(reversed(stops)))
