# SPDX-License-Identifier: GPL-2.0-only
"""Everything that the daemon may ask of the privileged process, as plain values.

A request is one datagram of JSON: the name of its class and each of its fields. File descriptors
travel beside it. `decode` accepts exactly these names, fields and types.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from mrcd.linux.interfaces import Bucket

BYTES_MAX = 1 << 16
"""No request and no answer is longer."""
FDS_MAX = 3
FILTER_PRIO = 4971
"""Of our filters, where the kernel has no tcx."""


class Malformed(Exception):
    """What arrived is no request."""


@dataclass(frozen=True, slots=True)
class CreateVeth:
    """Create a veth pair."""

    name: str
    other: str
    mtu: int
    mac: str
    other_mac: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"create veth pair {self.name}, {self.other}"


@dataclass(frozen=True, slots=True)
class CreateMacvlan:
    """Create a macvlan (mode private)."""

    name: str
    lower: str
    mtu: int
    mac: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"create macvlan {self.name} on {self.lower}"


@dataclass(frozen=True, slots=True)
class CreateVxlan:
    """Create a vxlan device that opens a UDP port, and takes no VNI: nothing enters by it."""

    name: str
    port: int
    mtu: int
    mac: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"create vxlan {self.name} with UDP port {self.port}"


@dataclass(frozen=True, slots=True)
class DeleteLink:
    """Delete an interface."""

    name: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"delete link {self.name}"


@dataclass(frozen=True, slots=True)
class SetLink:
    """Change the settings of an interface that are not None."""

    name: str
    up: bool | None = None
    mtu: int | None = None
    arp: bool | None = None
    multicast: bool | None = None
    mac: str | None = None
    gso_size: int | None = None
    gso_segs: int | None = None
    master: int | None = None  # 0 takes it out of a bridge or bond

    def what(self) -> str:
        """Say what is asked, for errors."""
        given = [f"{key} {value}" for key, value in asdict(self).items() if value is not None]
        return f"set {', '.join(given[1:])} on link {self.name}"


@dataclass(frozen=True, slots=True)
class RenameLink:
    """Give an interface, which may have any name by now, its own name again."""

    index: int
    name: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"rename link {self.index} to {self.name}"


@dataclass(frozen=True, slots=True)
class AddAddress:
    """Add an address to an interface."""

    name: str
    cidr: str
    nodad: bool = True
    prefix_route: bool = True

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"add address {self.cidr} to {self.name}"


@dataclass(frozen=True, slots=True)
class DeleteAddress:
    """Remove an address from an interface."""

    name: str
    cidr: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"delete address {self.cidr} of {self.name}"


@dataclass(frozen=True, slots=True)
class ReplaceRoute:
    """Install a static route of the main table."""

    dst: str
    dev: str
    via: str | None = None
    mtu: int | None = None
    ecn: bool = False

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"install route {self.dst} dev {self.dev} via {self.via}"


@dataclass(frozen=True, slots=True)
class DeleteRoute:
    """Delete a route of the main table through an interface."""

    dst: str
    dev: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"delete route {self.dst} dev {self.dev}"


@dataclass(frozen=True, slots=True)
class VerifyNeighbor:
    """Have the kernel ask a neighbour that it knows whether it is still there."""

    dev: str
    ip: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"verify neighbour {self.ip} on {self.dev}"


@dataclass(frozen=True, slots=True)
class PlaceNeighbor:
    """Have the kernel take an address to be at a MAC address for some seconds."""

    dev: str
    ip: str
    mac: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"have {self.ip} be at {self.mac} on {self.dev}"


@dataclass(frozen=True, slots=True)
class SetBucket:
    """Make the root queue of an interface a token bucket (tbf), or change it.

    `rate` is in bytes a second; `burst` and `limit` are what it lets out at once, and what it
    holds, in bytes.
    """

    name: str
    rate: int
    burst: int
    limit: int

    @classmethod
    def of(cls, name: str, bucket: Bucket) -> SetBucket:
        """Ask for a bucket on an interface."""
        return cls(name, bucket.rate, bucket.burst, bucket.limit)

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"set a token bucket of {self.rate} B/s on {self.name}"


@dataclass(frozen=True, slots=True)
class AddClsact:
    """Give an interface a clsact if it has none."""

    name: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"add clsact to {self.name}"


@dataclass(frozen=True, slots=True)
class AttachClsact:
    """Attach the program of a descriptor in place of our filter."""

    name: str
    program: str
    direction: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"attach {self.program} to {self.direction} of {self.name}"


@dataclass(frozen=True, slots=True)
class DetachClsact:
    """Remove our filter."""

    name: str
    direction: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"detach our filter from {self.direction} of {self.name}"


@dataclass(frozen=True, slots=True)
class CreateLink:
    """Attach the program of a descriptor by a link; the answer carries the link's descriptor."""

    name: str
    attach: int
    flags: int

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"attach a program to {self.name}"


