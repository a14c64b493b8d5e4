# SPDX-License-Identifier: GPL-2.0-only
"""Test the fault map against ground truth: single and double faults, equivalent sets, noise."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Container, Mapping

import pytest

from mrcd.fabric.loops import Loop, loops_of
from mrcd.survey.inference import Fault, Seen, infer
from mrcd.survey.named import CERTAIN
from tests.unit.fault_double import elements_of, fabric_of, simulated

SHAPES = [(2, 2, 2, 1), (4, 2, 2, 2), (3, 2, 2, 1), (4, 3, 3, 1), (2, 2, 4, 1), (4, 4, 4, 2)]


def certain(seen: list[Seen]) -> list[Fault]:
    """Return the faults that are certain enough to be named."""
    return [fault for fault in infer(seen) if fault.certainty >= CERTAIN]


def mistakes(faults: list[Fault], truth: Mapping[str, float]) -> str:
    """Return what is wrong with an answer, or an empty string.

    An answer may name healthy elements only if it offers a true set as an alternative to them. It
    may omit true elements only if dead ones hide them or if they form such a set.
    """
    named = {fault.element.name for fault in faults}
    instead: set[str] = set()
    for fault in faults:
        if fault.element.name not in truth:
            sets = [set(names) for names in fault.alternatives if set(names) <= set(truth)]
            if not sets:
                return f"{fault.element.name} is healthy"
            instead |= set.union(*sets)
    missing = truth.keys() - named - instead
    hidden = {name for name in missing if any(hides(dead, name, truth) for dead in named)}
    return f"{missing - hidden} not named" if missing - hidden else ""


def hides(dead: str, other: str, truth: Mapping[str, float]) -> bool:
    """Return whether a dead switch may leave no loop that reveals the elements attached to it."""
    if truth.get(dead) != 1:
        return False
    return dead in other.split(":") or (other.startswith("h") and "t0" in dead)


@pytest.mark.parametrize("loss", [1.0, 0.2, 0.04])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_single_fault_is_named_and_nothing_else(
    shape: tuple[int, int, int, int], loss: float
) -> None:
    fabric = fabric_of(*shape)
    rng = random.Random(f"{shape} {loss}")
    for name in elements_of(fabric):
        faults = certain(simulated(fabric, {name: loss}, rng))
        assert mistakes(faults, {name: loss}) == "", (name, faults)
        (fault,) = faults
        assert fault.kind == ("dead" if loss == 1 else "loss")
        assert fault.low - 0.01 <= loss <= fault.high + 0.01


@pytest.mark.parametrize("shape", [(2, 2, 2, 1), (4, 1, 2, 2), (3, 1, 2, 1)], ids=str)
def test_every_double_fault_of_dead_elements_is_named(shape: tuple[int, int, int, int]) -> None:
    fabric = fabric_of(*shape)
    rng = random.Random(str(shape))
    for pair in itertools.combinations(elements_of(fabric), 2):
        truth = dict.fromkeys(pair, 1.0)
        faults = certain(simulated(fabric, truth, rng, sent=60))
        assert mistakes(faults, truth) == "", (pair, faults)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_double_faults_name_nothing_healthy(shape: tuple[int, int, int, int]) -> None:
    """Sample the pairs of dead or lossy elements; uncertain ones are not named."""
    fabric = fabric_of(*shape)
    rng = random.Random(str(shape))
    names = sorted(elements_of(fabric))
    full = 0
    for _ in range(60):
        truth = {name: rng.choice([1.0, 0.2, 0.04]) for name in rng.sample(names, 2)}
        faults = certain(simulated(fabric, truth, rng))
        wrong = mistakes(faults, truth)
        assert "healthy" not in wrong, (truth, faults)
        full += not wrong
    assert full >= 50


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("noise", [0.0, 2e-4, 1e-3])
def test_noise_names_nobody(shape: tuple[int, int, int, int], noise: float) -> None:
    fabric = fabric_of(*shape)
    rng = random.Random(f"{shape} {noise}")
    for sent in (5, 20, 400):
        for _ in range(5):
            assert certain(simulated(fabric, {}, rng, sent=sent, noise=noise)) == []


def test_a_switch_is_preferred_only_when_all_its_links_agree() -> None:
    fabric, rng = fabric_of(3, 1, 2, 1), random.Random(1)
    links = [f"p0t0-{j}:p0t1-1" for j in (1, 2, 3)]
    every = certain(simulated(fabric, dict.fromkeys(links, 1.0), rng))
    assert [fault.element.name for fault in every] == ["p0t1-1"]
    two = certain(simulated(fabric, dict.fromkeys(links[:2], 1.0), rng))
    assert [fault.element.name for fault in two] == links[:2]


def test_equals_are_said() -> None:
    """With one host on each of two T0s, two dead NIC links look the same as dead T0s."""
    fabric, rng = fabric_of(2, 1, 2, 1), random.Random(1)
    faults = certain(simulated(fabric, {"h1:p0": 1.0, "h2:p0": 1.0}, rng))
    assert [(fault.element.name, fault.alternatives) for fault in faults] == [
        ("h1:p0", (("p0t0-1",),)),
        ("h2:p0", (("p0t0-2",),)),
    ]
    (t1,) = certain(simulated(fabric, {"p0t1-2": 0.1}, rng))
    assert t1.alternatives == (("p0t0-1:p0t1-2", "p0t0-2:p0t1-2"),)


@pytest.mark.parametrize("loss", [0.04, 0.2, 0.5])
@pytest.mark.parametrize("sent", [100, 400, 1600])
def test_a_link_and_its_t1_cannot_be_told_from_both_links_of_that_t1(
    loss: float, sent: int
) -> None:
    """With two T0s, half of the T1's losses could be those of either of its links."""
    fabric, rng = fabric_of(4, 1, 2, 2), random.Random(7)
    truth = {"p0t0-1:p0t1-1": loss, "p0t1-1": loss}
    for fault in certain(simulated(fabric, truth, rng, sent=sent)):
        others = [set(names) for names in fault.alternatives]
        assert fault.element.name in truth or {"p0t1-1"} in others, fault


