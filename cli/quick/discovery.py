# SPDX-License-Identifier: GPL-2.0-only
"""Agree with the other hosts of a network on its planes (pure).

Each host sends a Hello by each of its NICs, again and again: its name, the addresses of its mrc0,
which of its NICs this is, and whom it has heard. The host whose name sorts first leads: its NICs
are planes 0, 1, ... in their order. Every other host assigns its NICs to the planes by which of the
leader's NICs they hear, whatever its cables and its own order. If several hear the same, as where
all NICs are on one network, the one of the same place is preferred. A host is settled when it has
heard every other one on every plane, and each of them has said the same of it. Hosts whose mrcd
runs already (members) lead, and their planes stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mrcd.handshake.hello import Hello

SETTLE_S: Final = 1.0
"""A host is settled no sooner than this after the last news ..."""
JOIN_S: Final = 0.6
"""... or than this where all others are members, which have settled already."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another host: where it is on each plane, and the addresses of its mrc0."""

    name: str
    endpoints: tuple[str, ...]
    inner: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was agreed: the place of our NIC of each plane, and the other hosts by name."""

    planes: tuple[int, ...]
    peers: tuple[Peer, ...]


@dataclass(slots=True)
class _Other:
    """Another host: its last Hello, and its addresses by pairs of NICs, ours first."""

    hello: Hello
    seen: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def heard_on(self) -> set[int]:
        """The places of our NICs that hear it."""
        return {own for own, _theirs in self.seen}


class Discovery:
    """What a host knows of the others. Times are seconds of a monotonic clock."""

    def __init__(
        self, name: str, run: str, nics: Sequence[str], inner: tuple[str, ...], hosts: int = 2
    ) -> None:
        """`nics` are the names of this host's; `hosts` are waited for, this one included."""
        self.name = name
        self._run = run
        self.nics = tuple(nics)
        self._wanted = hosts
        self._inner = inner
        self._others: dict[str, _Other] = {}
        self._news_s = 0.0
        self._done = False
        self.clash: str | None = None

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts that were heard."""
        return sorted(self._others)

    def hello(self, nic: int) -> Hello:
        """Return what to say by a NIC now."""
        heard = {name: tuple(sorted(other.seen)) for name, other in self._others.items()}
        return Hello(
            name=self.name,
            run=self._run,
            nic=nic,
            nics=len(self.nics),
            inner=self._inner,
            planes=self._planes(),
            heard=heard,
            done=self._done,
            hosts=self._wanted,
        )

    def hear(self, nic: int, source: str, hello: Hello, *, now_s: float) -> None:
        """Take notice of a Hello that arrived on one of our NICs from an address."""
        if hello.run == self._run:
            return  # our own, by another NIC of ours on the same network
        if hello.leaving:
            self._others.pop(hello.name, None)
            return
        if hello.name == self.name:
            self.clash = f"another host at {source} is called {hello.name}, too: give --name"
            return
        other = self._others.get(hello.name)
        if other is None or other.hello.run != hello.run:
            other = self._others[hello.name] = _Other(hello)
            self._news_s = now_s
        pair = (nic, hello.nic)
        if other.seen.get(pair) != source or _content(other.hello) != _content(hello):
            self._news_s = now_s
        other.seen[pair] = source
        other.hello = hello
        self.clash = self._clash_with(hello) or self.clash

    def _clash_with(self, hello: Hello) -> str | None:
        """Return why this host can never agree with another one as they are."""
        taken = set(hello.inner) & set(self._inner)
        if taken:
            return f"{hello.name} has the address {min(taken)} of our mrc0: give --address"
        own = len(self.nics)
        if hello.nics != own:
            return (
                f"{hello.name} has {_counted(hello.nics)} and this host {_counted(own)} "
                f"({', '.join(self.nics)}): give both as many, one for each plane"
            )
        if self.name in hello.refused:
            return f"{hello.name} does not take this host: {hello.refused[self.name]}"
        if hello.hosts != self._wanted and not hello.member:
            return (
                f"{hello.name} waits for {hello.hosts} hosts in all and this one for "
                f"{self._wanted}: give both the same --hosts"
            )
        return None

    @property
    def _leader(self) -> str:
        """The name of the host whose NICs are the planes in their order."""
        members = [name for name, other in self._others.items() if other.hello.member]
        return min(members or [self.name, *self._others])

    def _planes(self) -> tuple[int, ...]:
        """Return the place of our NIC of each plane; empty while some plane has none."""
        leader = self._leader
        if leader == self.name:
            return tuple(range(len(self.nics)))
        there = self._others[leader]
        chosen: dict[int, int] = {}  # our NIC: the plane
        for plane in range(there.hello.nics):
            if not self._choose(plane, there.seen, chosen, set()):
                return ()
        nic_of = {plane: nic for nic, plane in chosen.items()}
        return tuple(nic_of[plane] for plane in range(there.hello.nics))

    def _choose(
        self,
        plane: int,
        seen: Mapping[tuple[int, int], str],
        chosen: dict[int, int],
        tried: set[int],
    ) -> bool:
        """Give a plane one of the NICs that hear it, moving others if need be."""
        able = [nic for nic in range(len(self.nics)) if (nic, plane) in seen and nic not in tried]
        for nic in sorted(able, key=lambda nic: nic != plane):
            tried.add(nic)
            if nic not in chosen or self._choose(chosen[nic], seen, chosen, tried):
                chosen[nic] = plane
                return True
        return False

    def plan(self) -> Plan | None:
        """Return what was agreed so far; None while a plane or a host is missing."""
        planes = self._planes()
        if not planes or not self._others:
            return None
        peers = []
        for name, other in sorted(self._others.items()):
            theirs = other.hello.planes
            if len(theirs) != len(planes):
                return None
            pairs = list(zip(planes, theirs, strict=True))
            if any(pair not in other.seen for pair in pairs):
                return None
            endpoints = tuple(other.seen[pair] for pair in pairs)
            peers.append(Peer(name, endpoints, other.hello.inner))
        return Plan(planes, tuple(peers))

    def settled(self, *, now_s: float, hosts: int = 2) -> bool:
        """Return whether at least `hosts` hosts, this one included, agree with each other."""
        plan = self.plan()
        self._done = (
            plan is not None
            and len(self._others) + 1 >= hosts
            and now_s - self._news_s >= self._settle_s
            and all(self._is_heard_by(other, plan.planes) for other in self._others.values())
        )
        return self._done

    @property
    def _settle_s(self) -> float:
        return JOIN_S if all(each.hello.member for each in self._others.values()) else SETTLE_S

    def _is_heard_by(self, other: _Other, planes: tuple[int, ...]) -> bool:
        pairs = set(other.hello.heard.get(self.name, ()))
        return pairs >= set(zip(other.hello.planes, planes, strict=True))

    @property
    def all_done(self) -> bool:
        """Whether every other host has said that it is settled."""
        return all(other.hello.done for other in self._others.values())

    def missing(self) -> str:
        """Return what still keeps this host from being settled."""
        if self.clash is not None:
            return self.clash
        if not self._others:
            return f"no other host is heard on {_listed(self.nics)}"
        for name, other in sorted(self._others.items()):
            if deaf := self._deaf_to(other):
                where = _listed([self.nics[nic] for nic in deaf])
                return f"{name} is not heard on {where}{self._instead(deaf)}"
        leader = self._leader
        if not self._planes():
            return f"several NICs hear only one and the same of {leader}'s {len(self.nics)}"
        for name, other in sorted(self._others.items()):
            if len(other.hello.planes) != len(self._planes()):
                return f"{name} does not hear {leader} on all planes"
            for plane, pair in enumerate(zip(self._planes(), other.hello.planes, strict=True)):
                if pair not in other.seen:
                    return f"{name} is not heard on plane {plane}"
        if len(self._others) + 1 < self._wanted:
            here = ", ".join(sorted([self.name, *self._others]))
            return f"{len(self._others) + 1} of {self._wanted} hosts are here: {here}"
        return "other hosts have not heard this one on all planes"

    def _deaf_to(self, other: _Other) -> list[int]:
        """Return the places of our NICs on which a host is not heard by any of its NICs."""
        return [nic for nic in range(len(self.nics)) if nic not in other.heard_on]

    def _instead(self, deaf: Sequence[int]) -> str:
        """Return whom these NICs hear, if anybody, and what that means."""
        others = sorted(n for n, other in self._others.items() if other.heard_on & {*deaf})
        if not others:
            return ""
        return (
            f", where {_listed(others)} is: each plane has to be one network of all hosts, such as "
            "a switch, or with two hosts a cable"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]


def _counted(nics: int) -> str:
    return "1 NIC" if nics == 1 else f"{nics} NICs"


def _content(hello: Hello) -> tuple[object, ...]:
    """Return what of a Hello is news when it changes."""
    return hello.nics, hello.inner, hello.planes, sorted(hello.heard.items())
