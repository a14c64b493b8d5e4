# SPDX-License-Identifier: GPL-2.0-only
"""Test ECN in the lab: switches mark packets in long queues of their trunks, and no others."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cli.lab import lab
from mrcd.linux import netns
from tests.bpf.test_marking import CE, ECT0, ECT1, NOT_ECT, internet_checksum
from tests.net.usid_packets import MARK, SO_RCVBUFFORCE

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

PAYLOAD = MARK.ljust(1400, b"-")
TRAIN = 17  # packets; fewer bytes than the queue (16 packets of 1,514 bytes) and the burst
PORT = 4971
TRUNK = "p0t0-1:p0t1-1"
LAST_HOP = "h2:p0"


class Arrivals:
    """A tap for marked packets of both IP versions that arrive at h2's first NIC."""

    def __init__(self, running: Lab) -> None:
        with netns.entered(running.namespace("h2")):
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
            self._open = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self._open.bind(("", PORT))  # it is never read, but keeps the port reachable
        self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._sock.bind(("plane0", 3))

    def take(self, count: int) -> list[bytes]:
        """Return the next `count` packets, or fewer when none arrives for half a second."""
        self._sock.settimeout(0.5)
        found: list[bytes] = []
        while len(found) < count:
            try:
                packet, address = self._sock.recvfrom(65536)
            except TimeoutError:
                break
            if MARK in packet and address[2] != socket.PACKET_OUTGOING:
                found.append(packet)
        return found


def ecn_of(packet: bytes) -> int:
    if packet[0] >> 4 == 4:
        return packet[1] & 3
    return packet[1] >> 4 & 3


def sender(running: Lab, version: int, ecn: int) -> socket.socket:
    """Return a socket in h1 that is connected to h2's first NIC."""
    h2 = running.fabric.host("h2")
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with netns.entered(running.namespace("h1")):
        sock = socket.socket(family, socket.SOCK_DGRAM)
    if version == 4:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ecn)
        sock.connect((str(running.fabric.address4(h2, 0)), PORT))
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, ecn)
        sock.connect((str(running.fabric.address6(h2, 0)), PORT))
    return sock


def train(running: Lab, version: int, ecn: int) -> list[bytes]:
    """Send a train of packets that just fills a slow link's queue, and return those that arrive."""
    arrivals = Arrivals(running)
    with sender(running, version, ecn) as sock:
        for _ in range(TRAIN):
            sock.send(PAYLOAD)
    return arrivals.take(TRAIN)


def marks(packets: list[bytes]) -> Counter[int]:
    return Counter(map(ecn_of, packets))


@pytest.fixture
def running(make_lab: MakeLab) -> Lab:
    found = make_lab(planes=1, t1=1, mtu=1500)
    for version in (4, 6):  # no train may wait for neighbour discovery
        h2 = found.fabric.host("h2")
        address = found.fabric.address4(h2, 0) if version == 4 else found.fabric.address6(h2, 0)
        assert found.pings("h1", str(address))
    return found


@pytest.mark.parametrize("ecn", [ECT0, ECT1])
@pytest.mark.parametrize("version", [4, 6])
def test_a_trunks_queue_is_marked_from_its_thresholds_on(
    running: Lab, version: int, ecn: int
) -> None:
    """Of 17 packets, the first 5 meet less than 1/5 of the queue, and the last more than 4/5."""
    running.fault(TRUNK, "rate=8")
    packets = train(running, version, ecn)
    found = [ecn_of(packet) for packet in packets]
    assert len(found) == TRAIN
    assert found[:5] == [ecn] * 5
    assert found[-1] == CE
    assert set(found) == {ecn, CE}
    if version == 4:
        assert {internet_checksum(packet[:20]) for packet in packets} == {0}


@pytest.mark.parametrize("version", [4, 6])
def test_not_ect_is_never_marked(running: Lab, version: int) -> None:
    running.fault(TRUNK, "rate=8")
    assert marks(train(running, version, NOT_ECT)) == {NOT_ECT: TRAIN}


def test_below_the_rate_nothing_is_marked(running: Lab) -> None:
    """At most two packets are in flight: the next ones leave when these have arrived."""
    running.fault(TRUNK, "rate=8")
    arrivals = Arrivals(running)
    with sender(running, 6, ECT0) as sock:
        for _ in range(100):
            sock.send(PAYLOAD)
            sock.send(PAYLOAD)
            assert marks(arrivals.take(2)) == {ECT0: 2}


