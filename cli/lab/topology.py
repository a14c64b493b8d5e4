# SPDX-License-Identifier: GPL-2.0-only
"""Plan what a lab consists of: namespaces, links, addresses and routes (pure).

There are three kinds of node, each in a namespace:

    host  <name>-h1          plane0 .. plane7 towards its T0s
    T0    <name>-p0t0-1      port1 .. towards hosts, t1-1 .. towards T1s
    T1    <name>-p0t1-1      t0-1 .. towards T0s

If a plane has more than OWN_SPACE_T1 T1s, several T1s share a namespace, with up to SHARED_CABLES
cables in each: `<name>-p0t1-1-16` holds T1 1 to 16. The cables of a T1 are then called
t1-<m>t0-1 .., and the T1 has a routing table of its own (`Node.table`), chosen by the interface
through which a packet entered. It therefore forwards only between its own cables, and otherwise
behaves exactly like a T1 in its own namespace.

Switches also have `sid0`, an ifb, which holds the node's own addresses and anchors its uSID route.
It stays up whatever happens to the cables. `lo` is no alternative, because the kernel would turn a
route through it into a reject route. T1s that share a namespace share its `sid0`.

On every link the T0's end is the link-local ...::1 (the fabric's gateway towards hosts), the other
end ...::2. A T0 reaches a host by the address of its NIC, which real hosts have, too. Switches have
static entries for their neighbours' MAC addresses, so that no test packet waits for neighbour
discovery in the fabric. Hosts discover their neighbours, and so do T0s whose hosts are other
machines.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from mrcd.fabric import naming, usid
from mrcd.fabric.description import Fabric, Host
from mrcd.linux.interfaces import Nexthop

ANCHOR = "sid0"
T0_SIDE = "fe80::1"
FAR_SIDE = "fe80::2"
OWN_SPACE_T1 = 8  # up to this many T1s in a plane, each has its own namespace
SHARED_CABLES = 32  # cables per shared namespace; each adds a rule to the lookup
TABLE_BASE = 1000  # a T1's routing table is this plus its number

Kind = Literal["host", "t0", "t1"]


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable."""

    node: str
    ifname: str
    mac: bytes


@dataclass(frozen=True, slots=True)
class Cable:
    """A link; its near end is on the switch where faults act, always a T0."""

    near: End
    far: End
    plane: int


@dataclass(frozen=True, slots=True)
class PlannedRoute:
    """A static route through one neighbour or interface, or several nexthops."""

    dst: str
    dev: str | None = None
    via: str | None = None
    src: str | None = None
    nexthops: tuple[Nexthop, ...] = ()


@dataclass(slots=True)
class Node:
    """A host or switch with its short name ("h1", "p0t0-1"), and what its namespace needs.

    `space` is the short name of the namespace, which is the node's own name unless the node shares
    one. `table` is the routing table of a node that does.
    """

    name: str
    kind: Kind
    plane: int | None
    index: int
    space: str = ""
    table: int | None = None
    ports: list[str] = field(default_factory=list)
    addresses: list[tuple[str, str]] = field(default_factory=list)
    neighbors: list[tuple[str, str, bytes]] = field(default_factory=list)
    locator: str | None = None
    routes: list[PlannedRoute] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.space = self.space or self.name


