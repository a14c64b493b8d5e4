# SPDX-License-Identifier: GPL-2.0-only
"""What a host whose mrcd runs makes of the Hellos on its planes (pure).

A plane is one network, so another host belongs on a plane with that of its NICs which is heard
there, and which hears us. Once that is so on every plane, it can be a peer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from mrcd.config.config import Current
from mrcd.fabric.hosts import Address
from mrcd.handshake.hello import HOSTS_MAX, Hello

SECOND: Final = 1_000_000_000
FORGET_NS: Final = 60 * SECOND
"""A host that says nothing for this time is not known any more."""
EAGER_NS: Final = SECOND
"""For this time after news of somebody who asks for us Hellos are frequent ..."""
ASKED_NS: Final = 4 * SECOND
"""... and for this time after it has asked, less so."""
EAGER_S, ASKED_S, CALM_S = 0.25, 1.0, 5.0
"""Time between two Hellos on each plane, in these cases and otherwise."""
TWICE_NS: Final = 15 * SECOND
"""Two hosts with one name are named for this time after both were heard."""
_RUN_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Met:
    """A host that may be a peer: its addresses by plane, and those of its mrc0.

    ready: it is heard on every plane, and has found everybody. Before, it can only be told why it
    cannot be a peer, and some of its addresses may be missing.
    """

    name: str
    endpoints: tuple[Address, ...]
    inner: tuple[str, ...]
    ready: bool


@dataclass(slots=True)
class _Other:
    """What one host says; `seen` has its address by our plane and the place of its NIC."""

    hello: Hello
    began_ns: int
    heard_ns: int
    seen: dict[tuple[int, int], str] = field(default_factory=dict)


class Meeting:
    """The hosts that one host hears."""

    def __init__(self, config: Current, rng: random.Random) -> None:
        self._config = config
        self.run = f"{rng.getrandbits(_RUN_BITS):016x}"
        self._others: dict[tuple[str, str], _Other] = {}  # by name and run
        self._refused: dict[str, str] = {}
        self._eager_until_ns = self._asked_until_ns = 0
        self._twice: dict[str, tuple[int, str]] = {}

    def begin(self, *, now_ns: int) -> None:
        """Say Hello often for a moment, as at first."""
        self._eager_until_ns = now_ns + EAGER_NS

    def period_s(self, *, now_ns: int) -> float:
        """Return the time from one Hello to the next."""
        if now_ns < self._eager_until_ns:
            return EAGER_S
        return ASKED_S if now_ns < self._asked_until_ns else CALM_S

    @property
    def count(self) -> int:
        """The number of other hosts that are heard."""
        return len(self._others)

    def hello(self, plane: int, *, leaving: bool = False) -> Hello:
        """Return what to say on a plane now."""
        config = self._config()
        heard: dict[str, tuple[tuple[int, int], ...]] = {}
        for (name, _run), other in self._others.items():
            if len(heard) < HOSTS_MAX and self._waits(other.hello):
                heard[name] = tuple(sorted(other.seen))
        planes = config.fabric.planes
        return Hello(
            name=config.host.name,
            run=self.run,
            nic=plane,
            nics=planes,
            inner=tuple(str(address.ip) for address in config.mrc0.addresses),
            planes=tuple(range(planes)),
            heard=heard,
            done=True,
            hosts=0,
            member=True,
            leaving=leaving,
            seeks=tuple(name for name in heard if name not in config.by_name),
            refused={name: why for name, why in self._refused.items() if name in heard},
        )

    def _waits(self, hello: Hello) -> bool:
        """Return whether a host needs to know that it is heard here."""
        known = hello.name in self._config().by_name
        return not known or self._asks(hello)

    def _asks(self, hello: Hello) -> bool:
        """Return whether a host wants us to be its peer, which we are not yet."""
        return not hello.member or self._config().host.name in hello.seeks

    def hear(self, plane: int, source: str, hello: Hello, *, now_ns: int) -> Met | None:
        """Take notice of a Hello that arrived on a plane; return its host if it may be a peer."""
        config = self._config()
        if hello.run == self.run:
            return None  # our own, by another NIC of ours on the same network
        if hello.name == config.host.name:
            self._note_twice(hello.name, "this host", source, now_ns)
            self.begin(now_ns=now_ns)  # it must hear that the name is taken
            return None
        key = hello.name, hello.run
        other = self._others.get(key)
        if other is None:
            self._make_room()
            other = self._others[key] = _Other(hello, now_ns, now_ns)
            self.begin(now_ns=now_ns)
        place = plane, hello.nic
        if self._asks(hello):
            self._asked_until_ns = now_ns + ASKED_NS
            if other.seen.get(place) != source or other.hello.heard != hello.heard:
                self.begin(now_ns=now_ns)
        other.hello, other.heard_ns = hello, now_ns
        other.seen[place] = source
        self._compare_runs(other, source, now_ns)
        return self._judged(other)

    def _make_room(self) -> None:
        if len(self._others) >= 2 * HOSTS_MAX:
            del self._others[next(iter(self._others))]

    def _compare_runs(self, this: _Other, source: str, now_ns: int) -> None:
        """Note if a host says Hello by a name although another one has begun to, later."""
        for (name, _run), other in self._others.items():
            if name == this.hello.name and other.began_ns > this.began_ns:
                where = next(iter(other.seen.values()), "?")
                self._note_twice(name, where, source, now_ns)

    def _note_twice(self, name: str, one: str, other: str, now_ns: int) -> None:
        self._twice[name] = (
            now_ns,
            f"two hosts are called {name}: {one} and one at {other}; give one of them another "
            "name (`mrcctl quick up --name`)",
        )

    def twice(self, *, now_ns: int) -> list[str]:
        """Return which names two hosts have, a sentence for each."""
        self._twice = {n: (t, s) for n, (t, s) in self._twice.items() if now_ns - t < TWICE_NS}
        return [text for _t, text in self._twice.values()]

    def _judged(self, other: _Other) -> Met | None:
        """Return a host, ready if it hears us, and is heard, on every plane."""
        hello, config = other.hello, self._config()
        ours, planes = config.host.name, config.fabric.planes
        self._refused.pop(hello.name, None)
        if hello.nics != planes:
            self.refuse(
                hello.name,
                f"{hello.name} has {hello.nics} NICs and {ours} {planes}: give both as many",
            )
            return None
        if hello.member and (wrong := self._crossed(other)) is not None:
            self.refuse(hello.name, wrong)
            return None
        pairs = [pair for pair in enumerate(hello.planes) if pair in other.seen]
        both = {(nic, plane) for plane, nic in pairs} <= {*hello.heard.get(ours, ())}
        return Met(
            hello.name,
            tuple(ip_address(other.seen[pair]) for pair in pairs),
            hello.inner,
            ready=len(pairs) == planes and both and hello.done,
        )

    def _crossed(self, other: _Other) -> str | None:
        """Return which network is another plane here than there, if one is."""
        config, name = self._config(), other.hello.name
        for here, there in other.seen:
            if here != there and (here, here) not in other.seen:
                return (
                    f"plane {here} ({config.interfaces[here]}) of {config.host.name} is on the "
                    f"network of plane {there} of {name}: name the planes in one order on both"
                )
        return None

    def refuse(self, name: str, reason: str) -> None:
        """Tell a host why it is no peer."""
        self._refused[name] = reason

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why hosts that are heard cannot be peers."""
        return self._refused

    def left(self, hello: Hello) -> bool:
        """Return whether a host that was heard goes, and forget it."""
        return hello.leaving and self._others.pop((hello.name, hello.run), None) is not None

    def forget_silent(self, *, now_ns: int) -> None:
        """Forget the hosts that say nothing any more."""
        for key, other in list(self._others.items()):
            if now_ns - other.heard_ns > FORGET_NS:
                del self._others[key]
        names: Collection[str] = {name for name, _run in self._others}
        self._refused = {name: why for name, why in self._refused.items() if name in names}
