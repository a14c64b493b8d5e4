# SPDX-License-Identifier: GPL-2.0-only
"""Test how daemons agree on cells, and the interfaces that cells need."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cli.lab import lab, processes, state
from mrcd.linux import ethtool, netns
from rigs import lab_hosts
from rigs.lab_hosts import eventually, mrcctl, mrcctl_json
from rigs.traffic import open_in

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H2 = "10.99.0.2"
ETH_P_ALL = 3
UDP_SEGMENT = 103
RCVBUFFORCE = 33
START_S = 120.0  # compiling takes seconds, and far longer on a busy machine

pytestmark = pytest.mark.timeout(240)
WHOLE = ("tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation",
         "tx-checksum-ip-generic", "tx-scatter-gather")  # fmt: skip


@pytest.fixture(scope="module")
def cells(module_labs: MakeLab) -> Lab:
    """Return a lab of h1 and h2, which take cells, and h3, which does not."""
    lab_of_three = module_labs(hosts=3, planes=2, t1=1, on_stop="detach")
    for host, framing in (("h1", "auto"), ("h2", "auto"), ("h3", "mrc")):
        start(lab_of_three, host, framing)
    for host in ("h1", "h2", "h3"):
        lab_hosts.until_ok(lab_of_three.name, host, START_S)
    return lab_of_three


def start(running: Lab, host: str, framing: str) -> None:
    """Start a host's mrcd with a framing."""
    file = state.places(running.name, host).config
    text = re.sub(r"\[transport\]\nframing = .*\n", "", file.read_text())
    file.write_text(f'{text}[transport]\nframing = "{framing}"\n')
    lab.start_daemon(running.name, host)


def stop(running: Lab, host: str) -> None:
    """End a host's mrcd and wait for it."""
    pid = lab.daemon_pid(running.name, host)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    eventually(
        lambda: not processes.runs_in(pid, running.namespace(host)), f"mrcd of {host} has ended", 30
    )


def features(running: Lab, host: str, interface: str) -> dict[str, bool]:
    with netns.entered(running.namespace(host)):
        return ethtool.named_features(interface)


def peers(running: Lab, host: str) -> dict[str, dict[str, Any]]:
    listed = mrcctl_json(running.name, host, "peer", "list")["peers"]
    return {peer["name"]: peer for peer in listed}


def shown(running: Lab, host: str, interface: str) -> str:
    return str(running.run(host, "ip", "-d", "link", "show", interface))


def test_framing_is_agreed_on_with_each_peer(cells: Lab) -> None:
    framed = {name: (peer["framing"], peer["mtu"]) for name, peer in peers(cells, "h1").items()}
    assert framed == {"h2": ("cell", 9000 - 40), "h3": ("mrc", 9000 - 128)}
    assert {peer["framing"] for peer in peers(cells, "h3").values()} == {"mrc"}
    qps = mrcctl_json(cells.name, "h1", "conn", "list")["connections"]
    assert {(qp["peer"], qp["framing"]) for qp in qps} == {("h2", "cell"), ("h3", "mrc")}
    assert "cells" in mrcctl(cells.name, "h1", "status").stdout
    assert "cells" not in mrcctl(cells.name, "h3", "status").stdout


def test_mrc0_passes_segments_whole_whatever_ethtool_asks_for(cells: Lab) -> None:
    for feature in ("tso", "gso", "tx"):
        cells.run("h1", "ethtool", "-K", "mrc0", feature, "off", check=False)
    mrc0, mrc0d = features(cells, "h1", "mrc0"), features(cells, "h1", "mrc0d")
    assert {name for name in WHOLE if not mrc0[name]} == set()
    text = shown(cells, "h1", "mrc0")
    # veth reports 10 Gb/s, so cells are as long at first as they may be.
    assert "gso_max_size 65400 gso_max_segs 127 " in text
    assert {"mrc0@mrc0p", "macvlan", "private"} <= set(re.split(r"[ :\n]", text))
    # Deliveries in MRC's framing meet GRO on mrc0p, because what sends them has no TSO.
    assert features(cells, "h1", "mrc0p")["rx-gro"]
    assert not mrc0d["tx-tcp-segmentation"]


def test_pair_that_cuts_cuts_everything(cells: Lab) -> None:
    cut = features(cells, "h1", "mrc0c")
    assert not any(cut[name] for name in WHOLE)
    assert not features(cells, "h1", "mrc0cp")["rx-gro"]
    wide = {"mrc0p": 65535, "mrc0d": 65535}  # several held packets may be delivered as one
    for name in ("mrc0c", "mrc0cp", *wide):
        text = shown(cells, "h1", name)
        flags = set(re.findall(r"[A-Z_]+", text.split(">")[0]))
        assert {"NOARP", "UP", "LOWER_UP"} <= flags
        assert "MULTICAST" not in flags
        assert f"mtu {wide.get(name, 8960)} " in text
        assert "inet6" not in cells.run("h1", "ip", "addr", "show", name)
    bpffs = state.places(cells.name, "h1").bpffs
    assert {entry.name for entry in bpffs.glob("link_tc_mrc0*")} == {
        "link_tc_mrc0p",
        "link_tc_mrc0cp",
        "link_tc_mrc0b",
        "link_tc_mrc0bp",
    }


