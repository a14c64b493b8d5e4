# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl capture in a lab: it shows traffic and does not disturb it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, state
from mrcd.fabric.routing import Routing
from mrcd.wire.packet import WIRE
from rigs import lab_hosts
from rigs.daemons import (
    H1,
    H2,
    Sessions,
    content,
    end,
    events,
    programs,
    settle,
    undisturbed,
)
from rigs.lab_hosts import ROOT, eventually
from rigs.traffic import Stream, transfer
from tests.tshark import SCRIPT

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
SWITCHINGS = 20
RATE_MBPS = 100

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def kept(module_labs: MakeLab) -> Lab:
    """Return a lab whose daemons leave their data path in place when they stop.

    Its links are slow, so that a process has time to look at every packet.
    """
    return module_labs(daemons=True, planes=2, t1=2, on_stop="keep", rate_mbps=RATE_MBPS)


@pytest.fixture
def running(kept: Lab) -> Iterator[Lab]:
    """Return that lab with every daemon up and ok before and after, without rules or faults."""
    settle(kept)
    yield kept
    lab_hosts.heal(kept)
    settle(kept)


class Capturing:
    """A run of mrcctl capture on a host, which has begun when the object exists."""

    def __init__(self, running: Lab, host: str, *args: str) -> None:
        line, environment = lab.command_in(
            running.name, host, [sys.executable, "-m", "cli", "capture", *args]
        )
        self.process = subprocess.Popen(
            line, env=dict(environment), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        assert first.startswith("capturing on "), first + self.process.stderr.read()

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[str, str]:
        """End it with a signal, and return its output."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)


@contextlib.contextmanager
def capturing(running: Lab, host: str, *args: str) -> Iterator[Capturing]:
    made = Capturing(running, host, *args)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def packets(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def back(running: Lab, host: str, before: dict[str, int]) -> None:
    """Wait until the earlier programs are attached again."""
    eventually(lambda: programs(running, host) == before, "ordinary programs are back", 30)


def test_packets_and_their_verdicts(running: Lab) -> None:
    before = programs(running, "h1")
    with capturing(running, "h1", "--json") as capture:
        assert not set(programs(running, "h1").values()) & set(before.values())
        assert running.pings("h1", H2)
        out, said = capture.end()
    assert "packets captured" in said
    assert "not captured" not in said
    found = packets(out)
    data = [packet for packet in found if packet["kind"] == "cell"]
    assert {packet["peer"] for packet in data} == {"h2"}
    # a machine that is busy for longer than a time-out causes retransmissions
    for direction, first, later in (
        ("tx", "sent", {"rtx_timeout", "rtx_guard", "rtx_fifo"}),
        ("rx", "in order", {"duplicate"}),
    ):
        verdicts = defaultdict(list)
        began: dict[int, int] = {}  # before these PSNs are copies of what passed before the capture
        for packet in data:
            qp, psn = packet["qp"], packet["psn"]
            if packet["direction"] == direction:
                if packet["verdict"] == first:
                    began.setdefault(qp, psn)
                if psn >= began.get(qp, 1 << 24):
                    verdicts[qp, psn].append(packet["verdict"])
        assert verdicts
        for each in verdicts.values():
            assert each[0] == first
            assert set(each[1:]) <= later
    paths = {path.ev for path in lab_hosts.paths(running.name, "h1")}
    assert {packet["ev"] for packet in data} <= paths
    back(running, "h1", before)
    assert events(running, "h1").count("capture.began") == events(running, "h1").count(
        "capture.ended"
    )


def test_retransmissions_of_a_black_hole_in_wireshark(running: Lab, tmp_path: Path) -> None:
    """Packets lost on the black-holed path are sent again on another, marked as retransmissions."""
    path = tmp_path / "lost.pcapng"
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(1 << 20)
    with capturing(running, "h1", "-w", str(path), "-s", "200", "-Q", "tx") as capture:
        running.fault("p1t0-1:p1t1-2", "blackhole")
        eventually(
            lambda: lab_hosts.counters(running.name, "h1")["path_withdrawn"], "a path is withdrawn"
        )
        assert running.pings("h1", H2)
        stream.progress(1 << 20, 30)
        capture.end()
    stream.finish(30)
    rows = read(path)
    assert {row["frame.interface_name"] for row in rows} == {"plane0", "plane1"}
    assert {int(row["frame.packet_flags_direction"], 0) for row in rows} == {2}
    again = [row for row in rows if " by rtx_" in row["frame.comment"]]
    assert again
    assert all(row["mrc.cell.attempt"] not in ("", "0") for row in again)
    black = "path plane 1 t1 2 "
    first = set().union(*(packets_of(r) for r in rows if r["frame.comment"].startswith(black)))
    repaired = [row for row in again if packets_of(row) & first]
    assert repaired
    assert any(not row["frame.comment"].startswith(black) for row in repaired)


@pytest.mark.parametrize("underlay", [4, 6])
def test_cells_in_udp(make_lab: MakeLab, underlay: int, tmp_path: Path) -> None:
    """What mrcctl writes beside each packet is what the dissector reads in it."""
    routing, path = Routing("ecmp", underlay=underlay), tmp_path / "some.pcapng"
    running = make_lab(
        daemons=True, planes=2, t1=2, routing=routing, rate_mbps=RATE_MBPS, mtu=1500,
        settings="[transport]\ncell_min = 16384\n",
    )  # fmt: skip
    settle(running)
    with capturing(running, "h1", "-w", str(path), "-s", "200") as capture:
        transfer(running, "h1", "h2", H2, 1 << 20)
        transfer(running, "h2", "h1", H1, 1 << 20)
        capture.end()
    rows = read(path)
    assert {int(row["frame.packet_flags_direction"], 0) for row in rows} == {1, 2}
    assert any(row["frame.comment"].endswith("verdict in order") for row in rows)
    several = 0
    for row in rows:
        psns = sorted(psn for _qp, psn in packets_of(row))
        assert int(row["mrc.cell.piece.packets"]) == len(psns)
        assert int(row["mrc.cell.piece.psn"], 0) in psns
        several += len(psns) > 1
    assert several, "TCP's segments left whole"


def packets_of(row: dict[str, str]) -> set[tuple[str, int]]:
    """Return the QP and each PSN in the comment on a cell."""
    words = row["frame.comment"].split()
    qp, psns = words[words.index("qp") + 1], words[words.index("psn") + 1]
    first, last = (int(psn) for psn in (psns.split("-")[0], psns.split("-")[-1]))
    return {(qp, first + i & WIRE.MRC_PSN_MASK) for i in range((last - first) % (1 << 24) + 1)}


def read(path: Path) -> list[dict[str, str]]:
    """Return tshark's fields of the cells in a file."""
    program = shutil.which("tshark")
    assert program is not None, "tshark is not installed: run make setup"
    fields = ["frame.comment", "frame.interface_name", "frame.packet_flags_direction",
              "mrc.cell.attempt", "mrc.cell.piece.psn", "mrc.cell.piece.packets",
              "_ws.lua.error"]  # fmt: skip
    done = subprocess.run(
        [program, "-n", "-X", f"lua_script:{SCRIPT}", "-r", str(path), "-Y",
         "mrc.cell.attempt", "-T", "fields",
         *(part for field in fields for part in ("-e", field))],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    rows = [dict(zip(fields, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]
    assert not any(row["_ws.lua.error"] for row in rows)
    return rows


def test_switching_on_and_off_under_traffic(running: Lab) -> None:
    before = programs(running, "h1")
    drops = dropped(running)

    def switch() -> None:
        for _ in range(SWITCHINGS):
            with capturing(running, "h1", "-s", "64") as capture:
                capture.end()
        back(running, "h1", before)

    undisturbed(running, switch)
    assert dropped(running) == drops


def dropped(running: Lab) -> dict[str, int]:
    """Return the drop counters of both hosts, without those by which TCP is slowed down."""
    return {
        f"{host.name} {name}": value
        for host in running.fabric.hosts
        for name, value in lab_hosts.counters(running.name, host.name).items()
        if name.startswith("drop_") and name not in ("drop_early", "drop_window", "drop_backlog")
    }


@pytest.mark.parametrize(
    ("settings", "mtu", "kind"),
    [
        ('[transport]\ntc = "clsact"\n', 9000, "cell"),
        ('[transport]\ntc = "clsact"\nframing = "mrc"\n', 9000, "data"),
        ('[transport]\nxdp = "native"\n', 1500, "cell"),
        ('[transport]\nxdp = "native"\nframing = "mrc"\n', 1500, "data"),
    ],
    ids=["clsact, cells", "clsact, mrc", "native, cells", "native, mrc"],
)
def test_programs_that_are_attached_in_other_ways(
    make_lab: MakeLab, settings: str, mtu: int, kind: str
) -> None:
    running = make_lab(daemons=True, planes=2, mtu=mtu, settings=settings, rate_mbps=RATE_MBPS)
    settle(running)
    shown: list[str] = []

    def switch() -> None:
        for _ in range(3):
            with capturing(running, "h1", "--json", "-c", "2000") as capture:
                shown.append(capture.process.communicate(timeout=60)[0])

    undisturbed(running, switch)
    # Where CPUs are short, all packets of one capture may be of one direction.
    every = [packet for text in shown for packet in packets(text) if packet["kind"] == kind]
    assert {"sent", "in order"} <= {packet["verdict"] for packet in every}
    for text in shown:
        if "native" in settings and kind == "cell":
            continue  # GRO merges cells behind XDP, and one verdict is for several packets
        passed = sum(packet["verdict"] == "passed" for packet in packets(text))
        assert passed < 100  # packets whose verdict fell between two programs


def test_one_at_a_time(running: Lab) -> None:
    with capturing(running, "h1"):
        second = lab_hosts.mrcctl(running.name, "h1", "capture", "-c", "1")
    assert second.returncode == 1
    assert "another capture runs" in second.stderr


def test_a_client_that_is_killed(running: Lab) -> None:
    before = programs(running, "h1")
    with capturing(running, "h1") as capture:
        capture.end(signal.SIGKILL)
    back(running, "h1", before)


def test_a_client_that_does_not_read_harms_nobody(running: Lab, tmp_path: Path) -> None:
    """The ring buffer fills, and records that find no room are counted."""
    with capturing(running, "h1", "-w", str(tmp_path / "some.pcapng")) as capture:
        capture.process.send_signal(signal.SIGSTOP)
        stream = Stream(running, "h1", "h2", H2).start()
        stream.progress(16 << 20, 60)
        stream.finish(30)
        assert lab_hosts.ok(running.name, "h1")
        capture.process.send_signal(signal.SIGINT)
        capture.process.send_signal(signal.SIGCONT)
        _out, said = capture.process.communicate(timeout=100)
    assert "packets not captured: the ring buffer was full" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_that_ends_while_it_captures(running: Lab, number: signal.Signals) -> None:
    before = programs(running, "h1")
    sessions = Sessions.of(running)

    def restart() -> None:
        with capturing(running, "h1") as capture:
            end(running, "h1", number)
            _out, said = capture.process.communicate(timeout=60)
            assert capture.process.returncode in (1, 3), said
        if number == signal.SIGTERM:
            assert programs(running, "h1") == before
        else:
            assert not set(programs(running, "h1").values()) & set(before.values())
        lab.start_daemon(running.name, "h1")
        content(running, "h1")
        assert programs(running, "h1") == before

    undisturbed(running, restart)
    assert Sessions.of(running) == sessions
    folder = state.places(running.name, "h1").bpffs
    assert not list(folder.glob("layout-*/*capture*"))


def test_nothing_stays_in_the_kernel(running: Lab) -> None:
    """A capture pins nothing, not even while it runs."""
    folder = state.places(running.name, "h1").bpffs
    with capturing(running, "h1") as capture:
        assert not list(folder.glob("layout-*/*capture*"))
        assert os.path.exists(f"/proc/{capture.process.pid}")
