# SPDX-License-Identifier: GPL-2.0-only
"""The ways between hosts that do not share all networks, and what of them can fail (pure).

Each host numbers its NICs by itself, and says which NIC of whom each of them leads to. NICs that
lead to each other are on one network, whatever their numbers: one of two NICs is a cable, one of
more a switch, with the elements of mrcd/survey/ways.py.

    cable a:eth1 to b:eth2    one direction of a cable, with the NICs at both ends of it
    cable a:eth1 - b:eth2     both
    network of a:eth1, b:eth1 and c:eth1    every way of a switched network
    host a, host a sending, host a receiving    all NICs of a host that has several

Nobody can tell a cable and the NICs at its ends apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mrcd.fabric.hosts import Host
from mrcd.fabric.loops import Element
from mrcd.survey.ways import Way, pair_elements, side_elements

CABLE: Final = "cable "
BOTH: Final = " - "
End = tuple[str, int]
"""A host and the number that it gives a NIC of its own."""
Joint = tuple[End, End]
"""Two NICs of two hosts that reach each other without another host."""
_SHOWN: Final = 2


class Joints:
    """Which NICs of ours lead to which of others, by what was heard there.

    Ways change while cables fail, and a way through a host may look like a cable for a moment. What
    is heard on a NIC itself decides. A cable that is silent is still where it was.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}

    def certain(
        self, pairs: Mapping[str, tuple[int, ...]], seen: Mapping[str, set[tuple[int, int]]]
    ) -> dict[str, tuple[int, ...]]:
        """Return for each peer the NIC that each of ours leads to, -1 for none.

        `pairs` is the same by the configuration, and `seen` has pairs of our NIC and theirs.
        """
        found = {}
        for name, ends in pairs.items():
            heard = seen.get(name, set())
            for nic, theirs in enumerate(ends):
                if (nic, theirs) in heard:
                    self._known[name, nic] = theirs
                elif heard and self._is_elsewhere(name, nic, seen):
                    self._known.pop((name, nic), None)
            found[name] = tuple(self._known.get((name, nic), -1) for nic in range(len(ends)))
        return found

    def _is_elsewhere(self, name: str, nic: int, seen: Mapping[str, set[tuple[int, int]]]) -> bool:
        """Return whether another host is at the end of a NIC now, which was not there before."""
        theirs = self._known.get((name, nic))
        if theirs is None or (nic, theirs) in seen.get(name, set()):
            return False
        return any(
            other != name and (other, nic) not in self._known and any(k == nic for k, _n in pairs)
            for other, pairs in seen.items()
        )


