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
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mrcd.survey import told
from mrcd.survey.arrivals import Arrivals, Kinds
from mrcd.survey.evidence import PROBES_RECENT, Evidence
from mrcd.survey.history import MEMORY, RECENT
from mrcd.survey.inference import Fault
from mrcd.survey.likelihood import Seen
from mrcd.survey.messages import EvidenceError, Total
from mrcd.survey.named import CERTAIN, Changes, FaultList
from mrcd.survey.pairs import Counted, infer
from mrcd.survey.shots import Probe, Shots, Target
from mrcd.survey.told import Message, Nic
from mrcd.survey.ways import Layout, Way

SECOND: Final = 1_000_000_000
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
FLAPS: Final = 3
FLAPS_NS: Final = 60 * SECOND
"""A NIC that loses its carrier as often as this in this time flaps."""
CARRIER_NS: Final = 4 * SECOND
"""What was lost around a change of the carrier says nothing of anything else for this time."""
QUEUED_NS: Final = 20 * SECOND
"""What goes by a queue that was full within this time is not called slow."""
ERRORS_NS: Final = 60 * SECOND
DATA_PPM: Final = 1000
"""Loss of data, of a million packets, from which on it is told of beside that of probes."""
HEARD_NS: Final = 5 * SECOND


@dataclass(slots=True)
class _Host:
    """What another host, or this one, has said last."""

    run: int
    token: int
    nics: tuple[Nic, ...]
    heard_ns: int
    sent: dict[Target, deque[tuple[int, int]]] = field(default_factory=dict)
    data_ppm: dict[Target, int] = field(default_factory=dict)
    kinds: dict[Target, Kinds] = field(default_factory=dict)
    queued: dict[Target, deque[tuple[int, int]]] = field(default_factory=dict)
    reached: dict[Target, int] = field(default_factory=dict)  # probes of a sender that came, all
    downs: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    errors: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)

    def note_nics(self, nics: tuple[Nic, ...], now_ns: int) -> None:
        """Remember what the kernel counts of the NICs."""
        self.nics = nics
        for plane, nic in enumerate(nics):
            _remember(self.downs, plane, (now_ns, nic.downs), FLAPS_NS)
            _remember(self.errors, plane, (now_ns, nic.errors), ERRORS_NS)

    def flaps(self, plane: int) -> int:
        """Return how often a NIC has lost its carrier lately."""
        return _grown(self.downs.get(plane))

    def changed_ns(self, plane: int) -> int | None:
        """Return when a NIC's carrier was lost last, as far as known."""
        times = self.downs.get(plane)
        if not times:
            return None
        last = times[-1][1]
        return next((at for at, count in times if count == last and times[0][1] != last), None)


_Key = TypeVar("_Key")


def _remember(
    kept: dict[_Key, deque[tuple[int, int]]], key: _Key, now: tuple[int, int], for_ns: int
) -> None:
    times = kept.setdefault(key, deque())
    times.append(now)
    while len(times) > 2 and times[1][0] < now[0] - for_ns:
        times.popleft()


def _grown(times: Sequence[tuple[int, int]] | None) -> int:
    return max(0, times[-1][1] - times[0][1]) if times else 0


