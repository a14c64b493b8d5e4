# SPDX-License-Identifier: GPL-2.0-only
"""What a host whose mrcd runs makes of the Hellos on its planes (pure).

A plane is one network, so another host belongs on a plane with that of its NICs which is heard
there, and which hears us. Hosts share the planes that both are on, and have no others with each
other; where hosts forward, ways through them count as well (cabling.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from mrcd.config.config import Current
from mrcd.fabric import network, ranking
from mrcd.fabric.cabling import Cabling, Handed, Joint, Node, Way
from mrcd.fabric.hosts import Address, Host
from mrcd.fabric.ranking import Rank
from mrcd.handshake.hello import HOSTS_MAX, NICS_MAX, Hello, Pair, Said, fitting, in_parts
from mrcd.peers.heard import KNOWN_MAX, Other, Others

SECOND: Final = 1_000_000_000
FORGET_NS: Final = 60 * SECOND
"""A host that says nothing for this time is not known any more ..."""
APART_NS: Final = 12 * SECOND
"""... and where hosts forward, two NICs are not joined any more after this time without a Hello."""
EAGER_NS: Final = SECOND
"""For this time after news of somebody who asks for us Hellos are frequent ..."""
ASKED_NS: Final = 4 * SECOND
"""... and for this time after it has asked, less so."""
EAGER_S, ASKED_S, CALM_S, FORWARDING_S = 0.25, 1.0, 5.0, 2.0
"""Time between two Hellos on each plane, in these cases, otherwise, and where hosts forward."""
SETTLED_NS: Final = SECOND * 6 // 10
"""On fewer planes than it has NICs a host is a peer after this time without news of others."""
TWICE_NS: Final = 15 * SECOND
"""Two hosts with one name are named for this time after both were heard."""
CLOCK_NS: Final = 2 * SECOND
"""Clocks that differ by more are named."""
YOUNG_NS: Final = 3 * SECOND
"""A host behind routers is told of all others again and again for this time ..."""
RETOLD_NS: Final = 60 * SECOND
"""... and then this often."""
_RUN_BITS: Final = 64
BEYOND_MAX: Final = 16
"""So many hosts that are too many for a Hello are told of it in each."""
TOO_MANY: Final = (
    f"hosts hand packets on here, and a host then hears at most {HOSTS_MAX} others by its own NICs:"
    " use fewer hosts on one network, or `forward = false` on all"
)


@dataclass(frozen=True, slots=True)
class Met:
    """A host that may be a peer: the ways to it by our planes, and the addresses of its mrc0.

    endpoints: its address by plane, unspecified where no way leads. vias: those of the hosts that
    hand packets on to it. ranks: how many these are, and what the ways carry. spare: the mask of
    planes whose ways carry data only while no better one can. ready: it is heard, and hears us,
    and has found everybody. Before, it can only be told why it cannot be a peer.
    """

    name: str
    endpoints: tuple[Address, ...]
    inner: tuple[str, ...]
    ready: bool
    vias: tuple[Address, ...] = ()
    spare: int = 0
    ranks: tuple[Rank, ...] = ()

    def at(self, host: Host) -> Host:
        """Return a host with the ways that were found to it."""
        return replace(
            host, endpoints=self.endpoints, vias=self.vias, spare=self.spare, ranks=self.ranks
        )


class Meeting:
    """The hosts that one host hears, or hears of."""

    def __init__(self, config: Current, rng: random.Random, born_ns: int = 0) -> None:
        """`born_ns` is the present time of the day, which orders the runs of one host."""
        self._config = config
        self.run = f"{rng.getrandbits(_RUN_BITS):016x}"
        self._born_ns = born_ns
        self._began_ns: int | None = None  # the same by the clock of `now_ns`
        self._seq = 0
        self._before: Said | None = None
        self._before_to: dict[str, Said] = {}
        self._unnamed_seq = 0
        self._contacts_to: dict[str, dict[str, tuple[str, ...]]] = {}
        self._turn = 0
        self._waited = 0  # place of the first of those that wait that the next Hello speaks of
        self._others = Others()
        self._refused: dict[str, str] = {}
        self._refusers: dict[str, str] = {}
        self._eager_until_ns = self._asked_until_ns = 0
        self._twice: dict[str, tuple[int, str]] = {}
        self._clocks: dict[str, tuple[int, str]] = {}
        self._graph: Cabling | None = None
        self._rates: tuple[int, ...] = ()
        self.version = 0
        """Grows with all that may change the ways to others."""

    def begin(self, *, now_ns: int) -> None:
        """Say Hello often for a moment, as at first."""
        if self._began_ns is None:
            self._began_ns = now_ns
        self._eager_until_ns = now_ns + EAGER_NS

    def period_s(self, *, now_ns: int) -> float:
        """Return the time from one Hello to the next."""
        if now_ns < self._eager_until_ns:
            return EAGER_S
        calm_s = FORWARDING_S if self.whole else CALM_S
        return ASKED_S if now_ns < self._asked_until_ns else calm_s

    @property
    def count(self) -> int:
        """The number of other hosts that are heard, or heard of."""
        return self._others.count

    @property
    def names(self) -> list[str]:
        """The names of the other hosts."""
        return self._others.names

    def set_rates(self, mbps: Sequence[int]) -> None:
        """Say from now on that the planes carry this, in Mb/s; 0: unknown."""
        if self._rates != tuple(mbps):
            self._rates = tuple(mbps)
            self._changed()

    @property
    def whole(self) -> bool:
        """Whether some host forwards: then all speak of all that they hear."""
        return self._config().keys.forward or any(other.said.forwards for other in self._others)

    # ---- what is said

    def hello(self, plane: int, *, leaving: bool = False) -> Hello:
        """Return what to say on a plane now."""
        config = self._config()
        if plane == 0:
            self._waited += HOSTS_MAX
        said = self._numbered(self._said(leaving=leaving), plane)
        return Hello(
            said=said,
            nic=plane,
            done=True,
            member=True,
            seeks=tuple(name for name in said.heard if self._seeks(name)),
            refused=self._unfit(said.heard),
            told=self._told(plane) if config.keys.forward else (),
        )

    def _numbered(self, said: Said, plane: int) -> Said:
        """Return what is said with its number, the same one for what is said again.

        It is compared as bytes then. Where it is told to others, that it goes on is news.
        """
        before = self._before
        if before is None or said != replace(before, seq=0) or (said.whole and plane == 0):
            self._seq += 1
        self._before = replace(said, seq=self._seq)
        return self._before

    def _said(self, *, leaving: bool) -> Said:
        heard = {other.said.name: tuple(sorted(other.seen)) for other in self._listed()}
        return self._of_this(heard, leaving=leaving)

    def _of_this(self, heard: Mapping[str, tuple[Pair, ...]], *, leaving: bool) -> Said:
        """Return what this host says of itself, and that it hears these."""
        config = self._config()
        return Said(
            name=config.host.name,
            run=self.run,
            born_ns=self._born_ns,
            seq=0,
            nics=config.fabric.planes,
            inner=tuple(str(address.ip) for address in config.mrc0.addresses),
            addresses=tuple(map(_text, config.host.endpoints)),
            rates=self._rates if len(self._rates) == config.fabric.planes else (),
            heard=heard,
            whole=self.whole,
            forwards=config.keys.forward,
            mtu=config.fabric.mtu,
            leaving=leaving,
        )

    def _listed(self) -> Iterable[Other]:
        """Return the hosts of which the next Hello says where they are heard.

        Where more wait than one Hello speaks of they take turns; where all have to be in each
        Hello, those beyond are refused.
        """
        if self.whole:
            return list(self._near().values())[:HOSTS_MAX]
        waiting = {
            other.said.name: other
            for other in self._others
            if other.hello is not None and self._waits(other.hello)
        }
        if len(waiting) <= HOSTS_MAX:
            return waiting.values()
        every, first = list(waiting.values()), self._waited % len(waiting)
        return [*every[first:], *every[:first]][:HOSTS_MAX]

    def _near(self) -> dict[str, Other]:
        """Return the hosts that are heard themselves, those first that were heard first."""
        return {other.said.name: other for other in self._others if other.hello is not None}

    def _beyond(self) -> list[str]:
        """Return the hosts that are heard, and are too many for a Hello, where hosts forward."""
        return list(self._near())[HOSTS_MAX:] if self.whole else []

    def _unfit(self, listed: Mapping[str, object]) -> dict[str, str]:
        """Return why hosts cannot be peers, for those in a Hello, and some of those beyond."""
        found = {name: why for name, why in self._refused.items() if name in listed}
        return found | dict.fromkeys(self._beyond()[:BEYOND_MAX], TOO_MANY)

    # ---- what is said to one host

    def hello_to(
        self,
        name: str,
        plane: int,
        contacts: Mapping[str, tuple[str, ...]],
        *,
        leaving: bool = False,
    ) -> Hello:
        """Return what to say to one host on a plane now; `name` is "" where it is not known."""
        other = self._others.run_of(name)
        heard = {} if other is None or other.hello is None else {name: tuple(sorted(other.seen))}
        said = self._of_this(heard, leaving=leaving)
        return Hello(
            said=self._numbered_to(name, said),
            nic=plane,
            done=True,
            member=True,
            seeks=(name,) if heard and self._seeks(name) else (),
            refused={name: why for name, why in self.refusals.items() if name in heard},
            contacts=contacts,
        )

    def _numbered_to(self, name: str, said: Said) -> Said:
        """Return what is said to one host with its number, the same one for what is said again.

        What is said to the same host without its name in between has a number of its own.
        """
        before = self._before_to.get(name)
        same = before is not None and said == replace(before, seq=0)
        if name and before is not None and same and before.seq > self._unnamed_seq:
            return before
        self._seq += 1
        if not name:
            self._unnamed_seq = self._seq
        if len(self._before_to) >= KNOWN_MAX:
            self._before_to.clear()
        self._before_to[name] = numbered = replace(said, seq=self._seq)
        return numbered

    def contacts_for(self, name: str, *, now_ns: int) -> list[dict[str, tuple[str, ...]]]:
        """Return what to tell a host of others in one Hello after another, and count it as told.

        A host is told once of each that is heard here, and again a minute later, in case that was
        lost; one that has just come is told of all in each of these lists.
        """
        other = self._others.run_of(name)
        if other is None or other.hello is None:
            return [{}]
        told = self._contacts_to.get(name, {})
        young = now_ns - other.began_ns < YOUNG_NS
        if young or now_ns // RETOLD_NS != other.retold:
            other.retold, told = now_ns // RETOLD_NS, {}
        known = {
            each.said.name: tuple(filter(None, each.said.addresses))
            for each in self._others.direct(now_ns - APART_NS)
            if each.said.name != name
        }
        news = {host: at for host, at in known.items() if told.get(host) != at}
        if len(self._contacts_to) >= KNOWN_MAX:
            self._contacts_to.clear()
        self._contacts_to[name] = told | news
        return [dict(part) for part in in_parts(news)] or [{}]

    def addresses(self) -> dict[str, str]:
        """Return the names of hosts that are heard by the addresses that they say they have."""
        found: dict[str, str] = {}
        for name in self._others.names:
            other = self._others.run_of(name)
            if other is not None and other.hello is not None:
                found |= {each: name for each in other.said.addresses if each}
        return found

    def before(self, hello: Hello, *, now_ns: int) -> Other | None:
        """Return the host that has a host's name already, if it may still be there.

        That is so if it was heard a moment ago, from elsewhere, and the other host is new.
        """
        counts = self._others.run_of(hello.name)
        if counts is None or counts.said.run == hello.run or self._others.get(hello.said):
            return None
        if {*counts.said.addresses} & {*filter(None, hello.said.addresses)}:
            return None  # where it was there is another run now
        return counts if now_ns - counts.heard_ns < APART_NS else None

    def note_second(self, hello: Hello, source: str, first: Other, *, now_ns: int) -> str:
        """Note that two hosts have one name; return it as the second is told."""
        where = next((address for address, _ns in first.seen.values()), "another place")
        self._note_twice(hello.name, where, source, now_ns)
        return self._twice[hello.name][1]

    def why_second(self, hello: Hello) -> str | None:
        """Return why a host does not count, if another one has its name and was there before."""
        counts = self._others.run_of(hello.name)
        if hello.name not in self._twice or counts is None or counts.said.run == hello.run:
            return None
        return self._twice[hello.name][1]

    def is_old(self, hello: Hello) -> bool:
        """Return whether a Hello to this host is older than the last one of the same run."""
        other = self._others.get(hello.said)
        return other is not None and other.hello is not None and hello.said.seq < other.said.seq

    def _told(self, plane: int) -> tuple[Said, ...]:
        """Return what to tell of others on a plane: those that speak there need not be told of."""
        self._turn += 1
        return fitting(
            (
                other.said
                for other in self._others
                if (other.hello is None or other.hello.member)
                and all(ours != plane for ours, _theirs in other.seen)
            ),
            self._turn // max(1, self._config().fabric.planes),
        )

    def _waits(self, hello: Hello) -> bool:
        """Return whether a host needs to know that it is heard here."""
        return self._seeks(hello.name) or self._asks(hello)

    def _asks(self, hello: Hello) -> bool:
        """Return whether a host wants us to be its peer, or on more planes than we are."""
        return not hello.member or self._config().host.name in hello.seeks

    def _seeks(self, name: str) -> bool:
        """Return whether a host is no peer yet, or is heard on more planes than it is one on."""
        config = self._config()
        known = config.by_name.get(name)
        if known is None:
            return True
        other = self._others.run_of(name)
        if other is None:
            return False
        on = {plane for plane, _theirs in other.seen}
        if other.joined[0] is not known.host:
            places = known.host.places
            joined = sum(known.host.via(plane) is None for plane, _end in places)
            other.joined = known.host, joined
        joined = other.joined[1]
        return joined < min(len(on), len({theirs for _plane, theirs in other.seen}))

    # ---- what is heard

    def hear(self, plane: int, source: str, hello: Hello, *, now_ns: int) -> bool:
        """Take notice of a Hello that arrived on a plane; return whether it is of another host."""
        config = self._config()
        if hello.run == self.run:
            return False  # our own, by another NIC of ours on the same network
        if hello.name == config.host.name:
            self._note_twice(hello.name, "this host", source, now_ns)
            self.begin(now_ns=now_ns)  # it must hear that the name is taken
            return False
        other = self._known(hello.said, now_ns)
        place = plane, hello.nic
        moved = other.seen.get(place, ("", 0))[0] != source
        other.seen[place] = source, now_ns
        if moved:
            self._news(other, now_ns)
        before, other.hello = other.hello, hello
        if self._asks(hello):
            self._asked_until_ns = now_ns + ASKED_NS
            if moved or before is None or before.said.heard != hello.said.heard:
                self.begin(now_ns=now_ns)
        if other.said is other.compared and other.said == hello.said:
            other.hear_again(now_ns)
        else:
            self._take(other, hello.said, now_ns)
            self._confirm(other, hello.said, now_ns)
        self._compare_runs(other, source, now_ns)
        for said in hello.told:
            self._hear_of(said, now_ns)
        why = hello.refused.get(config.host.name)
        if why is None:
            self._refusers.pop(hello.name, None)
        else:
            self._refusers[hello.name] = why
        return True

    def _known(self, said: Said, now_ns: int) -> Other:
        """Return what is known of a host; begin to know it."""
        other = self._others.get(said)
        if other is None:
            self._compare_clocks(said, now_ns)
            other = self._others.add(said, now_ns)
            self._changed()
            self.begin(now_ns=now_ns)
        return other

    def _hear_of(self, said: Said, now_ns: int) -> None:
        """Take notice of what others tell of a host."""
        if said.run == self.run or said.name == self._config().host.name:
            return
        known = self._others.get(said)
        if known is not None and said.seq <= known.said.seq:
            return
        self._take(self._known(said, now_ns), said, now_ns)

    def _take(self, other: Other, said: Said, now_ns: int) -> None:
        """Keep the newest that a host has said."""
        other.hear_again(now_ns)
        before, other.said = other.said, said
        if _content(before) != _content(said):
            self._news(other, now_ns)

    def _news(self, other: Other, now_ns: int) -> None:
        other.news_ns, other.node = now_ns, None
        self._changed()
        if self.whole:
            self.begin(now_ns=now_ns)  # others are told

    def _changed(self) -> None:
        self._graph = None
        self.version += 1

    def _confirm(self, other: Other, said: Said, now_ns: int) -> None:
        """Note on which pairs of NICs a host hears us."""
        other.compared = said
        ours = self._config().host.name
        if ours in said.heard:
            found = {(plane, theirs) for theirs, plane in said.heard[ours]}
        else:
            found = set() if said.whole else other.confirmed
        if found != other.confirmed:
            other.confirmed = found
            self._news(other, now_ns)

    def _compare_runs(self, this: Other, source: str, now_ns: int) -> None:
        """Note if a host says Hello by a name although another one has begun to, later."""
        name = this.said.name
        for other in self._others.runs(name):
            if other.began_ns > this.began_ns and other.seen:
                where = next(iter(other.seen.values()))[0]
                self._note_twice(name, where, source, now_ns)

    def _compare_clocks(self, said: Said, now_ns: int) -> None:
        """Note if a host has begun, by its clock, before its last begin, or has not yet by ours."""
        late_ns = max((o.said.born_ns for o in self._others.runs(said.name)), default=0)
        late_ns -= said.born_ns
        since_ns = 0 if self._began_ns is None else now_ns - self._began_ns
        early_ns = said.born_ns - self._born_ns - since_ns
        if late_ns > CLOCK_NS:
            text = (
                f"the clock of {said.name} is behind what it was when it began before, by "
                f"{late_ns / SECOND:.0f} s or more: set it, as by `chronyc makestep`; until then "
                "its hand-shakes count as repeated ones"
            )
        elif early_ns > CLOCK_NS and self._born_ns:
            text = (
                f"{said.name} says that it began {early_ns / SECOND:.0f} s from now: the clock of "
                f"this host is behind, or that of {said.name} ahead: set both, as by `chronyc "
                "makestep`"
            )
        else:
            return
        self._clocks[said.name] = now_ns, text

    def _note_twice(self, name: str, one: str, other: str, now_ns: int) -> None:
        self._twice[name] = (
            now_ns,
            f"two hosts are called {name}: {one} and one at {other}; give one of them another "
            "name (`mrcctl quick up --name`)",
        )

    def twice(self, *, now_ns: int) -> list[str]:
        """Return which names two hosts have, a sentence for each."""
        self._twice = {n: (t, s) for n, (t, s) in self._twice.items() if now_ns - t < TWICE_NS}
        self._clocks = {n: (t, s) for n, (t, s) in self._clocks.items() if now_ns - t < FORGET_NS}
        clocks = [text for name, (_t, text) in self._clocks.items() if name not in self._twice]
        return [*(text for _t, text in self._twice.values()), *clocks]

    # ---- what follows

    @property
    def graph(self) -> Cabling:
        """The hosts that are heard, or heard of, and what joins their NICs."""
        if self._graph is None:
            self._graph = Cabling({node.name: node for node in self._nodes()})
        return self._graph

    def _nodes(self) -> Iterator[Node]:
        config = self._config()
        ours, near, beyond = config.host.name, set[Joint](), {*self._beyond()}
        for name in self._others.names:
            other = self._others.run_of(name)
            assert other is not None
            if name not in beyond:
                near |= {(plane, name, theirs) for plane, theirs in other.seen}
            if other.node is None:
                other.node = _node(other, ours)
            yield other.node
        yield Node(
            ours,
            tuple(str(plane) for plane in range(config.fabric.planes)),  # nobody is sent there
            frozenset(near),
            config.keys.forward,
            config.fabric.mtu,
            self._rates,
        )

    def met(self, *, now_ns: int, names: Iterable[str] | None = None) -> Iterator[Met]:
        """Yield the hosts to which ways lead, or that are heard: all, or those with these names."""
        for name in sorted(self._others.names if names is None else names):
            other = self._others.run_of(name)
            if other is not None:
                yield self._met(other, now_ns)

    def _met(self, other: Other, now_ns: int) -> Met:
        planes, name = self._config().fabric.planes, other.said.name
        ways = self.graph.ways(self._config().host.name, name)
        by_plane: dict[int, Way] = {way.ends[0]: way for way in ways}
        nowhere = network.nowhere(self._config().fabric.routing.underlay)

        def end(plane: int) -> Address:
            way = by_plane.get(plane)
            return nowhere if way is None else _address(self.graph.last_address(way))

        def via(plane: int) -> Address:
            way = by_plane.get(plane)
            if way is None or not way.relays:
                return nowhere
            return _address(self.graph.next_address(way))

        ranks = {plane: way.rank for plane, way in by_plane.items()}
        quiet = now_ns - other.news_ns >= SETTLED_NS
        full = len(ways) >= min(planes, other.said.nics)
        return Met(
            name,
            tuple(map(end, range(planes))),
            other.said.inner,
            ready=bool(ways) and (quiet or full) and (other.hello is None or other.hello.done),
            vias=tuple(map(via, range(planes))) if any(way.relays for way in ways) else (),
            spare=ranking.spare(ranks, ranks),
            ranks=tuple(ranks.get(plane, Rank()) for plane in range(planes)),
        )

    def seen(self) -> dict[str, set[Pair]]:
        """Return which NICs of each host are heard on which of ours. Nobody hands Hellos on."""
        runs = ((name, self._others.run_of(name)) for name in self._others.names)
        return {name: set(other.seen) for name, other in runs if other is not None}

    def handed_on(self) -> tuple[Handed, ...]:
        """Return what this host hands on for others."""
        return self.graph.handed_on(self._config().host.name)

    def refuse(self, name: str, reason: str) -> None:
        """Tell a host why it is no peer."""
        self._refused[name] = reason

    def reconsider(self, name: str) -> None:
        """Refuse a host no longer; the caller judges it again."""
        self._refused.pop(name, None)

    @property
    def refusers(self) -> list[str]:
        """Which hosts do not take this one, a sentence for each."""
        return [f"{who} does not take this host: {why}" for who, why in self._refusers.items()]

    @property
    def crowded(self) -> list[str]:
        """A sentence if more hosts are heard than a Hello speaks of where hosts forward."""
        beyond = self._beyond()
        if not beyond:
            return []
        return [f"{len(beyond)} hosts are not taken, {beyond[0]} first: {TOO_MANY}"]

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why hosts that are heard cannot be peers."""
        return self._refused

    def left(self, hello: Hello) -> bool:
        """Return whether a host that was heard goes, and forget it with its earlier runs."""
        if not hello.said.leaving or self._others.get(hello.said) is None:
            return False
        for other in self._others.runs(hello.name):
            if other.said.born_ns <= hello.said.born_ns:
                self._others.remove(other)
        self._changed()
        return True

    def unplugged(self, plane: int, *, now_ns: int) -> None:
        """Forget who was heard on a plane whose NIC has no link."""
        for other in self._others:
            gone = [pair for pair in other.seen if pair[0] == plane]
            for pair in gone:
                del other.seen[pair]
            if gone:
                self._news(other, now_ns)

    def forget_silent(self, *, now_ns: int) -> None:
        """Forget the hosts, and joined NICs, of which nothing is heard any more."""
        whole = self.whole
        for other in self._others:
            if now_ns - other.heard_ns > FORGET_NS:
                self._others.remove(other)
                self._changed()
                continue
            seen = other.seen.items() if whole else ()
            for pair in [pair for pair, (_a, heard) in seen if now_ns - heard > APART_NS]:
                del other.seen[pair]
                self._news(other, now_ns)
        names = {*self._others.names}
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        self._refusers = {name: why for name, why in self._refusers.items() if name in names}


