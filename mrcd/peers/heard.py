# SPDX-License-Identifier: GPL-2.0-only
"""The hosts that are heard, or heard of, by name and run (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mrcd.fabric.cabling import Node
from mrcd.fabric.hosts import Host
from mrcd.handshake.hello import Hello, Pair, Said

KNOWN_MAX: Final = 2048
"""So many hosts, and earlier runs of theirs, are known at most."""


@dataclass(slots=True)
class Other:
    """What one run of a host says, by itself (`hello`) or as others tell.

    `spoke_ns` is when it was last heard beyond the first time. `seen` has its address and when it
    was heard, by our plane and the place of its NIC. `confirmed` has those of these pairs on which
    it has heard us, and `compared` is what they were taken from. `node` is the host in the graph,
    until there is news; `joined` is its entry, and on how many planes that is reached directly.
    `retold` numbers the minute in which it was last told of all others.
    """

    said: Said
    began_ns: int
    heard_ns: int
    news_ns: int
    spoke_ns: int = 0
    hello: Hello | None = None
    seen: dict[Pair, tuple[str, int]] = field(default_factory=dict)
    confirmed: set[Pair] = field(default_factory=set)
    compared: Said | None = None
    node: Node | None = None
    joined: tuple[Host | None, int] = None, 0
    retold: int = -1

    def hear_again(self, now_ns: int) -> None:
        """Note that it has spoken."""
        self.heard_ns = now_ns
        if now_ns > self.began_ns:
            self.spoke_ns = now_ns

    @property
    def address_of(self) -> dict[int, str]:
        """Its address by the place of the NIC, as far as it was heard."""
        return {theirs: address for (_plane, theirs), (address, _ns) in self.seen.items()}


class Others:
    """All of them."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Other]] = {}
        self.count = 0

    @property
    def names(self) -> list[str]:
        """The names of the hosts, those first that were heard first."""
        return list(self._runs)

    def __iter__(self) -> Iterator[Other]:
        for runs in list(self._runs.values()):
            yield from list(runs.values())

    def direct(self, since_ns: int) -> Iterator[Other]:
        """Yield the hosts, by their runs that count, that were heard by themselves since a time."""
        for name in self.names:
            other = self.run_of(name)
            if other is not None and other.hello is not None and other.heard_ns >= since_ns:
                yield other

    def get(self, said: Said) -> Other | None:
        """Return what is known of the run of a host that says this."""
        return self._runs.get(said.name, {}).get(said.run)

    def add(self, said: Said, now_ns: int) -> Other:
        """Begin to know a run; where there is no room the host is forgotten that came first."""
        if self.count >= KNOWN_MAX:
            self.count -= len(self._runs.pop(next(iter(self._runs))))
        made = self._runs.setdefault(said.name, {})[said.run] = Other(said, now_ns, now_ns, now_ns)
        self.count += 1
        return made

    def remove(self, other: Other) -> None:
        """Forget a run."""
        runs = self._runs[other.said.name]
        del runs[other.said.run]
        self.count -= 1
        if not runs:
            del self._runs[other.said.name]

    def runs(self, name: str) -> list[Other]:
        """Return the runs of a host, the oldest first."""
        found = self._runs.get(name, {}).values()
        if len(found) < 2:
            return list(found)
        return sorted(found, key=lambda other: (other.said.born_ns, other.began_ns))

    def run_of(self, name: str) -> Other | None:
        """Return the run of a host: the newest, but for one that has spoken since that began.

        Two runs that speak are two hosts with one name, of which the one that was there counts.
        """
        runs = self._runs.get(name)
        if not runs:
            return None
        if len(runs) == 1:
            return next(iter(runs.values()))
        found = self.runs(name)
        alive = (other for other in found if other.spoke_ns > found[-1].began_ns)
        return next(alive, found[-1])
