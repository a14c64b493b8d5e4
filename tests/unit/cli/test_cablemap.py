# SPDX-License-Identifier: GPL-2.0-only
"""Test the drawing of hosts that are cabled as people do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.fabric import cables, drawing
from mrcd.model import HostSpot, MapReply, NetworkInfo, NicSpot
from rigs.control_double import FakeSource


def spot(text: str, rate_mbps: int = 0, *, carrier: bool = True) -> NicSpot:
    host, nic = text.split(":")
    return NicSpot(host=host, nic=nic, carrier=carrier, rate_mbps=rate_mbps)


def network(*ends: str) -> NetworkInfo:
    name = f"cable {' - '.join(ends)}" if len(ends) == 2 else f"network of {ends[0]} and others"
    return NetworkInfo(name=name, nics=[spot(end) for end in ends], state="ok", loss=0.0)


def reply(networks: list[NetworkInfo], hosts: list[HostSpot] | None = None) -> MapReply:
    names = sorted({nic.host for each in networks for nic in each.nics})
    return {
        **FakeSource().fabric_map(),
        "t0": 0,
        "t1": 0,
        "hosts": hosts or [HostSpot(name=name, t0=0) for name in names],
        "elements": [],
        "ways": [],
        "networks": networks,
        "loose": [],
    }


RING = [
    network("a:eth1", "b:eth1"),
    network("a:eth2", "c:eth2"),
    network("b:eth2", "c:eth1"),
]


def test_ring_is_walked_along() -> None:
    one, other, third = RING
    dead = replace(third, state="dead", nics=[spot("b:eth2", carrier=False), spot("c:eth1")])
    lossy = replace(other, state="loss", loss=0.031, towards="a")
    fast = replace(one, nics=[spot("a:eth1", 25000), spot("b:eth1")])
    hosts = [HostSpot(name="a", t0=0, forwards=True), *(HostSpot(name=n, t0=0) for n in "bc")]
    text = drawing.render(reply([fast, lossy, dead], hosts), 80)
    assert text.splitlines()[:-1] == [
        "host, and what its NICs lead to",
        "  a          eth1 b  eth2 % c  (hands packets on)",
        "  b          eth1 a  eth2 x down c",
        "  c          eth1 x b  eth2 % a",
        "",
        "network",
        "a:eth1 --- b:eth1  25 Gb/s",
        "b:eth2 -x- c:eth1  dead, b:eth2 has no carrier",
        "c:eth2 -%> a:eth2  loses 3.1 % to a",
        cables.LEGEND,
    ]


def test_dead_host_and_unknown_far_end() -> None:
    found = reply(RING, [HostSpot(name="a", t0=0), HostSpot(name="b", t0=0, state="dead")])
    found["loose"] = [spot("a:eth3", carrier=False)]
    lines = drawing.render(found, 80).splitlines()
    assert "  a          eth1 b  eth2 c  eth3 ? down" in lines
    assert "x b          eth1 a  eth2 c" in lines
    assert "a:eth3 -?- far end unknown, no carrier" in lines


def test_switched_network_names_its_nics() -> None:
    lines = drawing.render(
        reply([network("a:eth1", "b:eth1", "c:eth3"), network("a:eth2", "b:eth2")]), 80
    ).splitlines()
    assert "  a          eth1 b,c  eth2 b" in lines
    at = lines.index("switched, 3 NICs")
    assert lines[at + 1] == "  a:eth1  b:eth1  c:eth3"
    assert "a:eth2 --- b:eth2" in lines


@pytest.mark.parametrize("count", [9, 64])
def test_every_line_fits_eighty_columns(count: int) -> None:
    names = [f"host{k}" for k in range(count)]
    ring = [
        network(f"{one}:eth2", f"{other}:eth1")
        for one, other in zip(names, names[1:] + names[:1], strict=True)
    ]
    switch = network(*(f"{name}:eth3" for name in names))
    lines = drawing.render(reply([*ring, switch]), 80).splitlines()
    assert all(len(line) <= 80 for line in lines[:-1])
    assert sum(" --- " in line for line in lines) == count
    assert len(lines) <= 3 * count + 10


def test_mesh_has_a_line_for_each_cable() -> None:
    names = "abcdefghi"
    mesh = [
        network(f"{one}:eth{names.index(other)}", f"{other}:eth{1 + names.index(one)}")
        for k, one in enumerate(names)
        for other in names[k + 1 :]
    ]
    lines = drawing.render(reply(mesh), 80).splitlines()
    assert sum(" --- " in line for line in lines) == 36
    assert all(len(line) <= 80 for line in lines[:-1])