@lru_cache(maxsize=4096)
def _address(text: str) -> Address:
    return ip_address(text)


@lru_cache(maxsize=64)
def _text(address: Address) -> str:
    return "" if address.is_unspecified else str(address)


def kept(before: Host, after: Host) -> Host:
    """Return how a peer is reached from now on, where it was reached otherwise before.

    A way that is no longer known stays, unless its address is on another plane now: it may return,
    and the programs know by then that nothing arrives by it. When it returns it does not carry data
    beside worse ways, which have taken its place: it is spare until it is known.
    """
    nowhere = network.nowhere(after.endpoints[0].version)
    ends, planes = list(after.endpoints), range(len(after.endpoints))
    vias = list(after.vias or (nowhere,) * len(ends))
    ranks = {plane: after.rank(plane) for plane in planes}
    known = [plane for plane, _end in after.places]
    for plane, end in before.places:
        if ends[plane].is_unspecified and end not in after.endpoints:
            ends[plane] = end
            vias[plane] = before.via(plane) or nowhere
            ranks[plane] = before.rank(plane)
    return replace(
        before,
        endpoints=tuple(ends),
        vias=() if all(via.is_unspecified for via in vias) else tuple(vias),
        spare=ranking.spare({p: ranks[p] for p in planes if not ends[p].is_unspecified}, known),
        ranks=tuple(ranks.values()),
    )


def _node(other: Other, ours: str) -> Node:
    """Return a host as the graph has it; where it hears us is what it has said at any time."""
    said = other.said
    near: set[Joint] = {
        (own, name, theirs)
        for name, pairs in said.heard.items()
        for own, theirs in pairs
        if name != ours
    }
    near |= {(theirs, ours, plane) for plane, theirs in other.confirmed}
    heard = other.address_of
    known = said.addresses or ("",) * said.nics
    addresses = (heard.get(nic, known[nic]) for nic in range(min(said.nics, NICS_MAX)))
    return Node(said.name, tuple(addresses), frozenset(near), said.forwards, said.mtu,
                said.rates)  # fmt: skip


def _content(said: Said) -> tuple[object, ...]:
    """Return what of it is news when it changes."""
    heard = said.heard if said.whole else None
    addresses = said.addresses, said.rates
    return said.nics, said.inner, addresses, heard, said.forwards, said.mtu, said.leaving
