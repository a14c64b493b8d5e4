# SPDX-License-Identifier: GPL-2.0-only
"""Test the arithmetic of uSIDs and EVs, in both directions."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.fabric import description, underlay, usid
from mrcd.fabric.description import Host

BLOCK = ipaddress.IPv6Network("fcbb:bb00::/32")
HEADER = Path(__file__).parents[3] / "bpf" / "mrc_wire.h"

planes = st.integers(0, 7)
roles = st.sampled_from([usid.ROLE_T0, usid.ROLE_T1, usid.ROLE_HOST])
indexes = st.integers(1, usid.INDEX_MASK)


def host(t0: int, port: int) -> Host:
    return Host(f"h{t0}-{port}", t0, port, ())


hosts = st.builds(host, st.integers(1, 254), st.integers(1, 253))


@pytest.mark.parametrize(
    ("macro", "value"),
    [
        ("MRC_USID_MAX", usid.USID_MAX),
        ("MRC_USID_PLANE_SHIFT", usid.PLANE_SHIFT),
        ("MRC_USID_ROLE_SHIFT", usid.ROLE_SHIFT),
        ("MRC_USID_INDEX_MASK", usid.INDEX_MASK),
        ("MRC_USID_ROLE_T0", usid.ROLE_T0),
        ("MRC_USID_ROLE_T1", usid.ROLE_T1),
        ("MRC_USID_ROLE_HOST", usid.ROLE_HOST),
        ("MRC_EV_PLANE_SHIFT", usid.EV_PLANE_SHIFT),
        ("MRC_EV_T1_SHIFT", usid.EV_T1_SHIFT),
        ("MRC_EV_T1_MASK", usid.EV_T1_MASK),
    ],
)
def test_constants_are_those_of_the_wire_header(macro: str, value: int) -> None:
    found = re.search(rf"^#define {macro} (\w+)", HEADER.read_text(), re.MULTILINE)
    assert found is not None
    assert int(found[1], 0) == value


@given(planes, roles, indexes)
def test_usid__split_is_the_inverse(plane: int, role: int, index: int) -> None:
    value = usid.usid(plane, role, index)
    assert 0 <= value <= 0xFFFF
    assert usid.split(value) == usid.Usid(plane, role, index)


@given(st.integers(0, 0xFFFF).filter(lambda value: value >> 11 & 3 != 3))
def test_split__usid_is_the_inverse(value: int) -> None:
    parts = usid.split(value)
    assert usid.usid(parts.plane, parts.role, parts.index) == value


@pytest.mark.parametrize(
    "parts", [(8, 0, 1), (-1, 0, 1), (0, 3, 1), (0, -1, 1), (0, 0, 2048), (0, 0, -1)]
)
def test_usid__refuses_what_does_not_fit(parts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"fit|none of"):
        usid.usid(*parts)


def test_path__over_a_t1() -> None:
    path = usid.path_usids(host(1, 1), host(2, 5), usid.ev(3, 2))
    assert path == [0x6001, 0x6802, 0x6002, 0x7005]
    assert str(ipaddress.IPv6Address(usid.da_bytes(BLOCK, path))) == (
        "fcbb:bb00:6001:6802:6002:7005::"
    )


def test_path__on_one_t0() -> None:
    assert usid.path_usids(host(4, 1), host(4, 2), usid.ev(0, 0)) == [0x0004, 0x1002]


@given(hosts, hosts, planes, st.integers(1, 254))
def test_ev_of_path__is_the_inverse_of_path_usids(a: Host, b: Host, plane: int, t1: int) -> None:
    value = usid.ev(plane, 0 if a.t0 == b.t0 else t1)
    path = usid.path_usids(a, b, value)
    assert usid.ev_of_path(path) == value
    assert usid.usids_of_da(BLOCK, usid.da_bytes(BLOCK, path)) == path


@given(hosts, hosts, planes, st.integers(1, 254))
def test_path__back_has_the_same_ev(a: Host, b: Host, plane: int, t1: int) -> None:
    value = usid.ev(plane, 0 if a.t0 == b.t0 else t1)
    there, back = usid.path_usids(a, b, value), usid.path_usids(b, a, value)
    assert back[:-1] == there[:-1][::-1]


@given(hosts, hosts, planes, st.integers(1, 254))
def test_template_da__and_the_ev_give_the_address(a: Host, b: Host, plane: int, t1: int) -> None:
    value = usid.ev(plane, 0 if a.t0 == b.t0 else t1)
    address = bytearray(usid.template_da(BLOCK, a, b, plane))
    if a.t0 != b.t0:
        t1_field = int.from_bytes(address[6:8], "big") | usid.ev_t1(value)
        address[6:8] = t1_field.to_bytes(2, "big")
    assert bytes(address) == usid.da_bytes(BLOCK, usid.path_usids(a, b, value))
    assert usid.with_t1(usid.template_da(BLOCK, a, b, plane), usid.ev_t1(value)) == bytes(address)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ([], "one plane"),
        ([0x0001], "neither"),
        ([0x0001, 0x0801, 0x0001, 0x1001], "neither"),  # back to the T0 it came from
        ([0x0001, 0x0801, 0x2002, 0x1001], "one plane"),
        ([0x0801, 0x0001], "neither"),
        ([0x0001, 0x0800, 0x0002, 0x1001], "index 0"),
        ([0x0001, 0x0801, 0x0002, 0x0801, 0x0003, 0x1001], "neither"),
    ],
)
def test_ev_of_path__refuses_what_is_no_path(path: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        usid.ev_of_path(path)


def test_path__refuses_an_ev_of_other_hosts() -> None:
    with pytest.raises(ValueError, match="names T1 1"):
        usid.path_usids(host(1, 1), host(1, 2), usid.ev(0, 1))
    with pytest.raises(ValueError, match="names no T1"):
        usid.path_usids(host(1, 1), host(2, 1), usid.ev(0, 0))


def test_da__refuses_seven_usids_and_a_foreign_block() -> None:
    with pytest.raises(ValueError, match="at most 6"):
        usid.da_bytes(BLOCK, [1] * 7)
    with pytest.raises(ValueError, match="not in block"):
        usid.usids_of_da(BLOCK, bytes(16))


def test_evs_between__one_for_each_t1() -> None:
    fabric = description.generate(hosts=4, hosts_per_t0=2, t1=3)
    a, neighbour, far = fabric.hosts[0], fabric.hosts[1], fabric.hosts[2]
    assert underlay.of(fabric).evs(a, far, 2) == [0x20010000, 0x20020000, 0x20030000]
    assert underlay.of(fabric).evs(a, neighbour, 2) == [0x20000000]


@given(planes, roles, indexes)
def test_plane_prefix__covers_the_plane_and_no_other(plane: int, role: int, index: int) -> None:
    locator = usid.locator(BLOCK, usid.usid(plane, role, index))
    assert locator.prefixlen == 48
    covering = [p for p in range(8) if locator.subnet_of(usid.plane_prefix(BLOCK, p))]
    assert covering == [plane]