class Matrix:
    """What is known of all ways. Times are nanoseconds of a monotonic clock.

    `hosts` are the names of all, `own` among them. `pps` is what each sends in a second.
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
        self.hosts: dict[str, _Host] = {}
        self.arrivals: dict[Target, Arrivals] = {}
        self._run_of: dict[int, str] = {}
        self.shots = Shots()
        self.list = FaultList(dead_after=3)
        self.counted: list[Counted] = []
        self.layout = Layout(self._names, planes, {})
        self._begin()

    def _begin(self) -> None:
        shots = max(1, self._pps // 2)
        unit_s = PROBES_RECENT * (len(self._names) - 1) * self.planes / shots
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

    def _renew(self) -> None:
        self.layout = Layout(self._names, self.planes, self.layout.nics)
        self._begin()

    # ---- what arrives

    def probe(self, probe: Probe, plane: int, at_ns: int, now_ns: int) -> bool:
        """Count a probe that arrived by a plane; return whether it is one of a peer to us."""
        sender = self._run_of.get(probe.run)
        if sender is None or probe.token != self.token or probe.plane != plane:
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

    def receive(self, datagram: bytes, *, now_ns: int, sender: str | None = None) -> None:
        """Take what a peer tells; EvidenceError says why it is refused.

        `sender` is the peer that has said it, None where nobody can know.
        """
        message = told.decode(datagram)
        if sender not in (None, message.host):
            raise EvidenceError(f"ways in the name of {message.host}, from {sender}")
        if message.host not in self._names or message.host == self.own:
            raise EvidenceError(f"no host {message.host!r} is a peer")
        if len(message.nics) != self.planes:
            raise EvidenceError(f"{message.host} has {len(message.nics)} planes")
        if any(len(each) != self.planes for each in message.ways.values()):
            raise EvidenceError(f"{message.host} tells of other planes than it has")
        self._take(message, now_ns)

    def _take(self, message: Message, now_ns: int) -> None:
        host = self.hosts.get(message.host)
        if host is None or host.run != message.run:
            host = self.hosts[message.host] = _Host(
                message.run, message.token, message.nics, now_ns
            )
            if message.host != self.own:
                self._run_of = {
                    run: name for run, name in self._run_of.items() if name != message.host
                }
                self._run_of[message.run] = message.host
        host.heard_ns = now_ns
        host.note_nics(message.nics, now_ns)
        self._learn_names(message.host, message.nics)
        totals: dict[int, Total] = {}
        for peer, ways in message.ways.items():
            if peer not in self._names or peer == message.host:
                continue
            for plane, way in enumerate(ways):
                self._note_sent(host, message.host, (peer, plane), way, now_ns)
                total = self._total(host, (peer, plane), way, now_ns)
                if total is not None:
                    totals[self.layout.index(peer, message.host, plane)] = total
        self._evidence.add(message.host, message.run, totals, now_ns=now_ns)

    def _note_sent(
        self, host: _Host, name: str, target: Target, way: told.Way, now_ns: int
    ) -> None:
        times = host.sent.setdefault(target, deque(maxlen=8))
        if not times or way.sent >= times[-1][1]:
            times.append((now_ns, way.sent))
        host.data_ppm[target] = way.data_ppm
        host.kinds[target] = told.kinds_of(way.kinds)
        host.reached[target] = way.received
        _remember(host.queued, target, (now_ns, way.excused), QUEUED_NS)
        peer, plane = target
        if peer == self.own and (name, plane) not in self.arrivals:
            self.arrivals[name, plane] = Arrivals(host.run, way.sent)

    def _total(self, host: _Host, source: Target, way: told.Way, now_ns: int) -> Total | None:
        """Return the probes of one way so far; None if nothing is known of it.

        Where nothing has ever arrived at a host, or from one, a firewall is in the way of all.
        """
        peer, plane = source
        sender = self.hosts.get(peer)
        if not any(host.reached.values()):
            return None
        if sender is None or not self._reaches_any(peer):
            return None
        tail = 0
        if sender.run == way.run:
            times = sender.sent.get((self._name_of(host), plane), ())
            before = [sent for at, sent in times if at <= now_ns - TAIL_NS]
            tail = max(0, before[-1] - 1 - way.top) if before else 0
        sent = way.received + way.lost + tail
        return Total(sent, way.received + way.excused, way.took_us)

    def _name_of(self, host: _Host) -> str:
        return next(name for name, each in self.hosts.items() if each is host)

    def _reaches_any(self, sender: str) -> bool:
        return any(
            count
            for host in self.hosts.values()
            for (peer, _plane), count in host.reached.items()
            if peer == sender
        )

    def _learn_names(self, host: str, nics: Sequence[Nic]) -> None:
        names = tuple(nic.name for nic in nics)
        if self.layout.nics.get(host) != names:
            self.layout = Layout(self._names, self.planes, {**self.layout.nics, host: names})
            self._begin()

    # ---- what is told

    def tell(
        self,
        nics: tuple[Nic, ...],
        data_ppm: Mapping[Target, int],
        *,
        now_ns: int,
    ) -> Iterator[bytes]:
        """Count what arrived, and return the datagrams that tell the peers of it."""
        ways: dict[str, tuple[told.Way, ...]] = {}
        for peer in self.layout.senders(self.own):
            each = [self._way(peer, plane, data_ppm, now_ns) for plane in range(self.planes)]
            ways[peer] = tuple(each)
        self._take(Message(told.VERSION, self.own, self.run, self.token, nics, ways), now_ns=now_ns)
        return told.encode(told.Self(self.own, self.run, self.token, nics), ways)

    def _way(self, peer: str, plane: int, data_ppm: Mapping[Target, int], now_ns: int) -> told.Way:
        target = peer, plane
        lost_ppm = data_ppm.get(target, 0)
        sent = self.shots.number(target)
        here = self.arrivals.get(target)
        if here is None:
            return told.Way(sent, lost_ppm, 0, -1, 0, 0, 0, None, ())
        here.settle(now_ns)
        least = here.take_least()
        took = None if least is None else least / 1000
        counts = told.counts_of(here.kinds)
        return told.Way(
            sent, lost_ppm, here.run, here.top, here.received, here.lost, here.excused, took, counts
        )  # fmt: skip

    def targets(self, planes_down: Sequence[int] = ()) -> list[Target]:
        """Return the ways that are to be probed: of planes with a carrier at both ends."""
        found = []
        for plane in range(self.planes):
            for peer in self.layout.senders(self.own):
                host = self.hosts.get(peer)
                if host is not None and host.nics[plane].up and plane not in planes_down:
                    found.append((peer, plane))
        return found

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
        return INTERVAL_NS * (CALM if quiet else 1) / 1e9

    def silent(self, now_ns: int) -> list[tuple[str, int]]:
        """Return the peers that were heard once and are not now, and since when."""
        return [
            (name, host.heard_ns)
            for name, host in sorted(self.hosts.items())
            if name != self.own and now_ns - host.heard_ns > SILENT_NS
        ]

    def judge(self, *, now_ns: int) -> tuple[Changes, list[Fault]]:
        """Return what has changed on the list of faults, and all that was found."""
        known = {fault.element.name: fault for fault in self._carriers(now_ns)}
        self.counted = self._counted_within(MEMORY, now_ns)
        found = self._inferred(self.counted, now_ns)
        if any(each.seen.lost for each in self.counted):
            for most in SHORTER:
                if any(fault.certainty >= CERTAIN for fault in found):
                    break
                found = self._inferred(self._counted_within(most, now_ns), now_ns) or found
        found = [fault for fault in found if fault.element.name not in known]
        found = [self._with_errors(fault) for fault in found] + [*known.values()]
        return self.list.update(found, now_ns=now_ns), found

    def _counted_within(self, most: int, now_ns: int) -> list[Counted]:
        return [self._counted(one) for one in self._evidence.seen(now_ns=now_ns, most=most)]

    def _inferred(self, counted: Sequence[Counted], now_ns: int) -> list[Fault]:
        return infer([each for each in counted if not self._is_disturbed(each.way, now_ns)])

    def aim(self, faults: Sequence[Fault], planes_down: Sequence[int] = ()) -> None:
        """Send every other shot where it tells most about uncertain faults."""
        telling = [
            (loop.host.name, loop.plane)
            for fault in faults
            for loop in fault.telling
            if isinstance(loop, Way) and loop.sender == self.own
        ]
        self.shots.aim(self.targets(planes_down), telling)

    def _counted(self, one: Seen) -> Counted:
        way = one.loop
        assert isinstance(way, Way)
        host, sender = self.hosts.get(way.host.name), self.hosts.get(way.sender)
        kinds = host.kinds.get((way.sender, way.plane)) if host is not None else None
        ppm = sender.data_ppm.get((way.host.name, way.plane), 0) if sender is not None else 0
        data = f"{way.title}: data loses {ppm / 1e4:.1f} %" if ppm >= DATA_PPM else ""
        times = host.queued.get((way.sender, way.plane)) if host is not None else None
        return Counted(one, way, kinds or Kinds(), data, queued=_grown(times) > 0)

    def _is_disturbed(self, way: Way, now_ns: int) -> bool:
        """Return whether a way is not to be judged.

        An end has no carrier, or had none a moment ago, or its counts come no more.
        """
        counts = self.hosts.get(way.host.name)
        if counts is None or now_ns - counts.heard_ns > SILENT_NS:
            return True
        for name in (way.sender, way.host.name):
            host = self.hosts.get(name)
            if host is None or way.plane >= len(host.nics):
                continue
            changed = host.changed_ns(way.plane)
            if not host.nics[way.plane].up:
                return True
            if changed is not None and now_ns - changed < CARRIER_NS:
                return True
            if host.flaps(way.plane) >= FLAPS:
                return True
        return False

    def _carriers(self, now_ns: int) -> Iterator[Fault]:
        """Yield what hosts themselves say of their NICs."""
        for name, host in sorted(self.hosts.items()):
            if now_ns - host.heard_ns > HEARD_NS and name != self.own:
                continue
            for plane, nic in enumerate(host.nics):
                element = self.layout.nic(name, plane)
                flaps = host.flaps(plane)
                if flaps >= FLAPS:
                    line = f"{name} has lost the carrier of {nic.name} {flaps} times in a minute"
                    yield Fault(element, "flap", 0.0, 0.0, 0.0, 0.0, _SURE, (line,), ())
                elif not nic.up:
                    line = f"{name} says that {nic.name} has no carrier"
                    yield Fault(element, "dead", 1.0, 1.0, 1.0, 0.0, _SURE, (line,), ())

    def _with_errors(self, fault: Fault) -> Fault:
        """Add what the kernel counts of a NIC to the evidence."""
        for name, host in self.hosts.items():
            for plane, nic in enumerate(host.nics):
                errors = _grown(host.errors.get(plane))
                if errors and fault.element.name.startswith(self.layout.nic_name(name, plane)):
                    line = f"{name} counts {errors:,} errors of {nic.name} in a minute"
                    return _with_line(fault, line)
        return fault


_SURE: Final = float("inf")


def _with_line(fault: Fault, line: str) -> Fault:
    return Fault(
        fault.element, fault.kind, fault.loss, fault.low, fault.high, fault.extra_us,
        fault.certainty, (line, *fault.evidence), fault.alternatives, fault.telling,
    )  # fmt: skip
