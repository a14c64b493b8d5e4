# SPDX-License-Identifier: GPL-2.0-only
"""Give the hosts of an inventory T0s, ports and addresses, and keep those they have (pure).

A host keeps its T0, port, addresses and public key from an earlier fabric file unless the inventory
says otherwise. A new host goes behind those that are there: on its T0 to the port above the
highest, and to the address above the highest. What a removed host leaves is a hole. It is filled
only when there is no room above.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cli.fabric.inventory import Entry, InventoryError
from mrcd.fabric.hosts import Host, HostRange, Interface, Network, nth, room
from mrcd.fabric.shape import PORT_MAX, T0_MAX, Fabric

NETWORKS: tuple[Network, ...] = (
    ipaddress.IPv4Network("10.99.0.0/16"),
    ipaddress.IPv6Network("fd99::/64"),
)
"""Where the addresses of mrc0s come from unless others are named; large enough to grow into."""
_FILLED_MAX = 1 << 16
"""How many numbers of a network are tried when there is no room above the highest."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The fabric with the hosts of an inventory, and what changed against the earlier file.

    moved: hosts with another T0, port or address than before.
    """

    fabric: Fabric
    added: tuple[Host, ...]
    moved: tuple[Host, ...]
    removed: tuple[Host, ...]


def place(
    entries: Sequence[Entry],
    frame: Fabric,
    *,
    per_t0: int | None = None,
    networks: Sequence[Network] = (),
) -> Placed:
    """Return `frame` with the hosts of an inventory.

    `frame` is an earlier fabric, whose hosts keep their numbers, or one without hosts. The hosts of
    a pattern ([hosts]) only stand for others: those that the inventory does not name hold no
    number. per_t0: how many hosts are put on a T0. networks: where new addresses come from; by
    default those that are in use. Raises InventoryError with every problem found.
    """
    return _Placing(entries, frame, per_t0, networks).run()


class _Placing:
    def __init__(
        self,
        entries: Sequence[Entry],
        frame: Fabric,
        per_t0: int | None,
        networks: Sequence[Network],
    ) -> None:
        pattern = frame.hosts if isinstance(frame.hosts, HostRange) else None
        wanted = {entry.name for entry in entries}
        self.entries, self.frame = entries, frame
        self.sequential = per_t0 is not None or pattern is not None
        self.per_t0 = per_t0 or (pattern.per_t0 if pattern else PORT_MAX)
        self.kept: dict[str, Host] = {
            host.name: host for host in frame.hosts if host.name in wanted
        }
        self.gone = () if pattern else tuple(h for h in frame.hosts if h.name not in wanted)
        self.networks = tuple(networks) or _networks(frame)
        self.problems: list[str] = []
        self.spots: dict[tuple[int, int], str] = {}
        self.highest: dict[int, int] = {}  # port of each T0
        for host in self.gone:
            self.highest[host.t0] = max(self.highest.get(host.t0, 0), host.port)

    def run(self) -> Placed:
        t0s = self.t0s()
        ports = self.ports(t0s) if not self.problems else {}
        addresses = self.addresses() if not self.problems else {}
        if self.problems:
            raise InventoryError(self.problems)
        made: dict[str, Host] = {}
        for entry in self.entries:
            before = self.kept.get(entry.name)
            key = entry.public_key or (before.public_key if before else "")
            name = entry.name
            routed = entry.routed or (before.routed if before else ())
            made[name] = Host(name, t0s[name], ports[name], addresses[name], key, routed=routed)
        order = [*self.kept, *(name for name in made if name not in self.kept)]
        hosts = tuple(made[name] for name in order)
        count = max(self.frame.t0, *(host.t0 for host in hosts))
        return Placed(
            fabric=replace(self.frame, t0=count, hosts=hosts),
            added=tuple(host for host in hosts if host.name not in self.kept),
            moved=tuple(h for h in hosts if h.name in self.kept and _differ(h, self.kept[h.name])),
            removed=self.gone,
        )

    # ---- T0s

    def t0s(self) -> dict[str, int]:
        """Return the T0 of each host."""
        racks = self.racks()
        found: dict[str, int] = {}
        for entry in self.entries:
            before = self.kept.get(entry.name)
            if entry.t0 is not None:
                found[entry.name] = entry.t0
            elif entry.rack is not None:
                found[entry.name] = racks.get(entry.rack, 1)
            elif before is not None:
                found[entry.name] = before.t0
        crowd: dict[int, int] = dict(self.highest)
        for name, t0 in found.items():
            before = self.kept.get(name)
            port = before.port if before is not None and before.t0 == t0 else 0
            crowd[t0] = max(crowd.get(t0, 0) + (port == 0), port)
        last = max(crowd, default=1)
        for entry in self.entries:
            if entry.name in found:
                continue
            if not self.sequential:
                wrong = f"{entry.place}: {entry.name}: says no T0, and no rack"
                self.problems.append(f"{wrong}; name it, or fill T0s in order with --per-t0")
                continue
            while crowd.get(last, 0) >= self.per_t0:
                last += 1
            crowd[last] = crowd.get(last, 0) + 1
            found[entry.name] = last
        for entry in self.entries:
            if found.get(entry.name, 1) > T0_MAX:
                wrong = f"{entry.place}: {entry.name}: comes to T0 {found[entry.name]}"
                self.problems.append(f"{wrong} of at most {T0_MAX}; put more hosts on a T0")
        return found

    def racks(self) -> dict[str, int]:
        """Return the number of each rack's T0: that of the hosts in it, or the next one."""
        known: dict[str, dict[int, str]] = {}
        for entry in self.entries:
            if entry.rack is not None:
                here = known.setdefault(entry.rack, {})
                if entry.name in self.kept:
                    here.setdefault(self.kept[entry.name].t0, entry.name)
        used = {host.t0 for host in (*self.kept.values(), *self.gone)}
        used |= {entry.t0 for entry in self.entries if entry.t0 is not None}
        last = max(used, default=0)
        found: dict[str, int] = {}
        for rack, here in known.items():
            if len(here) > 1:
                shown = " and ".join(f"{name} (T0 {t0})" for t0, name in here.items())
                self.problems.append(
                    f"{self.place_of(next(iter(here.values())))}: rack {rack} has {shown} in the"
                    " earlier file; give the number of the T0 for hosts that were moved"
                )
            if not here:
                last += 1
            found[rack] = next(iter(here), last)
        shared: dict[int, str] = {}
        for rack, t0 in found.items():
            if shared.setdefault(t0, rack) != rack and known[rack]:
                self.problems.append(
                    f"{self.place_of(known[rack][t0])}: racks {shared[t0]} and {rack} both have"
                    f" hosts of T0 {t0}; give the number of the T0 for hosts that were moved"
                )
        return found

    # ---- ports

    def ports(self, t0s: Mapping[str, int]) -> dict[str, int]:
        """Return the port of each host on its T0."""
        found: dict[str, int] = {}
        fixed = [entry for entry in self.entries if entry.port is not None]
        for entry in fixed:
            assert entry.port is not None
            self.take(entry, t0s[entry.name], entry.port, found)
        for entry in self.entries:
            before = self.kept.get(entry.name)
            if entry.port is None and before is not None and before.t0 == t0s[entry.name]:
                self.take(entry, before.t0, before.port, found)
        for entry in self.entries:
            if entry.name not in found and not self.problems:
                t0 = t0s[entry.name]
                port = self.free_port(t0)
                if port is None:
                    wrong = f"{entry.place}: {entry.name}: T0 {t0} has no free port of"
                    self.problems.append(f"{wrong} {self.per_t0}; name another T0")
                else:
                    self.take(entry, t0, port, found)
        return found

    def take(self, entry: Entry, t0: int, port: int, found: dict[str, int]) -> None:
        owner = self.spots.setdefault((t0, port), entry.name)
        if owner != entry.name:
            self.problems.append(
                f"{entry.place}: {entry.name}: port {port} of T0 {t0} is that of {owner}"
                f" ({self.place_of(owner)}); give one of them another"
            )
        self.highest[t0] = max(self.highest.get(t0, 0), port)
        found[entry.name] = port

    def free_port(self, t0: int) -> int | None:
        above = self.highest.get(t0, 0) + 1
        if above <= self.per_t0:
            return above
        free = (port for port in range(1, self.per_t0 + 1) if (t0, port) not in self.spots)
        return next(free, None)

    # ---- addresses

    def addresses(self) -> dict[str, tuple[Interface, ...]]:
        """Return the addresses of each host's mrc0."""
        found: dict[str, tuple[Interface, ...]] = {}
        owners: dict[object, str] = {}
        for entry in self.entries:
            before = self.kept.get(entry.name)
            given = entry.addresses or (before.addresses if before else ())
            if not given:
                continue
            found[entry.name] = given
            for address in given:
                owner = owners.setdefault(address.ip, entry.name)
                if owner != entry.name:
                    self.problems.append(
                        f"{entry.place}: {entry.name}: {address.ip} is an address of {owner}"
                        f" ({self.place_of(owner)}); give one of them another"
                    )
        numbers = self.numbers(found)
        for entry in self.entries:
            if entry.name in found:
                continue
            number = next(numbers, None)
            if number is None:
                shown = ", ".join(map(str, self.networks))
                wrong = f"{entry.place}: {entry.name}: {shown} have no free address"
                self.problems.append(f"{wrong}; name larger networks with --addresses")
                break
            found[entry.name] = tuple(nth(network, number) for network in self.networks)
        return found

    def numbers(self, held: Mapping[str, Sequence[Interface]]) -> Iterator[int]:
        """Yield the numbers of free addresses, the same in each network: those above first."""
        used = {number for each in held.values() for number in self.numbers_of(each)}
        gone = {number for host in self.gone for number in self.numbers_of(host.addresses)}
        last, most = max(used | gone, default=0), min(map(room, self.networks))
        yield from range(last + 1, most + 1)
        yield from (number for number in range(1, min(last, _FILLED_MAX) + 1) if number not in used)

    def numbers_of(self, addresses: Sequence[Interface]) -> Iterator[int]:
        for address in addresses:
            for network in self.networks:
                if address.version == network.version and address.ip in network:
                    yield int(address.ip) - int(network.network_address)

    def place_of(self, name: str) -> str:
        return next((entry.place for entry in self.entries if entry.name == name), "")


def _networks(frame: Fabric) -> tuple[Network, ...]:
    """Return the networks in which the hosts of a fabric have their addresses."""
    if isinstance(frame.hosts, HostRange):
        return frame.hosts.networks
    return (
        tuple(address.network for host in frame.hosts[:1] for address in host.addresses) or NETWORKS
    )


def _differ(host: Host, before: Host) -> bool:
    mine, other = ((each.addresses, each.routed) for each in (host, before))
    return (host.t0, host.port, mine) != (before.t0, before.port, other)