@pytest.mark.parametrize("version", [4, 6])
def test_the_last_hop_never_marks(running: Lab, version: int) -> None:
    running.fault(LAST_HOP, "rate=8")
    assert marks(train(running, version, ECT0)) == {ECT0: TRAIN}


def test_a_rate_fault_sets_the_queue_and_clear_takes_it_away(running: Lab) -> None:
    assert marks(train(running, 6, ECT0)) == {ECT0: TRAIN}
    running.fault(TRUNK, "rate=8")
    assert CE in marks(train(running, 6, ECT0))
    running.fault(TRUNK, "rate=1000")  # 625 KB of queue
    assert marks(train(running, 6, ECT0)) == {ECT0: TRAIN}
    running.fault(TRUNK, "rate=8")
    assert CE in marks(train(running, 6, ECT0))
    running.fault(TRUNK, "clear")
    assert marks(train(running, 6, ECT0)) == {ECT0: TRAIN}
    assert "lab_mark" not in running.run("p0t0-1", "tc", "filter", "show", "dev", "t1-1", "egress")


def test_marks_and_other_faults_of_a_port_do_not_disturb_each_other(running: Lab) -> None:
    running.fault(TRUNK, "rate=8")
    running.fault("p0t1-1", "loss=100%")
    assert train(running, 6, ECT0) == []
    running.fault("p0t1-1", "clear")
    assert CE in marks(train(running, 6, ECT0))
    running.fault("p0t0-1", "blackhole")
    running.fault(TRUNK, "clear")
    assert train(running, 6, ECT0) == []
    running.fault("p0t0-1", "clear")
    assert marks(train(running, 6, ECT0)) == {ECT0: TRAIN}


def test_a_lab_with_a_rate_marks_its_trunks_only(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=9, rate_mbps=50)

    def shown(node: str, port: str) -> bool:
        filters = running.run(node, "tc", "filter", "show", "dev", port, "egress", check=False)
        return "lab_mark" in filters

    assert shown("p0t0-1", "t1-9")
    assert not shown("p0t0-1", "port1")
    assert not shown("h1", "plane0")
    filters = lab.topology.plan(running.fabric).namespace("p0t1-9").removeprefix(running.name + "-")
    assert shown(filters, "t1-9t0-2")


def test_no_ecn(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=1, mtu=1500, ecn=False)
    assert not lab.status(running.name).ecn
    running.fault(TRUNK, "rate=8")
    assert marks(train(running, 6, ECT0)) == {ECT0: TRAIN}


@pytest.mark.parametrize("version", [4, 6])
def test_tcp_that_speaks_ecn_is_marked_and_whole(make_lab: MakeLab, version: int) -> None:
    """Send 4 MB with Reno through a trunk of 50 Mb/s."""
    running = make_lab(planes=1, t1=1, mtu=1500)
    running.fault(TRUNK, "rate=50")
    for host in ("h1", "h2"):
        running.run(host, "sysctl", "-qw", "net.ipv4.tcp_ecn=1")
        running.run(host, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
    h2 = running.fabric.host("h2")
    address = running.fabric.address4(h2, 0) if version == 4 else running.fabric.address6(h2, 0)
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with netns.entered(running.namespace("h2")):
        listener = socket.create_server((str(address), 5000), family=family)
    with netns.entered(running.namespace("h1")):
        client = socket.socket(family, socket.SOCK_STREAM)
    got = bytearray()

    def receive() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(20)
            while chunk := peer.recv(1 << 16):
                got.extend(chunk)

    thread = threading.Thread(target=receive)
    thread.start()
    sent = bytes(range(256)) * (4 << 12)
    with client, listener:
        client.settimeout(20)
        client.connect((str(address), 5000))
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        thread.join(20)
    assert got == sent

    def counter(host: str, name: str) -> int:
        shown = running.run(host, "nstat", "-asz", name).splitlines()[-1].split()
        return int(float(shown[1]))

    assert counter("h2", "IpExtInCEPkts" if version == 4 else "Ip6InCEPkts") > 0
    assert counter("h1", "TcpExtTCPDeliveredCE") > 0