def test_mrc0_counts_and_shows_what_passes(cells: Lab) -> None:
    """Programs take packets away below mrc0, so that its counters and tcpdump see them."""

    def counted() -> tuple[int, int]:
        (link,) = json.loads(cells.run("h1", "ip", "-s", "-j", "link", "show", "mrc0"))
        return link["stats64"]["tx"]["packets"], link["stats64"]["rx"]["packets"]

    sent, received = counted()
    with netns.entered(cells.namespace("h1")):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    with tap:
        tap.bind(("mrc0", ETH_P_ALL))
        tap.settimeout(10)
        assert "5 received" in cells.run("h1", "ping", "-c", "5", "-i", "0.01", "-w", "5", H2)
        seen = [tap.recvfrom(2000) for _ in range(10)]
    assert Counter(packet[9] for packet, _ in seen) == {1: 10}
    assert Counter(where[2] == socket.PACKET_OUTGOING for _, where in seen) == {True: 5, False: 5}
    after = counted()
    assert after[0] - sent >= 5
    assert after[1] - received >= 5


def test_small_datagrams_do_not_overtake_large_ones_that_are_cut(cells: Lab) -> None:
    """An application that sends several datagrams at a time ends with a shorter one alone."""
    with open_in(cells.namespace("h2"), H2, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, 8 << 20)
        server.bind((H2, 0))
        server.settimeout(10)
        with open_in(cells.namespace("h1"), H2, socket.SOCK_DGRAM) as client:
            client.connect(server.getsockname())
            numbers = itertools.count()
            for _ in range(100):
                parts = [struct.pack("=I", next(numbers)).ljust(1000) for _ in range(2)]
                segment = (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", 1000))
                client.sendmsg([b"".join(parts)], [segment])
                client.send(struct.pack("=I", next(numbers)).ljust(100))
        got = [struct.unpack_from("=I", server.recv(2000))[0] for _ in range(300)]
    assert got == list(range(300))
    assert lab_hosts.counters(cells.name, "h1")["tx_cut"] >= 100


def test_without_cells_there_is_no_pair_that_cuts(cells: Lab) -> None:
    mrc0 = features(cells, "h3", "mrc0")
    assert {name for name in WHOLE if mrc0[name]} == set()
    assert "mrc0c" not in cells.run("h3", "ip", "link")
    assert "gso_max_size 65536 gso_max_segs 65535 " in shown(cells, "h3", "mrc0")


def test_framing_changes_while_the_daemon_runs(cells: Lab) -> None:
    text = mrcctl(cells.name, "h2", "config", "show").stdout
    for framing, there in (("mrc", False), ("auto", True)):
        changed = re.sub(r'framing = ".*"', f'framing = "{framing}"', text)
        file = state.places(cells.name, "h2").folder / "changed.toml"
        file.write_text(changed)
        done = mrcctl(cells.name, "h2", "config", "apply", "--yes", str(file))
        assert done.returncode == 0, done.stderr
        lab_hosts.until_ok(cells.name, "h2", START_S)
        assert ("mrc0cp" in cells.run("h2", "ip", "link")) == there
        assert features(cells, "h2", "mrc0")["tx-tcp-segmentation"] == there
        wanted = "cell" if there else "mrc"
        eventually(
            lambda wanted=wanted: peers(cells, "h1")["h2"]["framing"] == wanted,
            f"h1 and h2 agree on {wanted}",
        )


def test_host_that_insists_on_cells_says_which_peer_takes_none(cells: Lab) -> None:
    stop(cells, "h2")
    start(cells, "h2", "cell")
    reason = "h3 lacks cell, which h2 insists on"
    eventually(
        lambda: (now := lab_hosts.status(cells.name, "h2")) and now.reasons == [reason],
        "h2 gives the reason",
        START_S,
    )
    there = peers(cells, "h2")
    assert (there["h1"]["state"], there["h1"]["framing"]) == ("established", "cell")
    assert (there["h3"]["state"], there["h3"]["refused"]) == ("connecting", reason)
    assert f"! {reason}" in mrcctl(cells.name, "h2", "peer", "list").stdout


def test_detach_leaves_nothing(cells: Lab) -> None:
    stop(cells, "h1")
    links = cells.run("h1", "ip", "-br", "link")
    assert "mrc0" not in links
    folder = state.places(cells.name, "h1").bpffs
    assert list(folder.iterdir()) == []
    entries = subprocess.run(
        ["tc", "-n", cells.namespace("h1"), "filter", "show", "dev", "plane0", "ingress"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert entries.stdout == ""
