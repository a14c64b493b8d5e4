# SPDX-License-Identifier: GPL-2.0-only
"""Loops: uSID lists that lead back to their sender, and which host probes which (pure).

A loop needs no help from other hosts: the switches forward its packets like any others, and the
sender counts those that come back. A host on T0 j has three kinds of loop in each plane:

    near    T0 j, host                          tests the NIC link and T0 j
    up      T0 j, T1 m, T0 j, host              also T1 m and the link between them
    far     T0 j, T1 m, T0 k, T1 m, T0 j, host  also T0 k and its link to T1 m: all six uSIDs

An element that a loop crosses twice can lose its packets twice. A switch counts once for each time
a packet enters it. A lossy switch therefore looks exactly like all its links losing half as much in
each direction, and no measurement from outside can tell the two apart.

Every host probes its own `near` loops. The other loops are shared: PROBERS hosts of its T0 and
PROBERS hosts elsewhere probe each link. They are chosen by arithmetic, so every host knows which
host probes what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mrcd.fabric import naming, usid
from mrcd.fabric.description import Fabric, Host

PROBERS = 2
"""Hosts that probe a link from each side; more than one, as a prober may have faults itself."""
LOOPS_MAX = 4096
"""The most loops of one host; beyond that, evenly spaced loops are left out."""

Members = dict[int, list[Host]]

Kind = Literal["near", "up", "far"]
ElementKind = Literal["nic", "link", "t0", "t1", "network", "cable", "pair", "host"]


@dataclass(frozen=True, slots=True)
class Element:
    """A part of the fabric that can fail: a NIC link, a link between switches, or a switch.

    Where there is no fabric (mrcd/survey/pairs.py) it is a NIC, the way between two, the network of
    a plane, a cable, or a host with all of its NICs. `plane` is -1 for a host, and for what this
    host has no NIC on.
    """

    name: str
    kind: ElementKind
    plane: int

    @property
    def is_switch(self) -> bool:
        """Return whether the element is a switch, or stands for as many others as one does."""
        return self.kind in ("t0", "t1", "network", "host")


class Trip(Protocol):
    """What probes cross: a loop, or the way from one host to another."""

    @property
    def host(self) -> Host:
        """Return the host that counts the probes."""

    @property
    def plane(self) -> int:
        """Return the plane."""

    @property
    def kind(self) -> str:
        """Return what trips are alike."""

    @property
    def crossings(self) -> Mapping[Element, int]:
        """Return the elements that are crossed, and how many times."""

    @property
    def hops(self) -> int:
        """Return how many times a healthy network may lose a probe by chance."""

    @property
    def title(self) -> str:
        """Return the trip in words."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop. `t1`, and `t0` for the far T0, are 0 where the loop does not go that far.

    `crossings`: the elements that the loop crosses, and how many times.
    """

    host: Host
    plane: int
    kind: Kind
    t1: int
    t0: int
    crossings: dict[Element, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "crossings", self._crossings())

    @property
    def usids(self) -> tuple[int, ...]:
        """The uSIDs that the loop visits, ending with the sender's port."""
        own = usid.usid(self.plane, usid.ROLE_T0, self.host.t0)
        last = usid.usid(self.plane, usid.ROLE_HOST, self.host.port)
        if self.kind == "near":
            return (own, last)
        spine = usid.usid(self.plane, usid.ROLE_T1, self.t1)
        if self.kind == "up":
            return (own, spine, own, last)
        return (own, spine, usid.usid(self.plane, usid.ROLE_T0, self.t0), spine, own, last)

    def _crossings(self) -> dict[Element, int]:
        """Return the elements that the loop crosses, and how many times."""
        plane, j, m, k = self.plane, self.host.t0, self.t1, self.t0
        found = {nic(plane, self.host): 2, t0(plane, j): 1}
        if self.kind != "near":
            found |= {t0(plane, j): 2, t1(plane, m): 1, link(plane, j, m): 2}
        if self.kind == "far":
            found |= {t1(plane, m): 2, t0(plane, k): 1, link(plane, k, m): 2}
        return found

    @property
    def hops(self) -> int:
        """How many times a probe crosses anything."""
        return sum(self.crossings.values())

    @property
    def title(self) -> str:
        """The loop in words."""
        return f"{self} and back"

    def __str__(self) -> str:
        stops = [self.host.name, naming.t0(self.plane, self.host.t0)]
        if self.kind != "near":
            stops.append(naming.t1(self.plane, self.t1))
        if self.kind == "far":
            stops.append(naming.t0(self.plane, self.t0))
        return " - ".join(stops)


