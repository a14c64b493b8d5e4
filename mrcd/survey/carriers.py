# SPDX-License-Identifier: GPL-2.0-only
"""What hosts themselves say of their NICs, and which hosts say nothing any more (pure).

Where hosts share all planes, a NIC without a carrier is named as what it is. A cable takes it from
both its ends, and a host that dies takes it from all its neighbours. So where hosts are cabled, a
cable is not named before both its hosts were heard since, or have been silent for long enough to be
known as dead.

A host is dead when it says nothing, and nobody on any of its networks gets its probes any more. A
host whose kernel refuses probes lives: only its mrcd does not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mrcd.fabric.loops import Element
from mrcd.survey.cables import CabledLayout, End
from mrcd.survey.hoststate import FLAPS, SECOND, HostState
from mrcd.survey.inference import Fault, FaultKind
from mrcd.survey.ways import Layout

SURE: Final = float("inf")
HEARD_NS: Final = 5 * SECOND
HUSH_NS: Final = SECOND * 3 // 2
"""A host that says nothing for this time, and for twice as long as of late, may be dead ..."""
NONE_NS: Final = SECOND
"""... if none of its probes has come anywhere for this time, and for that of four."""
PROBES_MISSED: Final = 4
SETTLED_NS: Final = 4 * SECOND
"""A cable without a carrier is named after this time at the latest."""


@dataclass(slots=True)
class Carriers:
    """What is down now, and since when. `own` is this host."""

    own: str
    _down_ns: dict[frozenset[End], int] = field(default_factory=dict)

    def nics(
        self, layout: Layout | CabledLayout, hosts: Mapping[str, HostState], now_ns: int
    ) -> Iterator[Fault]:
        """Yield what hosts say of their NICs, one by one."""
        for name, host in sorted(hosts.items()):
            if now_ns - host.heard_ns > HEARD_NS and name != self.own:
                continue
            for nic, facts in enumerate(host.nics):
                if host.flaps(nic) >= FLAPS:
                    yield _fault(layout.nic(name, nic), "flap", _flaps(name, host, nic))
                elif not facts.up:
                    yield _fault(layout.nic(name, nic), "dead", _no_carrier(name, facts.name))

    def cabled(
        self, layout: CabledLayout, hosts: Mapping[str, HostState], pps: int, now_ns: int
    ) -> Iterator[Fault]:
        """Yield what is wrong with hosts and NICs where cables connect some of them."""
        dead = {
            name: _death(layout, hosts, name, now_ns)
            for name in self._dead(layout, hosts, pps, now_ns)
        }
        yield from dead.values()
        gone = {number for name in dead for number in layout.networks_of(name)}
        found: dict[Element, Fault] = {}
        for name, host in sorted(hosts.items()):
            if name in dead or (now_ns - host.heard_ns > HEARD_NS and name != self.own):
                continue
            for nic, facts in enumerate(host.nics):
                kind: FaultKind
                number = layout.network_of(name, nic)
                ends = layout.networks[number] if number is not None else ()
                if len(ends) == 2 and number in gone:
                    continue
                if host.flaps(nic) >= FLAPS:
                    kind, line = "flap", _flaps(name, host, nic)
                elif facts.up:
                    continue
                elif number is None:
                    continue  # no cable is known there, so none is missing
                else:
                    kind, line = "dead", _no_carrier(name, facts.name)
                fault = _fault(layout.nic(name, nic), kind, line)
                before = found.get(fault.element)
                found[fault.element] = fault if before is None else _joined(before, fault)
                if len(ends) == 2 and kind == "dead":
                    self._wait(found, fault.element, ends, hosts, now_ns)
        down = {frozenset(layout.networks[k]) for k in range(len(layout.networks))
                if any(_is_down(hosts, end) for end in layout.networks[k])}  # fmt: skip
        self._down_ns = {ends: at for ends, at in self._down_ns.items() if ends in down}
        yield from found.values()

    def _wait(
        self,
        found: dict[Element, Fault],
        element: Element,
        ends: tuple[End, ...],
        hosts: Mapping[str, HostState],
        now_ns: int,
    ) -> None:
        """Take a cable back that is down, unless it is known that both hosts live."""
        since = self._down_ns.setdefault(frozenset(ends), now_ns)
        live = all(
            name == self.own or ((host := hosts.get(name)) is not None and host.heard_ns > since)
            for name, _nic in ends
        )
        others = [host for name, host in hosts.items() if name != self.own]
        alone = all(now_ns - host.heard_ns > HUSH_NS for host in others)
        if not live and not alone and now_ns - since < SETTLED_NS:
            found.pop(element)

    def _dead(
        self, layout: CabledLayout, hosts: Mapping[str, HostState], pps: int, now_ns: int
    ) -> Iterator[str]:
        """Yield the hosts that are dead for all that is known."""
        others = {name: host for name, host in hosts.items() if name != self.own}
        silent = {
            name
            for name, host in others.items()
            if now_ns - host.heard_ns > max(HUSH_NS, 2 * max(host.gaps, default=0))
        }
        if len(silent) == len(others):
            return  # of this host alone is anything known
        refused = {name for host in hosts.values() for name in host.refused}
        none_ns = max(NONE_NS, PROBES_MISSED * layout.most * 2 * SECOND // max(1, pps))
        for name in sorted(silent - refused):
            networks = layout.networks_of(name)
            if networks and all(
                _nothing_comes(layout.networks[k], name, hosts, silent, now_ns - none_ns)
                for k in networks
            ):
                yield name


def _nothing_comes(
    ends: tuple[End, ...],
    name: str,
    hosts: Mapping[str, HostState],
    silent: set[str],
    since_ns: int,
) -> bool:
    """Return whether all on a network that are heard say that nothing comes from a host there."""
    places = [nic for host, nic in ends if host == name]
    witnesses = [end for end in ends if end[0] != name and end[0] not in silent]
    heard = [(hosts[host], nic) for host, nic in witnesses if host in hosts]
    return bool(heard and places) and all(
        host.grew_ns.get((name, nic), 0) < since_ns for host, nic in heard
    )


def _death(layout: CabledLayout, hosts: Mapping[str, HostState], name: str, now_ns: int) -> Fault:
    """Return the fault of a host that is dead; of its cable where it has one and nothing else."""
    numbers = layout.networks_of(name)
    elements = [layout.network(number) for number in numbers]
    silent_s = (now_ns - hosts[name].heard_ns) / SECOND
    lines = [f"nothing is heard of {name} for {silent_s:.0f} s, and none of its probes arrives"]
    for number in numbers:
        lines += [
            _no_carrier(host, hosts[host].nics[nic].name)
            for host, nic in layout.networks[number]
            if host != name and _is_down(hosts, (host, nic))
        ]
    whole = Element(f"host {name}", "host", -1)
    nics = tuple(e.name if e.kind == "cable" else _nic_of(layout, name, k) for k, e in zip(
        numbers, elements, strict=True
    ))  # fmt: skip
    if len(elements) == 1 and elements[0].kind == "cable":
        return _fault(elements[0], "dead", *lines, instead=(whole.name,))
    return _fault(whole, "dead", *lines, instead=tuple(sorted(nics)))


def _nic_of(layout: CabledLayout, name: str, number: int) -> str:
    return next(layout.nic_name(*end) for end in layout.networks[number] if end[0] == name)


def _is_down(hosts: Mapping[str, HostState], end: End) -> bool:
    host = hosts.get(end[0])
    return host is not None and end[1] < len(host.nics) and not host.nics[end[1]].up


def _joined(one: Fault, other: Fault) -> Fault:
    """Return what both ends of a cable say of it."""
    kind: FaultKind = "flap" if "flap" in (one.kind, other.kind) else "dead"
    return _fault(one.element, kind, *one.evidence, *other.evidence)


def _flaps(name: str, host: HostState, nic: int) -> str:
    times = host.flaps(nic)
    return f"{name} has lost the carrier of {host.nics[nic].name} {times} times in a minute"


def _no_carrier(name: str, nic: str) -> str:
    return f"{name} says that {nic} has no carrier"


def _fault(element: Element, kind: FaultKind, *lines: str, instead: tuple[str, ...] = ()) -> Fault:
    loss = 1.0 if kind == "dead" else 0.0
    alternatives = (instead,) if instead else ()
    return Fault(element, kind, loss, loss, loss, 0.0, SURE, lines, alternatives)
