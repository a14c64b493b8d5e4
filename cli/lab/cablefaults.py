# SPDX-License-Identifier: GPL-2.0-only
"""Compute what faults mean for the cables of a lab without a fabric (pure).

A link leads from a host's NIC to the NIC of another host, or to a port of a switch. A fault acts on
packets where they leave an end of the link, and so on both directions:

    element     is
    h1:eth1     the link of a NIC
    h1:h2       all cables between two hosts
    s3          a switch: the links of all its ports

`down` sets one end of the link down, so that the NIC of the element loses its carrier: that of the
host with the lower number, where the element is a cable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cli.lab.faults import PPM, BadAction, Effect, Impairment, Port
from cli.lab.shape import Network, Shape
from cli.lab.state import Fault, NoSuchElement

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a network: `far` is the end that a `down` fault sets down."""

    near: Port
    far: Port
    network: Network

    @property
    def ends(self) -> tuple[Port, Port]:
        """Both ends."""
        return self.near, self.far


def port_of(nic: Port) -> str:
    """Return the name of a switch's port to a host's NIC."""
    return "-".join(nic)


def links(shape: Shape) -> Iterator[Link]:
    """Yield every link, as its first NIC sees it."""
    for network in shape.networks:
        nics: list[Port] = [(nic.host, nic.name) for nic in network.nics]
        if network.switch is None:
            yield Link(nics[0], nics[1], network)
        else:
            for nic in nics:
                yield Link(nic, (network.switch, port_of(nic)), network)


def elements(shape: Shape) -> dict[str, list[Link]]:
    """Return the name of each element with its links."""
    found: dict[str, list[Link]] = {}
    for link in links(shape):
        found[":".join(link.near)] = [link]
        if link.network.switch is None:
            found[":".join(link.far)] = [Link(link.far, link.near, link.network)]
    for link in links(shape):
        if link.network.switch is not None:
            found.setdefault(link.network.switch, []).append(link)
        else:
            near, far = sorted(link.ends, key=_number)
            found.setdefault(f"{near[0]}:{far[0]}", []).append(Link(near, far, link.network))
    return found


def _number(port: Port) -> int:
    """Return the number of a port's host."""
    return int(port[0].removeprefix("h"))


def canonical(shape: Shape, element: str) -> str:
    """Return the usual name of an element; raises NoSuchElement, which lists some."""
    known = elements(shape)
    for candidate in (element, ":".join(reversed(element.split(":")))):
        if candidate in known:
            return candidate
    raise NoSuchElement(f"no element {element!r} in this lab; known: {_listing(shape)}")


def _listing(shape: Shape) -> str:
    known = elements(shape)
    nics = [name for name in known if name.partition(":")[2].startswith("eth")]
    cables = [name for name in known if ":" in name and name not in nics]
    parts = (("NICs", nics), ("cables", cables), ("switches", shape.switches))
    return "; ".join(
        f"{what} {', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
        for what, names in parts
        if names
    )


def check(element: str, kind: str) -> None:
    """Raise BadAction if the links of such a lab cannot have such a fault."""
    if kind in ("corrupt", "delay"):
        raise BadAction(
            f"{element}: {kind} is for labs of a fabric; a lab with --shape has down, blackhole,"
            " loss, rate and clear"
        )


def effects(shape: Shape, faults: Iterable[Fault]) -> dict[Port, Effect]:
    """Return the effect on every end of a link that is not healthy."""
    known = elements(shape)
    total: dict[Port, Effect] = {}
    for fault in faults:
        for link in known[fault.element]:
            for port, effect in _on_link(link, fault):
                total[port] = total.get(port, Effect()).plus(effect)
    return total


def _on_link(link: Link, fault: Fault) -> Iterator[tuple[Port, Effect]]:
    if fault.kind == "down":
        yield link.far, Effect(down=True)
        return
    drop = {"blackhole": PPM, "loss": fault.value}.get(fault.kind, 0)
    rate = fault.value if fault.kind == "rate" else 0
    for port in link.ends:
        yield port, Effect(egress=Impairment(drop_ppm=drop), egress_mbps=rate)


def rates(shape: Shape) -> dict[Port, int]:
    """Return the rate of each end of a link in Mb/s, 0 for one that nothing limits."""
    return {port: shape.rate(link.network) for link in links(shape) for port in link.ends}
