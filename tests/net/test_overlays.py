# SPDX-License-Identifier: GPL-2.0-only
"""Test networks on top of mrc0: their packets have checksums within, which a NIC completes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rigs import lab_hosts
from rigs.traffic import Stream

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
HOSTS = ("h1", "h2")
MIB = 1 << 20
TUNNELS = {
    "4": "local 10.99.0.{own} remote 10.99.0.{other} udpcsum",
    "4 without a sum": "local 10.99.0.{own} remote 10.99.0.{other} noudpcsum",
    "6": "local fd99::{own} remote fd99::{other} udp6zerocsumtx udp6zerocsumrx",
}
"""Ends of VXLAN between addresses of mrc0."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def slow_lab(module_labs: MakeLab) -> Lab:
    """Return a lab whose links have a rate, so that packets wait for the congestion window."""
    running = module_labs(daemons=True, planes=4, t1=2, mtu=1500, rate_mbps=100)
    for host in HOSTS:
        lab_hosts.until_ok(running.name, host, 60.0)
    return running


def wrong_sums(running: Lab, host: str) -> dict[str, int]:
    """Return the packets that a host's stack has found damaged."""
    names = ("UdpInCsumErrors", "TcpInCsumErrors")
    told = running.run(host, "nstat", "-asz", "--json", *names)
    counted = json.loads(told)["kernel"]
    return {name: counted[name] for name in names}


def over(running: Lab, tunnel: str) -> str:
    """Join both hosts by VXLAN; return the address of h2 in it."""
    for own, other in (HOSTS, HOSTS[::-1]):
        ends = TUNNELS[tunnel].format(own=own[1:], other=other[1:]).split()
        kind = ("type", "vxlan", "id", "7", "dstport", "4789")
        running.run(own, "ip", "link", "add", "over", "mtu", "1300", *kind, *ends)
        running.run(own, "ip", "addr", "add", f"10.88.0.{own[1:]}/24", "dev", "over")
        running.run(own, "ip", "link", "set", "over", "up")
    return "10.88.0.2"


@pytest.mark.parametrize("tunnel", TUNNELS)
def test_tunnel_loses_nothing_to_wrong_checksums(slow_lab: Lab, tunnel: str) -> None:
    """Some of its packets wait for the window, others are lost and sent again."""
    held = lab_hosts.counters(slow_lab.name, "h1")["tx_held"]
    before = {host: wrong_sums(slow_lab, host) for host in HOSTS}
    slow_lab.fault("p1", "loss=2%")
    try:
        address = over(slow_lab, tunnel)
        streams = [Stream(slow_lab, "h1", "h2", address).start(8 * MIB) for _ in range(4)]
        for stream in streams:
            stream.finish(60.0)
    finally:
        slow_lab.fault("p1", "clear")
        for host in HOSTS:
            slow_lab.run(host, "ip", "link", "delete", "over", check=False)
    assert {host: wrong_sums(slow_lab, host) for host in HOSTS} == before
    counted = lab_hosts.counters(slow_lab.name, "h1")
    assert counted["tx_held"] > held
