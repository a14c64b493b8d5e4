# SPDX-License-Identifier: GPL-2.0-only
"""Test the differences between two configurations and how each is applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.config import config, sections
from mrcd.config.config import Config
from mrcd.config.diff import diff, needs_restart
from mrcd.datapath import adoption
from mrcd.fabric import description

HOSTS = 6
FOLDER: dict[str, Path] = {}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return fabric files: the usual one, more hosts, another shape, another location."""
    made = tmp_path_factory.mktemp("reconfigure")
    usual = description.generate(hosts=HOSTS, planes=2, t1=2)
    shapes = {
        "usual": usual,
        "more": description.generate(hosts=HOSTS + 2, planes=2, t1=2),
        "planes": description.generate(hosts=HOSTS, planes=4, t1=2),
        "t1s": description.generate(hosts=HOSTS, planes=2, t1=4),
        "mtu": description.generate(hosts=HOSTS, planes=2, t1=2, mtu=1500),
    }
    for name, fabric in shapes.items():
        (made / f"{name}.toml").write_text(description.dumps(fabric))
    FOLDER["made"] = made
    return made


def read(
    fabric: str = "usual",
    host: str = "h1",
    peers: dict[str, tuple[str, ...]] | None = None,
    mrc0: str = "",
    on_stop: str = "keep",
    **transport: Any,
) -> Config:
    lines = ["[host]", f'name = "{host}"', f'fabric = "{fabric}.toml"', "[mrc0]", mrc0]
    lines += ["[service]", f'on_stop = "{on_stop}"', "[transport]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in transport.items()]
    for name, allowed in (peers or {}).items():
        lines += ["[[peer]]", f'name = "{name}"', f"allowed = {json.dumps(allowed)}"]
    return config.loads("\n".join(lines), FOLDER["made"] / "mrcd.toml")


def shown(old: Config, new: Config, *, fits: bool = True) -> list[tuple[str, Any, Any, str]]:
    return [(c.path, c.old, c.new, c.how) for c in diff(old, new, fits=fits).changes]


TWO = {"h2": ("10.99.0.2/32",), "h3": ("10.99.0.3/32",)}
TABLE: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, Any, Any, str]]]] = [
    ({}, {}, []),
    ({}, {"probe_pps": 500}, [("transport.probe_pps", "2000", "500", "live")]),
    ({}, {"tick_us": 500}, [("transport.tick_us", "1000", "500", "live")]),
    ({}, {"survey_pps": 0}, [("transport.survey_pps", "200", "0", "live")]),
    ({}, {"cell_max": 9000}, [("transport.cell_max", "65400", "9000", "live")]),
    ({}, {"framing": "mrc"}, [("transport.framing", "auto", "mrc", "restart")]),
    ({}, {"mpr": 1024}, [("transport.mpr", "2048", "1024", "restart")]),
    ({}, {"xdp": "native"}, [("transport.xdp", "auto", "native", "restart")]),
    ({}, {"on_stop": "drain"}, [("service.on_stop", "keep", "drain", "live")]),
    ({}, {"mrc0": 'name = "mrc9"'}, [("mrc0.name", "mrc0", "mrc9", "restart")]),
    (
        {"mrc0": 'routed = ["10.98.0.0/16"]'},
        {"mrc0": 'routed = ["10.98.0.0/16", "fd98::/64"]'},
        [("mrc0.routed", "10.98.0.0/16", "10.98.0.0/16, fd98::/64", "live")],
    ),
    (
        {"mrc0": 'addresses = ["10.99.0.1/24"]'},
        {"mrc0": 'addresses = ["10.99.0.1/24", "10.98.0.1/24"]'},
        [("mrc0.addresses", "10.99.0.1/24", "10.99.0.1/24, 10.98.0.1/24", "live")],
    ),
    (
        {"peers": TWO},
        {"peers": {**TWO, "h4": ("10.99.0.4/32",)}},
        [("peer.h4", None, "10.99.0.4/32", "live")],
    ),
    (
        {"peers": TWO},
        {"peers": {"h2": ("10.99.0.2/32", "10.50.0.0/16")}},
        [
            ("peer.h2.allowed", "10.99.0.2/32", "10.99.0.2/32, 10.50.0.0/16", "live"),
            ("peer.h3", "10.99.0.3/32", None, "live"),
        ],
    ),
    ({}, {"fabric": "mtu"}, [("fabric.mtu", "9000", "1500", "restart")]),
    ({}, {"fabric": "t1s"}, [("fabric.t1", "2", "4", "restart")]),
]


