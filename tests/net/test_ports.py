# SPDX-License-Identifier: GPL-2.0-only
"""Test planes that are drained or cut and return, and what the peers learn of it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

from cli.console.client import Client
from cli.lab import lab
from mrcd.fabric import underlay
from mrcd.fabric.description import Host
from mrcd.linux import netns
from mrcd.wire.packet import WIRE
from rigs import lab_hosts
from rigs.lab_hosts import (
    counters,
    eventually,
    mrcctl,
    mrcctl_json,
    planes_towards,
    status,
)
from rigs.traffic import Stream, open_in, transfer, udp_sequence
from tests.net.test_daemon import log_of, stop
from tests.net.usid_packets import ETH_P_IPV6, SO_RCVBUFFORCE

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H1, H2 = "10.99.0.1", "10.99.0.2"
ALL = [0, 1, 2, 3]
_SO_MAX_PACING_RATE = 47  # missing in Python's socket module


def sent_on(running: Lab, host: str, plane: int) -> int:
    """Return the number of data packets that a host has sent on a plane."""
    return sum(path.sent for path in lab_hosts.paths(running.name, host) if path.plane == plane)


def paced(running: Lab, source: str, target: str, address: str) -> Stream:
    """Return a TCP stream that leaves room on the planes, so that no queue overflows."""
    stream = Stream(running, source, target, address)
    stream._out.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 20_000_000)
    return stream.start()


def lost(running: Lab) -> int:
    """Return the packets that applications of both hosts lost, for any reason.

    TCP's own count is unsuitable: on a busy machine its timer fires for segments that did arrive.
    """
    names = ("hole_skipped", "drop_window", "drop_ring", "drop_not_ready", "drop_skb", "drop_early")
    both = [counters(running.name, host) for host in ("h1", "h2")]
    return sum(one[name] for one in both for name in names)


@pytest.fixture
def undrained(shared_lab: Lab) -> Any:
    """Return the shared lab, and undrain all its planes afterwards."""
    yield shared_lab
    for host in ("h1", "h2"):
        for plane in ALL:
            mrcctl(shared_lab.name, host, "plane", "undrain", str(plane))


# ---- drain


def test_drained_plane_carries_nothing_and_nothing_is_lost(undrained: Lab) -> None:
    running = undrained
    lost_before = lost(running)
    streams = [
        paced(running, "h1", "h2", H2),
        paced(running, "h2", "h1", H1),
    ]
    for stream in streams:
        stream.progress(4 << 20)
    assert mrcctl(running.name, "h1", "plane", "drain", "2").returncode == 0
    for host, peer in (("h1", "h2"), ("h2", "h1")):
        eventually(
            lambda host=host, peer=peer: planes_towards(running.name, host, peer) == [0, 1, 3],
            f"{host} sends nothing to {peer} on plane 2",
        )
    before = [sent_on(running, host, 2) for host in ("h1", "h2")]
    for stream in streams:
        stream.progress(8 << 20)
    assert [sent_on(running, host, 2) for host in ("h1", "h2")] == before

    assert mrcctl(running.name, "h1", "plane", "undrain", "2").returncode == 0
    for host, old in zip(("h1", "h2"), before, strict=True):
        eventually(
            lambda host=host, old=old: sent_on(running, host, 2) > old + 10,
            f"{host} uses plane 2 again",
        )
    for stream in streams:
        stream.finish()
    assert lost(running) == lost_before


@pytest.mark.parametrize("host", ["h1", "h2"])
def test_draining_and_undraining_costs_tcp_no_retransmission(undrained: Lab, host: str) -> None:
    """Neither packets in flight nor later ones are late enough for TCP to notice."""
    running = undrained
    with Client(str(lab_hosts.socket_of(running.name, host))) as client:

        def retransmitted(change: Callable[[int, bool], object]) -> int:
            """Make and undo a change on each plane in turn; return TCP's retransmissions."""
            before = stream.retransmissions()
            for plane in ALL:
                change(plane, True)
                stream.progress(4 << 20)
                change(plane, False)
                stream.progress(4 << 20)
            return stream.retransmissions() - before

        def drain(plane: int, out: bool) -> None:
            if out:
                client.drain(plane, force=False)
            else:
                client.undrain(plane)

        stream = paced(running, "h1", "h2", H2)
        stream.progress(4 << 20)
        undisturbed = retransmitted(lambda _plane, _out: None)
        assert retransmitted(drain) <= undisturbed
        stream.finish()


def test_udp_in_order_while_planes_are_drained_in_turn(undrained: Lab) -> None:
    running = undrained
    for plane in ALL:
        assert mrcctl(running.name, "h2", "plane", "drain", str(plane)).returncode == 0
        assert udp_sequence(running, "h1", "h2", H2, count=500) == list(range(500))
        assert mrcctl(running.name, "h2", "plane", "undrain", str(plane)).returncode == 0
        assert udp_sequence(running, "h1", "h2", H2, count=500) == list(range(500))


