# SPDX-License-Identifier: GPL-2.0-only
"""Test other shapes than two hosts on four planes with default settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from cli.lab import lab, state
from mrcd.fabric.shape import MTU_MAX
from rigs import lab_hosts
from rigs.lab_hosts import eventually, mrcctl
from rigs.traffic import Stream, transfer, udp_sequence

MakeLab = Callable[..., Any]
TRIES = 20  # how much is sent again depends on when the losing plane is left


def everyone_reaches_everyone(running: Any) -> None:
    hosts = running.fabric.hosts
    for one in hosts:
        for other in hosts:
            if one is not other:
                for address in other.addresses:
                    transfer(running, one.name, other.name, str(address.ip), 1 << 18)


@pytest.mark.parametrize("hosts_per_t0", [1, 2])
def test_three_hosts(make_lab: MakeLab, hosts_per_t0: int) -> None:
    """Each host has two peers; with two hosts on a T0, some paths cross no T1."""
    running = make_lab(daemons=True, hosts=3, planes=2, hosts_per_t0=hosts_per_t0)
    everyone_reaches_everyone(running)
    streams = [
        Stream(running, "h1", "h2", "10.99.0.2").start(),
        Stream(running, "h1", "h3", "10.99.0.3").start(),
        Stream(running, "h3", "h2", "10.99.0.2").start(),
    ]
    for stream in streams:
        stream.progress(1 << 20)
    running.fault("p0", "blackhole")
    for stream in streams:
        stream.progress(1 << 20)
        stream.finish()


def test_clsact(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2, settings='[transport]\ntc = "clsact"\n')
    now = lab_hosts.status(running.name, "h1")
    assert now is not None
    assert now.datapath.tc == "clsact"
    everyone_reaches_everyone(running)
    assert udp_sequence(running, "h1", "h2", "10.99.0.2", count=500) == list(range(500))
    shown = running.run("h1", "tc", "filter", "show", "dev", "plane0", "ingress")
    assert "mrc_receive" in shown

    # ... and it is detached again

    pid = lab.daemon_pid(running.name, "h1")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: lab.daemon_pid(running.name, "h1") is None, "mrcd has ended")
    bpffs = state.places(running.name, "h1").bpffs
    done = mrcctl(running.name, "h1", "datapath", "detach", "--bpffs", str(bpffs))
    assert done.returncode == 0, done.stderr
    assert list(bpffs.iterdir()) == []
    for name in ("plane0", "plane1"):
        assert running.run("h1", "tc", "filter", "show", "dev", name, "ingress") == ""
    assert "mrc0" not in running.run("h1", "ip", "-br", "link")


def test_one_plane_one_t1(make_lab: MakeLab) -> None:
    """There is no other path, so lost packets are sent again on the same one."""
    running = make_lab(daemons=True, planes=1, t1=1)
    running.fault("p0", "loss=2%")
    assert udp_sequence(running, "h1", "h2", "10.99.0.2", count=1000) == list(range(1000))


def test_small_mtu_and_eight_planes(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=8, t1=1, mtu=1500)
    everyone_reaches_everyone(running)
    assert udp_sequence(running, "h1", "h2", "10.99.0.2", size=1300) == list(range(3000))
    sent = {path.plane for path in lab_hosts.paths(running.name, "h1") if path.sent}
    assert sent == set(range(8))


@pytest.mark.parametrize("framing", ["cell", "mrc"])
def test_largest_mtu(make_lab: MakeLab, framing: str) -> None:
    """The longest packets are sent again, held for their turn, and delivered whole."""
    settings = f'[transport]\nframing = "{framing}"\n'
    running = make_lab(daemons=True, planes=2, mtu=MTU_MAX, settings=settings)
    now = lab_hosts.status(running.name, "h1")
    assert now is not None
    assert now.mrc0.mtu == MTU_MAX - (40 if framing == "cell" else 128)
    running.fault("p1", "loss=20%")
    size = now.mrc0.mtu - 28
    said = running.run(
        "h1", "ping", "-q", "-M", "do", "-c", "200", "-i", "0.01", "-s", str(size), "10.99.0.2"
    )
    assert " 0% packet loss" in said
    assert udp_sequence(running, "h1", "h2", "10.99.0.2", size=size, count=500) == list(range(500))
    for _ in range(TRIES):
        transfer(running, "h1", "h2", "10.99.0.2", 32 << 20)
        counted = lab_hosts.counters(running.name, "h1")
        if sum(counted[name] for name in counted if name.startswith("rtx_")) > 50:
            return
    pytest.fail(f"50 packets or fewer were sent again in {TRIES} transfers")


def test_small_window_on_one_connection(make_lab: MakeLab) -> None:
    settings = "[transport]\nqps_per_peer = 1\nmpr = 128\nring_slots = 512\n"
    running = make_lab(daemons=True, planes=2, settings=settings)
    transfer(running, "h1", "h2", "10.99.0.2", 4 << 20)
    running.fault("p1", "loss=3%")
    transfer(running, "h1", "h2", "10.99.0.2", 4 << 20)
    # Packets beyond the window are dropped and counted, and nothing stalls.
    arrived = udp_sequence(running, "h1", "h2", "10.99.0.2", count=2000, ahead=1000)
    assert arrived == sorted(set(arrived))
    counted = lab_hosts.counters(running.name, "h1")
    dropped = sum(counted[name] for name in ("drop_window", "drop_ring", "drop_backlog"))
    assert dropped >= 2000 - len(arrived)
    transfer(running, "h1", "h2", "10.99.0.2", 1 << 20)
