# SPDX-License-Identifier: GPL-2.0-only
"""The graph of hosts that do not share all networks, as the control API shows it (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mrcd.fabric.loops import Element
from mrcd.model import ElementInfo, ElementState, FaultKind, HostSpot, NetworkInfo, NicSpot
from mrcd.survey.cables import CabledLayout, End
from mrcd.survey.inference import Fault
from mrcd.survey.matrix import Matrix
from mrcd.survey.pairs import is_directed, whole

STATES: dict[FaultKind, ElementState] = {
    "dead": "dead",
    "loss": "loss",
    "slow": "slow",
    "damage": "loss",
    "flap": "loss",
    "repeat": "slow",
    "reorder": "slow",
}
"""How an element is drawn, by what is wrong with it."""


def faulty(fault: Fault, sent: Mapping[str, int]) -> ElementInfo:
    """Return what is wrong with an element; `sent` is what each was probed with."""
    return ElementInfo(
        name=fault.element.name,
        kind=fault.element.kind,
        plane=fault.element.plane,
        state=STATES[fault.kind],
        loss=round(fault.loss, 5),
        sent=sent.get(fault.element.name, 0),
        latency_us=None,
    )


def hosts(
    layout: CabledLayout, faults: Sequence[Fault], forwarding: Collection[str]
) -> list[HostSpot]:
    """Return the hosts, with what is wrong with all NICs of one."""
    by_host = {
        f"host {name}{side}": name
        for name in layout.hosts
        for side in ("", " sending", " receiving")
    }
    states = {
        by_host[fault.element.name]: STATES[fault.kind]
        for fault in faults
        if fault.element.name in by_host
    }
    return [
        HostSpot(name=name, t0=0, forwards=name in forwarding, state=states.get(name))
        for name in layout.hosts
    ]


def networks(
    matrix: Matrix, layout: CabledLayout, faults: Sequence[Fault], rates: Sequence[int]
) -> list[NetworkInfo]:
    """Return the networks; `rates` are those of this host's NICs, in Mb/s, 0 if not known."""
    sent: dict[int, int] = {}
    for each in matrix.counted:
        sent[each.way.plane] = sent.get(each.way.plane, 0) + each.seen.sent
    return [
        _network(matrix, layout, number, faults, rates, probed=bool(sent.get(number)))
        for number in range(len(layout.networks))
    ]


def _network(
    matrix: Matrix,
    layout: CabledLayout,
    number: int,
    faults: Sequence[Fault],
    rates: Sequence[int],
    *,
    probed: bool,
) -> NetworkInfo:
    element = layout.network(number)
    own = [fault for fault in faults if _same(fault.element, element)]
    towards = None
    if own and own[0].element.kind == "cable" and is_directed(own[0].element):
        towards = own[0].element.name.rpartition(" to ")[2].rpartition(":")[0]
    return NetworkInfo(
        name=element.name,
        nics=[spot(matrix, layout, end, rates) for end in layout.networks[number]],
        state=STATES[own[0].kind] if own else "ok" if probed else "unseen",
        loss=round(max((fault.loss for fault in own), default=0.0), 5),
        towards=towards,
    )


def _same(found: Element, element: Element) -> bool:
    if found.kind == element.kind == "cable":
        return whole(found) == element.name
    return found.name == element.name


def loose(matrix: Matrix, layout: CabledLayout, rates: Sequence[int]) -> list[NicSpot]:
    """Return the NICs of which nobody is known at the far end."""
    return [
        spot(matrix, layout, (name, nic), rates)
        for name, names in sorted(layout.nics.items())
        for nic in range(len(names))
        if name in layout.hosts and layout.network_of(name, nic) is None
    ]


def spot(matrix: Matrix, layout: CabledLayout, end: End, rates: Sequence[int]) -> NicSpot:
    """Return a NIC as it is shown."""
    name, nic = end
    host = matrix.hosts.get(name)
    return NicSpot(
        host=name,
        nic=layout.nic_name(name, nic).removeprefix(f"{name}:"),
        carrier=host is not None and nic < len(host.nics) and host.nics[nic].up,
        rate_mbps=rates[nic] if name == matrix.own and nic < len(rates) else 0,
    )


def elements(
    layout: CabledLayout,
    faults: Sequence[Fault],
    found: Sequence[NetworkInfo],
    sent: Mapping[str, int],
) -> list[ElementInfo]:
    """Return the networks, and what else is at fault."""
    planes = {layout.network(k).name: layout.network(k) for k in range(len(layout.networks))}
    infos = [
        ElementInfo(
            name=each.name,
            kind=planes[each.name].kind,
            plane=planes[each.name].plane,
            state=each.state,
            loss=each.loss,
            sent=sent.get(each.name, 0),
            latency_us=None,
        )
        for each in found
    ]
    infos += [
        faulty(fault, sent)
        for fault in faults
        if not any(_same(fault.element, element) for element in planes.values())
    ]
    return infos
