# SPDX-License-Identifier: GPL-2.0-only
"""Test what faults mean for the ports of a fabric."""

from __future__ import annotations

import pytest

from cli.lab import faults, topology
from cli.lab.faults import PPM, BadAction, Effect, Impairment, Port
from cli.lab.state import Fault, NoSuchElement
from mrcd.fabric import description

PLAN = topology.plan(description.generate(name="x", hosts=2, planes=2, t1=2))
DROP_ALL = Impairment(drop_ppm=PPM)
LOSS = Impairment(drop_ppm=50_000)


def effects(*what: Fault) -> dict[Port, Effect]:
    return faults.effects(PLAN, what)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("down", ("down", 0)),
        ("blackhole", ("blackhole", 0)),
        ("clear", ("clear", 0)),
        ("loss=5%", ("loss", 50_000)),
        ("loss=0.01%", ("loss", 100)),
        ("corrupt=100%", ("corrupt", PPM)),
        ("rate=25", ("rate", 25)),
        ("delay=3ms", ("delay", 3000)),
        ("delay=0.25ms", ("delay", 250)),
    ],
)
def test_parse_action(text: str, parsed: tuple[str, int]) -> None:
    assert faults.parse_action(text) == parsed
    if text != "clear":
        assert faults.shown(Fault("p1", *parsed)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "up",
        "loss",
        "loss=5",
        "loss=0%",
        "loss=101%",
        "loss=-1%",
        "rate=0",
        "rate=2.5",
        "delay=3",
        "delay=0ms",
        "delay=1001ms",
    ],
)
def test_parse_action__refuses(text: str) -> None:
    with pytest.raises(BadAction, match="must be"):
        faults.parse_action(text)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("p1", "p1"),
        ("p1t0-1", "p1t0-1"),
        ("h1:p1", "h1:p1"),
        ("p1:h1", "h1:p1"),
        ("p1t1-2:p1t0-1", "p1t0-1:p1t1-2"),
    ],
)
def test_canonical(given: str, name: str) -> None:
    assert faults.canonical(PLAN, given) == name


@pytest.mark.parametrize(
    "element",
    ["", "p2", "h1", "h3:p0", "h1:p2", "p0t0-3", "p0t2-1", "p0t0-1:p1t1-1", "p0t0-1:p0t0-2"],
)
def test_canonical__lists_what_there_is(element: str) -> None:
    with pytest.raises(NoSuchElement, match="planes p0 to p1, switches p0t0-1 to p1t0-2"):
        faults.canonical(PLAN, element)


def test_loss_of_a_nic_link__each_direction_at_the_switch() -> None:
    assert effects(Fault("h1:p1", "loss", 50_000)) == {
        ("p1t0-1", "port1"): Effect(ingress=LOSS, egress=LOSS)
    }


def test_loss_of_a_switch_link__where_each_direction_arrives() -> None:
    assert effects(Fault("p1t0-1:p1t1-2", "loss", 50_000)) == {
        ("p1t0-1", "t1-2"): Effect(ingress=LOSS),
        ("p1t1-2", "t0-1"): Effect(ingress=LOSS),
    }


def test_loss_of_a_plane__once_for_each_packet() -> None:
    assert effects(Fault("p1", "loss", 50_000)) == {
        ("p1t0-1", "port1"): Effect(ingress=LOSS),
        ("p1t0-2", "port1"): Effect(ingress=LOSS),
    }


def test_loss_of_a_switch__once_for_each_packet_that_enters() -> None:
    assert effects(Fault("p1t1-2", "loss", 50_000)) == {
        ("p1t1-2", "t0-1"): Effect(ingress=LOSS),
        ("p1t1-2", "t0-2"): Effect(ingress=LOSS),
    }
    assert effects(Fault("p1t0-1", "loss", 50_000)) == {
        ("p1t0-1", "port1"): Effect(ingress=LOSS),
        ("p1t0-1", "t1-1"): Effect(ingress=LOSS),
        ("p1t0-1", "t1-2"): Effect(ingress=LOSS),
    }


def test_blackhole_of_a_plane__every_port_of_its_switches() -> None:
    found = effects(Fault("p1", "blackhole", 0))
    everything = {(node.name, port) for node in PLAN.switches(1) for port in node.ports}
    assert set(found) == everything
    assert set(found.values()) == {Effect(ingress=DROP_ALL, egress=DROP_ALL)}


