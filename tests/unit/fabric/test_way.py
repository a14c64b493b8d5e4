# SPDX-License-Identifier: GPL-2.0-only
"""Test the way to a host, by each EV, for every kind of network."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest

from mrcd.fabric import description, underlay, usid
from mrcd.fabric.routing import Routing
from tests.unit.config.test_change import network

USIDS = Routing()
HASHED = Routing("ecmp", "full", 6)
HASHED4 = Routing("ecmp", "full", 4)


@pytest.mark.parametrize("there", ["h2", "h3"])
def test_usids_name_the_path_of_each_ev(there: str) -> None:
    fabric = description.generate(hosts=3, planes=2, t1=2, hosts_per_t0=2, routing=USIDS)
    h1, other = fabric.host("h1"), fabric.host(there)
    for plane in range(2):
        found = underlay.of(fabric).way(h1, other, plane)
        assert found.address == underlay.of(fabric).address(other, plane)
        for ev in underlay.of(fabric).evs(h1, other, plane):
            path = usid.da_bytes(fabric.block, usid.path_usids(h1, other, ev))
            assert found.usids(ev) == path
            assert found.destination(ev) == IPv6Address(path)
            assert found.t1(ev) == usid.ev_t1(ev)


@pytest.mark.parametrize("routing", [HASHED, HASHED4])
def test_where_switches_hash_the_way_is_the_address(routing: Routing) -> None:
    fabric = description.generate(hosts=2, planes=2, t1=2, routing=routing)
    h1, h2 = fabric.host("h1"), fabric.host("h2")
    found = underlay.of(fabric).way(h1, h2, 1)
    for ev in underlay.of(fabric).evs(h1, h2, 1):
        assert (found.usids(ev), found.t1(ev)) == (None, 0)
        assert found.destination(ev) == underlay.of(fabric).address(h2, 1)


def test_without_a_fabric_it_is_the_endpoint() -> None:
    config = network("b")
    peer = config.by_name["b"].host
    found = underlay.of(config.fabric).way(config.host, peer, 1)
    assert (found.address, found.template) == (peer.endpoints[1], None)
