# SPDX-License-Identifier: GPL-2.0-only
"""Test what differs between the kinds of networks, and that nothing else asks for the kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mrcd.fabric import description, underlay
from mrcd.fabric.description import Fabric
from mrcd.fabric.routing import HOPS_MAX, HOPS_SENT, SRV6, Routing
from tests.unit.config.test_change import network

ROOT = Path(__file__).parents[3]
ASKS_FOR_A_FILE = (
    "mrcd/config/",  # which keys a configuration has
    "mrcd/fabric/",
    "mrcd/datapath/adoption.py",  # what is in the key of a layout
    "mrcd/peers/peers.py",  # a host says its place in the file
    "mrcd/planes/placement.py",  # addresses that the configuration leaves to the kernel
    "mrcd/planes/plane.py",  # names of keys in an error
    "cli/",
)
"""Where it matters whether there is a fabric file."""


def made(routing: Routing, t0: int = 2) -> Fabric:
    return description.generate(hosts=2, planes=2, t1=2, hosts_per_t0=2 // t0, routing=routing)


@pytest.mark.parametrize(
    ("routing", "kind", "version", "evs", "loops"),
    [
        (SRV6, underlay.Usids, 6, 2, True),
        (Routing("srv6", "reduced"), underlay.Usids, 6, 2, True),
        (Routing("ecmp"), underlay.Hashed, 6, 128, False),
        (Routing("ecmp", underlay=4), underlay.Hashed4, 4, 128, False),
    ],
)
def test_kinds_of_fabrics(
    routing: Routing, kind: type, version: int, evs: int, loops: bool
) -> None:
    fabric = made(routing)
    found, h1, h2 = underlay.of(fabric), fabric.host("h1"), fabric.host("h2")
    assert type(found) is kind
    assert (found.next_hops, found.roaming, found.version) == (False, False, version)
    assert found.hops_min == HOPS_SENT - HOPS_MAX
    assert found.gateway(h1, 0) is not None
    assert len(found.evs(h1, h2, 0)) == found.evs_per_plane == evs
    assert (found.why_no_loops() is None) is loops
    assert found.spot(str(found.address(h2, 1)), 1) == found.place(h2)
    assert (found.way(h1, h2, 0).template is not None) is loops


def test_any_other_network() -> None:
    config = network("b")
    found, b = underlay.of(config.fabric), config.by_name["b"].host
    assert (found.next_hops, found.roaming, found.hops_min) == (True, True, 0)
    assert found.gateway(config.host, 0) is None
    assert len(found.evs(config.host, b, 1)) == found.evs_per_plane
    assert found.why_no_loops()
    assert found.spot(str(found.address(b, 1)), 1) == found.place(b) == "b"
    with pytest.raises(AssertionError, match="no fabric file"):
        underlay.in_fabric(config.fabric)


@pytest.mark.parametrize(
    ("routing", "t0", "works"),
    [
        (SRV6, 2, True),
        (Routing("ecmp"), 1, True),
        (Routing("ecmp"), 2, False),
        (Routing("ecmp", underlay=4), 1, False),
    ],
)
def test_cells_in_ipv6(routing: Routing, t0: int, works: bool) -> None:
    assert (underlay.of(made(routing, t0)).why_no_plain_cells() is None) is works


def test_nothing_else_asks_for_the_kind() -> None:
    asking = {
        str(path.relative_to(ROOT))
        for room in ("mrcd", "cli")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"fabric\.described\b|routing\.network\b", path.read_text())
    }
    assert "mrcd/config/render.py" in asking
    assert [path for path in sorted(asking) if not path.startswith(ASKS_FOR_A_FILE)] == []
