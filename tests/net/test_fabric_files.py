# SPDX-License-Identifier: GPL-2.0-only
"""Test hosts with different fabric files: a host that is added one file at a time, and mistakes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_interface
from typing import Any

import pytest

from cli.lab import lab, state
from mrcd.fabric import description, digest
from mrcd.fabric.description import Fabric
from rigs import lab_hosts
from rigs.daemons import Traffic, connections
from rigs.lab_hosts import eventually, mrcctl, mrcctl_json
from rigs.traffic import transfer

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
HOSTS = ("h1", "h2", "h3")
SETTLED_S = 60.0

pytestmark = pytest.mark.timeout(300)


class Fleet:
    """Three hosts, each with a fabric file of its own."""

    def __init__(self, running: Lab) -> None:
        self.running, self.name, self.whole = running, running.name, running.fabric

    def give(self, host: str, fabric: Fabric) -> None:
        """Replace a host's fabric file, and have its daemon read it."""
        spot = state.places(self.name, host)
        (spot.folder / "fabric.toml").write_text(description.dumps(fabric))
        spot.config.write_text(spot.config.read_text().replace("../fabric.toml", "fabric.toml"))
        pid = lab.daemon_pid(self.name, host)
        assert pid is not None
        os.kill(pid, signal.SIGHUP)

    def without(self, *names: str) -> Fabric:
        hosts = tuple(host for host in self.whole.hosts if host.name not in names)
        return replace(self.whole, hosts=hosts)

    def peers(self, host: str) -> dict[str, Any]:
        return {
            peer["name"]: peer for peer in mrcctl_json(self.name, host, "peer", "list")["peers"]
        }

    def up(self, host: str) -> set[str]:
        """Return the peers with which a host has a session."""
        peers = self.peers(host).values()
        return {peer["name"] for peer in peers if peer["state"] == "established"}

    def well(self, *hosts: str) -> bool:
        return all(lab_hosts.ok(self.name, host) for host in hosts)

    def qpns(self) -> list[int]:
        """Return the QPs that h1 has with h2."""
        return [qp["qpn"] for qp in connections(self.running, "h1") if qp["peer"] == "h2"]

    def warnings(self, host: str) -> list[str]:
        now = lab_hosts.status(self.name, host)
        return [] if now is None else list(now.warnings)


@pytest.fixture(scope="module")
def built(module_labs: MakeLab) -> Lab:
    return module_labs(daemons=True, hosts=3, planes=2, t1=2)


@pytest.fixture
def fleet(built: Lab) -> Iterator[Fleet]:
    """Return the hosts, all with the whole file before and after."""
    found = Fleet(built)
    yield found
    for host in HOSTS:
        found.give(host, found.whole)
    eventually(lambda: found.well(*HOSTS), "all are ok again", SETTLED_S)
    eventually(lambda: not any(map(found.warnings, HOSTS)), "nothing is left to warn of")


def test_host_that_is_added_file_by_file_disturbs_nobody(fleet: Fleet) -> None:
    """h1 and h2 do not know h3; then h1 learns of it, and then h2."""
    for host in ("h1", "h2"):
        fleet.give(host, fleet.without("h3"))
    eventually(lambda: set(fleet.peers("h1")) == {"h2"}, "h1 has forgotten h3")
    eventually(lambda: set(fleet.peers("h2")) == {"h1"}, "h2 has forgotten h3")
    eventually(lambda: fleet.well("h1", "h2"), "both are ok", SETTLED_S)
    eventually(lambda: fleet.up("h3") == set(), "h3 has no session", SETTLED_S)
    before = fleet.qpns()
    traffic = Traffic(fleet.running)
    fleet.give("h1", fleet.whole)
    eventually(lambda: fleet.up("h1") == {"h2", "h3"}, "h1 and h3 have a session", SETTLED_S)
    eventually(lambda: fleet.up("h3") == {"h1"}, "h3 has one with h1 only")
    assert fleet.up("h2") == {"h1"}
    assert fleet.well("h1", "h2")
    transfer(fleet.running, "h3", "h1", "10.99.0.1", 1 << 20)
    assert not any(map(fleet.warnings, HOSTS)), "a host that is only added alarms nobody"
    fleet.give("h2", fleet.whole)
    eventually(lambda: fleet.well(*HOSTS), "all are ok", SETTLED_S)
    traffic.finish()
    assert fleet.qpns() == before, "the session of h1 and h2 stays"
    transfer(fleet.running, "h3", "h2", "10.99.0.2", 1 << 20)


def test_other_frame_is_named_by_both_and_refuses_nothing(fleet: Fleet) -> None:
    other = replace(fleet.whole, mtu=8000)
    fleet.give("h2", other)
    here, there = (digest.shown(digest.of_frame(each)) for each in (fleet.whole, other))
    wanted = f"peer h2 has another fabric file: digest {there} there, {here} here"
    eventually(lambda: fleet.warnings("h1") == [wanted], "h1 warns of h2", SETTLED_S)
    eventually(lambda: len(fleet.warnings("h2")) == 2, "h2 warns of h1 and h3", SETTLED_S)
    assert f"peer h1 has another fabric file: digest {here} there" in fleet.warnings("h2")[0]
    eventually(lambda: fleet.well(*HOSTS), "warnings degrade nobody", SETTLED_S)
    assert fleet.peers("h1")["h2"]["other_file"] == wanted
    assert fleet.peers("h1")["h3"]["other_file"] is None
    assert f"? {wanted}" in mrcctl(fleet.name, "h1", "peer", "list").stdout
    shown = mrcctl(fleet.name, "h1", "status")
    assert (shown.returncode, f"? {wanted}" in shown.stdout) == (0, True)
    transfer(fleet.running, "h1", "h2", "10.99.0.2", 1 << 20)


def test_other_entry_of_one_host_is_named_by_the_two_it_concerns(fleet: Fleet) -> None:
    """h1's file has another address for h2: their session stands, and packets get lost."""
    hosts = list(fleet.whole.hosts)
    hosts[1] = replace(hosts[1], addresses=(ip_interface("10.99.0.22/24"),))
    fleet.give("h1", replace(fleet.whole, hosts=tuple(hosts)))
    text = "has another entry for itself or for this host in its fabric file"
    eventually(lambda: fleet.warnings("h1"), "h1 warns", SETTLED_S)
    eventually(lambda: fleet.warnings("h2"), "h2 warns", SETTLED_S)
    assert [w.partition(":")[0] for w in fleet.warnings("h1")] == [f"peer h2 {text}"]
    assert [w.partition(":")[0] for w in fleet.warnings("h2")] == [f"peer h1 {text}"]
    assert fleet.warnings("h3") == []
    assert fleet.well(*HOSTS)
    log = state.places(fleet.name, "h2").log.read_text()
    assert "peer.fabric_differs" in log
