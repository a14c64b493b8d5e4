# SPDX-License-Identifier: GPL-2.0-only
"""Test the comparison of kernel and plan: differences, and the commands that repair them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.console import exits
from cli.lab import inspection, intent, topology
from cli.lab.intent import Finding, Present, Wanted
from cli.main import mrcctl
from mrcd.fabric import description
from mrcd.linux.interfaces import FibRoute, Nexthop

FABRIC = description.generate(hosts=3, planes=2, t1=2)
PLAN = topology.plan(FABRIC)
T0 = inspection.of_node(PLAN.nodes["p1t0-1"])


def as_planned(wanted: Wanted) -> Present:
    addresses: dict[str, list[str]] = {route.dev: [] for route in wanted.routes if route.dev}
    for dev, cidr in wanted.addresses:
        addresses.setdefault(dev, []).append(cidr)
    return Present(wanted.routes, addresses, set(addresses), wanted.rules)


def compare(wanted: Wanted, there: Present) -> list[Finding]:
    return intent.compare(wanted, there, block=FABRIC.block)


def changed(wanted: Wanted, dst: str, **values: object) -> Present:
    there = as_planned(wanted)
    routes = tuple(
        replace(route, **values) if route.dst == dst else route for route in there.routes
    )
    assert routes != there.routes
    return replace(there, routes=routes)


@pytest.mark.parametrize("name", PLAN.nodes)
def test_as_planned_is_no_finding(name: str) -> None:
    wanted = inspection.of_node(PLAN.nodes[name])
    assert wanted.routes
    assert compare(wanted, as_planned(wanted)) == []


def test_plan__of_a_t0() -> None:
    text = {intent.command(route) for route in T0.routes if route.dst.startswith("fcbb")}
    assert text == {
        "fcbb:bb00:2001::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16"
        " dev sid0",
        "fcbb:bb00:2801::/48 via fe80::2 dev t1-1",
        "fcbb:bb00:2802::/48 via fe80::2 dev t1-2",
        "fcbb:bb00:3001::/48 via fdcb:0:1:1::1 dev port1",
    }


@pytest.mark.parametrize("route", T0.routes, ids=lambda route: route.dst)
def test_each_route_that_is_missing_is_named(route: FibRoute) -> None:
    there = as_planned(T0)
    there = replace(there, routes=tuple(other for other in there.routes if other != route))
    (found,) = compare(T0, there)
    assert (found.node, found.problem, found.what) == ("p1t0-1", "missing", f"route {route.dst}")
    assert found.fix.endswith(f"route replace {intent.command(route)}")


@pytest.mark.parametrize(
    ("dst", "values", "detail"),
    [
        (
            "fcbb:bb00:2001::/48",
            {"encap": "End"},
            "is seg6local End dev sid0, should be seg6local End next-csid 32/16 dev sid0",
        ),
        (
            "fcbb:bb00:2001::/48",
            {"encap": "End next-csid 32/32"},
            "is seg6local End next-csid 32/32",
        ),
        ("fcbb:bb00:2001::/48", {"encap": ""}, "is dev sid0, should be seg6local"),
        ("fcbb:bb00:2801::/48", {"dev": "t1-2"}, "is via fe80::2 dev t1-2, should be via"),
        ("fcbb:bb00:2801::/48", {"via": "fe80::9"}, "is via fe80::9 dev t1-1, should be via"),
        ("fcbb:bb00:2801::/48", {"mtu": 1280}, "is via fe80::2 dev t1-1 mtu 1280, should be"),
        (
            "fdcb:0:1:2::/64",
            {"nexthops": (Nexthop("t1-1", "fe80::2"),)},
            "is nexthop via fe80::2 dev t1-1, should be nexthop via fe80::2 dev t1-1 nexthop",
        ),
    ],
)
def test_a_route_that_is_wrong_says_what_it_is_and_should_be(
    dst: str, values: dict[str, object], detail: str
) -> None:
    (found,) = compare(T0, changed(T0, dst, **values))
    assert (found.problem, found.what) == ("wrong", f"route {dst}")
    assert found.detail.startswith(detail)
    assert "route replace" in found.fix


def test_a_route_in_another_table_is_missing_here() -> None:
    (found,) = compare(T0, changed(T0, "fcbb:bb00:2801::/48", table=1001))
    assert found.problem == "missing"


def test_an_extra_usid_route_is_named_and_others_are_not() -> None:
    there = as_planned(T0)
    extra = FibRoute("fcbb:bb00:7777::/48", 254, "t1-1", "fe80::2")
    other = FibRoute("2001:db8::/32", 254, "t1-1", "fe80::2")
    elsewhere = replace(extra, table=99)
    (found,) = compare(T0, replace(there, routes=(*there.routes, extra, other, elsewhere)))
    assert (found.problem, found.what) == ("extra", "route fcbb:bb00:7777::/48")
    assert found.fix == "ip -6 route del fcbb:bb00:7777::/48 via fe80::2 dev t1-1"


def test_a_down_interface_is_said_and_set_up_first() -> None:
    there = as_planned(T0)
    routes = tuple(route for route in there.routes if route.dst != "fcbb:bb00:2801::/48")
    there = replace(there, routes=routes, up=set(there.up) - {"t1-1"})
    (found,) = intent.compare(T0, there, block=FABRIC.block, netns="ns")
    assert found.detail.endswith("; t1-1 is down")
    assert found.fix == (
        "ip -n ns link set t1-1 up; "
        "ip -n ns -6 route replace fcbb:bb00:2801::/48 via fe80::2 dev t1-1"
    )


def test_addresses() -> None:
    host = inspection.of_node(PLAN.nodes["h1"])
    there = as_planned(host)
    gone = {dev: [a for a in have if "fdcb" not in a] for dev, have in there.addresses.items()}
    findings = compare(host, replace(there, addresses=gone))
    assert [(found.problem, found.what) for found in findings] == [
        ("missing", "address fdcb:0:0:1::1/64 on plane0"),
        ("missing", "address fdcb:0:1:1::1/64 on plane1"),
    ]
    assert findings[0].fix == "ip addr add fdcb:0:0:1::1/64 dev plane0 noprefixroute nodad"
    swapped = {"plane0": there.addresses["plane1"], "plane1": there.addresses["plane0"]}
    findings = compare(host, replace(there, addresses=swapped))
    assert {found.problem for found in findings} == {"wrong"}
    assert findings[0].detail == "is on plane1"


def test_routes_to_peers_have_their_mtu_and_ecn() -> None:
    routes = intent.of_peers([(["10.99.0.2/32", "fd99::2/128"], 8872)], dev="mrc0")
    wanted = Wanted("h1", routes, ())
    there = Present(
        (replace(routes[0], ecn=False), replace(routes[1], mtu=0)), {"mrc0": []}, {"mrc0"}
    )
    assert [found.detail for found in compare(wanted, there)] == [
        "is dev mrc0 mtu 8872, should be dev mrc0 mtu 8872 ecn",
        "is dev mrc0 ecn, should be dev mrc0 mtu 8872 ecn",
    ]


def test_t1s_that_share_a_namespace_have_tables_of_their_own() -> None:
    plan = topology.plan(description.generate(hosts=2, planes=1, t1=12))
    one, two = (inspection.of_node(plan.nodes[f"p0t1-{m}"]) for m in (1, 2))
    both = as_planned(one)
    both = replace(
        both,
        routes=one.routes + two.routes,
        rules=one.rules + two.rules,
        addresses={**both.addresses, **as_planned(two).addresses},
    )
    assert {route.table for route in one.routes} != {route.table for route in two.routes}
    sid0 = [cidr for dev, cidr in (*one.addresses, *two.addresses) if dev == "sid0"]
    both = replace(both, addresses={**both.addresses, "sid0": sid0})
    assert compare(one, both) == compare(two, both) == []
    lost = replace(both, routes=one.routes, rules=one.rules)
    assert compare(one, lost) == []
    assert len(compare(two, lost)) == len(two.routes) + len(two.rules)
    # An earlier rule sends packets from T1 2's first port to T1 1's table.
    (first, *_) = two.rules
    astray = replace(both, rules=(replace(first, table=one.routes[0].table), *both.rules))
    (found,) = compare(two, astray)
    assert found.detail == "is lookup 1001, should be lookup 1002"
    assert found.fix.startswith(f"ip -4 rule del iif {first.iif} lookup 1001; ip -4 rule add iif")


def run(*args: str, socket: str = "/nowhere.sock") -> Result:
    return CliRunner().invoke(mrcctl, ["--socket", socket, "sid", "verify", *args])


@pytest.mark.parametrize(
    "args",
    [
        ["--switch", "p0t0-1"],
        ["--fabric", "f.toml"],
        ["--lab", "x", "--config", "m.toml"],
        ["--switch", "p0t0-1", "--fabric", "f.toml", "--lab", "x"],
    ],
)
def test_command__options_that_do_not_go_together(args: list[str]) -> None:
    assert run(*args).exit_code == exits.USAGE


def test_command__what_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text(description.dumps(FABRIC))
    result = run("--switch", "p0t0-9", "--fabric", str(file))
    assert result.exit_code == exits.NO_SUCH_OBJECT
    assert "known: p0t0-1 to p1t0-3 and p0t1-1 to p1t1-2" in result.output
    assert run("--switch", "h1", "--fabric", str(file)).exit_code == exits.NO_SUCH_OBJECT
    assert run("--switch", "p0t0-1", "--fabric", "/nowhere").exit_code == exits.USAGE
    result = run()
    assert result.exit_code == exits.UNREACHABLE
    assert "--config" in result.output
    assert run("--config", "/nowhere").exit_code == exits.USAGE
