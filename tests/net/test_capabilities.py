# SPDX-License-Identifier: GPL-2.0-only
"""mrcd without root's rights: the capabilities of its unit are enough, and none is too many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrcd.lab import lab, processes, state
from mrcd.service import capabilities
from tests.net import lab_hosts
from tests.net.conftest import MakeLab, RunningLab

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd" / "mrcd.service"
UID = 64321
"""Nobody's."""
UNCHECKED = """
from mrcd import main
from mrcd.service import capabilities

capabilities.NEEDED.clear()
main.main(prog_name="mrcd")
"""
"""mrcd that finds out for itself what it may not do."""


def granted() -> list[str]:
    """What the unit gives, as setpriv names it."""
    for line in UNIT.read_text().splitlines():
        if line.startswith("AmbientCapabilities="):
            return [name.removeprefix("CAP_").lower() for name in line.split("=")[1].split()]
    raise AssertionError(f"{UNIT} grants nothing")


@pytest.fixture
def open_checkout() -> None:
    """The programs must be open to a stranger."""
    for folder in (Path(sys.executable).parent, ROOT / "mrcd"):
        if any(not parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents)):
            pytest.skip(f"{folder} is closed to other users, as whom mrcd should run here")


def start(running: RunningLab, names: list[str], command: list[str]) -> subprocess.Popen[bytes]:
    """mrcd of h1 with some capabilities, as a user of no name who owns what the unit gives it."""
    spot = state.places(running.name, "h1")
    spot.bpffs.mkdir(exist_ok=True)
    for folder in (spot.folder, spot.bpffs):
        os.chown(folder, UID, UID)
    caps = ",".join(["-all", *(f"+{name}" for name in names)])
    with spot.log.open("ab") as log:
        return processes.spawn(
            running.namespace("h1"),
            ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs",
             f"--inh-caps={caps}", f"--ambient-caps={caps}", f"--bounding-set={caps}",
             *command, "--config", str(spot.config), "--socket", str(spot.socket),
             "--state-dir", str(spot.folder), "--bpffs", str(spot.bpffs)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.mark.usefixtures("open_checkout")
def test_the_capabilities_of_the_unit_are_enough(make_lab: MakeLab) -> None:
    running = make_lab(planes=1)
    far = lab.start_daemon(running.name, "h2")
    process = start(running, granted(), processes.daemon_command())
    try:
        lab_hosts.eventually(
            lambda: process.poll() is not None or lab_hosts.ok(running.name, "h1"),
            "mrcd of h1 is ok",
            30,
        )
        assert process.poll() is None, state.places(running.name, "h1").log.read_text()
        assert running.pings("h1", "10.99.0.2")
        assert f"\nUid:\t{UID}\t" in Path(f"/proc/{process.pid}/status").read_text()
    finally:
        processes.stop([process.pid, far.pid])
    assert process.wait() == 0


@pytest.mark.usefixtures("open_checkout")
@pytest.mark.parametrize(
    "missing", [name.removeprefix("CAP_").lower() for name in capabilities.NEEDED]
)
def test_no_capability_is_too_many(make_lab: MakeLab, missing: str) -> None:
    running = make_lab(planes=1)
    names = [name for name in granted() if name != missing]
    log = state.places(running.name, "h1").log
    process = start(running, names, processes.daemon_command())
    assert process.wait(30) == 5
    assert f"mrcd: lacks CAP_{missing.upper()}: " in log.read_text()

    process = start(running, names, [sys.executable, "-c", UNCHECKED])
    assert process.wait(30) == 1
    assert "daemon.failed" in log.read_text()
