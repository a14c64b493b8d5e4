# SPDX-License-Identifier: GPL-2.0-only
"""Test that restarts, crashes, upgrades and configuration changes do not disturb traffic."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, processes, state
from mrcd.linux import bpf, netns
from rigs import builds, lab_hosts
from rigs.daemons import (
    H1,
    H2,
    H3,
    SETTLED_S,
    Traffic,
    connections,
    content,
    end,
    events,
    log_of,
    programs,
    settle,
    undisturbed,
)
from rigs.lab_hosts import ROOT, eventually, mrcctl
from rigs.traffic import Stream, transfer

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def kept(module_labs: MakeLab) -> Lab:
    """Return a lab whose daemons leave their data path in place when they stop."""
    return module_labs(daemons=True, planes=2, t1=2, on_stop="keep")


@pytest.fixture
def running(kept: Lab) -> Iterator[Lab]:
    """Return that lab, with every daemon up and ok before and after."""
    settle(kept)
    yield kept
    for fault in lab.status(kept.name).faults:
        kept.fault(fault.element, "clear")
    settle(kept)


# ---- restart, crash, upgrade


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_under_traffic(running: Lab, number: signal.Signals) -> None:
    adopted = events(running, "h1").count("datapath.adopted")

    def restart() -> None:
        end(running, "h1", number)
        lab.start_daemon(running.name, "h1")
        content(running, "h1")

    undisturbed(running, restart)
    seen = events(running, "h1")
    assert seen.count("datapath.adopted") == adopted + 1
    assert "datapath.replaced" not in seen
    assert "sessions.resumed" in seen


@pytest.mark.parametrize(
    ("settings", "mtu"),
    [('[transport]\ntc = "clsact"\n', 9000), ('[transport]\nxdp = "native"\n', 1500)],
    ids=["clsact", "native"],
)
def test_restart_where_programs_are_attached_in_other_ways(
    make_lab: MakeLab, settings: str, mtu: int
) -> None:
    running = make_lab(daemons=True, planes=2, mtu=mtu, on_stop="keep", settings=settings)
    settle(running)

    def restart() -> None:
        for number in (signal.SIGKILL, signal.SIGTERM):
            end(running, "h1", number)
            lab.start_daemon(running.name, "h1")
            content(running, "h1")

    undisturbed(running, restart)
    assert events(running, "h1").count("datapath.adopted") == 2
    now = lab_hosts.status(running.name, "h1")
    assert now is not None
    assert (now.datapath.tc == "clsact") == ("clsact" in settings)
    assert (now.datapath.xdp == "native") == ("native" in settings)


@pytest.mark.alone
def test_restart_costs_tcp_no_more_than_a_busy_cpu_does(running: Lab) -> None:
    """A starting daemon occupies a CPU for a second, and so does a plain busy interpreter."""

    def resent(during: Callable[[], None]) -> int:
        stream = Stream(running, "h1", "h2", H2).start()
        stream.progress(4 << 20)
        before = stream.retransmissions()
        during()
        stream.progress(4 << 20, 30)
        after = stream.retransmissions()
        stream.finish(30)
        return after - before

    def check_only() -> None:
        config = str(state.places(running.name, "h1").config)
        for _ in range(2):
            command = [sys.executable, "-m", "mrcd", "--config", config, "--check-config"]
            subprocess.run(command, cwd=ROOT, capture_output=True, check=True)

    def restart() -> None:
        end(running, "h1", signal.SIGTERM)
        lab.start_daemon(running.name, "h1")
        content(running, "h1")

    baseline = max(resent(check_only) for _ in range(3))
    found = min(resent(restart) for _ in range(3))
    assert found <= baseline + 2, (found, baseline)


@pytest.fixture
def other_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Return a function that makes the lab start a copy of mrcd with an altered file of bpf/."""

    def build(file: str, old: str, new: str) -> None:
        command = builds.build(tmp_path, [builds.Edit(f"bpf/{file}", old, new)])
        monkeypatch.setattr(processes, "daemon_command", lambda: [str(command)])

    return build


