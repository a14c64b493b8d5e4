# SPDX-License-Identifier: GPL-2.0-only
"""Compute what faults mean for each port of the fabric (pure).

Faults act on switches only. The effect on a port is computed from all current faults, so
overlapping faults add up and clearing one leaves the others in place. The table shows, for each
element, where a fault acts on packets:

    element            loss, corrupt                    rate
    h1:p1              at the T0, each direction once   both directions
    p1t0-1:p1t1-2      each direction once              both directions
    p1t0-1             a packet entering the switch     every port, both directions
    p1                 a packet entering from a host    every port, both directions

A delay holds packets where they leave a port towards a switch. A link delays each direction once,
and a T1 delays once each packet that crosses it. Other elements cannot have a delay.

`blackhole` drops packets that enter or leave any port of the element.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cli.lab.state import Fault, NoSuchElement
from cli.lab.topology import Cable, Topology
from mrcd.fabric import naming

PPM = 1_000_000
DELAY_MAX_US = 1_000_000

Port = tuple[str, str]  # node, interface


class BadAction(ValueError):
    """The action is unknown, its value is out of range, or the element cannot have it."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """The impairment of packets in one direction of a port, in parts per million."""

    drop_ppm: int = 0
    corrupt_ppm: int = 0

    def plus(self, other: Impairment) -> Impairment:
        """Return the combination of two impairments in sequence."""
        return Impairment(
            _either(self.drop_ppm, other.drop_ppm), _either(self.corrupt_ppm, other.corrupt_ppm)
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """The state of a port under its faults; the default is healthy. A rate of 0 is unlimited."""

    down: bool = False
    ingress: Impairment = Impairment()
    egress: Impairment = Impairment()
    ingress_mbps: int = 0
    egress_mbps: int = 0
    egress_delay_us: int = 0

    def plus(self, other: Effect) -> Effect:
        """Return the combination of two simultaneous effects."""
        return Effect(
            down=self.down or other.down,
            ingress=self.ingress.plus(other.ingress),
            egress=self.egress.plus(other.egress),
            ingress_mbps=_slower(self.ingress_mbps, other.ingress_mbps),
            egress_mbps=_slower(self.egress_mbps, other.egress_mbps),
            egress_delay_us=self.egress_delay_us + other.egress_delay_us,
        )


def _either(a: int, b: int) -> int:
    """Return the chance, in parts per million, that either of two independent events happens."""
    return a + b - a * b // PPM


def _slower(a: int, b: int) -> int:
    return min(a, b) if a and b else a or b


def parse_action(text: str) -> tuple[str, int]:
    """Parse an action (`down`, `loss=5%`, `rate=25`, `delay=3ms`, ...) into kind and value.

    Values are as in `Fault`. Raises BadAction.
    """
    if text in ("down", "blackhole", "clear"):
        return text, 0
    share = re.fullmatch(r"(loss|corrupt)=(\d+(?:\.\d+)?)%", text)
    if share:
        ppm = round(float(share[2]) * PPM / 100)
        if 0 < ppm <= PPM:
            return share[1], ppm
        raise BadAction(f"{text}: must be more than 0% and at most 100%")
    rate = re.fullmatch(r"rate=(\d+)", text)
    if rate:
        if 1 <= int(rate[1]) <= 34_000:
            return "rate", int(rate[1])
        raise BadAction(f"{text}: must be 1 to 34000 Mb/s")
    delay = re.fullmatch(r"delay=(\d+(?:\.\d+)?)ms", text)
    if delay:
        microseconds = round(float(delay[1]) * 1000)
        if 100 <= microseconds <= DELAY_MAX_US:
            return "delay", microseconds
        raise BadAction(f"{text}: must be 0.1 to {DELAY_MAX_US // 1000} ms")
    raise BadAction(
        f"{text!r}: must be down, blackhole, loss=5%, corrupt=1%, rate=25, delay=3ms or clear"
    )


def shown(fault: Fault) -> str:
    """Return the fault's action as a user writes it."""
    if fault.kind in ("loss", "corrupt"):
        return f"{fault.kind}={fault.value * 100 / PPM:g}%"
    if fault.kind == "delay":
        return f"delay={fault.value / 1000:g}ms"
    return f"rate={fault.value}" if fault.kind == "rate" else fault.kind


def changed(faults: Iterable[Fault], element: str, kind: str, value: int) -> tuple[Fault, ...]:
    """Return the faults after one action; it replaces a fault of its kind on the element."""
    if kind == "clear":
        return tuple(fault for fault in faults if fault.element != element)
    rest = [f for f in faults if (f.element, f.kind) != (element, kind)]
    return (*rest, Fault(element, kind, value))


