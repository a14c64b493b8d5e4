# SPDX-License-Identifier: GPL-2.0-only
"""Test hundreds of paths: T1s that share a namespace forward and fail independently."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cli.lab import lab
from mrcd.fabric import underlay, usid
from mrcd.fabric.description import Host
from mrcd.linux import netns
from tests.net.usid_packets import ETH_P_IPV6, IPPROTO_IPV6, MARK, Tap, udp_in_ipv6

MakeLab = Callable[..., Any]  # conftest

T1 = 32


def evs_arriving(running: Any, a: Host, b: Host, *, each: int = 1) -> dict[int, int]:
    """Send `each` packets on every EV of plane 0, and return the number that arrive by EV."""
    fabric = running.fabric
    tap = Tap(running.namespace(b.name), "plane0")
    with netns.entered(running.namespace(a.name)):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, IPPROTO_IPV6)
    seen: dict[int, int] = {}

    def collect(within_s: float) -> None:
        while (packet := tap.next(within_s)) is not None:
            ev = struct.unpack("!I", packet[-4:])[0]
            seen[ev] = seen.get(ev, 0) + 1

    with sock:
        for ev in underlay.of(fabric).evs(a, b, 0):
            usids = usid.path_usids(a, b, ev)
            address = str(ipaddress.IPv6Address(usid.da_bytes(fabric.block, usids)))
            packet = udp_in_ipv6(fabric, a, b, 0, MARK + struct.pack("!I", ev))
            for _ in range(each):
                sock.sendto(packet, (address, 0))
            if each > 1:
                collect(0.05)  # no more in flight than the CPUs' backlogs hold
    collect(0.3)
    tap.close()
    return seen


def t1s_arriving(running: Any, a: Host, b: Host) -> set[int]:
    return {usid.ev_t1(ev) for ev in evs_arriving(running, a, b)}


def test_one_t1_of_many_fails_alone(make_lab: MakeLab, wait_until: Callable[..., None]) -> None:
    running = make_lab(planes=1, t1=T1)
    h1, h2 = running.fabric.hosts
    every = set(range(1, T1 + 1))
    assert t1s_arriving(running, h1, h2) == every
    for element in ("p0t1-7", "p0t0-1:p0t1-7", "p0t0-2:p0t1-32"):
        dead = int(element.rpartition("-")[2])
        for action in ("blackhole", "loss=100%", "down"):
            running.fault(element, action)
            for a, b in ((h1, h2), (h2, h1)):
                assert t1s_arriving(running, a, b) == every - {dead}, (element, action)
            running.fault(element, "clear")
            for a, b in ((h1, h2), (h2, h1)):
                wait_until(lambda a=a, b=b: t1s_arriving(running, a, b) == every)


def test_loss_of_one_t1_of_many(make_lab: MakeLab) -> None:
    """About 40 of 80 packets pass the T1; the bounds are 4.5 standard deviations away."""
    running = make_lab(planes=1, t1=T1)
    h1, h2 = running.fabric.hosts
    assert t1s_arriving(running, h1, h2)
    running.fault("p0t1-20", "loss=50%")
    found = evs_arriving(running, h1, h2, each=80)
    assert 20 <= found.pop(usid.ev(0, 20)) <= 60
    assert set(found.values()) == {80}
    assert len(found) == T1 - 1


def test_a_packet_stays_with_the_t1_it_entered(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=T1)
    fabric = running.fabric
    h1, h2 = fabric.hosts
    for m in (1, 7, T1):
        tap = Tap(running.namespace("p0t0-2"), f"t1-{m}")
        evs_arriving(running, h1, h2)
        crossed = set()
        while (packet := tap.next(0.2)) is not None:
            crossed.add(usid.ev_t1(struct.unpack("!I", packet[-4:])[0]))
        tap.close()
        assert crossed == {m}


@pytest.mark.parametrize(("through", "names", "arrives"), [(7, 7, True), (7, 8, False)])
def test_a_t1_knows_its_own_usid_only(
    make_lab: MakeLab, through: int, names: int, arrives: bool
) -> None:
    """A packet on one T1's cable carries the uSID of its neighbour in the same namespace."""
    running = make_lab(planes=1, t1=T1)
    fabric = running.fabric
    h1, h2 = fabric.hosts
    tap = Tap(running.namespace("h2"), "plane0")
    with netns.entered(running.namespace("p0t0-1")):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IPV6))
    inner = udp_in_ipv6(fabric, h1, h2, 0, MARK)
    usids = usid.path_usids(h1, h2, usid.ev(0, names))[1:]  # as T0 1 would forward it
    outer = struct.pack("!IHBB", 6 << 28, len(inner), IPPROTO_IPV6, 64)
    outer += fabric.address6(h1, 0).packed + usid.da_bytes(fabric.block, usids)
    macs = bytes((2, 1, 0, 1, through, 2)) + bytes((2, 1, 0, 1, through, 1))
    with sock:
        sock.bind((f"t1-{through}", ETH_P_IPV6))
        sock.send(macs + struct.pack("!H", ETH_P_IPV6) + outer + inner)
    assert (tap.next(0.5) is not None) is arrives
    tap.close()


def sent_to_t1s(running: Any) -> list[int]:
    """Return the number of packets that T0 1 has sent to each T1."""
    names = " ".join(f"/sys/class/net/t1-{m}/statistics/tx_packets" for m in range(1, T1 + 1))
    return list(map(int, running.run("p0t0-1", "sh", "-c", f"cat {names}").split()))


@pytest.mark.parametrize("version", [4, 6])
def test_plain_flows_use_every_t1_and_each_stays_on_one(make_lab: MakeLab, version: int) -> None:
    """With 1,024 source ports, some T1 gets none of them once in 10^12 runs.

    A connected socket gives its packets a hash that is new with every connection;
    the switches must hash the packets' headers instead.
    """
    running = make_lab(planes=1, t1=T1)
    h2 = running.fabric.host("h2")
    address = running.fabric.address4(h2, 0) if version == 4 else running.fabric.address6(h2, 0)
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with netns.entered(running.namespace("h2")):
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    receiver.bind(("", 4971))
    assert running.pings("h1", str(address))

    def grown(ports: Iterable[int]) -> list[int]:
        before = sent_to_t1s(running)
        for port in ports:
            with netns.entered(running.namespace("h1")):
                sock = socket.socket(family, socket.SOCK_DGRAM)
            with sock:
                sock.bind(("", port))
                sock.connect((str(address), 4971))
                sock.send(MARK)
        return [after - first for after, first in zip(sent_to_t1s(running), before, strict=True)]

    with receiver:
        spread = grown(range(20000, 21024))
        assert min(spread) > 0, spread
        assert sum(spread) >= 1024
        alone = grown([20000] * 200)
    assert max(alone) >= 200, alone


def test_status_names_the_shared_namespaces_and_down_leaves_nothing(
    make_lab: MakeLab, machine: Callable[[], Any]
) -> None:

    def own() -> list[str]:  # other runs may make and remove labs meanwhile
        return [name for part in machine() for name in part if running.name in name]

    running = make_lab(planes=2, t1=T1, rate_mbps=50)
    assert own()
    found = lab.status(running.name)
    assert found.healthy
    where = {switch.name: switch.namespace for switch in found.switches}
    assert where["p1t1-7"] == where["p1t1-16"] == f"{running.name}-p1t1-1-16"
    assert where["p1t1-17"] == f"{running.name}-p1t1-17-32"
    running.fault("p1", "rate=10")
    running.fault("p0t1-7", "down")
    lab.down(running.name)
    assert own() == []
