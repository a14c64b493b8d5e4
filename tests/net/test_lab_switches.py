# SPDX-License-Identifier: GPL-2.0-only
"""Test a lab of switches only, whose ports to hosts are NICs of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from cli.lab import build, inspection, lab, state, topology
from cli.lab.state import LabFailed
from cli.lab.topology import Topology
from mrcd.fabric import description
from mrcd.linux import netns
from mrcd.linux.netlink import Netlink


def outside(plan: Topology, host: str) -> str:
    """Return the namespace that represents a host's own machine."""
    return f"{plan.fabric.name}-outside-{host}"


async def cable_hosts(plan: Topology) -> None:
    """Give every host a namespace and its NICs; the other ends are NICs of this machine."""
    async with Netlink() as nl:
        for number, cable in enumerate(plan.nic_cables()):
            await nl.create_veth(
                f"{plan.fabric.name}n{number}",
                cable.far.ifname,
                mtu=plan.fabric.mtu,
                mac=cable.near.mac,
                peer_mac=cable.far.mac,
                peer_netns=outside(plan, cable.far.node),
            )
    for host in plan.fabric.hosts:
        async with Netlink(outside(plan, host.name)) as nl:
            for port in plan.nodes[host.name].ports:
                await nl.set_link(port, up=True)
            await build.configure(nl, [plan.nodes[host.name]])


@pytest.fixture
def cabled(worker_name: str) -> Iterator[Topology]:
    """Return a fabric whose hosts exist and are cabled, but whose switches do not exist."""
    if os.geteuid() != 0:
        pytest.skip("labs need root: run the tests as root")
    fabric = description.generate(
        name=f"{worker_name}s", hosts=2, planes=2, t1=2, hosts_per_t0=1, mtu=1500
    )
    plan = topology.plan(fabric)
    netns.prepare_run_dir()
    try:
        for host in fabric.hosts:
            build.create_namespace(outside(plan, host.name), plan.nodes[host.name])
        asyncio.run(cable_hosts(plan))
        yield plan
    finally:
        with contextlib.suppress(state.NoSuchElement):
            lab.down(fabric.name)
        for host in fabric.hosts:
            netns.delete(outside(plan, host.name))
        netns.release_run_dir()


def pings(plan: Topology, address: str) -> bool:
    command = ["ip", "netns", "exec", outside(plan, "h1"), "ping", "-q", "-c", "3", "-i", "0.1"]
    done = subprocess.run([*command, "-w", "2", address], capture_output=True, check=False)
    return done.returncode == 0


def test_hosts_reach_each_other_through_switches_alone(cabled: Topology) -> None:
    fabric = cabled.fabric
    lab.up(fabric, hosts=False)
    h2 = fabric.host("h2")
    for plane in range(fabric.planes):
        assert pings(cabled, str(fabric.address4(h2, plane)))
        assert pings(cabled, str(fabric.address6(h2, plane)))
    found = lab.status(fabric.name)
    assert found.healthy
    assert (found.hosts, found.missing) == ((), [])
    assert len(found.switches) == fabric.planes * (fabric.t0 + fabric.t1)
    assert inspection.lab(fabric.name, lambda _: []) == (len(found.switches), [])


def test_faults_work_where_the_hosts_are_elsewhere(cabled: Topology) -> None:
    fabric = cabled.fabric
    lab.up(fabric, hosts=False)
    address = str(fabric.address4(fabric.host("h2"), 1))
    assert pings(cabled, address)
    for element in ("p1", "h2:p1"):
        lab.fault(fabric.name, element, "blackhole")
        assert not pings(cabled, address)
        lab.fault(fabric.name, element, "clear")
        assert pings(cabled, address)


def test_without_the_nics_nothing_is_built(
    worker_name: str, machine: object, wait_until: object
) -> None:
    assert callable(machine)
    assert callable(wait_until)
    before = machine()
    fabric = description.generate(name=f"{worker_name}s", hosts=2, planes=1, t1=1, hosts_per_t0=1)
    with pytest.raises(LabFailed, match="p0t0-1 port1"):
        lab.up(fabric, hosts=False)
    wait_until(lambda: machine() == before)
