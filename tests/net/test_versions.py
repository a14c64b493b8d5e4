# SPDX-License-Identifier: GPL-2.0-only
"""Test hosts that speak different versions of the hand-shake: what they agree on, what they say."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from cli.lab import lab, processes, state
from mrcd.handshake import versions
from rigs import lab_hosts
from rigs.daemons import Traffic, connections, end, events
from rigs.lab_hosts import ROOT, eventually, mrcctl, mrcctl_json
from rigs.traffic import transfer

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H2 = "10.99.0.2"
SETTLED_S = 120.0  # compiling takes seconds, and far longer on a busy machine
AT_ONCE_S = 10.0
"""A host that has no version in common with a peer tells so within this time."""

pytestmark = pytest.mark.timeout(400)


class Hosts:
    """h1 and h2, each of which can be started as a build of other versions."""

    def __init__(self, running: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running, self.name = running, running.name
        self._patch = monkeypatch

    def start(self, host: str, oldest: int, newest: int, *, forget: bool = False) -> None:
        """Replace a host's daemon. With `forget` it knows nothing of its sessions any more."""
        if lab.daemon_pid(self.name, host) is not None:
            end(self.running, host, signal.SIGTERM)
        if forget:
            (state.places(self.name, host).folder / "sessions.json").unlink(missing_ok=True)
        wrapper = ROOT / "tests" / "net" / "speaking.py"
        command = [sys.executable, str(wrapper), str(oldest), str(newest)]
        with self._patch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))
            patch.setattr(processes, "daemon_command", lambda: command)
            lab.start_daemon(self.name, host)
        eventually(lambda: lab_hosts.status(self.name, host), f"{host} answers", SETTLED_S)

    def peer(self, host: str) -> dict[str, Any]:
        (found,) = mrcctl_json(self.name, host, "peer", "list")["peers"]
        return dict(found)

    def versions(self) -> tuple[Any, Any]:
        return self.peer("h1")["version"], self.peer("h2")["version"]

    def well(self) -> bool:
        return lab_hosts.ok(self.name, "h1") and lab_hosts.ok(self.name, "h2")

    def reasons(self, host: str) -> list[str]:
        now = lab_hosts.status(self.name, host)
        return [] if now is None or now.state == "ok" else now.reasons


@pytest.fixture(scope="module", params=[False, True], ids=["keys", "insecure"])
def kept(request: pytest.FixtureRequest, module_labs: MakeLab) -> Lab:
    running = module_labs(daemons=True, planes=2, t1=2, on_stop="keep", insecure=request.param)
    for host in ("h1", "h2"):  # none is replaced while it is still compiling
        eventually(lambda: lab_hosts.status(running.name, host), f"{host} answers", SETTLED_S)  # noqa: B023
    return running


@pytest.fixture
def hosts(kept: Lab, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(kept, monkeypatch)


def test_highest_common_version_is_agreed_and_shown(hosts: Hosts) -> None:
    hosts.start("h1", 4, 6, forget=True)
    hosts.start("h2", 3, 5, forget=True)
    eventually(hosts.well, "both are ok", SETTLED_S)
    assert hosts.versions() == (5, 5)
    assert mrcctl_json(hosts.name, "h1", "peer", "show", "h2")["version"] == 5
    shown = mrcctl(hosts.name, "h1", "peer", "list").stdout.splitlines()
    place = shown[0].index("VERSION")
    assert shown[1][place:].split()[0] == "5"
    transfer(hosts.running, "h1", "h2", H2, 1 << 20)


def test_upgrade_of_one_host_after_the_other_keeps_the_session(hosts: Hosts) -> None:
    now = versions.NEWEST
    hosts.start("h1", now, now, forget=True)
    hosts.start("h2", now, now, forget=True)
    eventually(hosts.well, "both are ok", SETTLED_S)
    before = [connections(hosts.running, host) for host in ("h1", "h2")]
    traffic = Traffic(hosts.running)
    hosts.start("h1", now, now + 1)
    eventually(hosts.well, "both are ok", SETTLED_S)
    hosts.start("h2", now, now + 1)
    eventually(hosts.well, "both are ok", SETTLED_S)
    assert hosts.versions() == (now, now)  # the session goes on in the version it began with
    traffic.finish()
    after = [connections(hosts.running, host) for host in ("h1", "h2")]
    for one, other in zip(before, after, strict=True):
        assert [qp["qpn"] for qp in one] == [qp["qpn"] for qp in other]
    hosts.start("h2", now, now + 1, forget=True)
    eventually(hosts.well, "both are ok", SETTLED_S)
    eventually(lambda: hosts.versions() == (now + 1, now + 1), "the next session has the newer one")


def test_no_common_version_is_said_by_both_at_once(hosts: Hosts) -> None:
    hosts.start("h2", 3, 3, forget=True)  # first: h1 may not agree with the one before it
    hosts.start("h1", 4, 5, forget=True)
    began = time.monotonic()
    wanted = {
        "h1": "peer h2 speaks 3, this host 4 to 5: upgrade h2",
        "h2": "peer h1 speaks 4 to 5, this host 3: upgrade this host",
    }
    for host, reason in wanted.items():
        left = AT_ONCE_S - (time.monotonic() - began)
        eventually(lambda: reason in hosts.reasons(host), f"{host} says why", left)  # noqa: B023
        assert hosts.peer(host)["refused"] == reason
        assert f"! {reason}" in mrcctl(hosts.name, host, "peer", "list").stdout
        assert reason in mrcctl(hosts.name, host, "status").stdout
    assert hosts.versions() == (None, None)
    hosts.start("h2", 3, 4)
    eventually(hosts.well, "both are ok once h2 is upgraded", SETTLED_S)
    assert hosts.versions() == (4, 4)
    assert hosts.peer("h1")["refused"] is None


def test_session_in_a_version_that_is_not_spoken_any_more_ends(hosts: Hosts) -> None:
    hosts.start("h1", 4, 4, forget=True)
    hosts.start("h2", 4, 5, forget=True)
    eventually(hosts.well, "both are ok", SETTLED_S)
    assert hosts.versions() == (4, 4)
    hosts.start("h1", 5, 5)
    eventually(hosts.well, "both are ok", SETTLED_S)
    eventually(lambda: hosts.versions() == (5, 5), "a new session in version 5")
    assert "session.outdated" in events(hosts.running, "h1")
    transfer(hosts.running, "h1", "h2", H2, 1 << 20)
