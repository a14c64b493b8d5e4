# SPDX-License-Identifier: GPL-2.0-only
"""Test the routings of a fabric: keys of the fabric file, addresses, EVs."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from mrcd.config import config
from mrcd.fabric import description, underlay, usid
from mrcd.fabric.description import Fabric, FabricError
from mrcd.fabric.routing import SRV6, Routing

REDUCED = Routing("srv6", "reduced")
ECMP6, ECMP4 = Routing("ecmp"), Routing("ecmp", underlay=4)
EVERY = (SRV6, REDUCED, ECMP6, ECMP4)


def fabric(routing: Routing) -> Fabric:
    return description.generate(hosts=3, planes=4, t1=4, hosts_per_t0=2, routing=routing)


@pytest.mark.parametrize("routing", EVERY)
def test_survives_being_written_and_read(routing: Routing) -> None:
    made = fabric(routing)
    assert description.parse(description.dumps(made), "f.toml") == made


def test_default_is_srv6_in_full() -> None:
    text = description.dumps(fabric(SRV6)).replace('routing = "srv6"\nencap = "full"\n', "")
    assert "routing" not in text
    assert description.parse(text, "f.toml").routing == Routing("srv6", "full", 6)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('routing = "ospf"', 'fabric.routing = "ospf": must be "srv6" or "ecmp"'),
        ('encap = "half"', 'fabric.encap = "half": must be "full" or "reduced"'),
        ("underlay = 5", "fabric.underlay = 5: must be 6 or 4"),
        ('routing = "ecmp"\nencap = "reduced"', 'fabric.encap = "reduced": must be left out'),
        ("underlay = 4", 'fabric.underlay = 4: must be 6 where routing is "srv6"'),
    ],
)
def test_wrong_keys_are_named(keys: str, problem: str) -> None:
    text = description.dumps(fabric(SRV6)).replace('routing = "srv6"\nencap = "full"', keys)
    with pytest.raises(FabricError) as failed:
        description.parse(text, "f.toml")
    (found,) = failed.value.problems
    assert problem in found


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(FabricError, match="--underlay 4: must be 6"):
        description.checked(replace(fabric(SRV6), routing=Routing("srv6", "full", 4)))


@pytest.mark.parametrize(
    ("routing", "auto", "mrc"),
    [(SRV6, 8960, 8872), (REDUCED, 8960, 8912), (ECMP6, 8930, 8912), (ECMP4, 8950, 8932)],
)
def test_mtu_of_mrc0_is_what_the_headers_leave(
    tmp_path: Path, routing: Routing, auto: int, mrc: int
) -> None:
    (tmp_path / "fabric.toml").write_text(description.dumps(fabric(routing)))
    text = '[host]\nname = "h1"\nfabric = "fabric.toml"\n'
    for framing, mtu in (("auto", auto), ("mrc", mrc)):
        text_of = f'{text}[transport]\nframing = "{framing}"\n'
        assert config.loads(text_of, tmp_path / "mrcd.toml").mtu == mtu


@pytest.mark.parametrize(
    ("routing", "address", "packed", "gateway", "prefix", "on_link"),
    [
        (SRV6, "fdcb:0:2:1::2", None, "fe80::1", "fcbb:bb00:4000::/35", "fdcb:0:2:1::/64"),
        (ECMP6, "fdcb:0:2:1::2", None, "fe80::1", "fdcb:0:2::/48", "fdcb:0:2:1::/64"),
        (ECMP4, "10.102.1.2", "::ffff:10.102.1.2", "10.102.1.254", "10.102.0.0/16",
         "10.102.1.0/24"),
    ],
)  # fmt: skip
def test_addresses_and_routes(
    routing: Routing, address: str, packed: str | None, gateway: str, prefix: str, on_link: str
) -> None:
    made = fabric(routing)
    host = made.host("h2")
    assert underlay.of(made).address(host, 2) == ip_address(address)
    assert underlay.of(made).packed(host, 2) == ip_address(packed or address).packed
    assert underlay.of(made).gateway(host, 2) == ip_address(gateway)
    assert underlay.in_fabric(made).destinations(2) == ip_network(prefix)
    assert underlay.in_fabric(made).on_link(host, 2) == ip_network(on_link)
    assert ip_address(address) in ip_network(on_link)
    assert underlay.of(made).spot(address, 2) == (host.t0, host.port)
    assert underlay.of(made).spot(address, 1) is None  # an address of another plane
    assert underlay.of(made).spot(address.replace("fdcb", "fdcc").replace("10.", "11."), 2) is None


def test_evs_of_ecmp_have_a_plane_and_an_entropy() -> None:
    made = fabric(ECMP4)
    h1, h2, h3 = (made.host(name) for name in ("h1", "h2", "h3"))
    evs = underlay.of(made).evs(h1, h3, 3)
    assert len(set(evs)) == usid.ECMP_EVS == underlay.of(made).evs_per_plane
    assert {ev >> 28 for ev in evs} == {3}
    assert not any(ev & 0xFFFF for ev in evs)
    assert 0 not in {ev >> 16 & 0xFFF for ev in evs}
    # Two hosts on one T0 have one path, whatever the entropy.
    assert len(underlay.of(made).evs(h1, h2, 3)) == 1
