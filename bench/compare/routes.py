# SPDX-License-Identifier: GPL-2.0-only
"""The ways between hosts that are compared: mrc0, and what a user would pick instead.

Each is a `Competitor`. It has the configuration for a lab's namespaces, as lines for `ip`, `bridge`
and sysctl, the address of each host, and the interface for libraries. All of them are set up at the
same time without affecting each other: each has its own addresses and interfaces, except that plain
TCP and MPTCP use those of the planes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import socket
from collections.abc import Iterator, Sequence
from typing import ClassVar

from bench.compare import marks
from bench.instruments import flow
from bench.instruments.flow import Route
from cli.lab import state
from cli.lab.topology import ANCHOR, Node, PlannedRoute, Topology
from mrcd.fabric import usid
from mrcd.fabric.description import Fabric, Host

Lines = dict[str, list[str]]
"""Lines by a node's short name; a line begins with its tool ("sysctl" is not run as a process)."""

_SUBFLOWS = 8  # the most that `ip mptcp limits` takes
BLOCK = ipaddress.IPv6Network("fcbc:bb00::/32")  # of uSIDs; the fabric's own belongs to mrcd
_VNI = 4242
_VXLAN_PORT = 4789
_VXLAN_BYTES = 50  # IPv4, UDP, VXLAN, inner Ethernet

# A host with several uplinks must ignore next hops without a carrier. (The lab's switches do so
# from the start.)
_LINKDOWN = (
    "sysctl net/ipv4/conf/all/ignore_routes_with_linkdown 1",
    "sysctl net/ipv4/conf/plane{}/ignore_routes_with_linkdown 1",
)


