# SPDX-License-Identifier: GPL-2.0-only
"""Test that everything goes on that needs no new decision while all of mrcd's processes are dead.

The clock of the data path is a packet that circles in the kernel. A daemon that starts again finds
the connections as it left them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, processes, state
from mrcd.linux import bpf, interfaces, netns
from mrcd.wire.abi import ABI
from rigs import lab_hosts
from rigs.lab_hosts import eventually
from rigs.traffic import Stream

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H1, H2 = "10.99.0.1", "10.99.0.2"
SETTLED_S = 120.0  # compiling takes seconds, and far longer on a busy machine
PART = 24 << 20  # bytes over which a rate is measured
RATIO = 0.9
"""Part of the rate before the kill that must come again. Without a clock a quarter is left."""
RATE_S = 60.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def running(make_lab: MakeLab) -> Lab:
    """Return a lab of two hosts whose planes are the bottleneck, and not the processor."""
    made = make_lab(daemons=True, planes=4, t1=2, rate_mbps=60, on_stop="keep")
    for host in ("h1", "h2"):
        lab_hosts.until_ok(made.name, host, SETTLED_S)
        eventually(lambda host=host: remembered(made, host), "the session is written down")
    return made


def remembered(running: Lab, host: str) -> bool:
    file = state.places(running.name, host).folder / "sessions.json"
    return file.exists() and bool(json.loads(file.read_text())["sessions"])


def processes_of(running: Lab, host: str) -> list[int]:
    """Return the daemon of a host and what it has started."""
    daemon = lab.daemon_pid(running.name, host)
    assert daemon is not None
    children = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    return [daemon, *map(int, children)]


def kill(running: Lab, *hosts: str) -> None:
    """Kill all of mrcd's processes of these hosts, and wait until they are gone."""
    for host in hosts:
        pids = processes_of(running, host)
        assert len(pids) == 2  # with the privileged process
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(
            lambda pids=pids, host=host: (
                not any(processes.runs_in(pid, running.namespace(host)) for pid in pids)
            ),
            f"{pids} have ended",
            30,
        )


def restart(running: Lab, *hosts: str) -> None:
    for host in hosts:
        lab.start_daemon(running.name, host)
    for host in hosts:
        lab_hosts.until_ok(running.name, host, SETTLED_S)


def logged(running: Lab, host: str) -> list[str]:
    lines = state.places(running.name, host).log.read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def rate(stream: Stream) -> float:
    """Return the rate at which the next part arrives, in bytes a second."""
    began, had = time.monotonic(), stream.received
    stream.progress(PART, RATE_S)
    return (stream.received - had) / (time.monotonic() - began)


def reaches(stream: Stream, wanted: float) -> bool:
    """Wait for a rate, over one part after the other, since the machine may be busy meanwhile."""
    deadline = time.monotonic() + RATE_S
    while rate(stream) < wanted:
        if time.monotonic() > deadline:
            return False
    return True


def plane_bytes(running: Lab, host: str, plane: int) -> int:
    """Return what a host has sent on a plane."""
    with netns.entered(running.namespace(host)):
        return interfaces.traffic()[f"plane{plane}"].tx_bytes


def clock(running: Lab, host: str) -> dict[str, int]:
    """Return the state of a host's clock, which no process keeps."""
    fd = bpf.get(lab_hosts.maps_of(running.name, host) / "clock")
    try:
        kind = ABI.structs["mrc_clock"]
        return kind.unpack(bpf.lookup(fd, bytes(4), kind.size) or b"")
    finally:
        os.close(fd)


@pytest.mark.parametrize("hosts", [("h1",), ("h1", "h2")], ids=["sender", "both"])
def test_rate_goes_on_and_a_plane_that_died_comes_back(
    running: Lab, hosts: tuple[str, ...]
) -> None:
    stream = Stream(running, "h1", "h2", H2).start()
    back = Stream(running, "h2", "h1", H1).start()
    stream.progress(PART, RATE_S)
    before = max(rate(stream) for _ in range(3))
    kill(running, *hosts)
    assert reaches(stream, RATIO * before)

    running.fault("p1", "blackhole")
    assert reaches(stream, RATIO * before * 3 / 4)  # on the three that are left
    silent = plane_bytes(running, "h1", 1)
    assert reaches(stream, RATIO * before * 3 / 4)
    assert plane_bytes(running, "h1", 1) - silent < PART / 40  # only probes

    running.fault("p1", "clear")
    assert reaches(stream, RATIO * before)
    used = plane_bytes(running, "h1", 1)
    stream.progress(PART, RATE_S)
    assert plane_bytes(running, "h1", 1) - used > PART / 8

    restart(running, *hosts)
    assert reaches(stream, RATIO * before)
    stream.finish(60)  # all that was sent has arrived, and unchanged
    back.finish(60)
    for host in hosts:
        assert "sessions.resumed" in logged(running, host)
        assert "datapath.replaced" not in logged(running, host)
        assert "peer.restarted" not in logged(running, host)


