# SPDX-License-Identifier: GPL-2.0-only
"""Find the other hosts of a network before mrcd runs (pure).

Each host says a Hello by each of its NICs, again and again: its name, the addresses of its mrc0,
which of its NICs this is, and whom it has heard. Hosts share the planes whose networks both are on.
Each numbers its own; where one that leads numbers the same networks, in its order: hosts whose mrcd
runs already (members) lead, then the host whose name sorts first. A host is settled once it has
heard another one, and has been heard, and nothing is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mrcd.fabric.cabling import Cabling, Joint, Node
from mrcd.handshake.hello import Hello, Pair, Said

SETTLE_S: Final = 1.0
"""A host is settled no sooner than this after the last news ..."""
JOIN_S: Final = 0.6
"""... or than this where all others are members, which have settled already ..."""
ALONE_S: Final = 3.0
"""... or than this where hosts are missing, which may be behind others or come later."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another host: where it is on each plane, "" if it is not on it, and its mrc0's addresses."""

    name: str
    endpoints: tuple[str, ...]
    inner: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found: the place of our NIC of each plane, and the other hosts by name."""

    planes: tuple[int, ...]
    peers: tuple[Peer, ...]


@dataclass(slots=True)
class _Other:
    """Another host: its last Hello, and its addresses by pairs of NICs, ours first."""

    hello: Hello
    seen: dict[Pair, str] = field(default_factory=dict)


class Discovery:
    """What a host knows of the others. Times are seconds of a monotonic clock."""

    def __init__(
        self, name: str, run: str, nics: Sequence[str], inner: tuple[str, ...], born_ns: int = 0
    ) -> None:
        """`nics` are the names of this host's; `born_ns` is the present time of the day."""
        self.name = name
        self._run = run
        self.nics = tuple(nics)
        self._inner = inner
        self._born_ns = born_ns
        self._seq = 0
        self._others: dict[str, _Other] = {}
        self._news_s = 0.0
        self._done = False
        self._namesake: str | None = None
        self._misfit: str | None = None

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts that were heard."""
        return sorted(self._others)

    @property
    def known(self) -> set[str]:
        """The names of the hosts that were heard, or heard of, this one included."""
        heard = {name for other in self._others.values() for name in other.hello.said.heard}
        told = {said.name for other in self._others.values() for said in other.hello.told}
        return {self.name, *self._others, *heard, *told}

    def hello(self, nic: int) -> Hello:
        """Return what to say by a NIC now."""
        self._seq += 1
        said = Said(
            name=self.name,
            run=self._run,
            born_ns=self._born_ns,
            seq=self._seq,
            nics=len(self.nics),
            inner=self._inner,
            heard={name: tuple(sorted(other.seen)) for name, other in self._others.items()},
            whole=True,
        )
        return Hello(said, nic, self._done)

    def hear(self, nic: int, source: str, hello: Hello, *, now_s: float) -> None:
        """Take notice of a Hello that arrived on one of our NICs from an address."""
        if hello.run == self._run:
            return  # our own, by another NIC of ours on the same network
        if hello.said.leaving:
            self._others.pop(hello.name, None)
            return
        if hello.name == self.name:
            self._namesake = f"another host at {source} is called {hello.name}, too: give --name"
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
        self._misfit = self._clash_with(hello) or self._misfit

    def forget(self, name: str) -> None:
        """Forget a host that was revoked; one of our name takes it from us no longer."""
        self._others.pop(name, None)
        if name == self.name:
            self._namesake = None

    @property
    def clash(self) -> str | None:
        """Why this host can never agree with another one as they are; None if it may."""
        return self._namesake or self._misfit

    def _clash_with(self, hello: Hello) -> str | None:
        """Return why this host can never agree with another one as they are."""
        taken = {*hello.said.inner} & {*self._inner}
        if taken:
            return f"{hello.name} has the address {min(taken)} of our mrc0: give --address"
        if self.name in hello.refused:
            return f"{hello.name} does not take this host: {hello.refused[self.name]}"
        return None

    # ---- what was found

    def _graph(self) -> Cabling:
        """Return this host and those that were heard, and which NICs of both hear each other."""
        nodes = [self._node(name, other) for name, other in self._others.items()]
        near = {(own, name, nic) for name, each in self._others.items() for own, nic in each.seen}
        ours = tuple(map(str, range(len(self.nics))))
        own = Node(self.name, ours, frozenset(near))
        return Cabling({node.name: node for node in (*nodes, own)})

    def _node(self, name: str, other: _Other) -> Node:
        at = {theirs: address for (_own, theirs), address in other.seen.items()}
        addresses = tuple(at.get(nic, "") for nic in range(other.hello.said.nics))
        near: set[Joint] = {
            (theirs, self.name, own) for theirs, own in other.hello.said.heard.get(self.name, ())
        }
        return Node(name, addresses, frozenset(near))

    def _planes(self, graph: Cabling) -> tuple[int, ...]:
        """Return the place of our NIC of each plane, as far as it can be as the leader has them."""
        count = range(len(self.nics))
        members = [name for name, other in self._others.items() if other.hello.member]
        leader = min(members or [self.name, *self._others])
        ends = [way.ends for way in graph.ways(self.name, leader)] if leader != self.name else []
        placed = {theirs: ours for ours, theirs in ends if theirs in count}
        rest = iter(nic for nic in count if nic not in placed.values())
        return tuple(placed[plane] if plane in placed else next(rest) for plane in count)

    def plan(self) -> Plan | None:
        """Return what was found so far; None while no host hears this one."""
        graph = self._graph()
        planes, peers = self._planes(graph), []
        for name, other in sorted(self._others.items()):
            ends = dict(way.ends for way in graph.ways(self.name, name))
            if ends:
                found = tuple(other.seen[nic, ends[nic]] if nic in ends else "" for nic in planes)
                peers.append(Peer(name, found, other.hello.said.inner))
        return Plan(planes, tuple(peers)) if peers else None

    def settled(self, *, now_s: float, hosts: int = 2) -> bool:
        """Return whether this host has found others, and nothing is new; `hosts` are expected."""
        plan, quiet_s = self.plan(), now_s - self._news_s
        mutual = plan is not None and len(plan.peers) == len(self._others)
        enough = self._settle_s if len(self.known) >= hosts else ALONE_S
        self._done = self.clash is None and mutual and quiet_s >= enough
        return self._done

    @property
    def _settle_s(self) -> float:
        return JOIN_S if all(each.hello.member for each in self._others.values()) else SETTLE_S

    @property
    def all_done(self) -> bool:
        """Whether every other host has said that it is settled."""
        return all(other.hello.done for other in self._others.values())

    @property
    def quiet_nics(self) -> list[str]:
        """The NICs on which no other host is heard."""
        heard = {own for other in self._others.values() for own, _theirs in other.seen}
        return [nic for place, nic in enumerate(self.nics) if place not in heard]

    def missing(self, hosts: int = 2) -> str:
        """Return what still keeps this host from being settled."""
        if self.clash is not None:
            return self.clash
        if not self._others:
            return f"no other host is heard on {_listed(self.nics)}"
        plan = self.plan()
        found = {peer.name for peer in plan.peers} if plan is not None else set()
        if deaf := sorted(self._others.keys() - found):
            return f"{_listed(deaf)} {'does' if len(deaf) == 1 else 'do'} not hear this host"
        if len(self.known) < hosts:
            here = ", ".join(sorted(self.known))
            return f"{len(self.known)} of {hosts} hosts are here: {here}"
        return "other hosts have not found everybody"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]


def _content(hello: Hello) -> tuple[object, ...]:
    """Return what of a Hello is news when it changes."""
    said = hello.said
    return said.nics, said.inner, sorted(said.heard.items())
