# SPDX-License-Identifier: GPL-2.0-only
"""Test the lab's fabric without daemons: it forwards, breaks and disappears as promised."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, processes, state
from mrcd.fabric import description, underlay, usid
from mrcd.linux import netns
from tests.net.usid_packets import IPPROTO_IPV6, MARK, Tap, arrives, send_usid, udp_in_ipv6

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]


def test_plain_ping_on_every_plane(make_lab: MakeLab) -> None:
    running = make_lab(planes=4)
    h2 = running.fabric.host("h2")
    for plane in range(4):
        assert running.pings("h1", str(running.fabric.address4(h2, plane)))
        assert running.pings("h1", str(running.fabric.address6(h2, plane)))


@pytest.mark.parametrize("rate_mbps", [0, 25])
def test_full_sized_packets_pass(make_lab: MakeLab, rate_mbps: int) -> None:
    running = make_lab(planes=1, mtu=9000, rate_mbps=rate_mbps)
    h2 = running.fabric.host("h2")
    assert running.pings("h1", str(running.fabric.address4(h2, 0)), "-M", "do", "-s", "8972")
    assert running.pings("h1", str(running.fabric.address6(h2, 0)), "-M", "do", "-s", "8952")


def test_usid_packets_take_each_path_and_arrive_shifted(make_lab: MakeLab) -> None:
    running = make_lab(hosts=3, planes=2, t1=2, hosts_per_t0=2)
    fabric = running.fabric
    h1, h2, h3 = fabric.hosts
    for a, b in ((h1, h3), (h3, h2), (h1, h2)):
        for plane in range(fabric.planes):
            for ev in underlay.of(fabric).evs(a, b, plane):
                destination = Tap(running.namespace(b.name), f"plane{plane}")
                t1 = usid.ev_t1(ev)
                at_t1 = t1 and Tap(running.namespace(f"p{plane}t1-{t1}"), f"t0-{a.t0}")
                send_usid(running, a, b, ev)
                packet = destination.next()
                assert packet is not None
                last = usid.usid(plane, usid.ROLE_HOST, b.port)
                assert packet[24:40] == usid.da_bytes(fabric.block, [last])
                assert packet[40:].endswith(udp_in_ipv6(fabric, a, b, plane, MARK)[8:])
                if at_t1:
                    assert at_t1.next() is not None
                    at_t1.close()
                destination.close()


def test_plain_flows_use_every_t1(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=2)
    h2 = running.fabric.host("h2")
    seen = set()
    taps = {m: Tap(running.namespace(f"p0t1-{m}"), "t0-1") for m in (1, 2)}
    with netns.entered(running.namespace("h1")):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with sock:
        # All 32 flows hash to the same T1 once in 2^31 runs.
        for port in range(20000, 20032):
            sock.sendto(MARK, (str(running.fabric.address6(h2, 0)), port))
    for m, tap in taps.items():
        if tap.next(1.0) is not None:
            seen.add(m)
        tap.close()
    assert seen == {1, 2}


@pytest.mark.parametrize("element", ["h1:p0", "p0", "p0t0-1", "p0t1-1", "p0t0-2:p0t1-1"])
@pytest.mark.parametrize("action", ["blackhole", "down"])
def test_fault_cuts_its_element_and_nothing_else(
    make_lab: MakeLab, wait_until: Callable[..., None], element: str, action: str
) -> None:
    running = make_lab(planes=2, t1=2)
    h1, h2 = running.fabric.hosts
    evs = [ev for plane in (0, 1) for ev in underlay.of(running.fabric).evs(h1, h2, plane)]
    hit = {
        "h1:p0": {0x00010000, 0x00020000},
        "p0": {0x00010000, 0x00020000},
        "p0t0-1": {0x00010000, 0x00020000},
        "p0t1-1": {0x00010000},
        "p0t0-2:p0t1-1": {0x00010000},
    }[element]
    assert all(arrives(running, h1, h2, ev) for ev in evs)
    running.fault(element, action)
    for a, b in ((h1, h2), (h2, h1)):
        assert {ev for ev in evs if not arrives(running, a, b, ev)} == hit
    running.fault(element, "clear")
    for a, b in ((h1, h2), (h2, h1)):
        wait_until(lambda a=a, b=b: all(arrives(running, a, b, ev) for ev in evs))
    assert lab.status(running.name).faults == ()


def test_blackhole_is_silent_and_down_is_not(
    make_lab: MakeLab, wait_until: Callable[..., None]
) -> None:
    running = make_lab(planes=1)
    carrier = ("cat", "/sys/class/net/plane0/carrier")
    running.fault("h1:p0", "blackhole")
    assert running.run("h1", *carrier) == "1\n"
    assert not running.pings("h1", "fe80::1%plane0")
    running.fault("h1:p0", "clear")
    wait_until(lambda: running.pings("h1", "fe80::1%plane0"))
    running.fault("h1:p0", "down")
    assert running.run("h1", *carrier) == "0\n"


def test_clear_restores_a_switch_exactly(make_lab: MakeLab) -> None:
    running = make_lab(planes=2, rate_mbps=250)

    def configuration(node: str) -> list[str]:
        show = ("ip addr", "ip route", "ip -6 route", "ip neigh", "tc qdisc")
        texts = [running.run(node, "sh", "-c", f"{command} show") for command in show]
        for port in ("port1", "t1-1", "t1-2"):
            for direction in ("ingress", "egress"):
                texts.append(
                    running.run(node, "tc", "filter", "show", "dev", port, direction, check=False)
                )
        # The kernel chooses the handles of queues and the time stamps of addresses.
        return ["\n".join(sorted(re.sub(r"tbf \w+:", "", t).splitlines())) for t in texts]

    before = configuration("p1t0-1")
    for action in ("down", "blackhole", "loss=5%", "corrupt=1%", "rate=25"):
        running.fault("p1", action)
        running.fault("h1:p1", action)
    assert configuration("p1t0-1") != before
    running.fault("p1", "clear")
    running.fault("h1:p1", "clear")
    assert configuration("p1t0-1") == before


@pytest.mark.parametrize(
    ("element", "action", "low", "high"),
    [
        ("h1:p0", "loss=30%", 0.20, 0.40),
        ("p0", "loss=30%", 0.20, 0.40),
        ("p0t1-1", "loss=30%", 0.20, 0.40),
        ("h1:p0", "corrupt=30%", 0.20, 0.40),
    ],
)
def test_share_of_packets_hit(
    make_lab: MakeLab, element: str, action: str, low: float, high: float
) -> None:
    """With 2,000 packets, the bounds are nine standard deviations away."""
    running = make_lab(planes=1, t1=1)
    h1, h2 = running.fabric.hosts
    # The host knows its T0's MAC address now, so only our packets are counted.
    assert arrives(running, h1, h2, 0x00010000)
    running.fault(element, action)
    tap = Tap(running.namespace("h2"), "plane0")
    good = udp_in_ipv6(running.fabric, h1, h2, 0, MARK * 20)
    with netns.entered(running.namespace("h1")):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, IPPROTO_IPV6)
    address = usid.da_bytes(running.fabric.block, usid.path_usids(h1, h2, 0x00010000))
    count = 2000
    intact = altered = 0
    with sock:
        for _ in range(count // 100):  # no more in flight than the CPUs' backlogs hold
            for _ in range(100):
                sock.sendto(good, (str(ipaddress.IPv6Address(address)), 0))
            while (packet := tap.next(0.05)) is not None:
                if packet[40:] == good:
                    intact += 1
                else:
                    altered += 1
                    flipped = int.from_bytes(packet[40:], "big") ^ int.from_bytes(good, "big")
                    assert flipped.bit_count() == 1
    tap.close()
    hit = count - intact if action.startswith("loss") else altered
    assert low < hit / count < high
    assert action.startswith("corrupt") or altered == 0
    assert action.startswith("loss") or intact + altered == count


@pytest.mark.parametrize(("source", "target"), [("h1", "h2"), ("h2", "h1")])
def test_rate_fault_slows_both_directions(make_lab: MakeLab, source: str, target: str) -> None:
    """One megabyte of UDP leaves at once; the link carries 8 Mb/s, and its queue 16 packets."""
    running = make_lab(planes=1, t1=1, mtu=1500)
    running.fault("h1:p0", "rate=8")
    a, b = running.fabric.host(source), running.fabric.host(target)
    tap = Tap(running.namespace(target), "plane0")
    start = time.monotonic()
    for _ in range(500):
        send_usid(running, a, b, 0x00010000, MARK * 100)
    arrived = 0
    while tap.next(0.3) is not None:
        arrived += 1
    tap.close()
    # Packets have 1,368 bytes. 1 MB/s arrives in the elapsed time, plus the burst and the queue.
    took_s = time.monotonic() - start
    assert 16 <= arrived <= 40 + took_s * 1_000_000 / 1368


def test_lab_rate_limits_links_and_keeps_the_queue_short(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, rate_mbps=100, mtu=1500)
    for node, port in (("h1", "plane0"), ("p0t0-1", "port1"), ("p0t1-2", "t0-2")):
        shown = running.run(node, "tc", "-d", "qdisc", "show", "dev", port, "root")
        assert "tbf" in shown
        assert "rate 100Mbit" in shown


def test_fault_errors_list_what_exists(make_lab: MakeLab) -> None:
    running = make_lab(planes=1)
    with pytest.raises(state.NoSuchElement, match="planes p0 to p0"):
        running.fault("p1", "down")
    with pytest.raises(state.NoSuchElement, match=running.name):
        lab.status("no-such-lab")


def test_down_leaves_nothing(make_lab: MakeLab, machine: Callable[[], Any]) -> None:
    before = machine()
    running = make_lab(planes=2, rate_mbps=100)
    running.fault("p1", "rate=10")
    sleeper = processes.spawn(running.namespace("h1"), ["sleep", "600"])
    assert machine() != before
    lab.down(running.name)
    assert sleeper.wait(5) == -signal.SIGTERM
    assert machine() == before
    assert running.name not in state.labs()
    assert not state.folder(running.name).exists()


def test_two_labs_side_by_side(make_lab: MakeLab) -> None:
    one, two = make_lab(planes=1), make_lab(planes=1)
    h2 = one.fabric.host("h2")
    one.fault("p0", "blackhole")
    assert not one.pings("h1", str(one.fabric.address4(h2, 0)))
    assert two.pings("h1", str(two.fabric.address4(h2, 0)))
    lab.down(one.name)
    assert two.pings("h1", str(two.fabric.address4(h2, 0)))


def test_up_twice_is_refused_and_harmless(make_lab: MakeLab) -> None:
    running = make_lab(planes=1)
    with pytest.raises(state.LabFailed, match="is up already"):
        lab.up(running.fabric, daemons=False)
    assert lab.status(running.name).healthy


def test_up_refuses_namespaces_of_others(make_lab: MakeLab, worker_name: str) -> None:
    running = make_lab(planes=1)
    foreign = f"{worker_name}x-p0t1-2"
    netns.create(foreign)
    try:
        with pytest.raises(state.LabFailed, match=f"{foreign} exist and belong to no lab"):
            lab.up(description.generate(name=f"{worker_name}x", planes=1), daemons=False)
        assert foreign in netns.names()
        assert f"{worker_name}x" not in state.labs()
    finally:
        netns.delete(foreign)
    assert lab.status(running.name).healthy


@pytest.mark.parametrize(("t1", "dies_in"), [(2, "create_veth"), (12, "add_rule")])
def test_a_lab_that_crashed_half_way_can_be_taken_down(
    machine: Callable[[], Any], worker_name: str, t1: int, dies_in: str
) -> None:
    """The build is killed when namespaces exist and nothing, or half, is configured."""
    before = machine()
    name = f"{worker_name}k"
    code = (
        "import os, signal, cli.lab.lab as lab, mrcd.linux.netlink as netlink\n"
        "from mrcd.fabric import description\n"
        "async def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"netlink.Netlink.{dies_in} = die\n"
        f"lab.up(description.generate(name={name!r}, t1={t1}), daemons=False)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert name in state.labs()
    assert f"{name}-h1" in netns.names()
    lab.down(name)
    assert machine() == before


def test_failed_up_cleans_up_and_says_why(
    machine: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker_name: str
) -> None:
    """The error contains the last output of a daemon that ends at once."""
    before = machine()
    broken = tmp_path / "mrcd"
    broken.write_text("#!/bin/sh\necho some reason\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(processes, "daemon_command", lambda: [str(broken)])
    fabric = description.generate(name=f"{worker_name}f", planes=1)
    with pytest.raises(state.LabFailed, match=r"ended with status 3(.|\n)*some reason"):
        lab.up(fabric)
    assert machine() == before
    assert fabric.name not in state.labs()


def mrcctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", "lab", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_exec__passes_status_environment_and_place_on(make_lab: MakeLab) -> None:
    running = make_lab(planes=2)
    inside = mrcctl(
        "exec", "--name", running.name, "h1", "--", "sh", "-c", "ls /sys/class/net; env; exit 7"
    )
    assert inside.returncode == 7
    assert {"plane0", "plane1"} <= set(inside.stdout.split())
    assert f"MRCD_SOCKET={state.ROOT}/{running.name}/h1/mrcd.sock" in inside.stdout
    assert f"PATH={Path(sys.executable).parent}:" in inside.stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["status", "--name", "nolab"], 4, "no lab 'nolab' is up"),
        (["down", "--name", "nolab"], 4, "no lab 'nolab' is up"),
        (["exec", "--name", "{lab}", "h7", "--", "true"], 4, "known: h1, h2"),
        (["fault", "--name", "{lab}", "p9", "down"], 4, "planes p0 to p0"),
        (["fault", "--name", "{lab}", "p0", "burn"], 2, "must be down, blackhole"),
        (["up", "--name", "{lab}"], 1, "is up already"),
        (["up", "--planes", "9"], 2, "--planes 9: must be 1 to 8"),
        (["up", "/no/such/file.toml"], 2, "cannot be read"),
    ],
)
def test_mistakes_have_their_exit_codes(
    make_lab: MakeLab, words: list[str], status: int, message: str
) -> None:
    running = make_lab(planes=1)
    done = mrcctl(*(word.format(lab=running.name) for word in words))
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr


def test_not_root__is_told_so() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    code = "import os, sys; os.setuid(65534); from cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, "lab", "up"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "root" in done.stderr
