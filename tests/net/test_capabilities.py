# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcd without root's rights: it needs every capability of its unit, and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.lab import lab, processes, state
from mrcd.service import capabilities
from rigs import lab_hosts
from rigs.running_lab import MakeLab, RunningLab

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd" / "mrcd-privileged@.service"
SETTLED_S = 120.0  # it compiles, which takes seconds, and far longer on a busy machine
UID = 64321
"""A uid without a user."""
UNCHECKED = """
from mrcd import main
from mrcd.service import capabilities

capabilities.NEEDED.clear()
main.main(prog_name="mrcd")
"""
"""An mrcd that does not check its capabilities at the start, so that missing ones show later."""


def granted() -> list[str]:
    """Return the capabilities that the unit grants, as setpriv names them."""
    for line in UNIT.read_text().splitlines():
        if line.startswith("AmbientCapabilities="):
            return [name.removeprefix("CAP_").lower() for name in line.split("=")[1].split()]
    raise AssertionError(f"{UNIT} grants nothing")


@pytest.fixture
def open_checkout() -> None:
    """Skip tests unless an unprivileged user may read the programs."""
    for folder in (Path(sys.executable).parent, ROOT / "mrcd"):
        if any(not parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents)):
            pytest.skip(f"{folder} is closed to other users, as whom mrcd should run here")


def start(running: RunningLab, names: list[str], command: list[str]) -> subprocess.Popen[bytes]:
    """Start h1's mrcd with some capabilities, as a uid that owns the folders of the unit."""
    spot = state.places(running.name, "h1")
    spot.bpffs.mkdir(exist_ok=True)
    secret = state.secret(running.name)
    own = shutil.copy2(secret, spot.folder)  # a daemon takes key files of its own user only
    spot.config.write_text(spot.config.read_text().replace(f"../{secret.name}", secret.name))
    for owned in (spot.folder, spot.bpffs, own):
        os.chown(owned, UID, UID)
    state.CACHE_DIR.mkdir(mode=0o700, exist_ok=True)  # root's: the daemon must do without it
    caps = ",".join(["-all", *(f"+{name}" for name in names)])
    with spot.log.open("ab") as log:
        return processes.spawn(
            running.namespace("h1"),
            ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs",
             f"--inh-caps={caps}", f"--ambient-caps={caps}", f"--bounding-set={caps}",
             *command, "--config", str(spot.config), "--socket", str(spot.socket),
             "--state-dir", str(spot.folder), "--bpffs", str(spot.bpffs),
             "--cache-dir", str(state.CACHE_DIR)],
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
            SETTLED_S,
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
    assert process.wait(SETTLED_S) == 5
    assert f"mrcd: lacks CAP_{missing.upper()}: " in log.read_text()

    process = start(running, names, [sys.executable, "-c", UNCHECKED])
    assert process.wait(SETTLED_S) == 1
    assert "daemon.failed" in log.read_text()