def test_upgrade_with_the_same_layout_under_traffic(
    running: Lab, other_build: Callable[[str, str, str], None]
) -> None:
    other_build("tick.c", "#define REVERSE_SACKS 4 ", "#define REVERSE_SACKS 8 ")
    before = programs(running, "h1")

    def made() -> int:
        """Count the programs that were made, whether an earlier run had compiled them or not."""
        logged = events(running, "h1")
        return logged.count("datapath.compiled") + logged.count("datapath.loaded")

    made_before = made()

    def upgrade() -> None:
        end(running, "h1", signal.SIGTERM)
        lab.start_daemon(running.name, "h1")
        content(running, "h1")

    undisturbed(running, upgrade)
    after = programs(running, "h1")
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert made() > made_before
    folder = state.places(running.name, "h1").bpffs
    assert len(list(folder.glob("layout-*/code-*"))) == 1  # the old ones are gone


def test_upgrade_to_another_layout_replaces_the_data_path(
    make_lab: MakeLab, other_build: Callable[[str, str, str], None]
) -> None:
    """Only h1 is upgraded; its wire format stays, but its maps change."""
    running = make_lab(daemons=True, planes=2, on_stop="keep")
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(1 << 20)
    other_build("mrc_abi.h", "#define MRC_ABI_VERSION 1", "#define MRC_ABI_VERSION 2")
    end(running, "h1", signal.SIGTERM)
    lab.start_daemon(running.name, "h1")
    content(running, "h1")
    stream.progress(1 << 20, 30)
    stream.finish(30)
    (entry,) = [e for e in log_of(running, "h1") if e["event"] == "datapath.replaced"]
    assert "another layout" in entry["reason"]
    folder = state.places(running.name, "h1").bpffs
    assert len(list(folder.glob("layout-*"))) == 1


# ---- events while no daemon runs


def test_plane_that_went_down_while_the_daemon_was_away_is_noticed(running: Lab) -> None:
    end(running, "h1", signal.SIGTERM)
    running.fault("h1:p1", "down")
    lab.start_daemon(running.name, "h1")
    eventually(
        lambda: (
            (now := lab_hosts.status(running.name, "h1")) is not None and not now.planes[1].usable
        ),
        "h1 sees that plane 1 is down",
        SETTLED_S,
    )
    eventually(
        lambda: (
            lab_hosts.mrcctl_json(running.name, "h2", "peer", "list")["peers"][0]["planes_usable"]
            == [0]
        ),
        "h2 was told",
    )
    running.fault("h1:p1", "clear")
    settle(running)
    transfer(running, "h2", "h1", H1, 1 << 20)


def test_what_operators_decided_survives(running: Lab) -> None:
    assert mrcctl(running.name, "h1", "path", "deny", "p0t1-2").returncode == 0
    assert mrcctl(running.name, "h1", "plane", "drain", "1").returncode == 0

    def denied() -> set[tuple[int, int, int]]:
        paths = lab_hosts.paths(running.name, "h1")
        return {(p.qp, p.plane, p.t1) for p in paths if p.state == "DENIED"}

    before = denied()
    assert before
    end(running, "h1", signal.SIGKILL)
    lab.start_daemon(running.name, "h1")
    eventually(lambda: lab_hosts.status(running.name, "h1"), "h1 answers", SETTLED_S)
    assert denied() == before
    now = lab_hosts.status(running.name, "h1")
    assert now is not None
    assert [plane.drained for plane in now.planes] == [False, True]
    assert mrcctl(running.name, "h1", "path", "allow", "p0t1-2").returncode == 0
    assert mrcctl(running.name, "h1", "plane", "undrain", "1").returncode == 0
    assert denied() == set()


# ---- obstacles and leftovers


