# SPDX-License-Identifier: GPL-2.0-only
"""Match an operator's rules, which name elements of the fabric, against EVs (pure).

    0x10020000      a path: the EV of T1 2 in plane 1
    p1              a plane
    p1t0-1, p1t1-2  a switch
    p1t0-1:p1t1-2   a link between switches
    h2:p1           the link of a NIC, ours or a peer's
    h2              a peer, all paths to it

A rule denies the paths that cross its element, or only those to one peer if it names one. An EV
names the same path in both directions. A rule covers what its own host sends; the peer has rules of
its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from mrcd.fabric import hosts, naming, underlay, usid
from mrcd.fabric.description import Fabric, Host

Kind = Literal["path", "plane", "t0", "t1", "link", "nic", "peer"]

_EV = re.compile(r"0x([0-9a-f]{1,8})", re.IGNORECASE)


class NoSuchElement(ValueError):
    """The text names no element of this fabric; the message lists what exists."""


@dataclass(frozen=True, slots=True)
class Element:
    """A part of the fabric with its canonical name. Members that its kind does not use are 0."""

    name: str
    kind: Kind
    plane: int = 0
    t0: int = 0
    t1: int = 0
    host: str = ""
    ev: int = 0

    def crossed(self, own: Host, peer: Host, ev: int) -> bool:
        """Return whether the path of an EV between two hosts crosses the element."""
        if self.kind == "peer":
            return self.host == peer.name
        if self.kind == "path":
            return self.ev == ev
        if usid.ev_plane(ev) != self.plane:
            return False
        over_t0 = self.t0 in (own.t0, peer.t0)
        over_t1 = self.t1 == usid.ev_t1(ev)
        match self.kind:
            case "plane":
                return True
            case "t0":
                return over_t0
            case "t1":
                return over_t1
            case "link":
                return over_t0 and over_t1
            case _:
                return self.host in (own.name, peer.name)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that denies the paths across an element; `peer` limits it to paths to one peer."""

    element: Element
    peer: str | None = None

    def __str__(self) -> str:
        return self.element.name + (f" to {self.peer}" if self.peer else "")


def parse(fabric: Fabric, text: str) -> Element:
    """Return the element that a text names; the ends of a link may be in either order.

    Raises NoSuchElement if there is none, or if an ecmp fabric cannot keep paths off it.
    """
    element = _parse(fabric, text)
    if element is not None and element.kind in ("t1", "link") and fabric.routing.mode == "ecmp":
        raise NoSuchElement(
            f'{text}: in fabric {fabric.name} switches choose the T1 (routing = "ecmp"), so no'
            " path can be kept off it; deny the EVs that lose, or the plane"
        )
    if element is None:
        raise NoSuchElement(f"no element {text!r} in fabric {fabric.name}; known: {_there(fabric)}")
    return element


def _parse(fabric: Fabric, text: str) -> Element | None:
    if found := _EV.fullmatch(text):
        return _path(fabric, int(found[1], 16))
    if found := naming.PLANE.fullmatch(text):
        plane = int(found[1])
        return Element(naming.plane(plane), "plane", plane) if plane < fabric.planes else None
    if ":" in text:
        return _link(fabric, *text.split(":", 1))
    return _switch(fabric, text) or _peer(fabric, text)


def _path(fabric: Fabric, ev: int) -> Element | None:
    plane, t1 = usid.ev_plane(ev), usid.ev_t1(ev)
    if plane >= fabric.planes or t1 > underlay.of(fabric).evs_per_plane or ev != usid.ev(plane, t1):
        return None
    return Element(f"0x{ev:08x}", "path", plane, t1=t1, ev=ev)


def _switch(fabric: Fabric, text: str) -> Element | None:
    found = naming.SWITCH.fullmatch(text)
    if found is None:
        return None
    plane, tier, index = (int(number) for number in found.groups())
    if plane >= fabric.planes or not 1 <= index <= (fabric.t1 if tier else fabric.t0):
        return None
    if tier:
        return Element(naming.t1(plane, index), "t1", plane, t1=index)
    return Element(naming.t0(plane, index), "t0", plane, t0=index)


def _peer(fabric: Fabric, text: str) -> Element | None:
    return Element(text, "peer", host=text) if hosts.find(fabric.hosts, text) else None


def _link(fabric: Fabric, one: str, other: str) -> Element | None:
    near, far = _switch(fabric, one), _switch(fabric, other)
    if near is not None and far is not None:
        if near.kind == "t1":
            near, far = far, near
        if (near.kind, far.kind, near.plane) != ("t0", "t1", far.plane):
            return None
        name = naming.link(near.plane, near.t0, far.t1)
        return Element(name, "link", near.plane, t0=near.t0, t1=far.t1)
    for host, at in ((one, other), (other, one)):
        found = naming.PLANE.fullmatch(at)
        if found and int(found[1]) < fabric.planes and hosts.find(fabric.hosts, host):
            plane = int(found[1])
            return Element(naming.nic(plane, host), "nic", plane, host=host)
    return None


def _there(fabric: Fabric) -> str:
    last = fabric.planes - 1
    return (
        f"planes p0 to p{last}, switches"
        f" {naming.every_switch(fabric.planes, fabric.t0, fabric.t1)}, links like"
        f" {naming.link(0, 1, 1)}, NIC links like {naming.nic(0, fabric.hosts[0].name)},"
        f" EVs like 0x{usid.ev(last, fabric.t1):08x}, hosts {hosts.listed(fabric.hosts)}"
    )


def denied(rules: Iterable[Rule], own: Host, peer: Host, evs: Iterable[int]) -> set[int]:
    """Return those of the EVs to a peer that any rule denies."""
    elements = [rule.element for rule in rules if rule.peer in (None, peer.name)]
    if not elements:
        return set()
    return {ev for ev in evs if any(element.crossed(own, peer, ev) for element in elements)}


def evs_between(fabric: Fabric, own: Host, peer: Host) -> list[int]:
    """Return every EV of every plane to a peer."""
    return [
        ev for plane in range(fabric.planes) for ev in underlay.of(fabric).evs(own, peer, plane)
    ]


def cuts_off(denied: Collection[int], sets: Iterable[Collection[int]]) -> bool:
    """Return whether any of the EV sets has only denied EVs, and so no path left.

    sets: the EV sets of a peer's QPs; before it has a QP, one set of all EVs to it.
    """
    return any(all(ev in denied for ev in evs) for evs in sets)
