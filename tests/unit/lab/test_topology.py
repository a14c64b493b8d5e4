# SPDX-License-Identifier: GPL-2.0-only
"""Test the plan of a lab: the route of every packet through it, worked out on paper."""

from __future__ import annotations

import ipaddress

import pytest

from cli.lab import topology
from cli.lab.topology import PlannedRoute, Topology
from mrcd.fabric import description, naming, underlay, usid

SHAPES = [
    {"hosts": 2, "planes": 4, "t1": 2, "hosts_per_t0": 1},
    {"hosts": 5, "planes": 2, "t1": 3, "hosts_per_t0": 2},
    {"hosts": 3, "planes": 8, "t1": 1, "hosts_per_t0": 3},
    {"hosts": 5, "planes": 2, "t1": 40, "hosts_per_t0": 2},
]


@pytest.fixture(params=SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def plan(request: pytest.FixtureRequest) -> Topology:
    return topology.plan(description.generate(name="x", **request.param))


def route_to(plan: Topology, node: str, address: str) -> PlannedRoute:
    """Return the route with the longest match, as the kernel finds it."""
    wanted = ipaddress.ip_address(address)
    matches = [
        route for route in plan.nodes[node].routes if wanted in ipaddress.ip_network(route.dst)
    ]
    return max(matches, key=lambda route: ipaddress.ip_network(route.dst).prefixlen)


def across(plan: Topology, node: str, ifname: str) -> str:
    """Return the node at the other end of the cable."""
    for cable in plan.cables:
        for one, other in ((cable.near, cable.far), (cable.far, cable.near)):
            if (one.node, one.ifname) == (node, ifname):
                return other.node
    raise AssertionError(f"{node} has no cable in {ifname}")


def test_a_usid_packet_visits_the_switches_of_its_list(plan: Topology) -> None:
    fabric = plan.fabric
    for src in fabric.hosts:
        for dst in fabric.hosts:
            if src is dst:
                continue
            for plane in range(fabric.planes):
                for ev in underlay.of(fabric).evs(src, dst, plane):
                    usids = usid.path_usids(src, dst, ev)
                    node = src.name
                    while usids:
                        address = str(ipaddress.IPv6Address(usid.da_bytes(fabric.block, usids)))
                        route = route_to(plan, node, address)
                        assert route.dev is not None
                        node = across(plan, node, route.dev)
                        if len(usids) > 1:
                            locator = usid.locator(fabric.block, usids[0])
                            assert plan.nodes[node].locator == str(locator)
                        usids.pop(0)
                    assert node == dst.name


def test_plain_traffic_reaches_every_nic_over_every_t1(plan: Topology) -> None:
    fabric = plan.fabric
    src = fabric.hosts[0]
    for dst in fabric.hosts[1:]:
        for plane in range(fabric.planes):
            for address in (fabric.address4(dst, plane), fabric.address6(dst, plane)):
                at_t0 = naming.t0(plane, src.t0)
                assert route_to(plan, src.name, str(address)).dev == f"plane{plane}"
                route = route_to(plan, at_t0, str(address))
                if src.t0 == dst.t0:
                    assert route.dev == f"port{dst.port}"
                    continue
                assert [hop.dev for hop in route.nexthops] == [
                    f"t1-{m}" for m in range(1, fabric.t1 + 1)
                ]
                for hop in route.nexthops:
                    at_t1 = across(plan, at_t0, hop.dev)
                    down = route_to(plan, at_t1, str(address))
                    assert down.dev is not None
                    last = across(plan, at_t1, down.dev)
                    assert last == naming.t0(plane, dst.t0)
                    assert route_to(plan, last, str(address)).dev == f"port{dst.port}"


def test_names_are_the_documented_ones() -> None:
    plan = topology.plan(description.generate(name="x", hosts=2, planes=1, t1=1))
    assert [plan.namespace(node) for node in plan.nodes] == [
        "x-h1",
        "x-h2",
        "x-p0t0-1",
        "x-p0t0-2",
        "x-p0t1-1",
    ]
    assert plan.nodes["h1"].ports == ["plane0"]
    assert plan.nodes["p0t0-1"].ports == ["port1", "t1-1"]
    assert plan.nodes["p0t1-1"].ports == ["t0-1", "t0-2"]


def test_macs_are_unique_local_and_unicast(plan: Topology) -> None:
    macs = [end.mac for cable in plan.cables for end in (cable.near, cable.far)]
    assert len(set(macs)) == len(macs)
    assert all(mac[0] & 3 == 2 for mac in macs)


def test_many_t1s_share_namespaces_each_with_a_table_of_its_own() -> None:
    plan = topology.plan(description.generate(name="x", hosts=2, planes=2, t1=40))
    spaces = plan.namespaces()
    assert [space for space in spaces if "t1-" in space] == [
        *("x-p0t1-1-16", "x-p0t1-17-32", "x-p0t1-33-40"),
        *("x-p1t1-1-16", "x-p1t1-17-32", "x-p1t1-33-40"),
    ]
    assert plan.namespace("p1t1-17") == "x-p1t1-17-32"
    assert plan.nodes["p1t1-17"].ports == ["t1-17t0-1", "t1-17t0-2"]
    for members in spaces.values():
        ports = [port for node in members for port in node.ports]
        assert len(set(ports)) == len(ports)
        if len(members) > 1:
            assert len(ports) <= topology.SHARED_CABLES
            tables = {node.table for node in members}
            assert len(tables) == len(members)
            assert not tables & {None, 0, 253, 254, 255}


@pytest.mark.parametrize("t1", [1, topology.OWN_SPACE_T1])
def test_few_t1s_have_namespaces_of_their_own(t1: int) -> None:
    plan = topology.plan(description.generate(name="x", hosts=2, planes=1, t1=t1))
    assert len(plan.namespaces()) == len(plan.nodes)
    assert plan.namespace(f"p0t1-{t1}") == f"x-p0t1-{t1}"
    assert {node.table for node in plan.nodes.values()} == {None}


@pytest.mark.parametrize(("hosts_per_t0", "t1"), [(253, 254), (1, 10)])
def test_interface_names_fit_the_kernel(hosts_per_t0: int, t1: int) -> None:
    fabric = description.generate(hosts=254, planes=1, t1=t1, hosts_per_t0=hosts_per_t0)
    plan = topology.plan(fabric)
    longest = max((port for node in plan.nodes.values() for port in node.ports), key=len)
    assert len(f"in-{longest}") <= 15  # the prefix dl- is as long


def test_switches_know_the_mac_of_every_neighbour_they_route_to(plan: Topology) -> None:
    for node in plan.nodes.values():
        if node.kind == "host":
            continue
        known = {(dev, ip) for dev, ip, _ in node.neighbors}
        for route in node.routes:
            hops = [(hop.dev, hop.via) for hop in route.nexthops]
            if route.dev is not None:
                direct = ipaddress.ip_network(route.dst).network_address
                hops.append((route.dev, route.via or str(direct)))
            assert set(hops) <= known
