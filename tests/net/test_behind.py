# SPDX-License-Identifier: GPL-2.0-only
"""Test networks and containers behind a host: routers' errors, foreign sources, published ports."""

from __future__ import annotations

import errno
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rigs import lab_hosts
from rigs.traffic import open_in, transfer

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H2 = "10.99.0.2"
BEHIND = "198.51.100.0/24"
SERVER = "198.51.100.9"
CONTAINER = "172.17.0.2"
SIZE = 64 << 20  # bytes


class Behind:
    """A lab whose h2 has a router behind it, and whose hosts get containers."""

    def __init__(self, running: Lab) -> None:
        self.running = running
        self.spaces: list[str] = []

    def namespace(self, node: str) -> str:
        return self.running.namespace(node)

    def ip(self, node: str, arguments: str) -> None:
        self.running.run(node, "ip", *arguments.split())

    def add(self, node: str) -> None:
        subprocess.run(["ip", "netns", "add", self.namespace(node)], check=True)
        self.spaces.append(node)
        self.ip(node, "link set lo up")

    def cable(self, one: str, other: str) -> None:
        """Lead a cable between two nodes; the interfaces are called like the other ends."""
        self.ip(one, f"link add {other} type veth peer {one} netns {self.namespace(other)}")
        self.ip(other, f"link set {one} up")
        self.ip(one, f"link set {other} up")

    def forward(self, node: str) -> None:
        self.running.run(node, "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def nat(self, node: str, rules: str) -> None:
        self.running.run(node, "nft", f"table ip n {{ chain c {{ type nat hook {rules}; }}; }}")

    def container(self, host: str) -> None:
        """Give a host a container, as a container platform does before any rule."""
        self.add("box")
        self.cable(host, "box")
        self.forward(host)
        self.ip(host, "address add 172.17.0.1/24 dev box")
        self.ip("box", f"address add {CONTAINER}/24 dev {host}")
        self.ip("box", f"route add default via 172.17.0.1 dev {host}")

    def close(self) -> None:
        for node in self.spaces:
            subprocess.run(["ip", "netns", "delete", self.namespace(node)], check=False)


@pytest.fixture
def behind(make_lab: MakeLab) -> Iterator[Behind]:
    made = Behind(make_lab(daemons=True, planes=2, mtu=1500, routed={"h2": BEHIND}))
    yield made
    made.close()


def test_router_behind_the_peer_says_what_is_too_long(behind: Behind) -> None:
    """Its address lies in nothing that the peer may send from, and the connection needs it."""
    for node in ("router", "server"):
        behind.add(node)
    behind.cable("h2", "router")
    behind.cable("router", "server")
    behind.ip("router", "link set server mtu 1300")
    for node, arguments in (
        ("h2", "address add 192.0.2.1/24 dev router"),
        ("h2", f"route add {BEHIND} via 192.0.2.2 dev router"),
        ("router", "address add 192.0.2.2/24 dev h2"),
        ("router", "address add 198.51.100.1/24 dev server"),
        ("router", "route add 10.99.0.0/24 via 192.0.2.1 dev h2"),
        ("server", f"address add {SERVER}/24 dev router"),
        ("server", "route add default via 198.51.100.1 dev router"),
    ):
        behind.ip(node, arguments)
    for node in ("h2", "router"):
        behind.forward(node)
    transfer(behind, "h1", "server", SERVER)
    assert "mtu 1300" in behind.running.run("h1", "ip", "route", "get", SERVER)


def test_foreign_source_is_refused_here(behind: Behind) -> None:
    behind.container("h1")
    out = open_in(behind.namespace("box"), H2, socket.SOCK_STREAM)
    out.settimeout(20)
    began = time.monotonic()
    with out, pytest.raises(OSError, match=rf"\[Errno {errno.EHOSTUNREACH}\]"):
        out.connect((H2, 9))
    assert time.monotonic() - began < 3
    counted = lab_hosts.counters(behind.running.name, "h1")
    assert counted["drop_not_ours"] > 0
    assert lab_hosts.counters(behind.running.name, "h2")["drop_foreign"] == 0
    lab_hosts.eventually(lambda: warned(behind.running.name), "status warns of it", 5)
    assert lab_hosts.ok(behind.running.name, "h1"), "it is no fault of this host's"
    behind.nat("h1", "postrouting priority 100; oifname mrc0 masquerade")
    transfer(behind, "box", "h2", H2)


def test_published_port_behind_a_listener(behind: Behind) -> None:
    """What waited fits into the container's interface, though a socket of the host listens."""
    behind.container("h2")
    behind.running.fault("p1t1-1", "loss=5%")
    listener = open_in(behind.namespace("h2"), H2, socket.SOCK_STREAM)
    server = open_in(behind.namespace("box"), CONTAINER, socket.SOCK_STREAM)
    with listener, server:
        for each, address in ((listener, H2), (server, CONTAINER)):
            each.bind((address, 8080))
            each.listen()
        behind.nat("h2", f"prerouting priority -100; tcp dport 8080 dnat to {CONTAINER}")
        with open_in(behind.namespace("h1"), H2, socket.SOCK_STREAM) as out:
            out.connect((H2, 8080))
            server.settimeout(5)
            inside, _peer = server.accept()
            with inside, ThreadPoolExecutor() as pool:
                inside.settimeout(10)
                sending = pool.submit(out.sendall, bytes(SIZE))
                left = SIZE
                while left:
                    left -= len(inside.recv(1 << 18))
                sending.result()
    shown = behind.running.run("h2", "cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in shown[:2])
    assert int(values[names.index("FragFails")]) == 0


def test_route_to_nobody_is_named(behind: Behind) -> None:
    """A peer is found by the destination: next hops are followed within `routed`."""
    name = behind.running.name
    route = f"10.244.2.0/24 via {H2} dev mrc0 onlink"
    behind.ip("h1", f"route add {route}")
    lab_hosts.eventually(lambda: "10.244.2.0/24 over mrc0" in reasons(name), "it is named", 10)
    assert "put 10.244.2.0/24, or a prefix around all such routes, into `routed`" in reasons(name)
    behind.ip("h1", f"route del {route}")
    lab_hosts.eventually(lambda: lab_hosts.ok(name, "h1"), "nothing is named", 10)


def reasons(name: str) -> str:
    status = lab_hosts.status(name, "h1")
    return "" if status is None else "\n".join(status.reasons)


def warned(name: str) -> bool:
    status = lab_hosts.status(name, "h1")
    return status is not None and any("oifname mrc0 masquerade" in w for w in status.warnings)
