# SPDX-License-Identifier: GPL-2.0-only
"""Test what faults mean for the cables of a lab without a fabric."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.lab import cablefaults, shape
from cli.lab.faults import PPM, BadAction, Effect, Impairment, Port
from cli.lab.state import Fault, NoSuchElement

FILE = """
[[network]]
hosts = ["h3", "h1"]
[[network]]
hosts = ["h1", "h2", "h3"]
rate = 100
[[network]]
hosts = ["h1", "h3"]
"""
SHAPE = shape.parse(FILE, Path("x.toml"), name="x", rate_mbps=25)
FIRST = [("h3", "eth1"), ("h1", "eth1")]
THIRD = [("h1", "eth3"), ("h3", "eth3")]
SWITCH = [
    (("h1", "eth2"), ("s2", "h1-eth2")),
    (("h2", "eth1"), ("s2", "h2-eth1")),
    (("h3", "eth2"), ("s2", "h3-eth2")),
]


def effects(*what: Fault) -> dict[Port, Effect]:
    return cablefaults.effects(SHAPE, what)


@pytest.mark.parametrize(
    ("text", "element"),
    [
        ("h1:eth1", "h1:eth1"),
        ("eth1:h1", "h1:eth1"),
        ("h1:h3", "h1:h3"),
        ("h3:h1", "h1:h3"),
        ("s2", "s2"),
    ],
)
def test_canonical(text: str, element: str) -> None:
    assert cablefaults.canonical(SHAPE, text) == element


@pytest.mark.parametrize("text", ["", "h1", "h1:h2", "h1:p0", "h1:eth4", "s1", "p0", "h1:h3:h1"])
def test_canonical__refuses(text: str) -> None:
    known = "known: NICs h3:eth1, h1:eth1, .*; cables h1:h3; switches s2"
    with pytest.raises(NoSuchElement, match=known):
        cablefaults.canonical(SHAPE, text)


@pytest.mark.parametrize(
    ("element", "ends"),
    [
        ("h1:eth1", [("h3", "eth1")]),
        ("h3:eth1", [("h1", "eth1")]),
        ("h2:eth1", [("s2", "h2-eth1")]),
        ("h1:h3", [("h3", "eth1"), ("h3", "eth3")]),
        ("s2", [port for _nic, port in SWITCH]),
    ],
)
def test_down_takes_the_carrier_from_the_nic(element: str, ends: list[Port]) -> None:
    assert effects(Fault(element, "down", 0)) == dict.fromkeys(ends, Effect(down=True))


@pytest.mark.parametrize(
    ("element", "ends"),
    [
        ("h1:eth1", FIRST),
        ("h1:h3", FIRST + THIRD),
        ("h2:eth1", [*SWITCH[1]]),
        ("s2", [end for pair in SWITCH for end in pair]),
    ],
)
def test_other_faults_act_on_both_directions(element: str, ends: list[Port]) -> None:
    drop, loss = Impairment(drop_ppm=PPM), Impairment(drop_ppm=50_000)
    assert effects(Fault(element, "blackhole", 0)) == dict.fromkeys(ends, Effect(egress=drop))
    assert effects(Fault(element, "loss", 50_000)) == dict.fromkeys(ends, Effect(egress=loss))
    assert effects(Fault(element, "rate", 5)) == dict.fromkeys(ends, Effect(egress_mbps=5))


def test_faults_add_up() -> None:
    both = effects(Fault("h1:eth1", "rate", 5), Fault("h1:h3", "rate", 9), Fault("s2", "down", 0))
    assert both["h1", "eth1"] == Effect(egress_mbps=5)
    assert both["h3", "eth3"] == Effect(egress_mbps=9)
    assert both["s2", "h1-eth2"] == Effect(down=True)


@pytest.mark.parametrize("kind", ["corrupt", "delay"])
def test_check__refuses(kind: str) -> None:
    with pytest.raises(BadAction, match="down, blackhole, loss, rate and clear"):
        cablefaults.check("h1:eth1", kind)


def test_rates() -> None:
    rates = cablefaults.rates(SHAPE)
    assert {rates[port] for port in FIRST + THIRD} == {25}
    assert {rates[end] for pair in SWITCH for end in pair} == {100}