def test_planes_that_all_lose_alike_are_the_hosts_noise() -> None:
    fabric, rng = fabric_of(2, 4, 2, 1), random.Random(3)
    assert certain(simulated(fabric, {}, rng, noise=0.001)) == []


def test_evidence_shows_loss_across_and_none_beside() -> None:
    fabric, rng = fabric_of(2, 2, 2, 1), random.Random(1)
    (fault,) = certain(simulated(fabric, {"p1t0-1:p1t1-2": 1.0}, rng, sent=40))
    assert "h1 - p1t0-1 - p1t1-2 and back: lost 40 of 40" in fault.evidence
    assert any(line.endswith("lost 0 of 40") and "p1t1-2" not in line for line in fault.evidence)


def test_telling_loops_tell_a_link_from_its_t1_sooner_than_others() -> None:
    """Sending half of all probes over them more than doubles the certainty."""
    fabric, dead, lossy = fabric_of(2, 3, 2, 1), "h2:p1", "p1t0-1:p1t1-2"

    def judged(probes: int, telling: Container[Loop] = ()) -> Fault:
        """Judge exact expected counts of `probes` per host; half go over the telling loops."""
        seen = []
        for host in fabric.hosts:
            loops = loops_of(fabric, host)
            few = [loop for loop in loops if loop in telling]
            for loop in loops:
                sent = probes / len(loops) / (2 if few else 1)
                sent += probes / 2 / len(few) if loop in few else 0
                back = 1.0
                for element, times in loop.crossings.items():
                    back *= {dead: 0.0, lossy: 0.96}.get(element.name, 1.0) ** times
                seen.append(Seen(loop, round(sent), round(sent * (1 - back)), 50.0))
        found = {fault.element.name: fault for fault in infer(seen)}
        assert found.keys() == {dead, lossy}
        return found[lossy]

    unsure = judged(6000)
    assert unsure.certainty < CERTAIN
    crossed = [{element.name for element in loop.crossings} for loop in unsure.telling]
    assert all(lossy in each for each in crossed)
    assert {loop.host.name for loop in unsure.telling} == {"h1"}
    assert judged(6000, unsure.telling).certainty > 2 * unsure.certainty


def test_what_nothing_comes_next_to_has_no_telling_loops() -> None:
    """Two hosts cannot distinguish a T1 from its links, so each explanation fits as well."""
    fabric = fabric_of(2, 1, 2, 1)
    for fault in infer(simulated(fabric, {"p0t1-2": 1.0}, random.Random(1))):
        assert math.isinf(fault.certainty) == (not fault.telling)


def test_slow_link_is_named_and_its_time_told() -> None:
    fabric = fabric_of(2, 4, 2, 1)
    slow = "p1t0-1:p1t1-2"
    seen = []
    for host in fabric.hosts:
        for loop in loops_of(fabric, host):
            names = {element.name: times for element, times in loop.crossings.items()}
            seen.append(Seen(loop, 50, 0, 40.0 + 5000.0 * names.get(slow, 0)))
    (fault,) = infer(seen)
    assert (fault.element.name, fault.kind) == (slow, "slow")
    assert math.isclose(fault.extra_us, 5000, rel_tol=0.05)


def test_a_plane_that_is_dead_altogether_is_explained() -> None:
    fabric = fabric_of(4, 3, 4, 2)
    names = [name for name in elements_of(fabric) if name.startswith("p1t") or ":p1" in name]
    faults = certain(simulated(fabric, dict.fromkeys(names, 1.0), random.Random(1)))
    assert {fault.element.name for fault in faults} == {"p1t0-1", "p1t0-2"}


def test_nothing_seen_is_nothing_known() -> None:
    fabric = fabric_of(2, 2, 2, 1)
    assert infer([]) == []
    assert infer([Seen(loop, 0, 0) for loop in loops_of(fabric, fabric.hosts[0])]) == []