class Competitor:
    """A way between the hosts of a lab."""

    key: ClassVar[str]
    title: str
    about: str
    interface: ClassVar[str]
    mptcp: ClassVar[bool] = False
    hashes: ClassVar[bool] = False  # whether the host hashes flows onto planes
    control: ClassVar[str] = "cubic"  # TCP's congestion control
    only: ClassVar[tuple[str, ...]] = ()  # the workloads it takes part in, none: all

    def lines(self, plan: Topology) -> Lines:
        """Return the configuration; the lines of switches may be repeated."""
        return {}

    def undo(self, plan: Topology) -> Lines:
        """Return the lines that remove the configuration."""
        return {}

    def address(self, fabric: Fabric, host: Host) -> str:
        """Return the address of a host on this way."""
        raise NotImplementedError

    def missing(self) -> str | None:
        """Return what this kernel lacks for it, as far as is known without trying."""
        return None

    def takes_part(self, workload: str) -> bool:
        """Return whether it takes part in a workload."""
        return not self.only or workload in self.only

    def turn(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return what lasts as long as each of its turns in a lab."""
        return contextlib.nullcontext()

    def between(self, name: str, source: str, target: str) -> Route:
        """Return the route for a flow of the other benchmarks."""
        fabric = state.read_fabric(name)
        address = self.address(fabric, fabric.host(target))
        listen = "0.0.0.0" if self.mptcp else address
        return Route(self.key, address, listen, self.mptcp, source, target)


class Mrc0(Competitor):
    """mrcd: every packet takes the next path, and mrcd retransmits lost ones."""

    key = "mrc0"
    title = "mrc0"
    about = "cubic TCP over mrcd's interface"
    interface = "mrc0"

    def address(self, fabric: Fabric, host: Host) -> str:
        return str(host.addresses[0].ip)


class Plane(Competitor):
    """Plain TCP between the NICs of one plane."""

    key = "tcp"
    title = "TCP, one plane"
    about = "cubic TCP between the NICs of plane 0; its switches hash flows over the T1s"
    interface = "plane0"

    def address(self, fabric: Fabric, host: Host) -> str:
        return str(fabric.address4(host, 0))


class Mptcp(Plane):
    """The kernel's MPTCP: a subflow in each plane."""

    key = "mptcp"
    title = "MPTCP"
    about = (
        "kernel MPTCP, cubic: hosts announce all planes' addresses (signal endpoints), listeners on"
        " the wildcard address, stale_loss_cnt=4, blackhole_timeout=0"
    )
    mptcp = True

    def lines(self, plan: Topology) -> Lines:
        fabric = plan.fabric
        found: Lines = {}
        for host in fabric.hosts:
            found[host.name] = [
                "sysctl net/mptcp/enabled 1",
                # Without this, a fault would disable MPTCP for an hour.
                "sysctl net/mptcp/blackhole_timeout 0",
                # With 1 it notices a dead plane sooner, but drops subflows at any time-out:
                # gloo's all-reduce of 1 MiB then took 270 ms instead of 123.
                "sysctl net/mptcp/stale_loss_cnt 4",
                f"ip mptcp limits set subflow {_SUBFLOWS} add_addr_accepted {_SUBFLOWS}",
                "ip mptcp endpoint flush",
                *(
                    f"ip mptcp endpoint add {fabric.address4(host, plane)} dev plane{plane} signal"
                    for plane in range(1, fabric.planes)
                ),
            ]
        return found

    def undo(self, plan: Topology) -> Lines:
        return {host.name: ["ip mptcp endpoint flush"] for host in plan.fabric.hosts}

    def missing(self) -> str | None:
        return None if flow.has_mptcp() else "this kernel was built without MPTCP (CONFIG_MPTCP)"


class Ecmp(Competitor):
    """Plain TCP between addresses that are reached over every plane, a hash choosing one a flow.

    This is like a fabric that routes to the hosts: the address belongs to no NIC, each plane's
    switches have a route to it, and a host has one multipath route over its NICs.
    """

    key = "ecmp"
    title = "TCP, ECMP"
    about = (
        "cubic TCP between addresses that every plane leads to: a multipath route hashes each flow"
        " (five-tuple) onto a plane, its switches onto a T1"
    )
    interface = "ecmp0"
    hashes = True
    second: ClassVar[int] = 98

    def address(self, fabric: Fabric, host: Host) -> str:
        return f"10.{self.second}.0.{_number(fabric, host)}"

    def lines(self, plan: Topology) -> Lines:
        fabric = plan.fabric
        found: Lines = {host.name: list(self._host(fabric, host)) for host in fabric.hosts}
        for node in plan.nodes.values():
            if node.kind != "host":
                found[node.name] = [
                    f"ip route replace {self.address(fabric, host)} {way}"
                    for host in fabric.hosts
                    for way in _way(node.routes, str(fabric.address4(host, node.plane or 0)))
                ]
        return found

    def _host(self, fabric: Fabric, host: Host) -> Iterator[str]:
        own = self.address(fabric, host)
        yield f"ip link add {self.interface} type ifb"
        yield f"ip address replace {own}/32 dev {self.interface}"
        yield f"ip link set {self.interface} up mtu {fabric.mtu}"
        for plane in range(fabric.planes):
            yield from (line.format(plane) for line in _LINKDOWN)
        hops = " ".join(
            f"nexthop via {fabric.t0_address4(plane, host.t0)} dev plane{plane} onlink"
            for plane in range(fabric.planes)
        )
        for other in fabric.hosts:
            if other != host:
                yield f"ip route replace {self.address(fabric, other)} src {own} {hops}"

    def undo(self, plan: Topology) -> Lines:
        found = {host.name: [f"ip link del {self.interface}"] for host in plan.fabric.hosts}
        for node in plan.nodes.values():
            found.setdefault(node.name, []).extend(
                f"ip route del {self.address(plan.fabric, host)}"
                for host in plan.fabric.hosts
                if node.name != host.name
            )
        return found


class Seg6(Competitor):
    """Packets in IPv6 headers with uSIDs by kernel routes, a hash choosing the path of a flow.

    The switches get the same uSIDs in a second block, because packets in the fabric's own block
    belong to mrcd.
    """

    key = "seg6"
    title = "seg6, ECMP"
    about = (
        "cubic TCP in the kernel's H.Encaps.Red: a multipath route with one uSID list for each path"
        " (plane, T1) hashes each flow onto one; End.DX4 at the other end"
    )
    interface = "seg0"
    hashes = True

    def address(self, fabric: Fabric, host: Host) -> str:
        return f"10.97.0.{_number(fabric, host)}"

    def lines(self, plan: Topology) -> Lines:
        found: Lines = {}
        for node in plan.nodes.values():
            found[node.name] = [
                f"ip route replace {dst} via {route.via} dev {route.dev}"
                for route, dst in _usid_routes(plan.fabric, node)
            ]
            if node.locator is not None:
                found[node.name].append(
                    f"ip route replace {_moved(plan.fabric, node.locator)} encap seg6local action"
                    f" End flavors next-csid lblen 32 nflen 16 dev {ANCHOR}"
                )
        for host in plan.fabric.hosts:
            found[host.name] += self._host(plan.fabric, host)
        return found

    def _host(self, fabric: Fabric, host: Host) -> Iterator[str]:
        own = self.address(fabric, host)
        yield f"ip link add {self.interface} type ifb"
        yield f"ip address replace {own}/32 dev {self.interface}"
        yield f"ip link set {self.interface} up mtu {fabric.mtu}"
        for plane in range(fabric.planes):
            yield from (line.format(plane) for line in _LINKDOWN)
            yield (
                f"ip route replace {_end(host, plane)} encap seg6local action End.DX4 nh4 {own}"
                f" dev plane{plane}"
            )
        for other in fabric.hosts:
            if other != host:
                hops = " ".join(
                    f"nexthop encap seg6 mode encap.red segs {sid} dev plane{plane}"
                    for plane, sid in sids(fabric, host, other)
                )
                yield f"ip route replace {self.address(fabric, other)} src {own} {hops}"

    def undo(self, plan: Topology) -> Lines:
        fabric = plan.fabric
        found: Lines = {}
        for node in plan.nodes.values():
            gone = [dst for _route, dst in _usid_routes(fabric, node)]
            gone += [_moved(fabric, node.locator)] if node.locator is not None else []
            found[node.name] = [f"ip route del {dst}" for dst in gone]
        for host in fabric.hosts:
            gone = [self.address(fabric, other) for other in fabric.hosts if other != host]
            gone += [_end(host, plane) for plane in range(fabric.planes)]
            found[host.name] += [f"ip route del {dst}" for dst in gone]
            found[host.name].append(f"ip link del {self.interface}")
        return found


class Vxlan(Ecmp):
    """Packets in VXLAN between addresses that every plane leads to."""

    key = "vxlan"
    title = "VXLAN, ECMP"
    about = (
        "cubic TCP in VXLAN between addresses that every plane leads to; switches hash the outer"
        " UDP source port, but the kernel remembers one outer route, so one plane, for each peer"
    )
    interface = "vxlan0"
    hashes = False
    second = 95
    _outer = "vtep0"

    def address(self, fabric: Fabric, host: Host) -> str:
        return f"10.96.0.{_number(fabric, host)}"

    def lines(self, plan: Topology) -> Lines:
        under = _Vteps()
        found = under.lines(plan)
        for host in plan.fabric.hosts:
            found[host.name] += self._tunnel(plan.fabric, host, under)
        return found

    def _tunnel(self, fabric: Fabric, host: Host, under: Ecmp) -> Iterator[str]:
        name = self.interface
        yield (
            f"ip link add {name} address {_mac(fabric, host)} type vxlan id {_VNI}"
            f" local {under.address(fabric, host)} dstport {_VXLAN_PORT} nolearning"
        )
        yield f"ip address replace {self.address(fabric, host)}/24 dev {name}"
        yield f"ip link set {name} up mtu {fabric.mtu - _VXLAN_BYTES}"
        for other in fabric.hosts:
            if other != host:
                mac = _mac(fabric, other)
                yield f"ip neigh replace {self.address(fabric, other)} lladdr {mac} dev {name}"
                yield f"bridge fdb replace {mac} dev {name} dst {under.address(fabric, other)}"

    def undo(self, plan: Topology) -> Lines:
        found = _Vteps().undo(plan)
        for host in plan.fabric.hosts:
            found[host.name].insert(0, f"ip link del {self.interface}")
        return found


class _Vteps(Ecmp):
    """The outer addresses of VXLAN."""

    interface = "vtep0"
    second = 95


class _Dctcp(Competitor):
    """DCTCP, whose sockets ask for ECN; all queues behind hosts mark while it has its turn."""

    control = "dctcp"
    only = ("incast", "all-to-all")

    def missing(self) -> str | None:
        return None if _has(self.control) else (
            "this kernel has no DCTCP (CONFIG_TCP_CONG_DCTCP, module tcp_dctcp)"
        )  # fmt: skip

    def turn(self, name: str) -> contextlib.AbstractContextManager[None]:
        return marks.at_last_hops(name)


class Dctcp(_Dctcp, Plane):
    """DCTCP between the NICs of one plane."""

    key = "dctcp"
    title = "DCTCP, one plane"
    about = "DCTCP (ECN) between the NICs of plane 0; last hops mark, too, in its turns"


class DctcpEcmp(_Dctcp, Ecmp):
    """DCTCP between addresses that are reached over every plane."""

    key = "dctcp-ecmp"
    title = "DCTCP, ECMP"
    about = "DCTCP (ECN) between addresses as those of TCP, ECMP; last hops mark, too, in its turns"
    interface = "dctcp0"
    second = 94


def _has(control: str) -> bool:
    """Return whether this kernel has a congestion control; it loads a module for it if it can."""
    with socket.socket() as trying:
        try:
            trying.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        except OSError:
            return False
    return True


EVERY: tuple[Competitor, ...] = (
    Mrc0(), Plane(), Ecmp(), Mptcp(), Seg6(), Vxlan(), Dctcp(), DctcpEcmp(),
)  # fmt: skip
KEYS = tuple(competitor.key for competitor in EVERY)


def _number(fabric: Fabric, host: Host) -> int:
    return list(fabric.hosts).index(host) + 1


def _mac(fabric: Fabric, host: Host) -> str:
    return f"02:76:78:00:00:{_number(fabric, host):02x}"


def _way(planned: Sequence[PlannedRoute], address: str) -> Iterator[str]:
    """Yield how a switch reaches a NIC's address, as the end of an `ip route` line."""
    wanted = ipaddress.IPv4Address(address)
    for route in planned:
        if ":" in route.dst or wanted not in ipaddress.IPv4Network(route.dst):
            continue
        if route.nexthops:
            yield " ".join(f"nexthop via inet6 {hop.via} dev {hop.dev}" for hop in route.nexthops)
        elif route.via is not None:
            yield f"via inet6 {route.via} dev {route.dev}"
        else:
            yield f"via {address} dev {route.dev} onlink"
        return


def _usid_routes(fabric: Fabric, node: Node) -> Iterator[tuple[PlannedRoute, str]]:
    """Yield a node's routes to uSIDs, and their destinations in the second block."""
    for route in node.routes:
        network = ipaddress.ip_network(route.dst)
        if network.version == 6 and network.subnet_of(fabric.block):
            yield route, _moved(fabric, route.dst)


def _moved(fabric: Fabric, network: str) -> str:
    """Move a prefix of the fabric's block to the second block."""
    was = ipaddress.IPv6Network(network)
    offset = int(was.network_address) - int(fabric.block.network_address)
    return str(ipaddress.IPv6Network((int(BLOCK.network_address) + offset, was.prefixlen)))


def _end(host: Host, plane: int) -> str:
    """Return the locator at which a host removes the outer header."""
    return str(usid.locator(BLOCK, usid.usid(plane, usid.ROLE_HOST, host.port)))


def sids(fabric: Fabric, source: Host, target: Host) -> Iterator[tuple[int, str]]:
    """Yield the plane and the outer address of every path, planes in turn."""
    t1s = [0] if source.t0 == target.t0 else range(1, fabric.t1 + 1)
    for t1, plane in itertools.product(t1s, range(fabric.planes)):
        usids = usid.path_usids(source, target, usid.ev(plane, t1))
        yield plane, str(ipaddress.IPv6Address(usid.da_bytes(BLOCK, usids)))
