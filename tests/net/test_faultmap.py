# SPDX-License-Identifier: GPL-2.0-only
"""Test that every host's mrcd names the faults of a lab; `bench.faults.faultmap` tests more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rigs.fault_watch import elements, faults_of, watch
from rigs.lab_hosts import counters, eventually, mrcctl, mrcctl_json
from rigs.running_lab import labs

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def both() -> Iterator[dict[int, Lab]]:
    """Return two labs of three planes of two T1s and two T0s, with one and two hosts a T0.

    All hosts of a lab hear each other. The labs wait most of the time, so they do it together.
    """
    with labs(f"f{os.getpid()}") as make:
        made = {}
        for hosts_per_t0 in (1, 2):
            hosts = 2 * hosts_per_t0
            running = make(daemons=True, hosts=hosts, planes=3, t1=2, hosts_per_t0=hosts_per_t0)
            for host in running.fabric.hosts:
                eventually(
                    lambda name=running.name, host=host, others=hosts - 1: (
                        faults_of(name, host.name)["survey"].hosts_heard == others
                    ),
                    f"{host.name} hears all others",
                    30,
                )
            made[hosts_per_t0] = running
        yield made


@pytest.fixture(params=[1, 2], ids=["one-host-a-T0", "two-hosts-a-T0"])
def surveyed(request: pytest.FixtureRequest, both: dict[int, Lab]) -> Lab:
    return both[request.param]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "actions",
    [
        {"p1t0-1:p1t1-2": "blackhole"},
        {"p1t0-1:p1t1-2": "loss=10%"},
        {"h1:p1": "blackhole"},
        {"h2:p0": "down"},
        {"h1:p2": "loss=10%"},
        {"p1t0-2": "blackhole"},
        {"p1t0-1": "loss=10%"},
        {"p0t1-1": "blackhole"},
        {"p0t1-2": "loss=10%"},
        {"p1t1-2": "down"},
        {"h1:p1": "blackhole", "p2t0-2:p2t1-1": "loss=20%"},
        {"p1t0-1:p1t1-1": "blackhole", "p1t1-2": "blackhole"},
        {"p1t0-1:p1t1-2": "delay=12ms"},
        {"p2t1-1": "delay=24ms", "p0t0-1:p0t1-2": "blackhole"},
    ],
    ids=lambda actions: "+".join(f"{e}={a}" for e, a in actions.items()),
)
def test_every_host_names_the_fault_and_then_none(
    both: dict[int, Lab], actions: dict[str, str]
) -> None:
    with ThreadPoolExecutor(len(both)) as pool:
        watched = {
            hosts: pool.submit(watch, lab.name, lab.fabric, actions, WITHIN_S)
            for hosts, lab in both.items()
        }
    for hosts, each in watched.items():
        result = each.result()
        assert result.healthy == set(), hosts
        assert result.named_s is not None, (hosts, result.last)
        assert result.cleared_s is not None, hosts


def eventually_dead(name: str) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return list, drawing and map of h1 from a time at which it calls one link dead."""
    found: list[tuple[Any, Any, list[dict[str, Any]]]] = []

    def is_dead() -> bool:
        return [f.kind for f in faults_of(name, "h1")["faults"]] == ["dead"]

    def all_say_so() -> bool:
        if not is_dead():
            return False
        shown = mrcctl(name, "h1", "fault", "list", "--check")
        drawn = mrcctl(name, "h1", "fabric", "map")
        found.append((shown, drawn, mrcctl_json(name, "h1", "fabric", "map")["elements"]))
        return is_dead()

    eventually(all_say_so, "h1 names a dead link", 30)
    return found[-1]


def test_the_list_and_the_map_as_people_see_them(surveyed: Lab) -> None:
    name = surveyed.name
    healthy = mrcctl(name, "h1", "fault", "list", "--check")
    assert (healthy.returncode, healthy.stdout.splitlines()[0]) == (0, "no faults")
    surveyed.fault("p1t0-1:p1t1-2", "blackhole")
    try:
        # Counts from before the fault may make it look like a lossy link at first, or again if the
        # machine is busy: what is compared is of one time.
        shown, drawn, everything = eventually_dead(name)
    finally:
        surveyed.fault("p1t0-1:p1t1-2", "clear")
    assert shown.returncode == 1
    assert shown.stdout.startswith("p1t0-1:p1t1-2 is dead, for ")
    assert "h1 - p1t0-1 - p1t1-2 and back: lost " in shown.stdout
    assert "plane 1: 1 at fault" in drawn.stdout
    assert {element["name"] for element in everything} == set(elements(surveyed.fabric))
    assert {element["state"] for element in everything} == {"ok", "dead"}
    eventually(lambda: not faults_of(name, "h1")["faults"], "h1 clears it", 30)


def test_all_probes_come_back_from_a_healthy_fabric(surveyed: Lab) -> None:
    for host in surveyed.fabric.hosts:
        before = counters(surveyed.name, host.name)

        def enough(host: Any = host, before: dict[str, int] = before) -> bool:
            return counters(surveyed.name, host.name)["survey_tx"] >= before["survey_tx"] + 200

        eventually(enough, f"{host.name} sends 200 probes")
        after = counters(surveyed.name, host.name)
        sent = after["survey_tx"] - before["survey_tx"]
        assert after["survey_rx"] - before["survey_rx"] >= 0.98 * sent
        assert after["drop_survey"] == 0


def test_no_survey_when_it_is_turned_off(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2, settings="[transport]\nsurvey_pps = 0\n")
    reply = faults_of(running.name, "h1")
    assert not reply["survey"].enabled
    assert counters(running.name, "h1")["survey_tx"] == 0
    shown = mrcctl(running.name, "h1", "fault", "list")
    assert shown.stdout == "no survey: [transport] survey_pps is 0\n"
