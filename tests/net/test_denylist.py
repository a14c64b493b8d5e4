# SPDX-License-Identifier: GPL-2.0-only
"""Test `mrcctl path deny` and `path watch` against a running data path."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cli.console.client import Client
from cli.lab import lab, state
from mrcd.fabric import underlay
from mrcd.linux import netns
from mrcd.model import PathEvent, PathInfo
from mrcd.wire.packet import WIRE
from rigs.lab_hosts import bad_planes, eventually, mrcctl, ok, paths, socket_of
from rigs.traffic import transfer
from tests.net.usid_packets import ETH_P_IPV6, SO_RCVBUFFORCE

Lab = Any  # conftest.RunningLab
H2 = "10.99.0.2"
pytestmark = pytest.mark.timeout(180)  # daemons compile, slowly on a busy machine


def crossing(running: Lab, plane: int, t1: int) -> list[PathInfo]:
    """Return h1's paths over a T1."""
    return [p for p in paths(running.name, "h1") if (p.plane, p.t1) == (plane, t1)]


def others(running: Lab, plane: int, t1: int) -> list[PathInfo]:
    return [p for p in paths(running.name, "h1") if (p.plane, p.t1) != (plane, t1)]


def sent(found: list[PathInfo]) -> int:
    return sum(path.sent for path in found)


@pytest.fixture
def healthy(shared_lab: Lab) -> Iterator[Lab]:
    """Return the shared lab, with no rules on h1 before and after."""
    yield shared_lab
    with Client(str(socket_of(shared_lab.name, "h1"))) as client:
        for rule in client.denied()["rules"]:
            client.allow(rule.element, rule.peer)


def test_deny__no_packet_takes_the_path_until_it_is_allowed(healthy: Lab) -> None:
    assert mrcctl(healthy.name, "h1", "path", "deny", "p1t1-2").returncode == 0
    assert {path.state for path in crossing(healthy, 1, 2)} == {"DENIED"}
    assert "DENIED" not in {path.state for path in others(healthy, 1, 2)}
    before = sent(crossing(healthy, 1, 2)), sent(others(healthy, 1, 2))
    transfer(healthy, "h1", "h2", H2, size=16 << 20)
    assert sent(crossing(healthy, 1, 2)) == before[0]
    assert sent(others(healthy, 1, 2)) > before[1] + 100  # a cell counts once

    assert mrcctl(healthy.name, "h1", "path", "allow", "p1t1-2").returncode == 0
    assert "DENIED" not in {path.state for path in crossing(healthy, 1, 2)}
    transfer(healthy, "h1", "h2", H2)
    assert sent(crossing(healthy, 1, 2)) > before[0]


def test_deny__what_would_cut_the_peer_off_changes_nothing(healthy: Lab) -> None:
    for plane in (0, 1, 2):
        assert mrcctl(healthy.name, "h1", "path", "deny", f"p{plane}").returncode == 0
    done = mrcctl(healthy.name, "h1", "path", "deny", "h2:p3")
    assert done.returncode == 1
    assert "leaves no path to h2" in done.stderr
    assert {p.plane for p in paths(healthy.name, "h1") if p.state != "DENIED"} == {3}
    transfer(healthy, "h1", "h2", H2)


def test_deny__reverse_direction_is_the_peers_own(healthy: Lab) -> None:
    assert mrcctl(healthy.name, "h1", "path", "deny", "h2:p0").returncode == 0
    assert {path.state for path in paths(healthy.name, "h1") if path.plane == 0} == {"DENIED"}
    assert "DENIED" not in {path.state for path in paths(healthy.name, "h2")}


def test_rules__hold_for_qps_that_are_set_up_anew_and_after_a_restart(
    make_lab: Callable[..., Lab],
) -> None:
    running = make_lab(daemons=True, planes=2, t1=2)
    assert mrcctl(running.name, "h1", "path", "deny", "p0t1-1").returncode == 0

    def only_that_is_denied() -> bool:
        found = paths(running.name, "h1")
        denied = {(path.plane, path.t1) for path in found if path.state == "DENIED"}
        return bool(found) and denied == {(0, 1)}

    before = sent(crossing(running, 0, 1))  # the kernel's, and those of the lab's start
    # The peer's restart sets our QPs up anew and keeps totals; ours creates the data path anew.
    for host, total in (("h2", before), ("h1", 0)):
        stop(running, host)
        lab.start_daemon(running.name, host)
        eventually(lambda: ok(running.name, "h1") and ok(running.name, "h2"), "both are ok", 60)
        eventually(only_that_is_denied, "the rule holds for the new QPs")
        transfer(running, "h1", "h2", H2)
        assert sent(crossing(running, 0, 1)) == total


