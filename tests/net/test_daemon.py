# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcd as a process: start, stop, crash and restart, and its messages meanwhile."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cli.lab import lab, processes, state
from mrcd.handshake import Memory
from mrcd.linux import bpf, netns
from mrcd.peers import saved as sessions
from rigs import lab_hosts
from rigs.lab_hosts import ROOT, eventually, mrcctl
from rigs.traffic import Stream, transfer, udp_sequence

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H1, H2 = "10.99.0.1", "10.99.0.2"

_PROG_QUERY = 16


def tcx_programs(namespace: str, interface: str) -> int:
    """Return the number of programs on an interface's tcx ingress."""
    with netns.entered(namespace):
        index = int(
            subprocess.run(
                ["ip", "-j", "link", "show", interface], capture_output=True, text=True, check=True
            ).stdout.split('"ifindex":')[1].split(",")[0]
        )  # fmt: skip
        attr = ctypes.create_string_buffer(
            struct.pack("=IIII", index, bpf.ATTACH_TCX_INGRESS, 0, 0).ljust(144, b"\0"), 144
        )
        bpf.call(_PROG_QUERY, attr, f"query tcx of {interface}")
    return int(struct.unpack_from("=I", attr.raw, 24)[0])


def links(running: Lab, host: str) -> dict[str, dict[str, Any]]:
    """Return a host's interfaces as `ip -d -j link` shows them."""
    found = json.loads(running.run(host, "ip", "-d", "-j", "link"))
    return {link["ifname"]: link for link in found}


def assert_nothing_is_left(running: Lab, host: str) -> None:
    """Check that no mrc0, no program on any interface, no pin and no socket is left."""
    places = state.places(running.name, host)
    there = links(running, host)
    assert not [name for name in there if name.startswith("mrc0")]
    assert sorted(entry.name for entry in places.bpffs.iterdir()) == []
    for name, link in there.items():
        assert "xdp" not in link, name
        assert tcx_programs(running.namespace(host), name) == 0
        assert "bpf" not in running.run(host, "tc", "filter", "show", "dev", name, "ingress")
    assert "clsact" not in running.run(host, "tc", "qdisc", "show")


def stop(running: Lab, host: str, number: signal.Signals) -> None:
    """Signal a host's mrcd and wait for its end."""
    pid = lab.daemon_pid(running.name, host)
    assert pid is not None
    os.kill(pid, number)
    eventually(
        lambda: not processes.runs_in(pid, running.namespace(host)), f"mrcd of {host} has ended"
    )


def start(running: Lab, host: str) -> subprocess.Popen[bytes]:
    """Start a host's mrcd again, and wait until it and its peers report ok."""
    process = lab.start_daemon(running.name, host)
    for each in running.fabric.hosts:
        lab_hosts.until_ok(running.name, each.name)
    return process


def remembered(running: Lab, host: str, peer: str) -> bool:
    """Return whether two hosts have saved their current session, rather than an earlier one."""

    def saved(here: str, there: str) -> Memory | None:
        path = state.places(running.name, here).folder / sessions.NAME
        return sessions.decode(path.read_bytes()).sessions.get(there)

    ours, theirs = saved(host, peer), saved(peer, host)
    if ours is None or theirs is None:
        return False
    return ours.sid == theirs.offer.sid and theirs.sid == ours.offer.sid


def log_of(running: Lab, host: str) -> str:
    return state.places(running.name, host).log.read_text()


# ---- ending and starting