def test_drained_plane_is_shown_and_makes_the_host_degraded(undrained: Lab) -> None:
    running = undrained
    assert mrcctl(running.name, "h1", "plane", "drain", "1").stdout == "plane 1 (plane1): drained\n"
    now = status(running.name, "h1")
    assert now is not None
    assert (now.state, now.reasons) == ("degraded", ["plane 1: drained by the operator"])
    assert [plane.drained for plane in now.planes] == [False, True, False, False]
    assert [plane.usable for plane in now.planes] == [True, False, True, True]
    peer = status(running.name, "h2")
    assert peer is not None
    assert peer.state == "ok"


def test_last_usable_plane_is_drained_by_force_only(undrained: Lab) -> None:
    running = undrained
    for plane in (0, 1, 2):
        assert mrcctl(running.name, "h1", "plane", "drain", str(plane)).returncode == 0
    refused = mrcctl(running.name, "h1", "plane", "drain", "3")
    assert refused.returncode == 1
    assert "last usable" in refused.stderr
    assert running.pings("h1", H2)
    assert mrcctl(running.name, "h1", "plane", "drain", "3", "--force").returncode == 0
    now = status(running.name, "h1")
    assert now is not None
    assert not any(plane.usable for plane in now.planes)


def test_drain_survives_a_restart(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    assert mrcctl(running.name, "h1", "plane", "drain", "1").returncode == 0
    stop(running, "h1", signal.SIGTERM)
    lab.start_daemon(running.name, "h1")
    for host, peer in (("h1", "h2"), ("h2", "h1")):
        eventually(
            lambda host=host, peer=peer: (
                status(running.name, host) is not None
                and status(running.name, host).peers_up == 1
                and planes_towards(running.name, host, peer) == [0]
            ),
            f"{host} has {peer} on plane 0 only",
            20,
        )
    assert running.pings("h1", H2)
    assert mrcctl(running.name, "h1", "plane", "undrain", "1").returncode == 0
    eventually(lambda: planes_towards(running.name, "h2", "h1") == [0, 1], "plane 1 is back")


# ---- a host that drains on stop


def test_peers_hold_what_they_have_for_a_host_that_drains_on_stop(make_lab: MakeLab) -> None:
    """A dead peer keeps the drain going for its full 5 s, and the other peers hold throughout."""
    running = make_lab(daemons=True, hosts=3, planes=2, on_stop="drain")
    for plane in (0, 1):
        running.fault(f"h3:p{plane}", "blackhole")
    with open_in(running.namespace("h2"), H1, socket.SOCK_DGRAM) as sender:

        def held() -> int:
            sender.sendto(b"x", (H1, 9))
            return counters(running.name, "h2")["drop_no_plane"]

        assert held() == 0
        pid = lab.daemon_pid(running.name, "h1")
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: held() > 0, "h2 has heard that h1 takes no more")
        assert lab.daemon_pid(running.name, "h1") is not None  # it still waits for h3
        assert planes_towards(running.name, "h2", "h1") == []
        sprayed = counters(running.name, "h2")["tx_packets"]
        eventually(lambda: held() and lab.daemon_pid(running.name, "h1") is None, "h1 has ended")
        assert counters(running.name, "h2")["tx_packets"] == sprayed
        assert "peer.ports_corrected" not in log_of(running, "h2")
        lab.start_daemon(running.name, "h1")
        eventually(lambda: planes_towards(running.name, "h2", "h1") == [0, 1], "h1 is back", 60)
        eventually(lambda: running.pings("h2", H1), "packets flow again", 20)


def test_all_planes_drained_by_force_hold_the_peers_traffic(undrained: Lab) -> None:
    running = undrained
    for plane in ALL:
        done = mrcctl(running.name, "h1", "plane", "drain", str(plane), "--force")
        assert done.returncode == 0
    eventually(lambda: planes_towards(running.name, "h2", "h1") == [], "h2 has heard it")
    before = counters(running.name, "h2")
    assert not running.pings("h2", H1)
    after = counters(running.name, "h2")
    assert after["tx_packets"] == before["tx_packets"]
    assert after["drop_no_plane"] > before["drop_no_plane"]
    assert mrcctl(running.name, "h1", "plane", "undrain", "2").returncode == 0
    eventually(lambda: planes_towards(running.name, "h2", "h1") == [2], "plane 2 is back")
    assert running.pings("h2", H1)


# ---- probes


class ProbesOf:
    """A tap for a host's reliability probes that enter a plane at its T0."""

    def __init__(self, running: Lab, host: Host, plane: int) -> None:
        self._source = underlay.of(running.fabric).packed(host, plane)
        with netns.entered(running.namespace(f"p{plane}t0-{host.t0}")):
            self._sock = socket.socket(
                socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IPV6)
            )
        self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        self._sock.setblocking(False)

    def take(self) -> int:
        """Return the number of probes since the last call."""
        found = 0
        while True:
            try:
                packet, address = self._sock.recvfrom(128)
            except BlockingIOError:
                return found
            ours = address[2] != socket.PACKET_OUTGOING and packet[48:64] == self._source
            found += ours and packet[88] == WIRE.MRC_OP_PROBE

    def close(self) -> None:
        self._sock.close()


