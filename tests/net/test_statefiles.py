# SPDX-License-Identifier: GPL-2.0-only
"""Test that damaged state files and full disks are named, and that the operator's decisions act."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, processes, state
from rigs import lab_hosts
from rigs.lab_hosts import eventually, mrcctl, mrcctl_json
from rigs.traffic import transfer

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H2 = "10.99.0.2"
BYTES = 256 * 1024


def stop(running: Lab) -> None:
    """End h1's daemon, and wait until it is gone."""
    pid = lab.daemon_pid(running.name, "h1")
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: lab.daemon_pid(running.name, "h1") is None, "mrcd of h1 has ended")


def reasons(running: Lab) -> list[str]:
    """Return why h1's daemon is degraded, other than by a drained plane."""
    status = lab_hosts.status(running.name, "h1")
    assert status is not None
    assert (status.state == "ok") == (not status.reasons)
    return [reason for reason in status.reasons if "drained by the operator" not in reason]


def reaches_its_peer(running: Lab) -> None:
    eventually(lambda: lab_hosts.status(running.name, "h1"), "h1's daemon answers", 60)
    eventually(lambda: running.pings("h1", H2), "h1 reaches h2", 60)


def denied(running: Lab) -> list[str]:
    shown = mrcctl_json(running.name, "h1", "path", "denied")
    return [rule["element"] for rule in shown["rules"]]


def drained(running: Lab) -> list[int]:
    status = lab_hosts.status(running.name, "h1")
    assert status is not None
    return [plane.index for plane in status.planes if plane.drained]


def test_damaged_files_are_named_and_the_last_good_rules_hold(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=3)
    assert mrcctl(running.name, "h1", "path", "deny", "p0t1-1").returncode == 0
    assert mrcctl(running.name, "h1", "plane", "drain", "2").returncode == 0
    stop(running)
    folder = state.places(running.name, "h1").folder
    (folder / "denylist.json").write_bytes((folder / "denylist.json").read_bytes()[:20])
    (folder / "drained.json").write_bytes(b"\0" * 30)
    lab.start_daemon(running.name, "h1")
    reaches_its_peer(running)

    assert denied(running) == ["p0t1-1"]
    assert drained(running) == [2]
    said = reasons(running)
    for name in ("denylist.json", "drained.json"):
        (line,) = (reason for reason in said if reason.startswith(f"{folder / name} "))
        assert "is damaged" in line
        assert f"those of its copy {name}.copy" in line
        assert "remedy" in line
    assert "trouble.found" in state.places(running.name, "h1").log.read_text()

    assert mrcctl(running.name, "h1", "plane", "undrain", "2").returncode == 0
    assert mrcctl(running.name, "h1", "path", "allow", "p0t1-1").returncode == 0
    lab_hosts.until_ok(running.name, "h1")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system on a folder for the time of a block."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={BYTES}", "small", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file until there is no room left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def start_with(running: Lab, folder: Path) -> None:
    """Start h1's daemon with another state folder."""
    spot = state.places(running.name, "h1")
    command = [
        *processes.daemon_command(),
        *("--config", str(spot.config), "--socket", str(spot.socket)),
        *("--state-dir", str(folder), "--cache-dir", str(state.CACHE_DIR)),
        *("--bpffs", str(spot.bpffs)),
    ]
    with spot.log.open("ab") as log:
        process = processes.spawn(
            running.namespace("h1"), command, stdout=log, stderr=subprocess.STDOUT
        )
    spot.pid.write_text(f"{process.pid}\n")
    reaches_its_peer(running)


@pytest.mark.alone
def test_full_disk_delays_no_decision(make_lab: MakeLab, tmp_path: Path) -> None:
    running = make_lab(daemons=True, planes=3)
    stop(running)
    with small_disk(tmp_path / "state") as folder:
        start_with(running, folder)
        lab_hosts.until_ok(running.name, "h1")
        fill(folder / "filler")
        for words, says in (
            (("plane", "drain", "2"), "the drained planes are in force"),
            (("path", "deny", "p0t1-1"), "the denied elements are in force"),
        ):
            done = mrcctl(running.name, "h1", *words)
            assert done.returncode == 0, done.stderr
            assert f"{says}, but will not survive a restart of mrcd" in done.stderr
            assert "No space left on device" in done.stderr
        assert drained(running) == [2]
        assert denied(running) == ["p0t1-1"]
        states = {
            path.state
            for path in lab_hosts.paths(running.name, "h1")
            if (path.plane, path.t1) == (0, 1)
        }
        assert states == {"DENIED"}
        transfer(running, "h1", "h2", H2, 1 << 20)
        said = reasons(running)
        assert sum("will not survive a restart of mrcd" in reason for reason in said) == 2

        (folder / "filler").unlink()
        eventually(lambda: not reasons(running), "the files are written when there is room")
        done = mrcctl(running.name, "h1", "plane", "drain", "2")
        assert (done.returncode, done.stderr) == (0, "")
        stop(running)
        start_with(running, folder)
        assert drained(running) == [2]
        assert denied(running) == ["p0t1-1"]
        stop(running)


def test_damaged_sessions_begin_anew(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2)
    stop(running)
    spot = state.places(running.name, "h1")
    (spot.folder / "sessions.json").write_bytes(b"{")
    lab.start_daemon(running.name, "h1")
    reaches_its_peer(running)
    lab_hosts.until_ok(running.name, "h1", 30)
    assert "sessions.ignored" in spot.log.read_text()