def nic(plane: int, host: Host) -> Element:
    """Return the element for a host's link to its T0."""
    return Element(naming.nic(plane, host.name), "nic", plane)


def t0(plane: int, index: int) -> Element:
    """Return the element for a T0."""
    return Element(naming.t0(plane, index), "t0", plane)


def t1(plane: int, index: int) -> Element:
    """Return the element for a T1."""
    return Element(naming.t1(plane, index), "t1", plane)


def link(plane: int, t0_index: int, t1_index: int) -> Element:
    """Return the element for the link between a T0 and a T1."""
    return Element(naming.link(plane, t0_index, t1_index), "link", plane)


def members_of(fabric: Fabric) -> Members:
    """Return the hosts of each T0 that has any, by T0.

    This reads all hosts of the fabric, so call it once and keep the result.
    """
    members: Members = {}
    for host in fabric.hosts:
        members.setdefault(host.t0, []).append(host)
    return dict(sorted(members.items()))


def loops_of(fabric: Fabric, host: Host, members: Members | None = None) -> tuple[Loop, ...]:
    """Return the loops that a host probes, in probing order: planes in turn, near loops first.

    Planes are alike, so a host probes the same loops in each of them.
    """
    shares = list(_shares(fabric, host, members_of(fabric) if members is None else members))
    room = LOOPS_MAX // fabric.planes
    if len(shares) > room:
        shares = [shares[i * len(shares) // room] for i in range(room)]
    return tuple(
        Loop(host, plane, kind, m, k) for kind, m, k in shares for plane in range(fabric.planes)
    )


def _shares(fabric: Fabric, host: Host, members: Members) -> Iterator[tuple[Kind, int, int]]:
    """Yield the loops that a host probes in each plane: kind, T1 and far T0."""
    yield "near", 0, 0
    t0s = list(members)
    own = t0s.index(host.t0)
    for m in range(1, fabric.t1 + 1):
        if host in _neighbours(members[host.t0], m):
            yield "up", m, 0
    for k in range(1, fabric.t0 + 1):
        if k == host.t0:
            continue
        at = t0s.index(k) if k in members else len(t0s)
        others = len(t0s) - (k in members)
        # Our number among the T0s other than k selects PROBERS of every `others` T1s.
        number = own - (own > at)
        for m in range(1, fabric.t1 + 1):
            if (number - m) % others < PROBERS and host in _strangers(members, t0s, at, k, m):
                yield "far", m, k


def _neighbours(hosts: list[Host], m: int) -> list[Host]:
    """Return the hosts of a T0 that probe its link to T1 m."""
    return [hosts[(m + i) % len(hosts)] for i in range(min(PROBERS, len(hosts)))]


def _strangers(members: Members, t0s: list[int], at: int, k: int, m: int) -> list[Host]:
    """Return the hosts of other T0s that probe the link between T0 k and T1 m.

    They are on different T0s if possible. `at`: the index of k in `t0s`, or past the end if k has
    no hosts.
    """
    others = len(t0s) - (at < len(t0s))
    chosen: list[Host] = []
    for i in range(PROBERS):
        number = (m + i) % others
        hosts = members[t0s[number + (number >= at)]]
        prober = hosts[(k + m + i // others) % len(hosts)]
        if prober not in chosen:
            chosen.append(prober)
    return chosen
