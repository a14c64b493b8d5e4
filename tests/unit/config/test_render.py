# SPDX-License-Identifier: GPL-2.0-only
"""Test that a rendered configuration loads as an equal one."""

from __future__ import annotations

import tempfile
import tomllib
from dataclasses import fields, replace
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrcd.config import config, render, sections
from mrcd.config.config import Config
from mrcd.config.sections import Transport

FABRIC = """
fabric = { planes = 3, t0 = 2, t1 = 8 }
host = [
    { name = "a", t0 = 1, port = 1, addresses = ["10.99.0.1/24", "fd99::1/64"] },
    { name = "b", t0 = 2, port = 1, addresses = ["10.99.0.2/24"], routed = ["10.98.2.0/24"] },
    { name = "c", t0 = 2, port = 2, addresses = ["10.99.0.3/24"] },
]
"""
PATTERN = """
fabric = { planes = 3, t0 = 64, t1 = 8 }
hosts = { name = "n", per_t0 = 32, count = 2048, addresses = ["10.64.0.0/16"] }
"""

names = st.text(
    st.characters(codec="utf-8", exclude_characters="/:{}", exclude_categories=["Cs"]),
    min_size=1,
    max_size=15,
).filter(
    lambda name: (
        len(name.encode()) < 16 and name not in (".", "..") and not any(map(str.isspace, name))
    )
)


@st.composite
def transports(draw: st.DrawFn) -> Transport:
    """Draw any `Transport` that passes the checks."""
    mpr = draw(st.sampled_from([128, 2048, 4096]))
    evs = draw(st.integers(8, 256))
    shortest = draw(st.integers(0, sections.CELL_MAX))
    cell = draw(st.integers(sections.CELL_PORT_MIN, 65535))
    others = st.integers(1, 65535).filter(lambda port: port != cell)
    udp, control = draw(st.lists(others, min_size=2, max_size=2, unique=True).map(tuple))
    return Transport(
        udp_port=udp,
        control_port=control,
        cell_port=cell,
        cell_envelope=draw(st.sampled_from(["auto", "ipv6", "udp"])),
        qps_per_peer=draw(st.sampled_from([1, 2, 4, 16])),
        mpr=mpr,
        ring_slots=draw(st.sampled_from([mpr, 65536])),
        tick_us=draw(st.integers(100, 100_000)),
        evs=evs,
        ev_min_active=draw(st.integers(0, evs)),
        probe_pps=draw(st.integers(10, 100_000)),
        xdp=draw(st.sampled_from(["auto", "native"])),
        tc=draw(st.sampled_from(["auto", "tcx", "clsact"])),
        survey_pps=draw(st.integers(0, 100_000)),
        framing=draw(st.sampled_from(["auto", "cell", "mrc"])),
        cell_min=shortest,
        cell_max=draw(st.integers(shortest, sections.CELL_MAX)),
    )


def base(folder: Path, fabric: str = FABRIC, host: str = "a", extra: str = "") -> Config:
    (folder / "fabric.toml").write_text(fabric)
    (folder / "mrcd.toml").write_text(
        f'[host]\nname = "{host}"\nfabric = "fabric.toml"\n'
        f'[planes]\ninterfaces = "eth{{plane}}"\n{extra}'
    )
    return config.load(folder / "mrcd.toml")


def again(one: Config) -> Config:
    """Return the configuration that the rendered text loads as."""
    one.path.write_text(render.render(one))
    return config.load(one.path)