@dataclass(frozen=True, slots=True)
class Topology:
    """The plan of a whole lab. Nodes are listed by short name, hosts first."""

    fabric: Fabric
    nodes: dict[str, Node]
    cables: tuple[Cable, ...]

    def namespace(self, node: str) -> str:
        """Return the name of the namespace of a node."""
        return f"{self.fabric.name}-{self.nodes[node].space}"

    def namespaces(self) -> dict[str, list[Node]]:
        """Return all namespaces by name, with the nodes in each."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            found.setdefault(self.namespace(node.name), []).append(node)
        return found

    def within(self, namespaces: Container[str]) -> Topology:
        """Return the part within these namespaces: nodes, and cables with both ends there."""
        nodes = {
            name: node
            for name, node in self.beside(namespaces).nodes.items()
            if self.namespace(name) in namespaces
        }
        cables = (c for c in self.cables if c.near.node in nodes and c.far.node in nodes)
        return Topology(self.fabric, nodes, tuple(cables))

    def beside(self, namespaces: Container[str]) -> Topology:
        """Return the whole plan for the case that only these namespaces are ours.

        NICs outside them have MAC addresses of their own, which the nodes cabled to them must
        discover.
        """
        ports = {
            (cable.near.node, cable.near.ifname)
            for cable in self.cables
            if self.namespace(cable.far.node) not in namespaces
        }
        nodes = {
            name: replace(
                node, neighbors=[hop for hop in node.neighbors if (name, hop[0]) not in ports]
            )
            for name, node in self.nodes.items()
        }
        return Topology(self.fabric, nodes, self.cables)

    def nic_cables(self) -> Iterator[Cable]:
        """Return the cables of the hosts' NICs."""
        return (cable for cable in self.cables if self.nodes[cable.far.node].kind == "host")

    def switches(self, plane: int) -> Iterator[Node]:
        """Return the switches of one plane."""
        return (node for node in self.nodes.values() if node.plane == plane)


def plan(fabric: Fabric) -> Topology:
    """Work out every namespace, link, address and route of a fabric."""
    nodes = {host.name: Node(host.name, "host", None, i) for i, host in enumerate(fabric.hosts, 1)}
    cables: list[Cable] = []
    for plane in range(fabric.planes):
        for j in range(1, fabric.t0 + 1):
            node = Node(naming.t0(plane, j), "t0", plane, j)
            nodes[node.name] = node
        for m in range(1, fabric.t1 + 1):
            node = _t1(fabric, plane, m)
            nodes[node.name] = node
        for host in fabric.hosts:
            cables.append(_host_cable(fabric, nodes, host, plane))
        for j in range(1, fabric.t0 + 1):
            for m in range(1, fabric.t1 + 1):
                cables.append(_trunk(nodes, plane, j, m))
        for j in range(1, fabric.t0 + 1):
            _fill_t0(fabric, nodes[naming.t0(plane, j)], plane, j)
        for m in range(1, fabric.t1 + 1):
            _fill_t1(fabric, nodes[naming.t1(plane, m)], plane, m)
    return Topology(fabric, nodes, tuple(cables))