def test_plane_that_is_down_is_not_probed(undrained: Lab) -> None:
    running = undrained
    probes = ProbesOf(running, running.fabric.hosts[1], 1)
    running.fault("h1:p1", "blackhole")
    transfer(running, "h2", "h1", H1)
    eventually(lambda: 1 in lab_hosts.bad_planes(running.name, "h2"), "paths are withdrawn")
    eventually(lambda: probes.take() > 0, "they are probed")
    assert mrcctl(running.name, "h1", "plane", "drain", "1").returncode == 0
    eventually(lambda: planes_towards(running.name, "h2", "h1") == [0, 2, 3], "h2 knows")
    probes.take()
    before = counters(running.name, "h2")["probe_tx"]
    eventually(
        lambda: counters(running.name, "h2")["probe_tx"] > before + 20, "idle planes are probed"
    )
    assert probes.take() == 0
    running.fault("h1:p1", "clear")
    assert mrcctl(running.name, "h1", "plane", "undrain", "1").returncode == 0
    eventually(lambda: not lab_hosts.bad_planes(running.name, "h2"), "all paths are back", 2)
    probes.close()


# ---- carrier


@pytest.mark.parametrize(("loser", "other"), [("h1", "h2"), ("h2", "h1")])
def test_peer_follows_an_update_when_a_nic_loses_its_carrier(
    shared_lab: Lab, loser: str, other: str
) -> None:
    running = shared_lab
    before = counters(running.name, other)
    address = {"h1": H1, "h2": H2}[loser]
    stream = Stream(running, other, loser, address).start()
    stream.progress(2 << 20)
    running.fault(f"{loser}:p1", "down")
    eventually(
        lambda: planes_towards(running.name, other, loser) == [0, 2, 3],
        f"{other} knows that {loser} has no plane 1",
    )
    assert counters(running.name, other)["ports_rx"] == before["ports_rx"] + 1
    assert counters(running.name, loser)["endpoint_rx"] >= 1
    sent = sent_on(running, other, 1)
    stream.progress(4 << 20)
    assert sent_on(running, other, 1) == sent
    running.fault(f"{loser}:p1", "clear")
    eventually(lambda: planes_towards(running.name, other, loser) == ALL, "plane 1 is back")
    assert counters(running.name, other)["ports_rx"] == before["ports_rx"] + 2
    stream.finish()
    assert "peer.ports_corrected" not in log_of(running, other)


def test_update_is_repeated_until_the_peer_hears_it(shared_lab: Lab) -> None:
    running = shared_lab
    before = counters(running.name, "h2")["ports_rx"]
    for plane in ALL:
        running.fault(f"h2:p{plane}", "blackhole")
    assert mrcctl(running.name, "h1", "plane", "drain", "3").returncode == 0
    assert counters(running.name, "h2")["ports_rx"] == before
    running.fault("h2:p0", "clear")
    eventually(
        lambda: counters(running.name, "h2")["ports_rx"] == before + 1, "h2 has heard the update"
    )
    assert mrcctl(running.name, "h1", "plane", "undrain", "3").returncode == 0
    eventually(
        lambda: counters(running.name, "h2")["ports_rx"] == before + 2, "h2 has heard the next"
    )


# ---- EV probes


def test_every_path_answers_probes(shared_lab: Lab) -> None:
    running = shared_lab
    before = counters(running.name, "h2")["ev_probe_rx"]
    reply = mrcctl_json(running.name, "h1", "path", "probe", "h2", "--count", "4")
    found = [
        (each["plane"], each["t1"], each["sent"], each["answered"]) for each in reply["probes"]
    ]
    assert found == [(plane, t1, 4, 4) for plane in ALL for t1 in (1, 2)]
    assert all(
        0 < each["min_us"] <= each["median_us"] <= each["max_us"] for each in reply["probes"]
    )
    assert counters(running.name, "h2")["ev_probe_rx"] == before + 32


def test_probes_name_the_dead_path(shared_lab: Lab) -> None:
    running = shared_lab
    running.fault("p1t1-2", "blackhole")
    done = mrcctl(running.name, "h1", "path", "probe", "h2", "--plane", "1", "--count", "3")
    assert done.returncode == 1
    _, first, second = done.stdout.splitlines()
    assert first.split()[1:7] == ["1", "1", "3", "3", "0", "%"]
    assert second.split()[1:7] == ["1", "2", "3", "0", "100", "%"]


def test_probe_needs_no_usable_plane(shared_lab: Lab) -> None:
    running = shared_lab
    running.fault("h1:p2", "down")
    done = mrcctl(running.name, "h1", "path", "probe", "h2", "--plane", "2", "--count", "1")
    assert done.returncode == 1
    assert " 100 %" in done.stdout
