# SPDX-License-Identifier: GPL-2.0-only
"""Test `mrcctl sid verify`: it names each altered route of a lab, and its advice repairs each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.fabric import sid
from cli.lab import lab, state, topology
from cli.main import mrcctl
from mrcd.linux import netns
from rigs.lab_hosts import ROOT, eventually, mrcctl_json, socket_of

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
pytestmark = pytest.mark.timeout(180)  # the first test waits for the lab, even on a busy machine
FABRIC = "/run/mrcd-lab/{}/fabric.toml"


def verify(running: Lab) -> list[tuple[str, str, str]]:
    """Return node, problem and subject of every difference in a lab."""
    return [(f["node"], f["problem"], f["what"]) for f in findings(running)]


def findings(running: Lab) -> list[dict[str, str]]:
    command = [sys.executable, "-m", "cli", "sid", "verify", "--lab", running.name, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def alter(running: Lab, node: str, command: str) -> None:
    """Run a command in a node's namespace, which it may share."""
    running.run(topology.plan(running.fabric).nodes[node].space, *command.split())


def mend(running: Lab) -> None:
    for finding in findings(running):
        subprocess.run(finding["fix"], shell=True, check=True, timeout=10)


@contextlib.contextmanager
def without_repair(running: Lab, host: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop a host's daemon, which would put damage right, and answer for it what it said before."""
    sockets = [str(socket_of(running.name, each.name)) for each in running.fabric.hosts]
    known = {socket: sid._peers(socket) for socket in sockets}
    patch.setattr(sid, "_peers", known.__getitem__)
    daemon = lab.daemon_pid(running.name, host)
    assert daemon is not None
    os.kill(daemon, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon, signal.SIGCONT)


def here(*arguments: str) -> Result:
    """Run `mrcctl sid verify` in this process."""
    return CliRunner().invoke(mrcctl, ["sid", "verify", *arguments])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("ip route replace 10.99.0.2/32 dev mrc0 mtu 1300", ("h1", "wrong", "route 10.99.0.2/32")),
        (
            "ip -6 route del fcbb:bb00:4000::/35 dev plane2",
            ("h1", "missing", "route fcbb:bb00:4000::/35"),
        ),
    ],
)
def test_verify__names_the_damage_on_a_host_and_how_to_mend_it(
    shared_lab: Lab,
    damage: str,
    expected: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert verify(shared_lab) == []
    with without_repair(shared_lab, "h1", monkeypatch):
        alter(shared_lab, "h1", damage)
        done = here("--lab", shared_lab.name, "--json")
        assert done.exit_code == 1
        found = json.loads(done.stdout)["findings"]
        for finding in found:
            subprocess.run(finding["fix"], shell=True, check=True, timeout=10)
        assert [(f["node"], f["problem"], f["what"]) for f in found] == [expected]
        assert here("--lab", shared_lab.name).exit_code == 0
    assert verify(shared_lab) == []


@pytest.mark.parametrize(
    ("node", "damage", "expected"),
    [
        (
            "p1t0-1",
            "ip -6 route del fcbb:bb00:2802::/48",
            [("p1t0-1", "missing", "route fcbb:bb00:2802::/48")],
        ),
        (
            "p1t0-1",
            "ip -6 route del fcbb:bb00:2001::/48",
            [("p1t0-1", "missing", "route fcbb:bb00:2001::/48")],
        ),
        (
            "p0t0-2",
            "ip -6 route replace fcbb:bb00:2::/48 encap seg6local action End dev sid0",
            [("p0t0-2", "wrong", "route fcbb:bb00:2::/48")],
        ),
        (
            "p0t1-1",
            "ip -6 route replace fcbb:bb00:2::/48 via fe80::1 dev t0-1",
            [("p0t1-1", "wrong", "route fcbb:bb00:2::/48")],
        ),
        (
            "p3t1-2",
            "ip -6 route add fcbb:bb00:7777::/48 via fe80::1 dev t0-1",
            [("p3t1-2", "extra", "route fcbb:bb00:7777::/48")],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_verify__names_the_damage_and_how_to_mend_it(
    shared_lab: Lab, node: str, damage: str, expected: list[tuple[str, str, str]]
) -> None:
    assert verify(shared_lab) == []
    alter(shared_lab, node, damage)
    try:
        assert verify(shared_lab) == expected
    finally:
        mend(shared_lab)
    assert verify(shared_lab) == []


def test_verify__a_link_that_was_down_and_came_back_bare(shared_lab: Lab) -> None:
    alter(shared_lab, "p1t0-2", "ip link set t1-1 down")
    try:
        found = verify(shared_lab)
        assert ("p1t0-2", "missing", "route fcbb:bb00:2801::/48") in found
        assert {node for node, _, _ in found} == {"p1t0-2"}
    finally:
        mend(shared_lab)
    assert verify(shared_lab) == []


def test_verify__on_a_host_and_on_a_switch(shared_lab: Lab) -> None:
    assert mrcctl_json(shared_lab.name, "h1", "sid", "verify")["findings"] == []
    switch = ("sid", "verify", "--switch", "p2t0-1", "--fabric", FABRIC.format(shared_lab.name))
    program = (sys.executable, "-m", "cli", *switch)
    assert "as intended" in shared_lab.run("p2t0-1", *program)
    # Ask the same in another switch's namespace, where nothing is as it should be.
    assert "fcbb:bb00:4001::/48" in shared_lab.run("p2t0-2", *program, check=False)


def test_verify__on_a_host_whose_daemon_does_not_repair(
    shared_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    spot = state.places(shared_lab.name, "h2")
    asked = ("--config", str(spot.config))
    with without_repair(shared_lab, "h2", monkeypatch), netns.entered(f"{shared_lab.name}-h2"):
        mine = sid._peers(str(spot.socket))
        monkeypatch.setattr(sid, "Client", contextlib.nullcontext)
        monkeypatch.setattr(sid, "_peers", lambda _socket: mine)
        alter(shared_lab, "h2", "ip route del 10.99.0.1/32 dev mrc0")
        done = here(*asked)
        assert done.exit_code == 1
        lines = done.stdout.splitlines()
        assert lines[0].startswith("h2: missing route 10.99.0.1/32: should be dev mrc0 mtu ")
        shared_lab.run("h2", *lines[1].split())
        assert here(*asked).exit_code == 0


def test_verify__the_route_of_a_host_is_put_right_by_its_daemon(shared_lab: Lab) -> None:
    alter(shared_lab, "h1", "ip route replace 10.99.0.2/32 dev mrc0 mtu 1300")
    eventually(lambda: verify(shared_lab) == [], "everything is as intended")


def test_verify__t1s_that_share_a_namespace(make_lab: MakeLab) -> None:
    running = make_lab(hosts=2, planes=1, t1=9)
    assert verify(running) == []
    alter(running, "p0t1-3", "ip -6 route del fcbb:bb00:2::/48 table 1003")
    alter(running, "p0t1-4", "ip -6 rule del iif t1-4t0-1 lookup 1004")
    alter(running, "p0t1-5", "ip rule del iif t1-5t0-2 lookup 1005")
    alter(running, "p0t1-5", "ip rule add iif t1-5t0-2 lookup 1006 pref 1000")
    assert verify(running) == [
        ("p0t1-3", "missing", "route fcbb:bb00:2::/48"),
        ("p0t1-4", "missing", "rule for what enters t1-4t0-1, IPv6"),
        ("p0t1-5", "wrong", "rule for what enters t1-5t0-2, IPv4"),
    ]
    mend(running)
    assert verify(running) == []