@settings(max_examples=60, deadline=None)
@given(
    transport=transports(),
    interfaces=st.lists(names, min_size=3, max_size=3, unique=True),
    mrc0=st.one_of(st.just("mrc0"), names.filter(lambda name: len(name.encode()) < 14)),  # mrc0cp
    addresses=st.one_of(st.none(), st.just(("10.98.7.6/24", "fd98::9/64"))),
    routed=st.sampled_from([(), ("10.97.0.0/16",), ("10.97.0.0/16", "fd97::/64")]),
    peers=st.one_of(st.none(), st.lists(st.sampled_from("bc"), min_size=1, unique=True)),
    allowed=st.booleans(),
    listen=st.sampled_from(["", "127.0.0.1:9469", "[::1]:1"]),
    on_stop=st.sampled_from(["keep", "drain", "detach"]),
    standby=st.sampled_from([0, 0b001, 0b110]),
    redundant=st.sampled_from([(), ("udp/5000", "dscp/46")]),
)
def test_text_loads_to_an_equal_configuration(
    transport: Transport,
    interfaces: list[str],
    mrc0: str,
    addresses: tuple[str, ...] | None,
    routed: tuple[str, ...],
    peers: list[str] | None,
    allowed: bool,
    listen: str,
    on_stop: str,
    standby: int,
    redundant: tuple[str, ...],
) -> None:
    if mrc0 in interfaces:
        return
    with tempfile.TemporaryDirectory() as name:
        one = base(Path(name))
        changes: dict[str, Any] = {
            "transport": transport,
            "metrics": config.Metrics(listen),
            "service": sections.Service(on_stop),
            "cells": transport.framing != "mrc",
            "interfaces": tuple(interfaces),
            "standby": standby,
        }
        given = one.host.addresses if addresses is None else tuple(map(ip_interface, addresses))
        changes["mrc0"] = config.Mrc0(mrc0, given, tuple(map(ip_network, routed)), redundant)
        if peers is not None:
            chosen = [peer for each in peers for peer in one.peers if peer.name == each]
            if allowed:
                more = ip_network("192.0.2.0/24")
                chosen[0] = replace(chosen[0], allowed=(*chosen[0].allowed, more))
            changes["peers"] = tuple(chosen)
        wanted = replace(one, **changes)
        assert again(wanted) == wanted


def test_it_can_fail(tmp_path: Path) -> None:
    one = base(tmp_path)
    assert again(one) != replace(one, transport=Transport(mpr=128))


@pytest.mark.parametrize(
    "extra",
    [
        "",
        '[mrc0]\naddresses = ["10.99.0.2/24"]\n',  # b's own address, valid only without a [[peer]]
        '[metrics]\nlisten = "[::1]:9971"\n',
        '[[peer]]\nname = "c"\n',
        '[[peer]]\nname = "c"\nallowed = ["10.99.0.3/32", "fd12::/48"]\n[[peer]]\nname = "b"\n',
    ],
)
def test_what_a_user_would_write(tmp_path: Path, extra: str) -> None:
    one = base(tmp_path, extra=extra)
    assert again(one) == one


def test_one_host_alone(tmp_path: Path) -> None:
    lonely = FABRIC.split("host =")[0] + "host = [" + FABRIC.splitlines()[3] + "]"
    one = base(tmp_path, lonely)
    assert one.peers == ()
    assert again(one) == one


def test_a_few_peers_of_a_large_fabric(tmp_path: Path) -> None:
    one = base(tmp_path, PATTERN, "n7", '[[peer]]\nname = "n2048"\n')
    assert again(one) == one


def test_a_fabric_file_elsewhere_is_named_in_full(tmp_path: Path) -> None:
    one = base(tmp_path)
    elsewhere = tmp_path / "else where" / 'a "fabric".toml'
    elsewhere.parent.mkdir()
    elsewhere.write_text(FABRIC)
    (tmp_path / "here").mkdir()
    moved = replace(one, path=tmp_path / "here" / "mrcd.toml", fabric_path=elsewhere)
    assert again(moved) == moved


def test_every_key_of_every_section_is_written(tmp_path: Path) -> None:
    one = base(tmp_path)
    text = tomllib.loads(render.render(one))
    for name in ("transport", "metrics", "service"):
        assert set(text[name]) == {field.name for field in fields(getattr(one, name))}
    assert set(text) == {"host", "planes", "transport", "metrics", "service", "keys"}