def test_data_path_outlives_a_killed_daemon_until_it_is_detached(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    bpffs = str(state.places(running.name, "h1").bpffs)
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(1 << 20)
    stop(running, "h1", signal.SIGKILL)
    stream.progress(4 << 20)
    stream.finish()
    assert running.pings("h2", H1)

    done = mrcctl(running.name, "h1", "datapath", "detach", "--bpffs", bpffs)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mrc0" in done.stdout
    assert_nothing_is_left(running, "h1")
    again = mrcctl(running.name, "h1", "datapath", "detach", "--bpffs", bpffs)
    assert (again.returncode, again.stdout.split(" in ")[0]) == (0, "nothing to detach")


def test_daemon_takes_over_after_one_that_was_killed(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    for host in ("h1", "h2"):
        eventually(lambda: remembered(running, "h1", "h2"), "the session is written down")
        stop(running, host, signal.SIGKILL)
        start(running, host)
        transfer(running, "h1", "h2", H2, 1 << 20)
        assert "datapath.adopted" in log_of(running, host)
    assert "peer.restarted" not in log_of(running, "h1") + log_of(running, "h2")


def test_clean_stop_leaves_nothing_and_restart_is_recognised(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    before = log_of(running, "h1").count("peer.established")
    stop(running, "h2", signal.SIGTERM)
    assert_nothing_is_left(running, "h2")
    assert not lab_hosts.socket_of(running.name, "h2").exists()
    assert "daemon.stopped" in log_of(running, "h2")
    process = start(running, "h2")
    assert log_of(running, "h1").count("peer.established") == before + 1
    transfer(running, "h1", "h2", H2, 1 << 20)
    transfer(running, "h2", "h1", H1, 1 << 20)
    assert udp_sequence(running, "h1", "h2", H2, count=500) == list(range(500))
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert_nothing_is_left(running, "h2")


def test_planes_lose_at_the_end_what_they_were_given(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    stop(running, "h2", signal.SIGTERM)
    running.run("h2", "ip", "-6", "address", "flush", "dev", "plane0", "scope", "global")
    running.run("h2", "ip", "-6", "route", "delete", "fcbb:bb00::/35", "dev", "plane0")
    before = machine_of(running, "h2")
    process = start(running, "h2")
    during = machine_of(running, "h2")
    assert "fdcb:0:0:2::1/64" in during[1]
    assert "fcbb:bb00::/35" in during[3]
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert machine_of(running, "h2") == before


def test_plane_that_is_down_at_the_start_joins_later(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    stop(running, "h2", signal.SIGTERM)
    running.run("h2", "ip", "link", "set", "plane1", "down")
    lab.start_daemon(running.name, "h2")
    eventually(lambda: running.pings("h2", H1), "h2 reaches h1 over plane 0")
    eventually(
        lambda: mrcctl(running.name, "h2", "status").returncode == 6, "h2 says it is degraded"
    )
    running.run("h2", "ip", "link", "set", "plane1", "up")
    # Lab hosts do not create link-local addresses; other hosts have one again by now.
    running.run("h2", "ip", "address", "add", "fe80::2/64", "dev", "plane1", "nodad")
    lab_hosts.until_ok(running.name, "h2")
    transfer(running, "h1", "h2", H2, 1 << 20)


def test_peer_that_stays_away_is_reported(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    stop(running, "h2", signal.SIGTERM)
    now = eventually(
        lambda: (s := lab_hosts.status(running.name, "h1")) and s.state == "degraded" and s,
        "h1 misses h2",
    )
    assert "peer h2" in now.reasons[0]
    assert mrcctl(running.name, "h1", "status").returncode == 6
    assert not running.pings("h1", H2)


def test_hand_shake_survives_a_dead_plane(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    stop(running, "h2", signal.SIGTERM)
    running.fault("p0", "blackhole")
    lab.start_daemon(running.name, "h2")
    eventually(lambda: running.pings("h1", H2), "h2 answers over plane 1", 15)


# ---- configuration


def run_mrcd(running: Lab, *arguments: str, host: str = "h1") -> subprocess.CompletedProcess[str]:
    """Run an additional mrcd in a host's namespace."""
    with netns.entered(running.namespace(host)):
        return subprocess.run(
            [sys.executable, "-m", "mrcd", *arguments], cwd=ROOT, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip


def machine_of(running: Lab, host: str) -> tuple[str, ...]:
    """Return the state that a daemon would have changed if it had done anything.

    The operational state of an interface and its flags follow a second after its carrier.
    """
    shown = (("ip", "-br", "link"), ("ip", "-br", "addr"))
    outputs = [
        re.sub(r"(?m)^(\S+) +\S+ *|<.*>", r"\1 ", running.run(host, *each)) for each in shown
    ]
    outputs += [running.run(host, *each) for each in (("ip", "route"), ("ip", "-6", "route"))]
    return (*outputs, str(sorted(state.places(running.name, host).bpffs.iterdir())))


BROKEN = {
    "not TOML": ("[host\n", "mrcd.toml"),
    "unknown host": ('[host]\nname = "h9"\nfabric = "FABRIC"\n', "h9"),
    "unknown key": ('[host]\nname = "h1"\nfabric = "FABRIC"\ncolour = 1\n', "colour"),
    "bad number": (
        '[host]\nname = "h1"\nfabric = "FABRIC"\n[transport]\nmpr = 100\n', "transport.mpr"
    ),
    "no fabric": ('[host]\nname = "h1"\nfabric = "/nowhere/fabric.toml"\n', "/nowhere"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "named"), BROKEN.values(), ids=BROKEN)
def test_broken_configuration_changes_nothing(
    shared_lab: Lab, tmp_path: Any, text: str, named: str
) -> None:
    path = tmp_path / "mrcd.toml"
    path.write_text(text.replace("FABRIC", str(state.folder(shared_lab.name) / "fabric.toml")))
    places = state.places(shared_lab.name, "h1")
    before, pid = machine_of(shared_lab, "h1"), lab.daemon_pid(shared_lab.name, "h1")
    options = ("--socket", str(tmp_path / "s"), "--bpffs", str(places.bpffs))
    for more in ((), ("--check-config",)):
        done = run_mrcd(shared_lab, "--config", str(path), *options, *more)
        assert done.returncode == 2
        assert named in done.stderr
        assert "Traceback" not in done.stderr
    assert machine_of(shared_lab, "h1") == before
    assert lab.daemon_pid(shared_lab.name, "h1") == pid
    transfer(shared_lab, "h1", "h2", H2, 1 << 16)


def test_good_configuration_is_checked_without_doing_anything(shared_lab: Lab) -> None:
    places = state.places(shared_lab.name, "h1")
    before = machine_of(shared_lab, "h1")
    done = run_mrcd(shared_lab, "--config", str(places.config), "--check-config")
    assert done.returncode == 0, done.stderr
    assert "h1" in done.stdout
    assert machine_of(shared_lab, "h1") == before


def test_second_daemon_beside_a_running_one_is_refused(make_lab: MakeLab, tmp_path: Any) -> None:
    """It must not take down the first daemon's data path before it notices that daemon."""
    running = make_lab(daemons=True, planes=2)
    places = state.places(running.name, "h1")
    before = machine_of(running, "h1")
    done = run_mrcd(
        running, "--config", str(places.config), "--socket", str(places.socket),
        "--state-dir", str(tmp_path), "--bpffs", str(places.bpffs),
        "--cache-dir", str(state.CACHE_DIR),
    )  # fmt: skip
    assert done.returncode == 1
    assert machine_of(running, "h1") == before
    transfer(running, "h1", "h2", H2, 1 << 16)


# ---- mrcctl against it


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("status",), 0),
        (("status", "--json"), 0),
        (("peer", "list"), 0),
        (("path", "list"), 0),
        (("conn", "list"), 0),
        (("stats",), 0),
        (("path", "list", "--peer", "h9"), 4),
        (("conn", "list", "--peer", "h9"), 4),
        (("nonsense",), 2),
        (("--socket", "/nowhere/mrcd.sock", "status"), 3),
    ],
)
def test_exit_codes(shared_lab: Lab, arguments: tuple[str, ...], code: int) -> None:
    done = mrcctl(shared_lab.name, "h1", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    if code == 3:
        assert "/nowhere/mrcd.sock" in done.stderr
        assert "mrcd --config" in done.stderr
    if code == 0:
        assert done.stderr == ""
        assert done.stdout


def test_status_is_degraded_while_a_plane_is_down(shared_lab: Lab) -> None:
    shared_lab.fault("h1:p3", "down")
    eventually(lambda: not lab_hosts.ok(shared_lab.name, "h1"), "h1 notices")
    done = mrcctl(shared_lab.name, "h1", "status")
    assert done.returncode == 6
    assert "plane3" in done.stdout


def test_detach_is_refused_while_the_daemon_runs(shared_lab: Lab) -> None:
    bpffs = str(state.places(shared_lab.name, "h1").bpffs)
    done = mrcctl(shared_lab.name, "h1", "datapath", "detach", "--bpffs", bpffs)
    assert done.returncode == 1
    assert "is running" in done.stderr
    transfer(shared_lab, "h1", "h2", H2, 1 << 16)


def test_connections_are_set_up_and_drain(shared_lab: Lab) -> None:
    transfer(shared_lab, "h1", "h2", H2, 1 << 20)

    def connections() -> list[dict[str, Any]]:
        shown = lab_hosts.mrcctl_json(shared_lab.name, "h1", "conn", "list")["connections"]
        return list(shown)

    assert {qp["state"] for qp in connections()} == {"RTS"}
    eventually(lambda: all(qp["outstanding"] == 0 for qp in connections()), "all is acknowledged")
    eventually(
        lambda: (s := lab_hosts.status(shared_lab.name, "h1")) and s.datapath.tick == "idle",
        "the clock sleeps",
    )


def test_counters_agree_with_the_transfer(shared_lab: Lab) -> None:
    def both() -> list[dict[str, int]]:
        return [lab_hosts.counters(shared_lab.name, host) for host in ("h1", "h2")]

    before = both()
    transfer(shared_lab, "h1", "h2", H2, 8 << 20)
    eventually(
        lambda: (
            both()[1]["rx_packets"] - before[1]["rx_packets"]
            == both()[0]["tx_packets"] - before[0]["tx_packets"]
        ),
        "all that h1 sent was delivered at h2, once",
    )
    after = both()
    assert after[0]["tx_bytes"] - before[0]["tx_bytes"] > 8 << 20
    drops = {
        name for name in after[1] if name.startswith("drop_") and after[1][name] > before[1][name]
    }
    slowed = {"drop_early", "drop_window", "drop_backlog"}  # TCP sends these later
    assert drops <= {"drop_not_ip", "drop_no_peer", "drop_not_ready"} | slowed
