# SPDX-License-Identifier: GPL-2.0-only
"""Test planes that differ in what they carry and in how far they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rigs.bare_hosts import HOSTS, MIDDLE, Make, building
from rigs.lab_hosts import eventually
from rigs.unequal_planes import Way, unequal

pytestmark = pytest.mark.timeout(600)

PLANES = 2
FOUND_S = 60
"""Distances are told by two times 8.6 s."""


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts, and remove them at the end."""
    yield from building("n", PLANES)


def test_a_plane_that_is_far_is_spare_until_it_is_near(make: Make) -> None:
    with unequal(Way(), Way(ms=20)) as ways:
        bare = make(ways)
        bare.begin()
        for host in HOSTS:
            eventually(lambda host=host: bare.peer(host).far == [1], f"{host} finds it", FOUND_S)
        near, far = bare.carried()
        assert near > 8 << 20
        assert far < 1 << 18, "probes only"
        bare.ip(MIDDLE, "link set a0 down")
        near, far = bare.carried(1 << 20)
        assert far > 1 << 20, "it takes over"
        bare.ip(MIDDLE, "link set a0 up")
        for host in HOSTS:
            bare.run(MIDDLE, "nft", f"delete table netdev t{host}1")
        bare.ip(MIDDLE, "link add br1 type bridge")
        bare.ip(MIDDLE, "link set br1 up")
        for host in HOSTS:
            bare.ip(MIDDLE, f"link set {host}1 master br1")
        for host in HOSTS:
            eventually(lambda host=host: bare.peer(host).far is None, f"{host}: near", FOUND_S)
        eventually(lambda: min(bare.carried()) > 2 << 20, "both carry data", 20)


@pytest.mark.parametrize("teller", ["a", "b"])
def test_planes_carry_by_the_rates_that_either_host_has(make: Make, teller: str) -> None:
    """Plane 1 carries a quarter. Nothing limits anything here: what is told is what counts."""
    with unequal(Way(), Way()) as ways:
        bare = make(ways)
        place = bare.config(teller)
        text = place.read_text()
        for plane, mbps in ((1, 2_000), (2, 500)):
            line = f'interface = "eth{plane}"\n'
            assert line in text
            text = text.replace(line, f"{line}rate_mbps = {mbps}\n")
        place.write_text(text)
        bare.begin()
        bare.carried()
        fast, slow = bare.carried(32 << 20)
        assert 2.5 < fast / slow < 6
