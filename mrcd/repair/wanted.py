# SPDX-License-Identifier: GPL-2.0-only
"""Compare how interfaces, addresses, routes and programs are with how they should be (pure).

Each difference is a finding. Its kind decides who puts it right; one that nobody may put right,
because it is not ours, has a remedy for the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from mrcd.config.overlap import Prefix
from mrcd.linux.interfaces import Ahead, Bucket, LinkState

Offloads = Mapping[str, bool]
_TAKING = frozenset({"bridge", "bond", "team"})
"""Kinds of interfaces to which all goes that arrives at their ports."""
_BURST_SLACK, _TICK_NS = 4, 64
"""Bytes by which a bucket's depth may differ beside what passes in a tick, as it is a time."""


class Kind(Enum):
    """What differs, by who puts it right."""

    RENAMED = auto()  # one of our interfaces, which gets its name back
    CAPTURED = auto()  # one of ours belongs to a bridge or bond
    MAC = auto()  # of mrc0
    GSO = auto()  # the longest segment that TCP builds for mrc0
    OFFLOADS = auto()  # of one of our interfaces
    BUCKET = auto()  # the token bucket of an interface of the clock
    SETTINGS = auto()  # one of ours is missing, down, resolves addresses, or has another MTU
    ADDRESS = auto()  # of mrc0
    ROUTE = auto()  # to a peer, over mrc0
    PROGRAM = auto()  # not on its interface
    PLANE = auto()  # a plane NIC's address or route
    FOREIGN = auto()  # what others have put on an interface, and only they may remove


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference: `about` names the object, `text` says what is wrong with it.

    `item` is what the repair acts on: an interface of ours, a prefix, the number of a plane, or the
    pin of a hook.
    `remedy` is what the operator can do if the repair fails, or if there is none.
    """

    kind: Kind
    about: str
    text: str
    remedy: str = ""
    item: str = ""


@dataclass(frozen=True, slots=True)
class OurLink:
    """An interface of ours as it should be. What is None may be anything."""

    name: str
    index: int
    mtu: int
    kind: str
    lower: int | None = None
    mac: bytes | None = None
    gso: tuple[int, int] | None = None
    offloads: Offloads | None = None
    bucket: Bucket | None = None  # None: it has no queue


@dataclass(frozen=True, slots=True)
class OurPlane:
    """A plane NIC that is there and up, with the address and the route into the fabric it needs.

    Without a fabric it needs no route, and an address only if the operator has named one.
    """

    number: int
    name: str
    index: int
    configured: str
    address: str | None
    route: str | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """How everything should be. `routes` lead over mrc0: prefix to MTU.

    `owned` are the prefixes of each peer by its name, whether a route leads there or not, `routed`
    those behind this host, within which routes by next hops are followed.
    `programs` maps the pin of each hook to its interface's index and the kernel's program number.
    """

    mrc0: str
    links: tuple[OurLink, ...] = ()
    addresses: frozenset[str] = frozenset()
    routes: Mapping[str, int] = field(default_factory=dict)
    planes: tuple[OurPlane, ...] = ()
    programs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    owned: Mapping[str, Sequence[Prefix]] = field(default_factory=dict)
    routed: Sequence[Prefix] = ()

    @property
    def index(self) -> int:
        """The index of mrc0; 0 while there is none."""
        return next((link.index for link in self.links if link.name == self.mrc0), 0)


@dataclass(frozen=True, slots=True)
class Present:
    """How everything is: interfaces, addresses and routes by the index of their interface.

    `offloads` has our interfaces by name, `buckets` token buckets by the index of their interface.
    `programs` has what each hook's pin shows, `ahead` the programs that stand before ours there.
    `ways` has the index of the interface by which packets to addresses of peers leave, `next_hops`
    the next hop of those routes over mrc0 that have one.
    """

    links: Mapping[int, LinkState]
    addresses: Mapping[int, frozenset[str]] = field(default_factory=dict)
    routes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    offloads: Mapping[str, Offloads] = field(default_factory=dict)
    buckets: Mapping[int, Bucket] = field(default_factory=dict)
    programs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ahead: Mapping[str, Ahead] = field(default_factory=dict)
    ways: Mapping[str, int] = field(default_factory=dict)
    next_hops: Mapping[str, str] = field(default_factory=dict)


def compare(wanted: Wanted, present: Present) -> list[Finding]:
    """Return every difference, in an order in which they can be put right."""
    found = [
        finding
        for link in wanted.links
        for finding in _link(link, present, link.name == wanted.mrc0)
    ]
    mrc0 = wanted.index
    if mrc0 in present.links:
        found += _addresses(wanted, present.addresses.get(mrc0, frozenset()))
        found += _routes(wanted, present.routes.get(mrc0, {}))
        found += _ways(wanted, present, mrc0)
    for plane in wanted.planes:
        found += _plane(plane, present)
    found += _programs(wanted, present)
    return found


def _link(link: OurLink, present: Present, is_mrc0: bool) -> Iterator[Finding]:
    there = present.links.get(link.index)
    name = link.name
    if there is None:
        taken = next((other for other in present.links.values() if other.name == name), None)
        text = f"{name} is missing"
        remedy = "the log says why it could not be made again"
        if taken is not None:
            text = (
                f"{name} is missing, and another interface (a {taken.kind or 'NIC'}) has its name"
            )
            remedy = f"rename that one, or delete it (`ip link delete {name}`)"
        yield Finding(Kind.SETTINGS, name, text, remedy)
        return
    if there.name != name:
        text = f"{name} was renamed to {there.name}"
        remedy = f"`ip link set {there.name} name {name}`"
        yield Finding(Kind.RENAMED, f"{name} name", text, remedy, name)
    if there.master:
        master = present.links.get(there.master)
        text = f"{name} was put into {master.name if master else 'another interface'}"
        remedy = f"`ip link set {name} nomaster`"
        yield Finding(Kind.CAPTURED, f"{name} master", text, remedy, name)
    if link.mac is not None and there.mac != link.mac:
        text = f"{name} has the address {there.mac.hex(':')} instead of {link.mac.hex(':')}"
        remedy = f"`ip link set {name} address {link.mac.hex(':')}`"
        yield Finding(Kind.MAC, f"{name} address", text, remedy, name)
    yield from _settings(link, there)
    if link.gso is not None and there.gso != link.gso:
        size, segs = link.gso
        text = (
            f"{name} lets TCP build segments of {there.gso[0]} bytes in {there.gso[1]} packets "
            f"instead of {size} in {segs}"
        )
        remedy = f"`ip link set {name} gso_max_size {size} gso_max_segs {segs}`"
        yield Finding(Kind.GSO, f"{name} GSO", text, remedy, name)
    offloads = present.offloads.get(there.name)
    if link.offloads is not None and offloads is not None and offloads != link.offloads:
        words = ", ".join(f"{k} {'on' if v else 'off'}" for k, v in _other(link.offloads, offloads))
        text = f"offloads of {name} were changed: {words}"
        remedy = f"`ethtool -K {name}` sets them back"
        yield Finding(Kind.OFFLOADS, f"{name} offloads", text, remedy, name)
    if link.bucket is not None and not _alike(link.bucket, present.buckets.get(link.index)):
        text = f"{name} has no token bucket of {link.bucket.rate} B/s, as mrcd has set it"
        remedy = "the log says why it could not be set; `systemctl restart mrcd` tries it anew"
        yield Finding(Kind.BUCKET, f"{name} bucket", text, remedy, name)
    yield from _foreign(link, there)


def _settings(link: OurLink, there: LinkState) -> Iterator[Finding]:
    name = link.name
    if there.mtu != link.mtu:
        text = f"{name} has MTU {there.mtu} instead of {link.mtu}"
        yield Finding(Kind.SETTINGS, f"{name} MTU", text, f"`ip link set {name} mtu {link.mtu}`")
    if not there.up:
        remedy = f"`ip link set {name} up`"
        yield Finding(Kind.SETTINGS, f"{name} state", f"{name} is down", remedy)
    if there.arp:
        text = f"{name} resolves addresses, which nobody answers"
        yield Finding(Kind.SETTINGS, f"{name} ARP", text, f"`ip link set {name} arp off`")


def _alike(wanted: Bucket, there: Bucket | None) -> bool:
    """Return whether a token bucket is as it should be, as far as the kernel can tell."""
    if there is None or (there.rate, there.limit) != (wanted.rate, wanted.limit):
        return False
    slack = _BURST_SLACK + wanted.rate * _TICK_NS // 1_000_000_000
    return abs(there.burst - wanted.burst) <= slack


def _other(wanted: Offloads, there: Offloads) -> Iterator[tuple[str, bool]]:
    for name, value in there.items():
        if wanted[name] != value:
            yield name, value


def _foreign(link: OurLink, there: LinkState) -> Iterator[Finding]:
    name = link.name
    if link.bucket is None and there.qdisc not in ("noqueue", ""):
        text = (
            f"{name} has a queue that is not mrcd's ({there.qdisc}), which delays and drops packets"
        )
        yield Finding(Kind.FOREIGN, f"{name} queue", text, f"`tc qdisc del dev {name} root`")
    if there.xdp:
        text = f"{name} has an XDP program that is not mrcd's"
        yield Finding(Kind.FOREIGN, f"{name} XDP", text, f"`ip link set dev {name} xdp off`")


def _addresses(wanted: Wanted, there: frozenset[str]) -> Iterator[Finding]:
    for address in sorted(wanted.addresses - there):
        text = f"{wanted.mrc0} has lost its address {address}"
        remedy = f"`ip address add {address} dev {wanted.mrc0}`"
        yield Finding(Kind.ADDRESS, address, text, remedy, address)


def _routes(wanted: Wanted, there: Mapping[str, int]) -> Iterator[Finding]:
    for prefix, mtu in wanted.routes.items():
        if (found := there.get(prefix)) == mtu:
            continue
        text = f"the route to {prefix} over {wanted.mrc0} is missing"
        if found is not None:
            text = f"the route to {prefix} over {wanted.mrc0} has MTU {found} instead of {mtu}"
        remedy = f"`ip route replace {prefix} dev {wanted.mrc0} mtu {mtu}`"
        yield Finding(Kind.ROUTE, prefix, text, remedy, prefix)


def _ways(wanted: Wanted, present: Present, mrc0: int) -> Iterator[Finding]:
    """Yield the interfaces by which packets to peers leave, although our routes are there."""
    astray: dict[int, list[str]] = {}
    ours = present.routes.get(mrc0, {})
    for address, index in present.ways.items():
        prefix = f"{address}/{128 if ':' in address else 32}"
        if index != mrc0 and index in present.links and prefix in ours:
            astray.setdefault(index, []).append(address)
    for index, addresses in astray.items():
        others = len(addresses) - 1
        more = f" and {others} more address{'es of peers' if others > 1 else ' of a peer'}"
        name, first, more = present.links[index].name, addresses[0], more * (others > 0)
        text = (
            f"packets to {first}{more} leave by {name} and not by {wanted.mrc0}: a routing rule or "
            "a route of another program comes first"
        )
        remedy = (
            f"`ip rule` and `ip route get {first}` show which; `ip rule add pref 100 to {first} "
            "lookup main` lets mrcd's route decide"
        )
        yield Finding(Kind.FOREIGN, f"packets to peers by {name}", text, remedy)


def _plane(plane: OurPlane, present: Present) -> Iterator[Finding]:
    name, number = plane.name, str(plane.number)
    if name != plane.configured:
        text = f"plane {number}: {plane.configured} is now called {name}; it is still used"
        remedy = f"`ip link set {name} name {plane.configured}`, or the new name in mrcd.toml"
        yield Finding(Kind.FOREIGN, f"plane {number} name", text, remedy)
    link = present.links.get(plane.index)
    master = present.links.get(link.master) if link is not None else None
    if master is not None and master.kind in _TAKING:
        text = (
            f"plane {number}: {name} is a port of {master.name} (a {master.kind}), which takes "
            "what comes for this host, neighbours' answers among it"
        )
        remedy = f"name {master.name} in place of {name}, or `ip link set {name} nomaster`"
        yield Finding(Kind.FOREIGN, f"plane {number} master", text, remedy)
    there = {address.split("/")[0] for address in present.addresses.get(plane.index, ())}
    if plane.address is not None and plane.address not in there:
        text = f"plane {number}: {name} has lost its address {plane.address}"
        about = f"plane {number} address"
        if plane.route is not None:
            yield Finding(Kind.PLANE, about, text, "", number)
        else:
            remedy = f"`ip address add {plane.address} dev {name}` with its prefix length"
            yield Finding(Kind.FOREIGN, about, text, remedy)
    if plane.route is not None and plane.route not in present.routes.get(plane.index, {}):
        text = f"plane {number}: the route to {plane.route} over {name} is missing"
        yield Finding(Kind.PLANE, f"plane {number} route", text, "", number)


def _programs(wanted: Wanted, present: Present) -> Iterator[Finding]:
    for pin, place in wanted.programs.items():
        if place[0] not in present.links:
            continue
        name = present.links[place[0]].name
        if present.programs.get(pin) == place:
            if (ahead := present.ahead.get(pin)) is not None:
                yield _ahead(pin, name, ahead)
            continue
        text = f"mrcd's program was taken off {name}"
        remedy = "the log says why it could not be attached; `systemctl restart mrcd` tries it anew"
        yield Finding(Kind.PROGRAM, pin, text, remedy, pin)


def _ahead(pin: str, name: str, ahead: Ahead) -> Finding:
    who = ", ".join(ahead.names)
    more = len(ahead.names) > 1
    text = (
        f"the program{'s' * more} {who} of others stand{'s' * (not more)} before mrcd's on {name}, "
        "and may take its packets"
    )
    remedy = f"`tc filter show dev {name} ingress` and `bpftool net show dev {name}` list them"
    kind = Kind.PROGRAM if ahead.movable else Kind.FOREIGN
    return Finding(kind, f"programs of {name}", text, remedy, pin)
