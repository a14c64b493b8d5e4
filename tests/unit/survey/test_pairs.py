# SPDX-License-Identifier: GPL-2.0-only
"""Test what is inferred from the counts of ways between hosts without a fabric."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from mrcd.survey.arrivals import PORTS, Kinds
from mrcd.survey.inference import Fault
from mrcd.survey.likelihood import Seen
from mrcd.survey.named import CERTAIN
from mrcd.survey.pairs import Counted, infer
from mrcd.survey.ways import Layout, Way

Rate = Callable[[str, str, int], float]
"""The share that is lost from a host to another in a plane."""


def layout(hosts: int, planes: int) -> Layout:
    names = tuple("abcdefghijklmnopqrstuvwxyz"[:hosts])
    nics = tuple(f"eth{k + 1}" for k in range(planes))
    return Layout(names, planes, dict.fromkeys(names, nics))


def every_way(hosts: int, planes: int) -> list[Way]:
    found = layout(hosts, planes)
    return [way for host in found.hosts for way in found.ways(host)]


def counted(
    hosts: int,
    planes: int,
    rate: Rate,
    sent: int = 400,
    kinds: Callable[[Way], Kinds] = lambda _way: Kinds(),
    took: Callable[[Way], float] = lambda _way: 100.0,
    noise: random.Random | None = None,
) -> list[Counted]:
    found = []
    for way in every_way(hosts, planes):
        share = rate(way.sender, way.host.name, way.plane)
        if noise is None:
            lost = round(share * sent)
        else:
            lost = sum(noise.random() < share for _ in range(sent))
        found.append(Counted(Seen(way, sent, lost, took(way)), way, kinds(way)))
    return found


def names(faults: list[Fault]) -> list[str]:
    return sorted(fault.element.name for fault in faults if fault.certainty >= CERTAIN)


def only(faults: list[Fault]) -> Fault:
    (fault,) = faults
    return fault


CASES: Mapping[str, tuple[Rate, list[str]]] = {
    "a NIC, out": (lambda s, d, p: 0.02 * (s == "a" and p == 0), ["a:eth1 sending"]),
    "a NIC, in": (lambda s, d, p: 0.02 * (d == "b" and p == 1), ["b:eth2 receiving"]),
    "a NIC, both": (lambda s, d, p: 0.02 * ("c" in (s, d) and p == 0), ["c:eth1"]),
    "a dead NIC": (lambda s, d, p: float("c" in (s, d) and p == 0), ["c:eth1"]),
    "a network": (lambda s, d, p: 0.02 * (p == 1), ["network of plane 1"]),
    "a pair, one way": (lambda s, d, p: float((s, d, p) == ("a", "c", 0)), ["a:eth1 to c:eth1"]),
    "a pair": (
        lambda s, d, p: 0.05 * ({s, d} == {"a", "c"} and p == 1), ["between a:eth2 and c:eth2"]
    ),
    "a host": (lambda s, d, p: 0.03 * ("b" in (s, d)), ["host b"]),
    "a host that receives": (lambda s, d, p: 0.03 * (d == "b"), ["host b receiving"]),
    "two NICs of one plane": (
        lambda s, d, p: (p == 0) * (0.05 * (s == "a") + 0.02 * (d == "b")),
        ["a:eth1 sending", "b:eth1 receiving"],
    ),
    "two NICs of two planes": (
        lambda s, d, p: 0.03 * ((s, p) == ("a", 0)) + 0.03 * ((s, p) == ("d", 1)),
        ["a:eth1 sending", "d:eth2 sending"],
    ),
    "a NIC and a pair": (
        lambda s, d, p: 0.04 * ((d, p) == ("a", 0)) + ((s, d, p) == ("b", "c", 0)),
        ["a:eth1 receiving", "b:eth1 to c:eth1"],
    ),
    "nothing": (lambda s, d, p: 0.0, []),
    "noise": (lambda s, d, p: 0.0005, []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("hosts", [4, 6])
def test_each_fault_is_told_from_the_others(case: str, hosts: int) -> None:
    rate, expected = CASES[case]
    assert names(infer(counted(hosts, 2, rate))) == expected


@pytest.mark.parametrize("seed", range(5))
def test_random_counts_name_the_same(seed: int) -> None:
    for case in ("a NIC, out", "a network", "a pair", "two NICs of one plane", "noise"):
        rate, expected = CASES[case]
        rows = counted(4, 2, rate, noise=random.Random(seed))
        assert names(infer(rows)) == expected, case


def test_three_hosts_are_enough() -> None:
    rate, expected = CASES["a NIC, out"]
    assert names(infer(counted(3, 2, rate, sent=600))) == expected


def test_between_two_hosts_nobody_knows_which_end() -> None:
    one_way = infer(counted(2, 2, lambda s, d, p: 0.03 * ((s, p) == ("a", 0))))
    assert names(one_way) == ["a:eth1 to b:eth1"]
    both = infer(counted(2, 2, lambda s, d, p: 0.02 * (p == 0)))
    assert names(both) == ["between a:eth1 and b:eth1"]


def test_with_one_plane_a_host_is_its_nic() -> None:
    assert names(infer(counted(4, 1, lambda s, d, p: 0.02 * (d == "b")))) == ["b:eth1 receiving"]


def test_the_evidence_is_in_numbers() -> None:
    rate, _ = CASES["a NIC, out"]
    fault = only(infer(counted(4, 2, rate)))
    assert fault.evidence[0] == "24 of 1,200 probes lost"
    assert fault.kind == "loss"
    assert fault.low < 0.02 < fault.high


def test_a_few_losses_are_no_certain_fault_yet() -> None:
    rows = counted(4, 2, lambda s, d, p: 0.01 * ((s, p) == ("a", 0)), sent=100)
    assert names(infer(rows)) == []


def of_kind(**counts: object) -> Kinds:
    return Kinds(**counts)  # type: ignore[arg-type]


def test_only_long_packets() -> None:
    def kinds(way: Way) -> Kinds:
        hit = way.sender == "a" and way.plane == 0
        return of_kind(short=[100.0, 0.0], long=[100.0, 100.0 if hit else 0.0])

    rows = counted(4, 2, lambda s, d, p: 0.5 * ((s, p) == ("a", 0)), kinds=kinds)
    fault = only(infer(rows))
    assert fault.element.name == "a:eth1 sending"
    assert "mostly long packets: 300 of 300 long and 0 of 300 short probes" in fault.evidence


def test_a_dead_leg_of_a_bond() -> None:
    def kinds(way: Way) -> Kinds:
        hit = way.sender == "a" and way.plane == 0
        ports = [[20.0, 20.0 if hit and k % 2 else 0.0] for k in range(PORTS)]
        lost = sum(each[1] for each in ports) / 2
        return of_kind(short=[80.0, lost], long=[80.0, lost], ports=ports)

    rows = counted(4, 2, lambda s, d, p: 0.5 * ((s, p) == ("a", 0)), kinds=kinds)
    fault = only(infer(rows))
    assert any(line.startswith("4 of 8 UDP source ports lose all") for line in fault.evidence)
    assert not any("mostly" in line for line in fault.evidence)


def test_what_arrives_damaged_is_named_so() -> None:
    def kinds(way: Way) -> Kinds:
        hit = way.sender == "a" and way.plane == 0
        lost = 10.0 if hit else 0.0
        return of_kind(short=[100.0, lost], long=[100.0, lost], damaged=1.6 * lost)

    rows = counted(4, 2, lambda s, d, p: 0.1 * ((s, p) == ("a", 0)), kinds=kinds)
    assert only(infer(rows)).kind == "damage"


@pytest.mark.parametrize(("member", "kind"), [("repeated", "repeat"), ("moved", "reorder")])
def test_what_comes_twice_or_out_of_order_is_named(member: str, kind: str) -> None:
    def kinds(way: Way) -> Kinds:
        hit = way.sender == "a" and way.plane == 0
        return of_kind(short=[100.0, 0.0], long=[100.0, 0.0], **{member: 20.0 * hit})

    fault = only(infer(counted(4, 2, lambda s, d, p: 0.0, kinds=kinds)))
    assert (fault.element.name, fault.kind) == ("a:eth1 sending", kind)


@pytest.mark.parametrize("offset", [-5e6, 0.0, 3e6])
def test_a_delay_is_told_in_spite_of_the_clocks(offset: float) -> None:
    def took(way: Way) -> float:
        clocks = offset * ((way.host.name == "b") - (way.sender == "b"))
        return 100.0 + clocks + 20_000 * (way.sender == "a" and way.plane == 0)

    fault = only(infer(counted(4, 2, lambda s, d, p: 0.0, took=took)))
    assert (fault.element.name, fault.kind) == ("a:eth1 sending", "slow")
    assert fault.extra_us == pytest.approx(20_000)


def test_with_one_plane_pairs_are_compared() -> None:
    def took(way: Way) -> float:
        return 100.0 + 20_000 * ("a" in (way.sender, way.host.name))

    fault = only(infer(counted(5, 1, lambda s, d, p: 0.0, took=took)))
    assert (fault.element.name, fault.kind) == ("a:eth1", "slow")


def test_with_one_plane_the_direction_of_a_delay_is_unknown() -> None:
    def took(way: Way) -> float:
        return 100.0 + 20_000 * (way.host.name == "a")

    fault = only(infer(counted(5, 1, lambda s, d, p: 0.0, took=took)))
    assert (fault.element.name, fault.kind) == ("a:eth1", "slow")


def test_alike_delays_are_nobodys_fault() -> None:
    assert infer(counted(4, 2, lambda s, d, p: 0.0, took=lambda way: 30_000.0)) == []


def test_a_full_queue_is_nothing_slow() -> None:
    rows = counted(
        4, 2, lambda s, d, p: 0.0,
        took=lambda way: 100.0 + 20_000 * (way.host.name == "b" and way.plane == 0),
    )  # fmt: skip
    assert [fault.kind for fault in infer(rows)] == ["slow"]
    one = next(k for k, row in enumerate(rows) if row.seen.rtt_us and row.seen.rtt_us > 1000)
    rows[one] = replace(rows[one], queued=True)
    assert infer(rows) == []