def test_foreign_xdp_program_is_never_replaced(make_lab: MakeLab, tmp_path: Path) -> None:
    running = make_lab(daemons=False, planes=2, settings='[transport]\nxdp = "native"\n')
    passes = struct.pack("<BBhi", 0xB7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    fd, _ = bpf.load_program(bpf.PROG_TYPE_XDP, passes, name="somebody_elses")
    pin = state.bpffs(running.name) / "foreign"
    bpf.pin(fd, pin)
    with netns.entered(running.namespace("h1")):
        subprocess.run(
            ["ip", "link", "set", "plane1", "xdpgeneric", "pinned", str(pin)], check=True
        )
    process = lab.start_daemon(running.name, "h1")
    assert process.wait(60) == 1
    last = log_of(running, "h1")[-1]
    assert last["event"] == "daemon.failed"
    assert "somebody_elses" in last["error"]
    assert "plane1" in last["error"]
    assert "xdpgeneric off" in last["error"]
    with netns.entered(running.namespace("h1")):
        shown = subprocess.run(
            ["ip", "-d", "link"], check=True, capture_output=True, text=True
        ).stdout
        assert "mrc0" not in shown
        assert f"prog/xdp id {bpf.prog_info(fd).ident}" in shown
        subprocess.run(["ip", "link", "set", "plane1", "xdpgeneric", "off"], check=True)
    os.close(fd)
    lab.start_daemon(running.name, "h1")
    lab.start_daemon(running.name, "h2")
    content(running, "h1")


def test_strays_are_removed(running: Lab) -> None:
    folder = state.places(running.name, "h1").bpffs
    (layout,) = folder.glob("layout-*")
    (code,) = layout.glob("code-*")
    end(running, "h1", signal.SIGTERM)
    for stray in (
        folder / "layout-0123",
        folder / "building-layout-77",
        layout / "building-code-1",
    ):
        stray.mkdir()
        fd = bpf.create_array(8, 1, name="stray")
        bpf.pin(fd, stray / "host")
        os.close(fd)
    with netns.entered(running.namespace("h1")):
        subprocess.run(
            ["ip", "link", "add", "gone0", "type", "veth", "peer", "name", "gone1"], check=True
        )
        program = bpf.get(code / "mrc_receive")
        link = bpf.create_link(
            program, socket.if_nametoindex("gone0"), bpf.ATTACH_TCX_INGRESS, flags=0
        )  # fmt: skip
        bpf.pin(link, folder / "link_tc_gone0")
        subprocess.run(["ip", "link", "del", "gone0"], check=True)
    os.close(link)
    os.close(program)
    lab.start_daemon(running.name, "h1")
    content(running, "h1")
    assert "strays.removed" in events(running, "h1")
    left = {entry.name for entry in folder.iterdir() if not entry.name.startswith("address-")}
    hooked = ("mrc0p", "mrc0cp", "mrc0b", "mrc0bp", "plane0", "plane1")
    links = {f"link_tc_{name}" for name in hooked}
    assert left == {"device-mrc0p", "device-mrc0c", "device-mrc0b", layout.name} | links
    assert list(layout.glob("building-*")) == []


def test_pins_of_a_data_path_that_is_not_whole_are_replaced(running: Lab) -> None:
    (layout,) = state.places(running.name, "h1").bpffs.glob("layout-*")
    end(running, "h1", signal.SIGTERM)
    (layout / "rx_ring").unlink()
    lab.start_daemon(running.name, "h1")
    content(running, "h1")
    reasons = [e["reason"] for e in log_of(running, "h1") if e["event"] == "datapath.replaced"]
    assert "not whole" in reasons[-1]
    transfer(running, "h1", "h2", H2, 1 << 20)


@pytest.mark.parametrize("content_of_file", [None, b"", b"{", b'{"version": 99}', b"\xff" * 40])
def test_sessions_that_were_forgotten_begin_anew(
    running: Lab, content_of_file: bytes | None
) -> None:
    """The data path and mrc0 stay; only the QPs are set up again."""
    path = state.places(running.name, "h1").folder / "sessions.json"
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(1 << 20)
    end(running, "h1", signal.SIGTERM)
    path.unlink()
    if content_of_file is not None:
        path.write_bytes(content_of_file)
    lab.start_daemon(running.name, "h1")
    content(running, "h1")
    stream.progress(1 << 20, 30)
    stream.finish(30)
    assert events(running, "h1")[-1] != "daemon.failed"


# ---- stopping


@pytest.mark.parametrize("policy", ["drain", "detach"])
def test_stop_policies_that_take_the_data_path_down(make_lab: MakeLab, policy: str) -> None:
    running = make_lab(daemons=True, planes=2, on_stop=policy)
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(1 << 20)
    before = lab_hosts.counters(running.name, "h2")["ports_rx"]
    end(running, "h1", signal.SIGTERM)
    assert sorted(state.places(running.name, "h1").bpffs.iterdir()) == []
    assert "mrc0" not in running.run("h1", "ip", "link")
    seen = events(running, "h1")
    assert "datapath.detached" in seen
    assert "drain.incomplete" not in seen
    told = lab_hosts.counters(running.name, "h2")["ports_rx"] - before
    assert told == (1 if policy == "drain" else 0)
    stream.close()


def test_kept_data_path_is_taken_down_by_hand(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2, on_stop="keep")
    folder = state.places(running.name, "h1").bpffs
    end(running, "h1", signal.SIGTERM)
    assert running.pings("h1", H2)
    done = mrcctl(running.name, "h1", "datapath", "detach", "--bpffs", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(folder.iterdir()) == []
    assert "mrc0" not in running.run("h1", "ip", "link")


# ---- another configuration, while it runs


@pytest.fixture(scope="module")
def three(module_labs: MakeLab) -> Lab:
    """Return a lab of three hosts; each test configures h1."""
    return module_labs(daemons=True, hosts=3, planes=2, t1=2, on_stop="keep")


def configure(running: Lab, more: str, *, peers: tuple[str, ...] = ("h2", "h3")) -> None:
    """Give h1 another configuration, and wait until its daemon has read it."""
    places = state.places(running.name, "h1")
    text = '[host]\nname = "h1"\nfabric = "../fabric.toml"\n[service]\non_stop = "keep"\n'
    text += '[keys]\nsecret_file = "../fabric.secret"\n' + more
    text += "".join(f'[[peer]]\nname = "{name}"\n' for name in peers)
    places.config.write_text(text)
    before = len(log_of(running, "h1"))
    pid = lab.daemon_pid(running.name, "h1")
    assert pid is not None
    os.kill(pid, signal.SIGHUP)

    def changed() -> bool:
        names = [entry["event"] for entry in log_of(running, "h1")[before:]]
        return "config.changed" in names or "config.refused" in names

    eventually(changed, "h1 has read its configuration", SETTLED_S)


def qps_with(running: Lab, peer: str) -> list[tuple[int, int]]:
    return [
        (qp["qpn"], qp["remote_qpn"]) for qp in connections(running, "h1") if qp["peer"] == peer
    ]


def test_peers_come_and_go_under_traffic(three: Lab) -> None:
    settle(three)
    before = qps_with(three, "h2")
    transfer(three, "h1", "h3", H3, 1 << 18)
    traffic = Traffic(three)
    configure(three, "", peers=("h2",))
    assert [peer["name"] for peer in
            lab_hosts.mrcctl_json(three.name, "h1", "peer", "list")["peers"]] == ["h2"]  # fmt: skip
    assert not three.pings("h1", H3)
    assert H3 not in three.run("h1", "ip", "route", "show", "dev", "mrc0")
    configure(three, "")
    eventually(lambda: three.pings("h1", H3), "h3 is a peer again", 30)
    traffic.finish()
    transfer(three, "h1", "h3", H3, 1 << 18)
    assert qps_with(three, "h2") == before
    assert "daemon.failed" not in events(three, "h1")
    assert "datapath.restarting" not in events(three, "h1")


def test_addresses_and_tunables_change_under_traffic(three: Lab) -> None:
    settle(three)
    before = qps_with(three, "h2")
    traffic = Traffic(three)
    more = '[mrc0]\naddresses = ["10.99.0.1/24", "fd99::1/64", "10.97.0.1/24"]\n'
    configure(three, more + "[transport]\ntick_us = 500\nprobe_pps = 100\nsurvey_pps = 0\n")
    assert "10.97.0.1/24" in three.run("h1", "ip", "address", "show", "dev", "mrc0")
    eventually(lambda: "survey.off" in events(three, "h1"), "the survey is off")
    traffic.there.progress(1 << 20, 30)
    configure(three, "")
    assert "10.97.0.1/24" not in three.run("h1", "ip", "address", "show", "dev", "mrc0")
    traffic.finish()
    assert qps_with(three, "h2") == before
    changed = [e["path"] for e in log_of(three, "h1") if e["event"] == "config.changed"]
    assert {"mrc0.addresses", "transport.tick_us", "transport.probe_pps"} <= set(changed)


def test_configuration_with_errors_changes_nothing(three: Lab) -> None:
    settle(three)
    before = qps_with(three, "h2")
    configure(three, "[transport]\nmpr = 3\n")
    assert "config.refused" in events(three, "h1")
    assert qps_with(three, "h2") == before
    configure(three, "[transport]\nprobe_pps = 1999\n")
    configure(three, "")


def test_change_that_needs_other_maps_builds_them_anew(three: Lab) -> None:
    settle(three)
    stream = Stream(three, "h1", "h2", H2).start()
    stream.progress(1 << 20)
    configure(three, "[transport]\nmpr = 1024\n")
    content(three, "h1")
    stream.progress(1 << 20, 30)
    stream.finish(30)
    assert {qp["mpr"] for qp in connections(three, "h1")} == {1024}
    entries = [e for e in log_of(three, "h1") if e["event"] == "config.changed"]
    assert entries[-1]["how"] == "restart"
    assert "datapath.restarting" in events(three, "h1")


def test_configuration_by_mrcctl(three: Lab, tmp_path: Path) -> None:
    """The shown configuration applies without a change, and an unconfirmed one is rolled back."""
    settle(three)
    before = qps_with(three, "h2")

    def config(*arguments: str) -> dict[str, Any]:
        done = mrcctl(three.name, "h1", "config", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    shown = tmp_path / "shown.toml"
    shown.write_text(config("show")["text"])
    assert config("apply", str(shown))["diff"]["changes"] == []

    faster = tmp_path / "faster.toml"
    faster.write_text(shown.read_text().replace("probe_pps = 2000", "probe_pps = 1500"))
    (change,) = config("diff", str(faster))["diff"]["changes"]
    assert (change["path"], change["new"], change["how"]) == ("transport.probe_pps", "1500", "live")
    assert config("apply", str(faster), "--confirm", "15")["diff"]["confirm_s"] == 15
    assert "probe_pps = 1500" in config("show")["text"]
    eventually(lambda: "probe_pps = 2000" in config("show")["text"], "the former one returns", 60)
    assert "config.returned" in events(three, "h1")

    config("apply", str(faster), "--confirm", "600")
    assert mrcctl(three.name, "h1", "config", "confirm").returncode == 0
    assert mrcctl(three.name, "h1", "config", "confirm").returncode == 1  # nothing waits
    assert config("apply", str(shown))["diff"]["changes"] != []
    assert qps_with(three, "h2") == before

    wrong = tmp_path / "wrong.toml"
    wrong.write_text(re.sub(r"\bmpr = \d+", "mpr = 3", shown.read_text()))
    assert mrcctl(three.name, "h1", "config", "apply", str(wrong)).returncode == 2
    assert qps_with(three, "h2") == before
