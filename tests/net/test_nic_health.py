# SPDX-License-Identifier: GPL-2.0-only
"""Test lossy NIC links: a bad link is given up, and one whose queue is full is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.fault_watch import faults_of
from rigs.lab_hosts import counters, eventually, planes_towards, status
from rigs.traffic import Stream

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

pytestmark = [pytest.mark.alone, pytest.mark.timeout(180)]


def sick(running: Lab, host: str) -> dict[int, str]:
    """Return the planes whose health is in doubt, with the reasons."""
    now = status(running.name, host)
    assert now is not None
    return {plane.index: plane.sick for plane in now.planes if plane.sick is not None}


def named(running: Lab) -> set[str]:
    """Return the elements that the hosts' fault lists name."""
    hosts = [host.name for host in running.fabric.hosts]
    return {fault.element for host in hosts for fault in faults_of(running.name, host)["faults"]}


def test_a_nic_link_that_loses_is_given_up_until_it_is_clean(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, hosts=2, planes=3, t1=2)
    running.fault("h1:p1", "loss=10%")
    eventually(lambda: sick(running, "h1"), "h1 gives its plane up", 60)
    assert set(sick(running, "h1")) == {1}
    assert sick(running, "h1")[1].startswith("NIC link h1:p1 loses ")
    eventually(lambda: planes_towards(running.name, "h2", "h1") == [0, 2], "h2 leaves the plane")
    assert planes_towards(running.name, "h1", "h2") == [0, 2]
    running.fault("h1:p1", "clear")
    eventually(
        lambda: planes_towards(running.name, "h1", "h2") == [0, 1, 2], "h1 takes it back", 60
    )
    eventually(lambda: planes_towards(running.name, "h2", "h1") == [0, 1, 2], "h2 does")
    assert sick(running, "h1") == {}


def test_a_queue_that_others_fill_is_no_bad_link(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, hosts=2, planes=3, t1=2, rate_mbps=100)
    address = str(running.fabric.address4(running.fabric.host("h2"), 1))
    streams = [Stream(running, "h1", "h2", address) for _ in range(16)]
    try:
        for stream in streams:
            stream.start()
        eventually(lambda: "h1:p1" in named(running), "its loss is seen", 60)
        goal = counters(running.name, "h1")["survey_tx"] + 1000

        def judged() -> bool:
            assert sick(running, "h1") == sick(running, "h2") == {}
            return counters(running.name, "h1")["survey_tx"] >= goal

        eventually(judged, "judged ten times more", 30)
    finally:
        for stream in streams:
            stream.close()