@dataclass(frozen=True, slots=True)
class QueryLine:
    """List the programs at a place of an interface; the answer is their numbers, in order."""

    name: str
    attach: int

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"list the programs of {self.name}"


@dataclass(frozen=True, slots=True)
class SetFeatures:
    """Switch offloads of an interface; None leaves one as it is."""

    name: str
    tx_checksum: bool | None = None
    sg: bool | None = None
    tso: bool | None = None
    gso: bool | None = None
    gro: bool | None = None

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"set features of {self.name}"


@dataclass(frozen=True, slots=True)
class SpreadReceiving:
    """Spread an interface's packets over all CPUs; the answer is whether that was permitted."""

    name: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"set receive packet steering of {self.name}"


@dataclass(frozen=True, slots=True)
class WriteSysctls:
    """Write the sysctls of an interface of ours; the answer lists those that are not in force."""

    name: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"write sysctls of {self.name}"


@dataclass(frozen=True, slots=True)
class ForgetIpv4Routes:
    """Make every IPv4 connection look its route up again; the answer is an error text or None."""

    def what(self) -> str:
        """Say what is asked, for errors."""
        return "forget IPv4 routes"


@dataclass(frozen=True, slots=True)
class RawSocket:
    """Open a raw socket on a plane; the answer carries its descriptor."""

    name: str
    protocol: int
    address: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"open a raw socket on {self.name}"


@dataclass(frozen=True, slots=True)
class ForceBuffer:
    """Set the receive buffer of the socket of a descriptor, beyond net.core.rmem_max."""

    size: int

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"set a receive buffer of {self.size} bytes"


@dataclass(frozen=True, slots=True)
class Load:
    """Run the loader, with its standard output and error to two descriptors.

    `order` is what mrcd/datapath/loader.py reads, except for the cache, which the privileged
    process knows. The answer carries a pidfd.
    """

    order: str

    def what(self) -> str:
        """Say what is asked, for errors."""
        return "run the loader"


@dataclass(frozen=True, slots=True)
class NameProgram:
    """Look for a program by its number; the answer is its name, and the number of its link."""

    ident: int
    ifindex: int

    def what(self) -> str:
        """Say what is asked, for errors."""
        return f"name program {self.ident}"


Request = (
    CreateVeth
    | CreateMacvlan
    | CreateVxlan
    | DeleteLink
    | SetLink
    | RenameLink
    | AddAddress
    | DeleteAddress
    | ReplaceRoute
    | DeleteRoute
    | VerifyNeighbor
    | PlaceNeighbor
    | SetBucket
    | AddClsact
    | AttachClsact
    | DetachClsact
    | CreateLink
    | QueryLine
    | SetFeatures
    | SpreadReceiving
    | WriteSysctls
    | ForgetIpv4Routes
    | RawSocket
    | ForceBuffer
    | Load
    | NameProgram
)
KINDS: dict[str, type[Request]] = {kind.__name__: kind for kind in Request.__args__}
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
    "bool | None": (bool, type(None)),
}


def encode(request: Request) -> bytes:
    """Return a request as a datagram."""
    return json.dumps({"do": type(request).__name__, **asdict(request)}).encode()


def decode(datagram: bytes) -> Request:
    """Return the request of a datagram; raise Malformed if it is none."""
    try:
        given = json.loads(datagram)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise Malformed("not an object")
    kind = KINDS.get(str(given.pop("do", None)))
    if kind is None:
        raise Malformed("no such request")
    _check_fields(kind, given)
    return kind(**given)


def _check_fields(kind: type[Request], given: dict[str, Any]) -> None:
    wanted = {field.name: str(field.type) for field in fields(kind)}
    if given.keys() != wanted.keys():
        raise Malformed(f"{kind.__name__} has the fields {', '.join(wanted)}")
    for name, value in given.items():
        if type(value) not in _TYPES[wanted[name]]:  # a bool is an int to isinstance
            raise Malformed(f"{kind.__name__}.{name} is not {wanted[name]}")