@dataclass(frozen=True)
class CabledLayout:
    """Some hosts, `own` among them, and what joins their NICs; a joint may be there both ways.

    `nics` are the names of a host's NICs, as far as it has told them.
    """

    own: str
    hosts: tuple[str, ...]
    nics: Mapping[str, tuple[str, ...]]
    joints: frozenset[Joint]

    def nic_name(self, host: str, nic: int) -> str:
        """Return a NIC as people call it."""
        known = self.nics.get(host, ())
        return f"{host}:{known[nic] if nic < len(known) else f'p{nic}'}"

    def nic(self, host: str, nic: int) -> Element:
        """Return the element for a NIC and its cable: of the cable where nobody else is on it."""
        number = self._number.get((host, nic))
        if number is not None and len(self.networks[number]) == 2:
            return self._cable(number)
        return Element(self.nic_name(host, nic), "nic", self._plane((host, nic)))

    # ---- networks

    @cached_property
    def _known(self) -> dict[End, dict[str, int]]:
        """The NICs that each NIC leads to, by their hosts."""
        found: dict[End, dict[str, int]] = {}
        for one, other in sorted(self.joints):
            if {one[0], other[0]} <= {*self.hosts} and one[0] != other[0]:
                found.setdefault(one, {})[other[0]] = other[1]
                found.setdefault(other, {})[one[0]] = one[1]
        return found

    @cached_property
    def networks(self) -> tuple[tuple[End, ...], ...]:
        """The NICs of each network, in order."""
        found: list[tuple[End, ...]] = []
        seen: set[End] = set()
        for first in sorted(self._known):
            if first in seen:
                continue
            group, queue = {first}, [first]
            for end in queue:
                others = {*self._known[end].items()} - group
                group |= others
                queue += others
            seen |= group
            found.append(tuple(sorted(group)))
        return tuple(found)

    @cached_property
    def _number(self) -> dict[End, int]:
        return {end: k for k, network in enumerate(self.networks) for end in network}

    def networks_of(self, host: str) -> tuple[int, ...]:
        """Return the numbers of the networks that a host is on."""
        return tuple(
            k for k, network in enumerate(self.networks) if any(host == end[0] for end in network)
        )

    def network_of(self, host: str, nic: int) -> int | None:
        """Return the number of the network that a NIC is on, if it is known to be on one."""
        return self._number.get((host, nic))

    def network(self, number: int) -> Element:
        """Return the element for a network as a whole."""
        ends = self.networks[number]
        if len(ends) == 2:
            return self._cable(number)
        names = [self.nic_name(*end) for end in ends]
        rest = len(names) - _SHOWN
        last = names[-1] if rest == 1 else f"{rest} more"
        title = f"network of {', '.join(names[:_SHOWN])} and {last}"
        return Element(title, "network", self._plane(ends[0]))

    def _cable(self, number: int) -> Element:
        one, other = sorted(self.nic_name(*end) for end in self.networks[number])
        return Element(f"{CABLE}{one}{BOTH}{other}", "cable", self._plane(self.networks[number][0]))

    def _plane(self, end: End) -> int:
        """Return the number that this host gives a network: that of its NIC on it, else -1."""
        number = self._number.get(end)
        ends = (end,) if number is None else self.networks[number]
        return next((nic for host, nic in ends if host == self.own), -1)

    # ---- ways

    @property
    def most(self) -> int:
        """The most ways that lead from one host."""
        return max((len(self.from_host(host)) for host in self.hosts), default=0)

    def theirs(self, host: str, nic: int, other: str) -> int | None:
        """Return the NIC of another host that a host's NIC leads to; None: it leads to none."""
        return self._known.get((host, nic), {}).get(other)

    def from_host(self, host: str) -> tuple[End, ...]:
        """Return the hosts that ways lead to from a host, each with the NIC of the first one."""
        return self._from.get(host, ())

    @cached_property
    def _from(self) -> dict[str, tuple[End, ...]]:
        found: dict[str, list[End]] = {}
        for (host, nic), others in sorted(self._known.items()):
            found.setdefault(host, []).extend((other, nic) for other in sorted(others))
        return {host: tuple(ends) for host, ends in found.items()}

    def index(self, sender: str, host: str, nic: int) -> int | None:
        """Return the number of the way from a sender to a host's NIC; None if there is none."""
        return self._places.get((host, sender, nic))

    @cached_property
    def _places(self) -> dict[tuple[str, str, int], int]:
        return {
            (host, sender, nic): k
            for host, ends in self._from.items()
            for k, (sender, nic) in enumerate(ends)
        }

    def ways(self, host: str) -> Sequence[Way]:
        """Return the ways to a host, in the order of their numbers."""
        there = Host(host, 0, 0, ())
        return tuple(self._way(sender, there, nic) for sender, nic in self.from_host(host))

    def _way(self, sender: str, host: Host, nic: int) -> Way:
        leaves = self._known[host.name, nic][sender]
        out, into = self.nic_name(sender, leaves), self.nic_name(host.name, nic)
        number = self._number[host.name, nic]
        plane = self._plane((host.name, nic))
        if len(self.networks[number]) == 2:
            found = [Element(f"{CABLE}{out} to {into}", "cable", plane), self._cable(number)]
        else:
            found = [*pair_elements(out, into, plane), *side_elements(out, into, plane)]
            found.append(self.network(number))
        if len(self.networks_of(sender)) > 1 and len(self.hosts) > 2:
            found += [Element(f"host {sender} sending", "host", -1)]
            found += [Element(f"host {sender}", "host", -1)]
        if len(self.networks_of(host.name)) > 1 and len(self.hosts) > 2:
            found += [Element(f"host {host.name} receiving", "host", -1)]
            found += [Element(f"host {host.name}", "host", -1)]
        crossings = dict.fromkeys(found, 1)
        return Way(sender, host, number, f"{out} to {into}", crossings, (leaves, nic))