def test_down__one_end_of_a_link_and_all_of_a_switch() -> None:
    assert set(effects(Fault("h2:p0", "down", 0))) == {("p0t0-2", "port1")}
    assert set(effects(Fault("p0t0-1:p0t1-1", "down", 0))) == {("p0t0-1", "t1-1")}
    assert set(effects(Fault("p0t1-1", "down", 0))) == {("p0t1-1", "t0-1"), ("p0t1-1", "t0-2")}


def test_rate__both_directions_without_touching_the_host() -> None:
    assert effects(Fault("h1:p1", "rate", 25)) == {
        ("p1t0-1", "port1"): Effect(ingress_mbps=25, egress_mbps=25)
    }
    assert effects(Fault("p1t0-1:p1t1-2", "rate", 25)) == {
        ("p1t0-1", "t1-2"): Effect(egress_mbps=25),
        ("p1t1-2", "t0-1"): Effect(egress_mbps=25),
    }


def test_faults_of_one_t1_of_many__its_own_cables_and_no_others() -> None:
    many = topology.plan(description.generate(name="x", hosts=2, planes=2, t1=32))

    def touched(element: str, kind: str) -> set[Port]:
        return set(faults.effects(many, [Fault(element, kind, 1)]))

    own = {("p1t1-7", "t1-7t0-1"), ("p1t1-7", "t1-7t0-2")}
    for kind in ("down", "blackhole", "loss"):
        assert touched("p1t1-7", kind) == own
    assert touched("p1t0-1:p1t1-7", "down") == {("p1t0-1", "t1-7")}
    assert touched("p1t0-1:p1t1-7", "rate") == {("p1t0-1", "t1-7"), ("p1t1-7", "t1-7t0-1")}
    assert {node for node, _ in touched("p1", "blackhole")} == {
        node.name for node in many.switches(1)
    }


def test_delay__once_in_each_direction_of_a_link_and_once_through_a_t1() -> None:
    late = Effect(egress_delay_us=3000)
    assert effects(Fault("p1t0-1:p1t1-2", "delay", 3000)) == {
        ("p1t0-1", "t1-2"): late,
        ("p1t1-2", "t0-1"): late,
    }
    assert effects(Fault("p1t1-2", "delay", 3000)) == {
        ("p1t1-2", "t0-1"): late,
        ("p1t1-2", "t0-2"): late,
    }
    both = effects(Fault("p1t1-2", "delay", 3000), Fault("p1t0-1:p1t1-2", "delay", 1000))
    assert both["p1t1-2", "t0-1"] == Effect(egress_delay_us=4000)


@pytest.mark.parametrize("element", ["p1", "p1t0-1", "h1:p1"])
def test_delay__refused_where_there_is_none(element: str) -> None:
    faults.check(PLAN, element, "loss")
    with pytest.raises(BadAction, match="only T1s and links"):
        faults.check(PLAN, element, "delay")


def test_overlapping_faults_add_up_and_clear_alone() -> None:
    both = (Fault("h1:p1", "loss", 500_000), Fault("p1", "loss", 500_000))
    port = ("p1t0-1", "port1")
    assert effects(*both)[port].ingress.drop_ppm == 750_000
    rest = faults.changed(both, "p1", "clear", 0)
    assert effects(*rest)[port].ingress.drop_ppm == 500_000
    slow = effects(Fault("h1:p1", "rate", 25), Fault("p1", "rate", 100))
    assert slow[port] == Effect(ingress_mbps=25, egress_mbps=25)


def test_changed__the_same_kind_replaces_and_another_joins() -> None:
    first = faults.changed((), "p1", "loss", 10)
    second = faults.changed(first, "p1", "loss", 20)
    assert second == (Fault("p1", "loss", 20),)
    assert len(faults.changed(second, "p1", "corrupt", 5)) == 2


@pytest.mark.parametrize("element", ["p1", "p1t0-1", "p1t1-2", "h1:p1", "p1t0-1:p1t1-2"])
def test_ports__cover_every_fault_so_that_clear_restores_all(element: str) -> None:
    ports = faults.ports(PLAN, element)
    for kind in ("down", "blackhole", "loss", "corrupt", "rate"):
        assert set(effects(Fault(element, kind, 1))) <= set(ports)
    towards_hosts = [port for port in ports if port[1].startswith("port")]
    assert ports[: len(towards_hosts)] == towards_hosts
    assert all(PLAN.nodes[node].kind != "host" for node, _ in ports)