def _t1(fabric: Fabric, plane: int, m: int) -> Node:
    """Return a T1, in its own namespace if the plane has few of them."""
    if fabric.t1 <= OWN_SPACE_T1:
        return Node(naming.t1(plane, m), "t1", plane, m)
    together = max(1, SHARED_CABLES // fabric.t0)
    first = (m - 1) // together * together + 1
    last = min(first + together - 1, fabric.t1)
    space = f"{naming.t1(plane, first)}-{last}"
    return Node(naming.t1(plane, m), "t1", plane, m, space, TABLE_BASE + m)


def _downlink(node: Node, j: int) -> str:
    """Return the name of a T1's interface towards T0 `j`."""
    return f"t0-{j}" if node.table is None else f"t1-{node.index}t0-{j}"


def _mac(plane: int, layer: int, first: int, second: int, side: int) -> bytes:
    """Return a locally administered address that encodes the position of the port."""
    return bytes((0x02, layer, plane, first, second, side))


def _host_cable(fabric: Fabric, nodes: dict[str, Node], host: Host, plane: int) -> Cable:
    """Cable a host's NIC to its T0 and give both ends their addresses and routes."""
    t0 = nodes[naming.t0(plane, host.t0)]
    member = nodes[host.name]
    near = End(t0.name, f"port{host.port}", _mac(plane, 0, host.t0, host.port, 1))
    far = End(host.name, f"plane{plane}", _mac(plane, 0, host.t0, host.port, 2))
    own4, own6 = str(fabric.address4(host, plane)), str(fabric.address6(host, plane))
    gateway4, gateway6 = str(fabric.t0_address4(plane, host.t0)), str(fabric.gateway)
    nic, port = far.ifname, near.ifname

    member.ports.append(nic)
    member.addresses += [(nic, f"{FAR_SIDE}/64"), (nic, f"{own4}/32"), (nic, f"{own6}/64")]
    member.routes += [
        PlannedRoute(f"{gateway4}/32", nic, src=own4),
        PlannedRoute(str(fabric.plane_prefix4(plane)), nic, gateway4, own4),
        PlannedRoute(str(fabric.plane_prefix6(plane)), nic, gateway6, own6),
        PlannedRoute(str(usid.plane_prefix(fabric.block, plane)), nic, gateway6, own6),
    ]

    t0.ports.append(port)
    t0.addresses.append((port, f"{gateway6}/64"))
    t0.neighbors += [(port, own6, far.mac), (port, own4, far.mac)]
    number = usid.usid(plane, usid.ROLE_HOST, host.port)
    t0.routes += [
        PlannedRoute(f"{own4}/32", port),
        PlannedRoute(f"{own6}/128", port),
        PlannedRoute(str(usid.locator(fabric.block, number)), port, own6),
    ]
    return Cable(near, far, plane)


def _trunk(nodes: dict[str, Node], plane: int, j: int, m: int) -> Cable:
    """Cable a T0 to a T1."""
    t0, t1 = nodes[naming.t0(plane, j)], nodes[naming.t1(plane, m)]
    near = End(t0.name, f"t1-{m}", _mac(plane, 1, j, m, 1))
    far = End(t1.name, _downlink(t1, j), _mac(plane, 1, j, m, 2))
    t0.ports.append(near.ifname)
    t0.addresses.append((near.ifname, f"{T0_SIDE}/64"))
    t0.neighbors.append((near.ifname, FAR_SIDE, far.mac))
    t1.ports.append(far.ifname)
    t1.addresses.append((far.ifname, f"{FAR_SIDE}/64"))
    t1.neighbors.append((far.ifname, T0_SIDE, near.mac))
    return Cable(near, far, plane)


def _locator(fabric: Fabric, plane: int, role: int, index: int) -> str:
    return str(usid.locator(fabric.block, usid.usid(plane, role, index)))


def _fill_t0(fabric: Fabric, node: Node, plane: int, index: int) -> None:
    """Give a T0 its own addresses and uSID, and its routes to T1s and other T0s."""
    node.locator = _locator(fabric, plane, usid.ROLE_T0, index)
    node.addresses += [
        (ANCHOR, f"{fabric.t0_address4(plane, index)}/32"),
        (ANCHOR, f"{fabric.t0_address6(plane, index)}/128"),
    ]
    uplinks = range(1, fabric.t1 + 1)
    for m in uplinks:
        dev = f"t1-{m}"
        node.routes += [
            PlannedRoute(_locator(fabric, plane, usid.ROLE_T1, m), dev, FAR_SIDE),
            PlannedRoute(f"{fabric.t1_address4(plane, m)}/32", dev, FAR_SIDE),
            PlannedRoute(f"{fabric.t1_address6(plane, m)}/128", dev, FAR_SIDE),
        ]
    every = tuple(Nexthop(f"t1-{m}", FAR_SIDE) for m in uplinks)
    for other in range(1, fabric.t0 + 1):
        if other != index:
            node.routes += [
                PlannedRoute(dst, nexthops=every) for dst in _subnets(fabric, plane, other)
            ]


def _fill_t1(fabric: Fabric, node: Node, plane: int, index: int) -> None:
    """Give a T1 its own addresses and uSID, and its routes to every T0."""
    node.locator = _locator(fabric, plane, usid.ROLE_T1, index)
    node.addresses += [
        (ANCHOR, f"{fabric.t1_address4(plane, index)}/32"),
        (ANCHOR, f"{fabric.t1_address6(plane, index)}/128"),
    ]
    for j in range(1, fabric.t0 + 1):
        dev = _downlink(node, j)
        node.routes.append(PlannedRoute(_locator(fabric, plane, usid.ROLE_T0, j), dev, T0_SIDE))
        node.routes += [PlannedRoute(dst, dev, T0_SIDE) for dst in _subnets(fabric, plane, j)]


def _subnets(fabric: Fabric, plane: int, t0: int) -> tuple[str, str]:
    """Return the IPv4 and IPv6 networks of the hosts on one T0."""
    network4 = ipaddress.IPv4Network((int(fabric.underlay4(plane, t0, 0)), 24))
    network6 = ipaddress.IPv6Network((int(fabric.underlay(plane, t0, 0)), 64))
    return (str(network4), str(network6))
