# SPDX-License-Identifier: GPL-2.0-only
"""Test the fabric file: reading, writing and refusing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrcd.fabric import description
from mrcd.fabric.description import MTU_MAX, FabricError

GOOD = """
[fabric]
name = "rack"
planes = 2
t0 = 2
t1 = 4
[[host]]
name = "alpha"
t0 = 1
port = 1
addresses = ["10.99.0.1/24", "fd99::1/64"]
[[host]]
name = "beta"
t0 = 2
port = 1
addresses = ["10.99.0.2/24"]
"""


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(FabricError) as caught:
        description.parse(text, "f.toml")
    return caught.value.problems


def test_parse__fills_in_the_defaults() -> None:
    fabric = description.parse(GOOD, "f.toml")
    assert (fabric.mtu, fabric.rate_mbps, str(fabric.gateway)) == (9000, 0, "fe80::1")
    assert str(fabric.block) == "fcbb:bb00::/32"
    assert [host.name for host in fabric.hosts] == ["alpha", "beta"]


@settings(deadline=None)  # up to 254 hosts take long on a busy machine
@given(
    hosts=st.integers(1, 254),
    planes=st.integers(1, 8),
    t1=st.integers(1, 254),
    hosts_per_t0=st.integers(1, 253),
    mtu=st.integers(1408, MTU_MAX),
    rate_mbps=st.integers(0, 34_000),
)
def test_generate__survives_being_written_and_read(**options: int) -> None:
    fabric = description.generate(**options)
    assert description.parse(description.dumps(fabric), "f.toml") == fabric
    assert len(fabric.hosts) == options["hosts"]
    assert fabric.hosts[-1].t0 == fabric.t0


def test_generate__fills_the_t0s_in_order() -> None:
    fabric = description.generate(hosts=3, hosts_per_t0=2)
    assert [(host.name, host.t0, host.port) for host in fabric.hosts] == [
        ("h1", 1, 1),
        ("h2", 1, 2),
        ("h3", 2, 1),
    ]
    assert [str(address) for address in fabric.hosts[2].addresses] == ["10.99.0.3/24", "fd99::3/64"]


def test_generate__names_the_option() -> None:
    with pytest.raises(FabricError, match="--planes 9: must be 1 to 8"):
        description.generate(planes=9)
    with pytest.raises(FabricError, match="--mtu 1280"):
        description.generate(mtu=1280)
    with pytest.raises(FabricError, match="--name Lab"):
        description.generate(name="Lab")


def test_addresses__of_a_hosts_nics() -> None:
    fabric = description.generate(hosts=4, hosts_per_t0=2)
    host = fabric.host("h4")
    assert str(fabric.address4(host, 3)) == "10.103.2.2"
    assert str(fabric.address6(host, 3)) == "fdcb:0:3:2::2"
    assert fabric.address6(host, 3) in fabric.plane_prefix6(3)
    assert fabric.address4(host, 3) in fabric.plane_prefix4(3)


def test_host__unknown_lists_the_known() -> None:
    with pytest.raises(KeyError, match="h1, h2"):
        description.generate().host("h3")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("planes = 2", "planes = 9", "fabric.planes = 9: must be a whole number, 1 to 8"),
        ("planes = 2", "planes = true", "fabric.planes = True: must be a whole number"),
        ("planes = 2", "", "fabric.planes: is missing"),
        ("planes = 2", "planes = 2\nmtu = 1280", "fabric.mtu = 1280: must be"),
        (
            "planes = 2",
            "planes = 2\nmtu = 15901",
            "fabric.mtu = 15901: is too large: 15900 at most",
        ),
        ("planes = 2", "planes = 2\nmtu = true", "fabric.mtu = True: must be"),
        ("planes = 2", "planes = 2\nmut = 1500", "fabric.mut: is not a key here; known: name"),
        (
            "planes = 2",
            'planes = 2\nblock = "fc::/48"',
            'fabric.block = "fc::/48": must be an IPv6',
        ),
        ("planes = 2", 'planes = 2\nblock = "10.0.0.0/8"', "fabric.block"),
        ("planes = 2", 'planes = 2\ngateway = "fd00::1"', "must be a link-local IPv6 address"),
        ('"rack"', '"Rack"', 'fabric.name = "Rack": must be a lower-case letter'),
        ('"alpha"', '"beta"', "host[2].name: beta is taken by host[1].name"),
        ('"alpha"', '"p1t0-1"', "unlike the names of planes and switches"),
        ("t0 = 1\n", "t0 = 3\n", "host[1].t0 = 3: must be a whole number, 1 to 2"),
        ("port = 1", "port = 2048", "host[1].port = 2048: must be a whole number, 1 to 2047"),
        ('["10.99.0.2/24"]', '["10.99.0.1/24"]', "10.99.0.1 is taken by host[1].addresses"),
        ('["10.99.0.2/24"]', '["10.99.0.2"]', "must be a list of addresses with prefix length"),
        ('["10.99.0.2/24"]', '"10.99.0.2/24"', "must be a list of addresses"),
        ('["10.99.0.2/24"]', "[]", "must be a list of addresses"),
        ('["10.99.0.2/24"]', '["10.99.0.2/24"]\nrouted = "10.98.2.0/24"', "a list of prefixes"),
        ('["10.99.0.2/24"]', '["10.99.0.2/24"]\nrouted = ["10.98.2.2/24"]', "a list of prefixes"),
    ],
)
def test_parse__says_what_is_wrong_and_what_would_be_right(
    old: str, new: str, message: str
) -> None:
    found = problems(GOOD.replace(old, new, 1))
    assert len(found) == 1
    assert found[0].startswith("f.toml: ")
    assert message in found[0]


def test_parse__two_hosts_cannot_share_a_port() -> None:
    found = problems(GOOD.replace("t0 = 2\nport", "t0 = 1\nport"))
    assert found == ("f.toml: host[2].port: 1 of T0 1 is taken by host[1].port; must be unique",)


def test_parse__reports_everything_at_once() -> None:
    found = problems("[fabric]\nplanes = 0\nt0 = 1\nt1 = 0\n")
    assert [line.split(":")[1].strip() for line in found] == [
        "fabric.planes = 0",
        "fabric.t1 = 0",
        "[[host]]",
    ]


@pytest.mark.parametrize("text", ["", "x", "fabric = 1", "[fabric]\n[[host]]", "host = [1]"])
def test_parse__survives_nonsense(text: str) -> None:
    assert problems(text)


PATTERN = """
[fabric]
planes = 2
t0 = 4
t1 = 4
[hosts]
count = 10
per_t0 = 3
addresses = ["10.99.0.0/24", "fd99::/64"]
"""


def test_parse__hosts_by_a_pattern() -> None:
    fabric = description.parse(PATTERN, "f.toml")
    assert [(host.name, host.t0, host.port) for host in fabric.hosts[2:5]] == [
        ("h3", 1, 3),
        ("h4", 2, 1),
        ("h5", 2, 2),
    ]
    assert fabric.host("h10").t0 == 4
    assert [str(address) for address in fabric.host("h10").addresses] == [
        "10.99.0.10/24",
        "fd99::a/64",
    ]
    with pytest.raises(KeyError, match="h1 to h10"):
        fabric.host("h11")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count = 10", "count = 13", "hosts.count = 13: must be a whole number, 1 to 12"),
        ("count = 10", "", "hosts.count: is missing: 1 to 12"),
        ("per_t0 = 3", "per_t0 = 0", "hosts.per_t0 = 0: must be a whole number, 1 to 2047"),
        ("per_t0 = 3", "per_t0 = 3\nname = 'p'", 'hosts.name = "p": must be short, and unlike'),
        ("per_t0 = 3", "per_t0 = 3\nport = 1", "hosts.port: is not a key here"),
        ("10.99.0.0/24", "10.99.0.0/29", '"10.99.0.0/29": must be a list of networks for 10'),
        ("10.99.0.0/24", "10.99.0.1/24", '"10.99.0.1/24": must be a list of networks'),
        ("fd99::/64", "10.99.0.0/16", '"10.99.0.0/16": must be apart from the others'),
        ('["10.99.0.0/24", "fd99::/64"]', "[]", "hosts.addresses = []: must be a list of networks"),
        ("[hosts]", "[[host]]\n[hosts]", "[hosts] and [[host]]: must be one of the two"),
    ],
)
def test_parse__says_what_is_wrong_with_a_pattern(old: str, new: str, message: str) -> None:
    found = problems(PATTERN.replace(old, new, 1))
    assert len(found) == 1
    assert message in found[0]


def test_parse__ipv4_between_nics_has_room_for_so_many() -> None:
    text = PATTERN.replace("planes = 2", 'planes = 2\nrouting = "ecmp"\nunderlay = 4')
    assert description.parse(text, "f.toml").ipv4
    (found,) = problems(text.replace("t0 = 4", "t0 = 255"))
    assert "fabric.underlay = 4: must be 6 with more than 254 T0s" in found


def test_checked__a_lab_is_within_its_ipv4_addresses() -> None:
    fabric = description.parse(GOOD.replace("t0 = 2\nt1", "t0 = 255\nt1"), "f.toml")
    with pytest.raises(FabricError, match="too large for a lab"):
        description.checked(fabric)


def test_load__names_the_file_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=r"missing\.toml: cannot be read: No such file"):
        description.load(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FabricError, match=r"binary\.toml: is not UTF-8"):
        description.load(tmp_path / "binary.toml")
