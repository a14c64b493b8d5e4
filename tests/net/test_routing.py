# SPDX-License-Identifier: GPL-2.0-only
"""Test labs with each way of crossing a fabric: TCP passes, survives the loss of any plane or T1,
and learns of marks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from mrcd.fabric.routing import Routing
from mrcd.linux import interfaces, netns
from mrcd.wire.envelope import cell_overhead, overhead
from mrcd.wire.packet import WIRE
from rigs import lab_hosts
from rigs.lab_hosts import eventually, mrcctl_json
from rigs.running_lab import labs
from rigs.traffic import Stream, transfer

Lab = Any  # conftest.RunningLab
H1, H2, H2_6 = "10.99.0.1", "10.99.0.2", "fd99::2"
MIB = 1 << 20
RATE_MBPS = 200  # switches mark packets beyond this rate
# Other tests of mrc0 use the full encapsulation. With srv6 cells go in IPv6, otherwise in UDP.
WAYS = [
    pytest.param((Routing("srv6", "reduced"), "auto"), id="srv6, reduced, cells"),
    pytest.param((Routing("srv6", "reduced"), "mrc"), id="srv6, reduced, mrc"),
    pytest.param((Routing("ecmp", underlay=6), "auto"), id="ecmp, 6, cells"),
    pytest.param((Routing("ecmp", underlay=4), "auto"), id="ecmp, 4, cells"),
    pytest.param((Routing("ecmp", underlay=4), "mrc"), id="ecmp, 4, mrc"),
]


@pytest.fixture(scope="module", params=WAYS)
def built(request: pytest.FixtureRequest) -> Iterator[Lab]:
    routing, framing = request.param
    with labs(f"r{os.getpid()}-{routing.code}{framing[0]}") as make:
        settings = f'[transport]\nframing = "{framing}"\n'
        yield make(daemons=True, rate_mbps=RATE_MBPS, routing=routing, settings=settings)


@pytest.fixture
def running(built: Lab) -> Iterator[Lab]:
    """Return a lab of two hosts, four planes and two T1s in each, without faults."""
    lab_hosts.heal(built)
    yield built
    lab_hosts.heal(built)


def headers_of(running: Lab) -> int:
    """Return the bytes that the framing in use puts on a packet."""
    (peer,) = mrcctl_json(running.name, "h1", "peer", "list")["peers"]
    if peer["framing"] == "cell":
        shown = mrcctl_json(running.name, "h1", "status")["datapath"]["cell_envelope"]
        envelope = WIRE.MRC_CELL_UDP if shown == "udp" else WIRE.MRC_CELL_IP6
        return cell_overhead(running.fabric.routing.code, envelope)
    return overhead(running.fabric.routing.code)


def test_status_says_how_packets_travel(running: Lab) -> None:
    routing = running.fabric.routing
    shown = mrcctl_json(running.name, "h1", "status")
    assert shown["datapath"]["routing"] == routing.shown
    assert shown["mrc0"]["mtu"] == 9000 - headers_of(running)
    assert routing.shown in lab_hosts.mrcctl(running.name, "h1", "status").stdout


@pytest.mark.parametrize(("address", "headers"), [(H2, 28), (H2_6, 48)], ids=["IPv4", "IPv6"])
def test_packet_of_the_mtu_passes(running: Lab, address: str, headers: int) -> None:
    size = 9000 - headers_of(running) - headers
    command = ("ping", "-M", "do", "-c", "3", "-i", "0.05", "-w", "3", "-s", str(size), address)
    assert "3 received" in running.run("h1", *command)


def forwarded(running: Lab) -> dict[str, int]:
    """Return the bytes that each T1 has forwarded."""
    found = {}
    for plane in range(running.fabric.planes):
        for index in range(1, running.fabric.t1 + 1):
            name = f"p{plane}t1-{index}"
            with netns.entered(running.namespace(name)):
                links = interfaces.traffic()
            found[name] = sum(t.tx_bytes for link, t in links.items() if link.startswith("t0-"))
    return found


def test_tcp_passes_over_every_t1(running: Lab) -> None:
    before = forwarded(running)
    transfer(running, "h1", "h2", H2, 16 * MIB)
    transfer(running, "h2", "h1", H1, 4 * MIB)
    transfer(running, "h1", "h2", H2_6, 4 * MIB)
    carried = {name: count - before[name] for name, count in forwarded(running).items()}
    even = sum(carried.values()) / len(carried)
    assert all(count > even / 4 for count in carried.values()), carried
    assert lab_hosts.counters(running.name, "h2")["hole_skipped"] == 0


@pytest.mark.parametrize("element", ["p1", "p2t1-1"])
def test_tcp_survives_a_silent_death(running: Lab, element: str) -> None:
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(2 * MIB)
    running.fault(element, "blackhole")
    stream.progress(4 * MIB)
    plane = int(element[1])
    eventually(
        lambda: lab_hosts.bad_planes(running.name, "h1") == {plane},
        f"paths of plane {plane} are withdrawn, and no others",
    )
    stream.progress(2 * MIB)
    running.fault(element, "clear")
    eventually(lambda: not lab_hosts.bad_planes(running.name, "h1"), "all paths are good")
    stream.progress(2 * MIB)
    stream.finish()


def test_tcp_survives_a_nic_link_that_goes_down(running: Lab) -> None:
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(2 * MIB)
    running.fault("h2:p3", "down")
    stream.progress(4 * MIB)
    running.fault("h2:p3", "clear")
    stream.progress(2 * MIB)
    stream.finish()


def test_marks_of_the_fabric_are_seen(running: Lab) -> None:
    def echoes() -> int:
        return lab_hosts.counters(running.name, "h2")["echo_tx"]

    before = echoes()
    for plane in range(running.fabric.planes):
        for index in range(1, running.fabric.t1 + 1):
            # All of them: a sender avoids a single slow one, before its queue is long.
            running.fault(f"p{plane}t1-{index}", "rate=20")
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(2 * MIB)
    eventually(lambda: echoes() > before, "the receiver tells of marks", 30)
    stream.finish()


def test_every_ev_is_answered_when_probed(running: Lab) -> None:
    evs = mrcctl_json(running.name, "h1", "path", "probe", "h2", "--count", "2")["probes"]
    assert len(evs) == running.fabric.planes * (
        128 if running.fabric.routing.mode == "ecmp" else running.fabric.t1
    )
    assert all(ev["answered"] == ev["sent"] == 2 for ev in evs)