@pytest.mark.parametrize(("old", "new", "expected"), TABLE)
def test_diff(
    old: dict[str, Any], new: dict[str, Any], expected: list[tuple[str, Any, Any, str]]
) -> None:
    assert shown(read(**old), read(**new)) == expected


def test_diff__hosts_of_the_fabric_show_as_peers() -> None:
    changes = shown(read(), read(fabric="more"))
    assert [(path, how) for path, _, _, how in changes] == [
        ("peer.h7", "live"),
        ("peer.h8", "live"),
    ]


def test_diff__another_host_is_a_restart() -> None:
    assert needs_restart(diff(read(), read(host="h2"), fits=False))


def test_diff__what_does_not_fit_is_a_restart() -> None:
    """Each peer alone could be applied live, but all of them together do not fit."""
    old, new = read(peers=TWO), read(peers={**TWO, "h4": ("10.99.0.4/32",)}, probe_pps=500)
    assert [(path, how) for path, _, _, how in shown(old, new, fits=False)] == [
        ("transport.probe_pps", "live"),
        ("peer.h4", "restart"),
        ("datapath", "restart"),
    ]


# ---- properties

settings = st.fixed_dictionaries(
    {},
    optional={
        "fabric": st.sampled_from(["usual", "more", "planes", "t1s", "mtu"]),
        "host": st.sampled_from(["h1", "h2"]),
        "mrc0": st.sampled_from(['name = "mrc0"', 'name = "m"', 'addresses = ["10.98.0.1/24"]']),
        "on_stop": st.sampled_from(sections.ON_STOP),
        "peers": st.dictionaries(
            st.sampled_from(["h3", "h4", "h5", "h6"]),
            st.sets(st.integers(0, 3), min_size=1),
            min_size=1,
        ).map(
            lambda peers: {
                name: tuple(sorted(f"10.{name[1:]}{third}.0.0/16" for third in thirds))
                for name, thirds in peers.items()
            }
        ),
        "tick_us": st.sampled_from([500, 1000]),
        "probe_pps": st.sampled_from([100, 2000]),
        "survey_pps": st.sampled_from([0, 200]),
        "mpr": st.sampled_from([1024, 2048]),
        "evs": st.sampled_from([8, 128]),
        "qps_per_peer": st.sampled_from([1, 4]),
        "tc": st.sampled_from(["auto", "clsact"]),
        "udp_port": st.sampled_from([4971, 4791]),
        "cell_port": st.sampled_from([4974, 4789]),
        "cell_envelope": st.sampled_from(["auto", "ipv6", "udp"]),
    },
)


def layout(of: Config) -> str:
    return adoption.layout_of(of, adoption.sizes_of(of))


@given(settings, settings)
def test_diff__is_empty_only_between_equals_and_the_same_both_ways(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    old, new = read(**one), read(**other)
    there = shown(old, new)
    back = shown(new, old)
    assert {(path, was, will, how) for path, was, will, how in there} == {
        (path, was, will, how) for path, will, was, how in back
    }
    alike = ("mrc0", "interfaces", "transport", "peers", "service", "host")
    same = all(getattr(old, name) == getattr(new, name) for name in alike)
    for name in ("planes", "t1", "mtu"):
        same = same and getattr(old.fabric, name) == getattr(new.fabric, name)
    assert (there == []) == same


@given(settings, settings)
def test_diff__says_restart_exactly_where_the_layout_changes(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """If a key that the maps depend on were live, the existing maps would be misread."""
    old, new = read(**one), read(**other)
    assert needs_restart(diff(old, new, fits=True)) == (layout(old) != layout(new))
