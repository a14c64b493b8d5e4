# SPDX-License-Identifier: GPL-2.0-only
"""Test the delay fault: all packets arrive late and in order, and on time again afterwards."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from cli.lab import faults, processes
from mrcd.linux import netns
from tests.net.usid_packets import MARK

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

TRUNK = "p0t0-1:p0t1-1"


def fastest_ms(running: Lab) -> float:
    """Return the shortest of ten round trips from h1 to h2."""
    address = str(running.fabric.address4(running.fabric.host("h2"), 0))
    shown = running.run("h1", "ping", "-c", "10", "-i", "0.02", "-w", "3", address, check=False)
    times = [float(found) for found in re.findall(r"time=([\d.]+)", shown)]
    assert len(times) == 10, shown
    return min(times)


@pytest.mark.parametrize("element", [TRUNK, "p0t1-1"])
def test_each_direction_is_later_by_the_delay(make_lab: MakeLab, element: str) -> None:
    running = make_lab(planes=1, t1=1)
    assert fastest_ms(running) < 3
    for delay_ms in (5, 20):
        running.fault(element, f"delay={delay_ms}ms")
        assert 2 * delay_ms <= fastest_ms(running) < 2 * delay_ms + 5
    running.fault(element, "clear")
    assert fastest_ms(running) < 3
    assert processes.inside([running.namespace("p0t0-1"), running.namespace("p0t1-1")]) == {}


def test_other_paths_are_as_fast_as_before(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=12)
    running.fault("p0t1-3", "delay=200ms")
    quick = [running.run("h1", "ping", "-c", "1", "-w", "3", f"10.100.0.{m}") for m in (2, 4, 12)]
    assert all(float(re.findall(r"time=([\d.]+)", shown)[0]) < 50 for shown in quick)
    slow = running.run("h1", "ping", "-c", "1", "-w", "3", "10.100.0.3")
    assert float(re.findall(r"time=([\d.]+)", slow)[0]) >= 200


def test_nothing_is_lost_or_overtaken(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=1, rate_mbps=100)
    running.fault(TRUNK, "delay=10ms")
    assert fastest_ms(running) >= 20  # ... and the neighbours are resolved
    h2 = running.fabric.host("h2")
    with netns.entered(running.namespace("h2")):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.entered(running.namespace("h1")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind(("", 4971))
        receiver.settimeout(2)
        began = time.monotonic()
        for train in range(50):
            for i in range(8):
                sender.sendto(MARK + bytes((train, i)), (str(running.fabric.address4(h2, 0)), 4971))
            got = [receiver.recv(100)[-2:] for _ in range(8)]
            assert got == [bytes((train, i)) for i in range(8)]
        assert time.monotonic() - began >= 50 * 0.010


def test_delay_and_loss_and_marks_at_one_port(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=1, rate_mbps=100)
    running.fault(TRUNK, "delay=5ms")
    running.fault("p0t1-1", "blackhole")
    address = str(running.fabric.address4(running.fabric.host("h2"), 0))
    assert not running.pings("h1", address)
    running.fault("p0t1-1", "clear")
    assert 10 <= fastest_ms(running) < 15
    running.fault(TRUNK, "clear")
    assert fastest_ms(running) < 3
    filters = running.run("p0t0-1", "tc", "filter", "show", "dev", "t1-1", "egress")
    assert "lab_mark" in filters


@pytest.mark.parametrize("element", ["p0", "p0t0-1", "h1:p0"])
def test_elsewhere_it_is_refused(make_lab: MakeLab, element: str) -> None:
    running = make_lab(planes=1, t1=1)
    with pytest.raises(faults.BadAction, match="only T1s and links between switches"):
        running.fault(element, "delay=3ms")
