# SPDX-License-Identifier: GPL-2.0-only
"""Test which routes of others over mrc0 are followed, and which lead to nobody."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mrcd.config.overlap import Prefix
from mrcd.linux.interfaces import LinkState
from mrcd.repair.nexthops import led
from mrcd.repair.wanted import Finding, Kind, OurLink, Present, Wanted

MRC0 = 8
LEADS = {"10.99.0.2/32": 8960, "10.99.0.0/24": 0}
WANTED = Wanted(
    "mrc0",
    (OurLink("mrc0", MRC0, 8960, "macvlan"),),
    frozenset({"10.99.0.1/24", "fd99::1/64"}),
    {"10.99.0.2/32": 8960},
    owned={
        "h2": (ip_network("10.99.0.2/32"), ip_network("fd99::2/128")),
        "h3": (ip_network("10.7.0.0/16"),),
    },
    routed=(ip_network("10.244.0.0/16"), ip_network("fd44::/48")),
)


def routed_by(*routes: str, **hops: str) -> Present:
    """Return what there is with these routes over mrc0, and these next hops of some of them."""
    return Present(
        links={MRC0: LinkState(MRC0, "mrc0", bytes(6), 8960)},
        addresses={MRC0: frozenset({"10.99.0.1/24", "fd99::1/64", "10.5.0.1/8"})},
        routes={MRC0: LEADS | dict.fromkeys(routes, 0)},
        next_hops=dict(zip(routes, hops.values(), strict=False)),
    )


def followed(wanted: Wanted, present: Present) -> dict[Prefix, str]:
    return led(wanted, present)[0]


def nobodys(wanted: Wanted, present: Present) -> list[Finding]:
    return led(wanted, present)[1]


@pytest.mark.parametrize("route", ["10.244.2.0/24", "fd55::/64", "10.98.0.0/16"])
def test_route_to_nobody(route: str) -> None:
    (finding,) = nobodys(WANTED, routed_by(route))
    assert (finding.kind, finding.about) == (Kind.FOREIGN, f"route {route}")
    assert finding.text == f"a route leads to {route} over mrc0, and no peer has these addresses"
    assert finding.remedy.startswith(f"add {route} to `allowed`")


@pytest.mark.parametrize(
    "route", ["10.7.2.0/24", "10.7.0.0/16", "10.0.0.0/9", "10.0.0.0/8", "fd99::/64", "fe80::/64"]
)
def test_route_that_leads_to_a_peer(route: str) -> None:
    """It may be part of a peer's prefix or around one, and interfaces' own networks are routes."""
    present = routed_by(route, hop="10.99.0.2")
    assert nobodys(WANTED, present) == []
    assert followed(WANTED, present) == {}, "the configuration says whose it is"


@pytest.mark.parametrize(
    ("route", "hop", "peer"),
    [
        ("10.244.2.0/24", "10.99.0.2", "h2"),
        ("10.244.2.7/32", "10.7.3.4", "h3"),
        ("10.244.3.0/24", "fd99::2", "h2"),
        ("fd44::2:0/112", "fd99::2", "h2"),
    ],
)
def test_next_hop_is_followed(route: str, hop: str, peer: str) -> None:
    present = routed_by(route, hop=hop)
    assert followed(WANTED, present) == {ip_network(route): peer}
    assert nobodys(WANTED, present) == []


@pytest.mark.parametrize("route", ["10.245.2.0/24", "10.244.0.0/16", "0.0.0.0/0", "10.240.0.0/12"])
def test_next_hop_outside_of_routed_is_named(route: str) -> None:
    """A prefix of `routed` itself is this host's, and one around it would take it away."""
    assert followed(WANTED, routed_by(route, hop="10.99.0.2")) == {}


def test_remedy_names_the_peer() -> None:
    (finding,) = nobodys(WANTED, routed_by("10.245.2.0/24", hop="10.99.0.2"))
    assert finding.text.startswith("a route leads to 10.245.2.0/24 over mrc0 by 10.99.0.2, and no")
    assert "into `routed` of [mrc0] here and at h2" in finding.remedy


def test_next_hop_of_nobody() -> None:
    present = routed_by("10.244.2.0/24", hop="10.99.0.9")
    assert followed(WANTED, present) == {}
    (finding,) = nobodys(WANTED, present)
    assert "by 10.99.0.9" in finding.text
    assert finding.remedy.startswith("add 10.244.2.0/24 to `allowed`")
