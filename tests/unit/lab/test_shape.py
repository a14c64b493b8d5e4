# SPDX-License-Identifier: GPL-2.0-only
"""Test the shapes of labs without a fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from cli.lab import shape
from cli.lab.shape import Shape, ShapeError
from mrcd.config import config

FILE = Path("rack.toml")


def parse(text: str, **more: int) -> Shape:
    return shape.parse(text, FILE, name="x", **more)


def network(*hosts: str, more: str = "") -> str:
    names = ", ".join(f'"{host}"' for host in hosts)
    return f"[[network]]\nhosts = [{names}]\n{more}\n"


def nics(found: Shape) -> list[str]:
    return [" ".join(map(str, each.nics)) for each in found.networks]


@pytest.mark.parametrize(
    ("text", "cables"),
    [
        ("ring:2", ["h1:eth1 h2:eth1", "h2:eth2 h1:eth2"]),
        ("triangle", ["h1:eth1 h2:eth1", "h2:eth2 h3:eth1", "h3:eth2 h1:eth2"]),
        ("chain:3", ["h1:eth1 h2:eth1", "h2:eth2 h3:eth1"]),
        ("mesh:3", ["h1:eth1 h2:eth1", "h1:eth2 h3:eth1", "h2:eth2 h3:eth2"]),
    ],
)
def test_drawn(text: str, cables: list[str]) -> None:
    found = shape.drawn(text, name="x", mtu=1500, rate_mbps=250)
    assert nics(found) == cables
    assert found.switches == ()
    assert {found.rate(each) for each in found.networks} == {250}
    assert found.mtu == 1500


@pytest.mark.parametrize("text", ["ring:19", "chain:10", "mesh:9"])
def test_drawn_at_its_largest(text: str) -> None:
    assert len(shape.drawn(text, name="x").hosts) == int(text.partition(":")[2])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ring", "--shape ring: must be ring:5, chain:4, triangle, mesh:4 or a TOML file"),
        ("ring:x", "must be ring:5"),
        ("ring:1", "a ring has 2 to 19 hosts"),
        ("ring:20", "a ring has 2 to 19 hosts"),
        ("chain:11", "a chain has 2 to 10 hosts"),
        ("mesh:10", "a mesh has 2 to 9 hosts"),
    ],
)
def test_drawn__refuses(text: str, wrong: str) -> None:
    assert shape.is_drawn(text)
    with pytest.raises(ShapeError, match=wrong):
        shape.drawn(text, name="x")


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"name": "X"}, 'name: "X": must be a lower-case letter'),
        ({"name": "x", "mtu": 1280}, "mtu: 1280: must be 1408 to"),
        ({"name": "x", "rate_mbps": -1}, "rate: -1: must be 0 to"),
    ],
)
def test_values_of_options_are_checked(values: dict[str, object], wrong: str) -> None:
    with pytest.raises(ShapeError, match=wrong):
        shape.drawn("ring:3", **values)  # type: ignore[arg-type]


def test_file_with_a_cable_and_a_switch() -> None:
    found = parse(
        network("h1", "h2")
        + network("h2", "h3", "h4", "h3", more="rate = 1000")
        + network("h1", "h4")
    )
    assert nics(found) == [
        "h1:eth1 h2:eth1",
        "h2:eth2 h3:eth1 h4:eth1 h3:eth2",
        "h1:eth2 h4:eth2",
    ]
    assert found.switches == ("s2",)
    assert [str(address) for address in found.hosts[2].addresses] == ["10.99.0.3/24", "fd99::3/64"]
    assert [found.rate(each) for each in found.networks] == [0, 1000, 0]
    assert found.mtu == shape.MTU


def test_options_count_more_than_the_file() -> None:
    text = "mtu = 1500\nrate = 10\n" + network("h1", "h2") + network("h1", "h2", more="rate = 5")
    assert [parse(text).rate(each) for each in parse(text).networks] == [10, 5]
    found = parse(text, mtu=4000, rate_mbps=20)
    assert found.mtu == 4000
    assert [found.rate(each) for each in found.networks] == [20, 5]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[[network", "rack.toml: not TOML: "),
        ("", r"rack.toml: network: is missing; write \[\[network\]\]"),
        ("network = 3", r"rack.toml: network: 3: must be a list of tables"),
        ("[[network]]", r"rack.toml: network\[1\].hosts: \[\]: is missing; write hosts ="),
        (network("h1"), r"network\[1\].hosts: \['h1'\]: must name two or more hosts"),
        (network("h1", "h1"), r"network\[1\].hosts: .*: must name two or more hosts"),
        (network("h1", "srv"), r'network\[1\].hosts: "srv": must be h1, h2, ... up to h64'),
        (network("h1", "h65"), r'network\[1\].hosts: "h65": must be h1'),
        ("[[network]]\nhosts = 3", r"network\[1\].hosts: 3: must be a list of strings"),
        (network("h1", "h2", more="rate = -1"), r"network\[1\].rate: -1: must be an integer"),
        (network("h1", "h2", more="rates = 1"), r"network\[1\].rates: 1: .*did you mean rate"),
        (network("h1", "h2", more="standby = 1"), r"network\[1\].standby: 1: must be true or"),
        (
            network("h1", "h2") + network("h2", "h3", more="standby = true"),
            "network: standby: true: is so for every network of h3; leave it out",
        ),
        (network("h1", "h3"), "network: h2 is in none, but h3 is: number the hosts h1 to h2"),
        (network("h1", "h2") * 9, "network: h1 is named 9 times: a host has at most 8 NICs"),
        (network("h1", "h2") + network("h3", "h4"), "no way leads from h1 to h3: add a"),
        (
            "".join(network(f"h{k}", f"h{k + 1}") for k in range(1, 11)),
            "9 hosts are between h1 and h11: at most 8 hand packets on",
        ),
    ],
)
def test_parse__refuses(text: str, wrong: str) -> None:
    with pytest.raises(ShapeError, match=wrong):
        parse(text)


def test_parse__names_every_problem() -> None:
    with pytest.raises(ShapeError) as caught:
        parse(network("h1", "b") + network("h2", more="rate = true"))
    assert len(str(caught.value).splitlines()) == 3


def test_record_is_read_back() -> None:
    text = network("h1", "h2", "h3", more="rate = 7\nstandby = true") + network("h1", "h2", "h3")
    found = parse(text, mtu=1500, rate_mbps=9)
    assert parse(tomli_w.dumps(shape.tables(found))) == found


def test_configuration_is_one_of_mrcd(tmp_path: Path) -> None:
    found = parse(network("h1", "h2", more="rate = 9") + network("h1", "h2", more="standby = true"))
    file = tmp_path / "mrcd.toml"
    file.write_text(tomli_w.dumps(shape.configuration(found, found.hosts[1], "../secret")))
    read = config.load(file)
    assert [*read.interfaces] == ["eth1", "eth2"]
    assert read.fabric.rate_mbps == 9
    assert shape.configuration(found, found.hosts[0], "secret")["plane"] == [
        {"interface": "eth1", "rate_mbps": 9},
        {"interface": "eth2", "standby": True},
    ]
    assert read.keys.discover
    assert read.keys.forward
    assert read.host.name == "h2"