@pytest.fixture
def datagrams(running: Lab) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return a sender on h1 and a receiver on h2."""
    with netns.entered(running.namespace("h2")):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.entered(running.namespace("h1")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind((H2, 0))
        sender.connect(receiver.getsockname())
        yield sender, receiver


def test_lost_tail_arrives_without_a_daemon(
    running: Lab, datagrams: tuple[socket.socket, socket.socket]
) -> None:
    """No later packet triggers a SACK, so only the clock finds such a loss."""
    sender, receiver = datagrams
    kill(running, "h1", "h2")
    for plane in range(4):
        running.fault(f"p{plane}", "blackhole")
    for number in range(5):
        sender.send(number.to_bytes(4, "big"))
    receiver.settimeout(0.3)
    with pytest.raises(TimeoutError):
        receiver.recv(100)
    for plane in range(4):
        running.fault(f"p{plane}", "clear")
    receiver.settimeout(SETTLED_S)
    assert [int.from_bytes(receiver.recv(100), "big") for _ in range(5)] == list(range(5))


def test_clock_rests_and_wakes_without_a_daemon(
    running: Lab, datagrams: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = datagrams
    receiver.settimeout(SETTLED_S)
    kill(running, "h1", "h2")
    for number in range(3):
        for host in ("h1", "h2"):
            eventually(
                lambda host=host: clock(running, host)["resting"] == 1, "the clock rests", 60
            )
        before = {host: clock(running, host) for host in ("h1", "h2")}
        sender.send(number.to_bytes(4, "big"))
        assert receiver.recv(100) == number.to_bytes(4, "big")
        for host, was in before.items():
            eventually(
                lambda host=host, was=was: clock(running, host)["ticks"] > was["ticks"],
                f"the clock of {host} has looked at its QP",
            )
        assert clock(running, "h1")["generation"] > before["h1"]["generation"]
    slow = clock(running, "h1")["beats"]
    eventually(lambda: clock(running, "h1")["beats"] > slow + 10, "slow beats go on")


def test_beat_that_somebody_drops_is_made_anew(running: Lab) -> None:
    """The daemon makes another one, and puts right what it can."""
    for end in ("mrc0b", "mrc0bp"):
        was = clock(running, "h1")["generation"]
        running.run("h1", "ip", "link", "set", end, "down")
        eventually(lambda was=was: clock(running, "h1")["generation"] > was, "a beat was made")
        beats = clock(running, "h1")["beats"]
        eventually(lambda beats=beats: clock(running, "h1")["beats"] > beats + 10, "beats come")
        lab_hosts.until_ok(running.name, "h1")


@pytest.mark.parametrize(
    "command",
    [
        ["ip", "link", "delete", "mrc0b"],
        ["tc", "qdisc", "del", "dev", "mrc0b", "root"],
        ["tc", "qdisc", "replace", "dev", "mrc0bp", "root", "tbf", "rate", "1mbit", "burst", "9k",
         "limit", "9k"],
        ["tc", "qdisc", "replace", "dev", "mrc0b", "root", "pfifo"],
        ["ethtool", "-K", "mrc0b", "tx", "on"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_others_do_to_the_clock_is_put_right(running: Lab, command: list[str]) -> None:
    def shown() -> tuple[str, ...]:
        lines = running.run("h1", "tc", "qdisc", "show").splitlines()
        return tuple(
            sorted(line.split(" ", 3)[3] for line in lines if " mrc0b" in line and "tbf" in line)
        )

    def right() -> tuple[str, ...]:
        return tuple(" ".join(text.split()[1:]) for text in shown())

    before, features = right(), running.run("h1", "ethtool", "-k", "mrc0b")
    assert len(before) == 2
    running.run("h1", *command)
    eventually(lambda: right() == before, lambda: f"{before}, but {right()}")
    eventually(
        lambda: running.run("h1", "ethtool", "-k", "mrc0b", check=False) == features, "features"
    )
    beats = clock(running, "h1")["beats"]
    eventually(lambda: clock(running, "h1")["beats"] > beats + 10, "beats come")
    lab_hosts.until_ok(running.name, "h1")


def test_nothing_is_put_right_that_nobody_changed(make_lab: MakeLab) -> None:
    """The kernel keeps the depth of a fast bucket less exactly than it was asked for."""
    made = make_lab(daemons=True, planes=4)  # whose NICs say 10 Gb/s
    lab_hosts.until_ok(made.name, "h1", SETTLED_S)
    beats = clock(made, "h1")["beats"]
    eventually(lambda: clock(made, "h1")["beats"] > beats + 150, "the repair has looked", 60)
    assert "interface.repaired" not in logged(made, "h1")
