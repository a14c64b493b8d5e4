# SPDX-License-Identifier: GPL-2.0-only
"""The ways between hosts without a fabric, and what of them can fail (pure).

Probes go one way: the sender numbers them, and the receiver counts them. A way is a sender, a
receiver and a plane, and the trips of a host are the ways that lead to it, whose counts it has.

    a:eth1 sending     all ways from one NIC
    a:eth1 receiving   all ways to it
    a:eth1             both
    a:eth1 to b:eth1   one way, as through one port of a switch to another
    between a:eth1 and b:eth1    both ways of two NICs
    network of plane 1     every way of a plane
    host a, host a sending, host a receiving    the same of all NICs of a host

Between two hosts nobody can tell their NICs and the network apart: there are ways only. A host with
one plane is as good as its NIC. Hosts that do not share all planes: mrcd/survey/cables.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mrcd.fabric.hosts import Host
from mrcd.fabric.loops import Element

ENDS = 3
"""The number of hosts from which on the NICs of a plane can be told apart."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way from one host's NIC of a plane to that of another, `host`, which counts.

    `plane` is the number of the network. `nics` are the numbers that the sender and the host give
    their NICs, None where both are that of the plane.
    """

    sender: str
    host: Host
    plane: int
    title: str = field(compare=False)
    crossings: Mapping[Element, int] = field(compare=False, repr=False)
    nics: tuple[int, int] | None = field(default=None, compare=False)

    @property
    def leaves(self) -> int:
        """The number that the sender gives its NIC."""
        return self.plane if self.nics is None else self.nics[0]

    @property
    def enters(self) -> int:
        """The number that the host gives its NIC."""
        return self.plane if self.nics is None else self.nics[1]

    @property
    def kind(self) -> str:
        """What ways are alike: all are."""
        return "way"

    @property
    def hops(self) -> int:
        """A probe may be lost by chance once."""
        return 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The hosts and planes. `nics` are the names of a host's NICs, as far as it has told them."""

    hosts: tuple[str, ...]
    planes: int
    nics: Mapping[str, tuple[str, ...]]

    def nic_name(self, host: str, plane: int) -> str:
        """Return a NIC as people call it."""
        known = self.nics.get(host, ())
        return f"{host}:{known[plane] if plane < len(known) else f'p{plane}'}"

    def nic(self, host: str, plane: int) -> Element:
        """Return the element for a NIC and its cable."""
        return Element(self.nic_name(host, plane), "nic", plane)

    def senders(self, host: str) -> tuple[str, ...]:
        """Return the other hosts, in the order of the ways to a host."""
        return tuple(other for other in self.hosts if other != host)

    @property
    def most(self) -> int:
        """The number of ways that lead from one host."""
        return (len(self.hosts) - 1) * self.planes

    def theirs(self, host: str, nic: int, other: str) -> int | None:
        """Return the NIC of another host that a host's NIC leads to: all number alike."""
        return nic

    def from_host(self, host: str) -> tuple[tuple[str, int], ...]:
        """Return the hosts that ways lead to from a host, each with the NIC of the first one."""
        others = self.senders(host)
        return tuple((other, plane) for plane in range(self.planes) for other in others)

    def index(self, sender: str, host: str, plane: int) -> int:
        """Return the number of a way among those to a host."""
        return self.senders(host).index(sender) * self.planes + plane

    def ways(self, host: str) -> Sequence[Way]:
        """Return the ways to a host, in the order of their numbers."""
        there = Host(host, 0, 0, ())
        return tuple(
            Way(
                sender,
                there,
                plane,
                f"{self.nic_name(sender, plane)} to {self.nic_name(host, plane)}",
                self._crossings(sender, host, plane),
            )
            for sender in self.senders(host)
            for plane in range(self.planes)
        )

    def _crossings(self, sender: str, host: str, plane: int) -> dict[Element, int]:
        """Return the elements that a way crosses, once each."""
        out, into = self.nic_name(sender, plane), self.nic_name(host, plane)
        found = pair_elements(out, into, plane)
        if len(self.hosts) >= ENDS:
            found += side_elements(out, into, plane)
            found.append(Element(f"network of plane {plane}", "network", plane))
            if self.planes > 1:
                found += [
                    Element(f"host {sender} sending", "host", -1),
                    Element(f"host {host} receiving", "host", -1),
                    Element(f"host {sender}", "host", -1),
                    Element(f"host {host}", "host", -1),
                ]
        return dict.fromkeys(found, 1)


def pair_elements(out: str, into: str, plane: int) -> list[Element]:
    """Return the elements of two NICs together: one way, and both."""
    first, second = sorted((out, into))
    return [
        Element(f"{out} to {into}", "pair", plane),
        Element(f"between {first} and {second}", "pair", plane),
    ]


def side_elements(out: str, into: str, plane: int) -> list[Element]:
    """Return the elements of each of two NICs: one direction, and both."""
    return [
        Element(f"{out} sending", "nic", plane),
        Element(f"{into} receiving", "nic", plane),
        Element(out, "nic", plane),
        Element(into, "nic", plane),
    ]
