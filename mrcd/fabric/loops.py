# SPDX-License-Identifier: GPL-2.0-only
"""Loops: uSID lists that lead back to their sender, and which host probes which (pure).

A loop needs nobody's help: the switches forward it like any packet, and whoever sent it counts
what comes back. Three kinds, from a host on T0 j, plane by plane:

    near    T0 j, host                          the NIC link and T0 j
    up      T0 j, T1 m, T0 j, host              and T1 m and the link between them
    far     T0 j, T1 m, T0 k, T1 m, T0 j, host  and T0 k and its link to T1 m: all six uSIDs

What a loop crosses twice it loses twice. A switch counts once for each time a packet enters it, so
a switch that loses looks exactly like all its links losing half as much in each direction, and
nothing outside can tell these two apart.

Every host probes its own `near` loops. The others are shared: each link is probed by PROBERS hosts
of its T0 and by PROBERS hosts elsewhere, chosen by arithmetic, so every host knows who probes what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from mrcd.fabric import naming, usid
from mrcd.fabric.description import Fabric, Host

PROBERS = 2
"""Hosts that probe one link from either side: one of them may have faults of its own."""
LOOPS_MAX = 4096
"""Loops of one host; beyond, evenly spaced ones are left out."""

Members = dict[int, list[Host]]

Kind = Literal["near", "up", "far"]
ElementKind = Literal["nic", "link", "t0", "t1"]


@dataclass(frozen=True, slots=True)
class Element:
    """Something that can break: a NIC link, a link between switches, or a switch."""

    name: str
    kind: ElementKind
    plane: int

    @property
    def is_switch(self) -> bool:
        """Whether it is a switch."""
        return self.kind in ("t0", "t1")


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop. `t1` and `t0` are 0 where it does not go so far; `t0` is the far one.

    `crossings`: what it crosses, and how often.
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
        """The uSIDs it visits, ending with the sender's port."""
        own = usid.usid(self.plane, usid.ROLE_T0, self.host.t0)
        last = usid.usid(self.plane, usid.ROLE_HOST, self.host.port)
        if self.kind == "near":
            return (own, last)
        spine = usid.usid(self.plane, usid.ROLE_T1, self.t1)
        if self.kind == "up":
            return (own, spine, own, last)
        return (own, spine, usid.usid(self.plane, usid.ROLE_T0, self.t0), spine, own, last)

    def _crossings(self) -> dict[Element, int]:
        """What it crosses, and how often."""
        plane, j, m, k = self.plane, self.host.t0, self.t1, self.t0
        found = {nic(plane, self.host): 2, t0(plane, j): 1}
        if self.kind != "near":
            found |= {t0(plane, j): 2, t1(plane, m): 1, link(plane, j, m): 2}
        if self.kind == "far":
            found |= {t1(plane, m): 2, t0(plane, k): 1, link(plane, k, m): 2}
        return found

    def __str__(self) -> str:
        stops = [self.host.name, naming.t0(self.plane, self.host.t0)]
        if self.kind != "near":
            stops.append(naming.t1(self.plane, self.t1))
        if self.kind == "far":
            stops.append(naming.t0(self.plane, self.t0))
        return " - ".join(stops)


def nic(plane: int, host: Host) -> Element:
    """A host's link to its T0."""
    return Element(naming.nic(plane, host.name), "nic", plane)


def t0(plane: int, index: int) -> Element:
    """A T0."""
    return Element(naming.t0(plane, index), "t0", plane)


def t1(plane: int, index: int) -> Element:
    """A T1."""
    return Element(naming.t1(plane, index), "t1", plane)


def link(plane: int, t0_index: int, t1_index: int) -> Element:
    """The link between a T0 and a T1."""
    return Element(naming.link(plane, t0_index, t1_index), "link", plane)


def members_of(fabric: Fabric) -> Members:
    """The hosts of each T0 that has any, by T0; reads all of a fabric's hosts, so do it once."""
    members: Members = {}
    for host in fabric.hosts:
        members.setdefault(host.t0, []).append(host)
    return dict(sorted(members.items()))


def loops_of(fabric: Fabric, host: Host, members: Members | None = None) -> tuple[Loop, ...]:
    """The loops a host probes, in the order of probing: planes in turn, near ones first.

    Planes are alike, so what is probed in one is probed in all.
    """
    shares = list(_shares(fabric, host, members_of(fabric) if members is None else members))
    room = LOOPS_MAX // fabric.planes
    if len(shares) > room:
        shares = [shares[i * len(shares) // room] for i in range(room)]
    return tuple(
        Loop(host, plane, kind, m, k) for kind, m, k in shares for plane in range(fabric.planes)
    )


def _shares(fabric: Fabric, host: Host, members: Members) -> Iterator[tuple[Kind, int, int]]:
    """What a host probes in each plane: the kind of loop, its T1 and its far T0."""
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
        # Among T0s other than k ours has a number, and only every so many T1s come to it.
        number = own - (own > at)
        for m in range(1, fabric.t1 + 1):
            if (number - m) % others < PROBERS and host in _strangers(members, t0s, at, k, m):
                yield "far", m, k


def _neighbours(hosts: list[Host], m: int) -> list[Host]:
    """Who of a T0's hosts probes its link to T1 m."""
    return [hosts[(m + i) % len(hosts)] for i in range(min(PROBERS, len(hosts)))]


def _strangers(members: Members, t0s: list[int], at: int, k: int, m: int) -> list[Host]:
    """Who of other T0s' hosts probes the link between T0 k and T1 m; of different T0s if it can.

    `at`: the place of k among the T0s, past their end if it has no hosts.
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