def canonical(topology: Topology, element: str) -> str:
    """Return the element's canonical name (links with the T0 first).

    Raises NoSuchElement, which lists the existing elements.
    """
    for candidate in (element, ":".join(reversed(element.split(":")))):
        if candidate in _elements(topology):
            return candidate
    raise NoSuchElement(f"no element {element!r} in this lab; known: {_listing(topology)}")


def check(topology: Topology, element: str, kind: str) -> None:
    """Raise BadAction if the element cannot have such a fault."""
    trunks = [cable for cable in topology.cables if _is_trunk(topology, cable)]
    where = {cable.far.node for cable in trunks} | {_link_name(cable) for cable in trunks}
    if kind == "delay" and element not in where:
        raise BadAction(f"{element}: only T1s and links between switches can delay")


def effects(topology: Topology, faults: Iterable[Fault]) -> dict[Port, Effect]:
    """Return the effect on every port that is not healthy."""
    total: dict[Port, Effect] = {}
    for fault in faults:
        for port, effect in _effects_of(topology, fault).items():
            total[port] = total.get(port, Effect()).plus(effect)
    return total


def ports(topology: Topology, element: str) -> list[Port]:
    """Return every port that an action on the element can affect, those towards hosts first."""
    kinds = ("down", "blackhole", "loss", "rate", "delay")
    found = {port for kind in kinds for port in _effects_of(topology, Fault(element, kind, 1))}
    return sorted(found, key=by_distance)


def by_distance(port: Port) -> tuple[bool, Port]:
    """Return a sort key that puts ports towards hosts first, since all traffic passes them."""
    return (not port[1].startswith("port"), port)


def _link_name(cable: Cable) -> str:
    if cable.far.ifname.startswith("plane"):
        return naming.nic(cable.plane, cable.far.node)
    return f"{cable.near.node}:{cable.far.node}"


def _is_trunk(topology: Topology, cable: Cable) -> bool:
    return topology.nodes[cable.far.node].kind != "host"


def _elements(topology: Topology) -> dict[str, list[Cable]]:
    """Return the name of each element with the cables that belong to it."""
    found: dict[str, list[Cable]] = {}
    for cable in topology.cables:
        for name in _element_names(topology, cable):
            found.setdefault(name, []).append(cable)
    return found


def _element_names(topology: Topology, cable: Cable) -> list[str]:
    names = [naming.plane(cable.plane), cable.near.node, _link_name(cable)]
    if topology.nodes[cable.far.node].kind != "host":
        names.append(cable.far.node)
    return names


def _listing(topology: Topology) -> str:
    fabric = topology.fabric
    hosts = ", ".join(naming.nic(0, host.name) for host in fabric.hosts[:3])
    return (
        f"planes p0 to p{fabric.planes - 1}, switches"
        f" {naming.every_switch(fabric.planes, fabric.t0, fabric.t1)}, NIC links {hosts} ...,"
        f" switch links {naming.link(0, 1, 1)} ..."
    )


def _effects_of(topology: Topology, fault: Fault) -> dict[Port, Effect]:
    effect: dict[Port, Effect] = {}
    for cable in _elements(topology)[fault.element]:
        for port, part in _on_cable(topology, cable, fault):
            effect[port] = effect.get(port, Effect()).plus(part)
    return effect


def _on_cable(topology: Topology, cable: Cable, fault: Fault) -> list[tuple[Port, Effect]]:
    """Return the effects of an element's fault on the ports of one of its cables."""
    near, far = (cable.near.node, cable.near.ifname), (cable.far.node, cable.far.ifname)
    to_host = topology.nodes[cable.far.node].kind == "host"
    switch_side = [near] if to_host else [near, far]
    is_link, plane = fault.element == _link_name(cable), naming.plane(cable.plane)
    inside = [port for port in switch_side if is_link or fault.element in (port[0], plane)]

    if fault.kind == "down":
        # For a link one end is enough, because the other end loses its carrier.
        return [(port, Effect(down=True)) for port in (inside[:1] if is_link else inside)]
    if fault.kind == "blackhole":
        everything = Impairment(drop_ppm=PPM)
        return [(port, Effect(ingress=everything, egress=everything)) for port in inside]
    if fault.kind == "delay":
        return [(port, Effect(egress_delay_us=fault.value)) for port in ([] if to_host else inside)]
    if fault.kind == "rate":
        shaped = [(port, Effect(egress_mbps=fault.value)) for port in switch_side]
        if to_host:
            shaped.append((near, Effect(ingress_mbps=fault.value)))
        return shaped
    share = (
        Impairment(drop_ppm=fault.value)
        if fault.kind == "loss"
        else Impairment(corrupt_ppm=fault.value)
    )
    if is_link and to_host:
        return [(near, Effect(ingress=share, egress=share))]
    if fault.element == plane:
        inside = [near] if to_host else []
    return [(port, replace(Effect(), ingress=share)) for port in inside]
