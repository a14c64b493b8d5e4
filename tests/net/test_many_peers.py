# SPDX-License-Identifier: GPL-2.0-only
"""Test one mrcd with hundreds of established peers, which a crowd plays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.scale.host import US, Daemon, configuration, host_with
from cli.console.exits import CommandError
from cli.lab import lab, state
from mrcd.fabric import description
from mrcd.model import PeerInfo, Status
from tests.net.conftest import eventually

pytestmark = pytest.mark.alone

PEERS = 300
SETTINGS = "[transport]\nmpr = 128\nring_slots = 1024\n"
LONG_S = 60.0


@dataclass(frozen=True, slots=True)
class Host:
    """The real host beside a crowd, and its configuration file."""

    name: str
    config: Path

    @property
    def daemon(self) -> Daemon:
        pid = lab.daemon_pid(self.name, US)
        assert pid is not None
        return Daemon(self.name, pid)

    def status(self) -> Status:
        with self.daemon.client as client:
            return client.status()

    def peers(self) -> dict[str, PeerInfo]:
        with self.daemon.client as client:
            return {peer.name: peer for peer in client.peers()["peers"]}

    def counters(self) -> dict[str, int]:
        return self.daemon.sample(counters=True).counters

    def start(self) -> None:
        lab.start_daemon(self.name, US)
        eventually(self.answers, LONG_S)

    def answers(self) -> bool:
        try:
            return self.status().peers_total > 0
        except (CommandError, AssertionError):
            return False

    def up(self, count: int) -> bool:
        return self.status().peers_up == count

    def apply(self, peers: int) -> None:
        folder = self.config.parent
        fabric = description.load(folder / "fabric.toml")
        wanted = folder / "wanted.toml"
        wanted.write_text(configuration(fabric, peers, SETTINGS))
        self.daemon.mrcctl("config", "apply", "--yes", str(wanted))

    def remembered(self) -> int:
        content = json.loads((self.config.parent / "sessions.json").read_text())
        return len(content["sessions"])

    def routes(self) -> int:
        """Return the number of routes to peers' addresses, which carry an MTU."""
        text = subprocess.run(
            ["ip", "-n", f"{self.name}-{US}", "route", "show", "dev", "mrc0"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout
        return sum(" mtu " in line for line in text.splitlines())

    def log_of(self, event: str) -> list[dict[str, Any]]:
        lines = state.places(self.name, US).log.read_text().splitlines()
        found = (json.loads(line) for line in lines if line.startswith("{"))
        return [entry for entry in found if entry["event"] == event]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Return one host for all tests of the module; each test leaves it as it was."""
    if os.geteuid() != 0:
        pytest.skip("labs need root: run the tests as root")
    name = f"c{os.getpid()}"
    with host_with(name, PEERS, SETTINGS, crowd=True) as (_fabric, config):
        running = Host(name, config)
        running.start()
        eventually(lambda: running.up(PEERS), LONG_S)
        yield running


def test_all_are_established_and_can_be_reached(host: Host) -> None:
    assert {peer.state for peer in host.peers().values()} == {"established"}
    assert {tuple(peer.planes_usable) for peer in host.peers().values()} == {(0, 1, 2, 3)}
    assert host.status().reasons == []
    eventually(lambda: host.routes() == PEERS, LONG_S)
    eventually(lambda: host.remembered() == PEERS, LONG_S)
    with host.daemon.client as client:
        assert len(client.connections(None)["connections"]) == 4 * PEERS
        assert {path.state for path in client.paths("h17")["paths"]} == {"GOOD"}


def test_mrcctl_answers(host: Host) -> None:
    for words in (["status"], ["peer", "list"], ["top", "--count", "1", "--interval", "0.2"]):
        host.daemon.mrcctl(*words)


def test_whoever_watches_gets_as_many_as_are_shown(host: Host) -> None:
    with host.daemon.client as client:
        samples = client.monitor(100, 16)
        for sample in (next(samples), next(samples)):
            assert len({peer.name for peer in sample.peers}) == 16
            assert sample.status.peers_total == sample.status.peers_up == PEERS
            assert sample.status.peers_silent == 0
    with host.daemon.client as client:
        assert len(next(client.monitor(100)).peers) == PEERS


def new_sessions(host: Host) -> int:
    """Return how many sessions were set up. Silence on a busy machine ends none."""
    return sum(each["reason"] == "peer is ready" for each in host.log_of("peer.established"))


def test_one_more_and_one_less_leave_the_others_alone(host: Host) -> None:
    before = {name: peer.last_heard_s for name, peer in host.peers().items()}
    sessions = new_sessions(host)
    host.apply(PEERS + 1)
    eventually(lambda: host.up(PEERS + 1), LONG_S)
    eventually(lambda: host.routes() == PEERS + 1, LONG_S)
    host.apply(PEERS)
    assert host.peers().keys() == before.keys()
    assert host.up(PEERS)
    eventually(lambda: host.routes() == PEERS, LONG_S)
    eventually(lambda: host.remembered() == PEERS, LONG_S)
    assert new_sessions(host) == sessions + 1
    assert host.log_of("peer.restarted") == []


def test_all_hear_that_a_plane_is_gone(host: Host) -> None:
    answered = host.counters()["endpoint_rx"]
    lab.fault(host.name, f"{US}:p2", "down")
    try:
        eventually(lambda: not host.status().planes[2].usable)
        eventually(lambda: host.counters()["endpoint_rx"] - answered >= PEERS, LONG_S)
    finally:
        lab.fault(host.name, f"{US}:p2", "clear")
    eventually(lambda: host.status().planes[2].usable, LONG_S)
    eventually(lambda: host.up(PEERS), LONG_S)


def test_next_daemon_resumes_all_sessions(host: Host) -> None:
    eventually(lambda: host.remembered() == PEERS, LONG_S)
    os.kill(host.daemon.pid, signal.SIGKILL)
    eventually(lambda: lab.daemon_pid(host.name, US) is None)
    host.start()
    assert host.log_of("sessions.resumed")[-1]["peers"] == PEERS
    assert host.up(PEERS)
    assert host.log_of("peer.restarted") == []