def stop(running: Lab, host: str) -> None:
    """End a daemon, and wait until it is gone."""
    pid = lab.daemon_pid(running.name, host)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: lab.daemon_pid(running.name, host) is None, f"mrcd of {host} has ended")
    assert not state.places(running.name, host).socket.exists()


def next_of(events: Iterator[PathEvent | None], wanted: Callable[[PathEvent], bool]) -> PathEvent:
    """Return the next wanted event."""
    for event in events:
        assert event is not None
        if wanted(event):
            return event
    raise AssertionError("the stream ended")


class Announcements:
    """The packets from h1's daemon to h2 over one T1: Offers, evidence, Port Status Updates."""

    def __init__(self, running: Lab, plane: int, t1: int) -> None:
        h1, h2 = running.fabric.hosts
        self._ways = [underlay.of(running.fabric).packed(host, plane) for host in (h1, h2)]
        with netns.entered(running.namespace(f"p{plane}t1-{t1}")):
            self._sock = socket.socket(
                socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IPV6)
            )
        self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        self._sock.setblocking(False)
        self.seen = 0

    def look(self) -> int:
        """Return the number of packets seen so far."""
        while True:
            try:
                packet, address = self._sock.recvfrom(2048)
            except BlockingIOError:
                return self.seen
            self.seen += address[2] != socket.PACKET_OUTGOING and self._is_one(packet)

    def _is_one(self, packet: bytes) -> bool:
        if [packet[48:64], packet[64:80]] != self._ways:
            return False
        port, opcode = int.from_bytes(packet[82:84], "big"), packet[88]
        return port == 4972 or (port == 4971 and opcode == WIRE.MRC_OP_ENDPOINT_REQ)

    def close(self) -> None:
        self._sock.close()


def test_deny__holds_for_what_the_daemon_announces(healthy: Lab) -> None:
    denied, open_ = Announcements(healthy, 1, 2), Announcements(healthy, 1, 1)
    with Client(str(socket_of(healthy.name, "h1"))) as client:

        def announce(until: Callable[[], bool], what: str) -> None:
            """Change the planes repeatedly; every change is announced over all planes."""

            def changed() -> bool:
                client.drain(3, force=False)
                client.undrain(3)
                return until()

            eventually(changed, what)

        announce(lambda: denied.look() > 3 and open_.look() > 3, "both T1s are used")
        client.deny("p1t1-2", None, force=False)
        before = denied.look(), open_.look()
        announce(lambda: open_.look() > before[1] + 40, "the other T1 is used")
        assert denied.look() == before[0]
        client.deny("p1t1-1", None, force=False)
        before = denied.look(), open_.look()
        client.drain(3, force=False)
        client.undrain(3)
        assert (denied.look(), open_.look()) == before
    denied.close()
    open_.close()


def test_watch__tells_of_denied_paths(healthy: Lab) -> None:
    with Client(str(socket_of(healthy.name, "h1"))) as client:
        events = client.watch_paths()
        assert next(events) is None
        assert mrcctl(healthy.name, "h1", "path", "deny", "p2t1-1").returncode == 0
        event = next_of(events, lambda event: event.to_state == "DENIED")
        assert (event.peer, event.plane, event.t1, event.cause) == ("h2", 2, 1, "deny")
        assert event.sent_ns is None
        assert mrcctl(healthy.name, "h1", "path", "allow", "p2t1-1").returncode == 0
        event = next_of(events, lambda event: event.from_state == "DENIED")
        assert (event.to_state, event.cause) == ("GOOD", "allow")


def test_watch__tells_of_lost_paths_and_of_their_return(healthy: Lab) -> None:
    def dead(event: PathEvent) -> bool:
        # Other paths may also be doubted for a moment when the host has no time to answer.
        return (event.plane, event.t1) == (3, 1)

    with Client(str(socket_of(healthy.name, "h1"))) as client:
        events = client.watch_paths()
        assert next(events) is None
        healthy.fault("p3t1-1", "blackhole")
        transfer(healthy, "h1", "h2", H2)
        event = next_of(events, lambda event: dead(event) and event.to_state == "ASSUMED_BAD")
        assert event.cause == "loss"
        assert event.sent_ns is None or event.sent_ns < event.time_ns
        healthy.fault("p3t1-1", "clear")
        next_of(events, lambda event: dead(event) and event.from_state == "ASSUMED_BAD")
    eventually(lambda: not bad_planes(healthy.name, "h1"), "all paths are back")
