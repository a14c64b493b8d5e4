# SPDX-License-Identifier: GPL-2.0-only
"""The counts of all ways between hosts without a fabric, and the faults they tell of (pure).

This host counts what arrives here (mrcd/survey/arrivals.py), and hears from others what arrived
there (mrcd/survey/told.py). What was lost behind the last probe that arrived is known from both
ends together: from what the sender says that it has sent a while before the receiver counted.
Windows, inference and the list of faults are those of a fabric (mrcd/survey/evidence.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mrcd.fabric.loops import Element
from mrcd.survey import told
from mrcd.survey.arrivals import Arrivals, Kinds
from mrcd.survey.cables import BOTH, CABLE, CabledLayout, Joint
from mrcd.survey.carriers import HEARD_NS, Carriers
from mrcd.survey.evidence import PROBES_RECENT, Evidence
from mrcd.survey.history import MEMORY, RECENT
from mrcd.survey.hoststate import FLAPS, SECOND, HostState
from mrcd.survey.inference import Fault
from mrcd.survey.likelihood import Seen
from mrcd.survey.messages import EvidenceError, Total
from mrcd.survey.named import CERTAIN, Changes, FaultList
from mrcd.survey.pairs import Counted, infer, whole
from mrcd.survey.shots import Probe, Shots, Target
from mrcd.survey.told import Message, Nic
from mrcd.survey.ways import Layout, Way

INTERVAL_NS: Final = SECOND // 4
"""Counts are told and judged once in this time while anything is lost."""
CALM: Final = 2
"""The same in twice the time while nothing is."""
TAIL_NS: Final = 2 * SECOND // 5
"""What had been sent this long before the receiver counted, and is not there, is lost."""
SILENT_NS: Final = 3 * SECOND
"""A host that was heard, and has not been for this time, is silent."""
SHORTER: Final = (20, 8)
"""Units of shorter windows that are tried where nothing certain was found in the whole one: a small
loss that has just begun is diluted by the time before it."""
CARRIER_NS: Final = 4 * SECOND
"""What was lost around a change of the carrier says nothing of anything else for this time."""
SILENCE_JUDGED: Final = 2
"""Judgements after which a host that is silent is named; what others state of cables is at once."""
KNOCKED_NS: Final = SECOND * 7 // 10
FORGOTTEN_NS: Final = 60 * SECOND
"""A host that says nothing for a time between these is asked whether it lives."""
TAKEN: Final = 8
"""Datagrams of each host that are remembered, to know those that come by another plane, too."""
REFUSED_NS: Final = 2 * SECOND
"""It is told for this time that a host has refused probes."""
DATA_PPM: Final = 1000
"""Loss of data, of a million packets, from which on it is told of beside that of probes."""


class Matrix:
    """What is known of all ways. Times are nanoseconds of a monotonic clock.

    `hosts` are the names of all, `own` among them. `planes` are the NICs of this host. `pps` is
    what each sends in a second.

    Hosts share all planes, with the same numbers, until it is known that they do not (`connect`).
    """

    def __init__(
        self, own: str, hosts: Sequence[str], planes: int, pps: int, run: int, token: int
    ) -> None:
        self.own = own
        self.planes = planes
        self.run = run
        self.token = token
        self._pps = pps
        self._names = tuple(sorted(hosts))
        self.hosts: dict[str, HostState] = {}
        self.arrivals: dict[Target, Arrivals] = {}
        self._run_of: dict[int, str] = {}
        self.shots = Shots()
        self.list = FaultList(dead_after=3)
        self.counted: list[Counted] = []
        self.layout: Layout | CabledLayout = Layout(self._names, planes, {})
        self._carriers = Carriers(own)
        self._connects = False
        self._pairs: dict[str, tuple[int, ...]] = {}
        self._refused_ns: dict[str, int] = {}
        self._taken: dict[bytes, str] = {}  # lately, in their order, and the host that sent each
        self._begin()

    def _begin(self) -> None:
        shots = max(1, self._pps // 2)
        unit_s = PROBES_RECENT * self.layout.most / shots
        self._evidence = Evidence(
            {name: functools.partial(self.layout.ways, name) for name in self._names},
            0,
            INTERVAL_NS * max(1, math.ceil(unit_s * SECOND / RECENT / INTERVAL_NS)),
        )

    def join(self, host: str) -> bool:
        """Take another host in; return whether it was none of ours. Windows begin anew."""
        if host in self._names:
            return False
        self._names = tuple(sorted((*self._names, host)))
        self._renew()
        return True

    def leave(self, host: str) -> None:
        """Forget a host that has gone."""
        if host == self.own or host not in self._names:
            return
        self._names = tuple(name for name in self._names if name != host)
        gone = self.hosts.pop(host, None)
        if gone is not None:
            self._run_of.pop(gone.run, None)
        for plane in range(self.planes):
            self.arrivals.pop((host, plane), None)
        self._renew()

    def connect(self, pairs: Mapping[str, tuple[int, ...]]) -> None:
        """Go by this from now on: by peer, the NIC that each of ours leads to, -1 if to none."""
        self._connects = True
        now = {name: pairs[name] for name in sorted(pairs) if name in self._names}
        if now == self._pairs:
            return
        gone = dict.fromkeys(self._pairs.keys() - now.keys(), (-1,) * self.planes)
        self._pairs = now | {name: none for name, none in gone.items() if name in self._names}
        own = self.hosts.get(self.own)
        if own is not None:
            self._note_pairs(own)
        self._renew()

    def _note_pairs(self, own: HostState) -> None:
        own.joined = {
            (peer, nic): theirs
            for peer, ends in self._pairs.items()
            for nic, theirs in enumerate(ends)
        }

    @property
    def is_cabled(self) -> bool:
        """Whether some hosts do not share all planes, or number them otherwise."""
        alike = tuple(range(self.planes))
        if any(ends != alike for ends in self._pairs.values()):
            return True
        return self._connects and any(
            len(host.nics) != self.planes
            or any(k != nic for (_peer, k), nic in host.joined.items())
            for host in self.hosts.values()
        )

    def _joints(self) -> Iterator[Joint]:
        """Yield the joints that both ends state, or one of which the other has said nothing."""
        for one, other in self._stated_joints():
            host = self.hosts.get(other[0])
            said = None if host is None else host.joined.get((one[0], other[1]))
            if said is None or said == one[1]:
                yield one, other

    def _stated_joints(self) -> Iterator[Joint]:
        for peer, ends in self._pairs.items():
            for nic, theirs in enumerate(ends):
                if theirs >= 0:
                    yield (self.own, nic), (peer, theirs)
        for name, host in self.hosts.items():
            for (peer, nic), theirs in host.joined.items():
                if theirs >= 0 and name != self.own:
                    yield (name, nic), (peer, theirs)

    def _renew(self, nics: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Have the layout of what is known now; if it is another one, windows begin anew."""
        nics = self.layout.nics if nics is None else nics
        found: Layout | CabledLayout = Layout(self._names, self.planes, nics)
        if self.is_cabled:
            joints = frozenset(self._joints())
            found = CabledLayout(self.own, self._names, nics, joints)
        if found != self.layout:
            self.layout = found
            self._begin()

    # ---- what arrives

    def probe(self, probe: Probe, plane: int, at_ns: int, now_ns: int) -> bool:
        """Count a probe that arrived by a plane; return whether it is one of a peer to us."""
        sender = self._run_of.get(probe.run)
        if sender is None or probe.token != self.token:
            return False
        if probe.plane != self.layout.theirs(self.own, plane, sender):
            return False
        arrivals = self.arrivals.get((sender, plane))
        if arrivals is None:
            arrivals = self.arrivals[sender, plane] = Arrivals(probe.run, probe.number)
        elif arrivals.run != probe.run:
            arrivals.begin_again(probe.run, probe.number)
        arrivals.arrived(probe.number, probe.sent_ns, at_ns, now_ns)
        return True

    def damaged(self, sender: str, plane: int, now_ns: int) -> None:
        """Count a packet from a peer's address that is no probe any more."""
        arrivals = self.arrivals.get((sender, plane))
        if arrivals is not None:
            arrivals.damaged(now_ns)

    def refused(self, peer: str, now_ns: int) -> None:
        """Note that a peer's kernel refuses probes: it lives, and its mrcd does not run."""
        self._refused_ns[peer] = now_ns

    def _refused(self, now_ns: int) -> tuple[str, ...]:
        late = sorted(self._refused_ns.items(), key=lambda each: -each[1])[: told.REFUSED_MAX]
        return tuple(name for name, at in late if now_ns - at < REFUSED_NS)

    def receive(self, datagram: bytes, *, now_ns: int, sender: str | None = None) -> None:
        """Take what a peer tells; EvidenceError says why it is refused.

        `sender` is the peer that has said it, None where nobody can know.
        """
        if self._is_repeated(datagram, sender, now_ns):
            return
        message = told.decode(datagram)
        if sender not in (None, message.host):
            raise EvidenceError(f"ways in the name of {message.host}, from {sender}")
        if message.host not in self._names or message.host == self.own:
            raise EvidenceError(f"no host {message.host!r} is a peer")
        if len(message.nics) != self.planes and not self._connects:
            raise EvidenceError(f"{message.host} has {len(message.nics)} planes")
        if any(len(each) != len(message.nics) for each in message.ways.values()):
            raise EvidenceError(f"{message.host} tells of other planes than it has")
        self._take(message, now_ns)
        self._taken[datagram] = message.host
        while len(self._taken) > TAKEN * len(self._names):
            del self._taken[next(iter(self._taken))]

    def _is_repeated(self, datagram: bytes, sender: str | None, now_ns: int) -> bool:
        """Return whether a datagram came by another plane before: it is sent by two."""
        name = self._taken.get(datagram)
        host = None if name is None else self.hosts.get(name)
        if host is None or sender not in (None, name):
            return False
        host.note_heard(now_ns)
        return True

    def _take(self, message: Message, now_ns: int) -> None:
        host = self.hosts.get(message.host)
        if host is None or host.run != message.run:
            host = self.hosts[message.host] = HostState(
                message.run, message.token, message.nics, now_ns
            )
            if message.host != self.own:
                self._run_of = {
                    run: name for run, name in self._run_of.items() if name != message.host
                }
                self._run_of[message.run] = message.host
        host.note_heard(now_ns)
        host.note_nics(message.nics, now_ns)
        host.refused = message.refused
        self._note_joints(message, host)
        totals: dict[int, Total] = {}
        for peer, ways in message.ways.items():
            if peer not in self._names or peer == message.host:
                continue
            for nic, way in enumerate(ways):
                self._note_way(host, message.host, (peer, nic), way, now_ns)
                index = self.layout.index(peer, message.host, nic)
                if index is None:
                    continue
                total = self._total(message.host, (peer, nic), way, now_ns)
                if total is not None:
                    totals[index] = total
        self._evidence.add(message.host, message.run, totals, now_ns=now_ns)

    def _note_joints(self, message: Message, host: HostState) -> None:
        """Remember the names of a host's NICs, and where they lead."""
        before = dict(host.joined)
        if message.host == self.own:
            self._note_pairs(host)
        else:
            for peer, ways in message.ways.items():
                for nic, way in enumerate(ways):
                    host.joined[peer, nic] = nic if way.theirs is None else way.theirs
        names = tuple(nic.name for nic in message.nics)
        if host.joined != before or self.layout.nics.get(message.host) != names:
            self._renew({**self.layout.nics, message.host: names})

    def _note_way(
        self, host: HostState, name: str, target: Target, way: told.Way, now_ns: int
    ) -> None:
        host.note_way(target, way, now_ns)
        peer, nic = target
        ours = self.layout.theirs(name, nic, self.own) if peer == self.own else None
        if ours is not None and ours < self.planes and (name, ours) not in self.arrivals:
            self.arrivals[name, ours] = Arrivals(host.run, way.sent)

    def _total(self, name: str, source: Target, way: told.Way, now_ns: int) -> Total | None:
        """Return the probes of one way to a host so far; None if nothing is known of it.

        Where nothing has ever arrived at a host, or from one, a firewall is in the way of all.
        """
        peer, nic = source
        sender = self.hosts.get(peer)
        theirs = self.layout.theirs(name, nic, peer)
        if not any(self.hosts[name].reached.values()):
            return None
        if sender is None or theirs is None or not self._reaches_any(peer):
            return None
        tail = 0
        if sender.run == way.run:
            times = sender.sent.get((name, theirs), ())
            before = [sent for at, sent in times if at <= now_ns - TAIL_NS]
            tail = max(0, before[-1] - 1 - way.top) if before else 0
        sent = way.received + way.lost + tail
        return Total(sent, way.received + way.excused, way.took_us)

    def _reaches_any(self, sender: str) -> bool:
        return any(
            count
            for host in self.hosts.values()
            for (peer, _plane), count in host.reached.items()
            if peer == sender
        )

    # ---- what is told

    def tell(
        self,
        nics: tuple[Nic, ...],
        data_ppm: Mapping[Target, int],
        *,
        now_ns: int,
    ) -> Iterator[bytes]:
        """Count what arrived, and return the datagrams that tell the peers of it."""
        said = told.Self(self.own, self.run, self.token, nics, self._refused(now_ns))
        ways: dict[str, tuple[told.Way, ...]] = {}
        cabled = isinstance(self.layout, CabledLayout)
        for peer in self._pairs if cabled else self._names:
            if peer != self.own:
                each = [self._way(peer, plane, data_ppm, now_ns) for plane in range(self.planes)]
                ways[peer] = tuple(each)
        self._take(told.message_of(said, ways), now_ns=now_ns)
        return told.encode(said, ways)

    def _way(self, peer: str, plane: int, data_ppm: Mapping[Target, int], now_ns: int) -> told.Way:
        target = peer, plane
        theirs = None
        if isinstance(self.layout, CabledLayout):
            known = self.layout.theirs(self.own, plane, peer)
            theirs = -1 if known is None else known
        lost_ppm = data_ppm.get(target, 0)
        sent = self.shots.number(target)
        here = self.arrivals.get(target)
        if here is None:
            return told.Way(sent, lost_ppm, 0, -1, 0, 0, 0, None, (), theirs)
        here.settle(now_ns)
        least = here.take_least()
        took = None if least is None else least / 1000
        counts = told.counts_of(here.kinds)
        return told.Way(
            sent, lost_ppm, here.run, here.top, here.received, here.lost, here.excused, took,
            counts, theirs,
        )  # fmt: skip

    def targets(self, planes_down: Sequence[int] = ()) -> list[Target]:
        """Return the ways that are to be probed: of planes with a carrier at both ends."""
        return [
            (peer, plane)
            for peer, plane in self.layout.from_host(self.own)
            if plane not in planes_down and (nic := self.nic_of(peer, plane)) is not None and nic.up
        ]

    def hushed(self, now_ns: int) -> list[Target]:
        """Return the ways to hosts that say nothing just now, where that may name one."""
        if not isinstance(self.layout, CabledLayout):
            return []
        late = {
            name
            for name, host in self.hosts.items()
            if KNOCKED_NS < now_ns - host.heard_ns < FORGOTTEN_NS
        }
        return [target for target in self.layout.from_host(self.own) if target[0] in late]

    def nic_of(self, peer: str, plane: int) -> Nic | None:
        """Return what a peer says of its NIC that one of ours leads to, if it is heard."""
        host, theirs = self.hosts.get(peer), self.layout.theirs(self.own, plane, peer)
        if host is None or theirs is None or theirs >= len(host.nics):
            return None
        return host.nics[theirs]

    @property
    def lost_here(self) -> tuple[int, int]:
        """The probes to this host that were lost, and those of them that full queues took."""
        every = self.arrivals.values()
        return sum(each.lost for each in every), sum(each.excused for each in every)

    # ---- judgement

    def heard(self, now_ns: int) -> int:
        """Return how many peers were heard lately."""
        return sum(
            now_ns - host.heard_ns < HEARD_NS
            for name, host in self.hosts.items()
            if name != self.own
        )

    def interval_s(self, now_ns: int) -> float:
        """Return the time until the totals are to be told and judged again."""
        quiet = self._evidence.quiet(now_ns=now_ns)
        if quiet and isinstance(self.layout, CabledLayout):
            quiet = not self.list.pending and not self._has_gap(now_ns)
        return INTERVAL_NS * (CALM if quiet else 1) / 1e9

    def _has_gap(self, now_ns: int) -> bool:
        """Return whether a host says nothing, or a NIC that leads somewhere has no carrier."""
        return any(
            (name != self.own and SECOND < now_ns - host.heard_ns < HEARD_NS)
            or any(
                not nic.up and self.layout.network_of(name, k) is not None
                for k, nic in enumerate(host.nics)
                if isinstance(self.layout, CabledLayout)
            )
            for name, host in self.hosts.items()
        )

    def silent(self, now_ns: int) -> list[tuple[str, int]]:
        """Return the peers that were heard once and are not now, and since when."""
        return [
            (name, host.heard_ns)
            for name, host in sorted(self.hosts.items())
            if name != self.own and now_ns - host.heard_ns > SILENT_NS
        ]

    def judge(self, *, now_ns: int) -> tuple[Changes, list[Fault]]:
        """Return what has changed on the list of faults, and all that was found."""
        known = {fault.element.name: fault for fault in self._stated(now_ns)}
        self.counted = self._counted_within(MEMORY, now_ns)
        found = self._inferred(self.counted, now_ns)
        if any(each.seen.lost for each in self.counted):
            for most in SHORTER:
                if any(fault.certainty >= CERTAIN for fault in found):
                    break
                found = self._inferred(self._counted_within(most, now_ns), now_ns) or found
        found = [fault for fault in found if not self._is_known(fault, known)]
        found = [self._with_errors(fault) for fault in found] + [*known.values()]
        after: dict[Element, int] = {}
        if isinstance(self.layout, CabledLayout):
            after = {
                fault.element: SILENCE_JUDGED if fault.element.kind == "host" else 1
                for fault in known.values()
            }
        return self.list.update(found, now_ns=now_ns, after=after), found

    def _counted_within(self, most: int, now_ns: int) -> list[Counted]:
        return [self._counted(one) for one in self._evidence.seen(now_ns=now_ns, most=most)]

    def _inferred(self, counted: Sequence[Counted], now_ns: int) -> list[Fault]:
        hosts = self.hosts.items()
        heard = {name for name, host in hosts if now_ns - host.heard_ns <= SILENT_NS}
        shaken = {*self._shaken(now_ns)}
        return infer(
            [
                each
                for each in counted
                if (way := each.way).host.name in heard
                and (way.sender, way.leaves) not in shaken
                and (way.host.name, way.enters) not in shaken
            ]
        )

    def aim(self, faults: Sequence[Fault], planes_down: Sequence[int] = ()) -> None:
        """Send every other shot where it tells most about uncertain faults."""
        telling = [
            (loop.host.name, loop.leaves)
            for fault in faults
            for loop in fault.telling
            if isinstance(loop, Way) and loop.sender == self.own
        ]
        self.shots.aim(self.targets(planes_down), telling)

    def _counted(self, one: Seen) -> Counted:
        way = one.loop
        assert isinstance(way, Way)
        host, sender = self.hosts.get(way.host.name), self.hosts.get(way.sender)
        here = way.sender, way.enters
        kinds = host.kinds.get(here) if host is not None else None
        ppm = sender.data_ppm.get((way.host.name, way.leaves), 0) if sender is not None else 0
        data = f"{way.title}: data loses {ppm / 1e4:.1f} %" if ppm >= DATA_PPM else ""
        queued = host is not None and host.was_full(here)
        return Counted(one, way, kinds or Kinds(), data, queued=queued)

    def _shaken(self, now_ns: int) -> Iterator[Target]:
        """Yield the NICs whose ways are not to be judged: no carrier, or none a moment ago."""
        for name, host in self.hosts.items():
            for nic, facts in enumerate(host.nics):
                changed = host.changed_ns(nic)
                late = changed is not None and now_ns - changed < CARRIER_NS
                if not facts.up or late or host.flaps(nic) >= FLAPS:
                    yield name, nic

    def _stated(self, now_ns: int) -> Iterator[Fault]:
        """Return what hosts themselves say of their NICs, and which hosts say nothing."""
        if isinstance(self.layout, CabledLayout):
            return self._carriers.cabled(self.layout, self.hosts, self._pps, now_ns)
        return self._carriers.nics(self.layout, self.hosts, now_ns)

    def _is_known(self, fault: Fault, known: Mapping[str, Fault]) -> bool:
        """Return whether what is found by probes has been named by what hosts say."""
        if fault.element.kind == "cable" and whole(fault.element) in known:
            return True
        return fault.element.name in known

    def _with_errors(self, fault: Fault) -> Fault:
        """Add what the kernel counts of a NIC to the evidence."""
        for name, host in self.hosts.items():
            for plane, nic in enumerate(host.nics):
                errors = host.has_errors(plane)
                if errors and _is_of(fault, self.layout.nic_name(name, plane)):
                    line = f"{name} counts {errors:,} errors of {nic.name} in a minute"
                    return _with_line(fault, line)
        return fault


def _is_of(fault: Fault, nic: str) -> bool:
    """Return whether a fault is of a NIC, or of a cable that ends in it."""
    element = fault.element
    if element.kind == "cable":
        return nic in whole(element).removeprefix(CABLE).split(BOTH)
    return element.name.startswith(nic)


def _with_line(fault: Fault, line: str) -> Fault:
    return Fault(
        fault.element, fault.kind, fault.loss, fault.low, fault.high, fault.extra_us,
        fault.certainty, (line, *fault.evidence), fault.alternatives, fault.telling,
    )  # fmt: skip
