# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcd under a supervisor: its notifications, and the socket that it is given."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.lab import processes, state
from mrcd.linux import netns
from rigs import lab_hosts
from rigs.lab_hosts import ROOT, eventually

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
SETTLED_S = 120.0  # compiling takes seconds, and far longer on a busy machine

_ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Start a service like a socket unit does; the service keeps this process's pid."""

pytestmark = pytest.mark.timeout(240)


class Supervisor:
    """Starts h1's mrcd like systemd and receives its notifications."""

    def __init__(self, running: Lab, folder: Path, **environment: str) -> None:
        self._running = running
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self._environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), **environment}
        self.heard: list[str] = []

    def start(self, front: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        places = state.places(self._running.name, "h1")
        command = [
            *front, sys.executable, "-m", "mrcd", "--config", str(places.config),
            "--socket", str(places.socket), "--state-dir", str(places.folder),
            "--bpffs", str(places.bpffs), "--cache-dir", str(state.CACHE_DIR),
        ]  # fmt: skip
        with places.log.open("ab") as log:
            process = processes.spawn(
                self._running.namespace("h1"), command, stdout=log, stderr=log,
                environment={**self._environment, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        places.pid.write_text(f"{process.pid}\n")
        return process

    def until(self, word: str, within_s: float = SETTLED_S) -> list[str]:
        """Return the messages up to and including the one that has this line."""
        end = time.monotonic() + within_s
        said: list[str] = []
        while True:
            self._notify.settimeout(max(0.01, end - time.monotonic()))
            try:
                lines = self._notify.recv(4096).decode().split("\n")
            except TimeoutError:
                raise AssertionError(f"no {word} within {within_s} s, only {said}") from None
            said += lines
            if word in lines:
                return said

    def close(self) -> None:
        self._notify.close()


@pytest.fixture
def supervised(make_lab: MakeLab, tmp_path: Path) -> Iterator[tuple[Lab, Supervisor]]:
    running = make_lab(daemons=False, planes=2, on_stop="keep")
    supervisor = Supervisor(running, tmp_path, WATCHDOG_USEC="600000")
    yield running, supervisor
    supervisor.close()


def test_service_says_what_it_does(supervised: tuple[Lab, Supervisor]) -> None:
    running, supervisor = supervised
    process = supervisor.start()
    bpffs = state.places(running.name, "h1").bpffs
    said = supervisor.until("READY=1")
    assert "WATCHDOG=1" not in said[: said.index("READY=1")]
    names = {f"link_tc_{name}" for name in ("mrc0p", "plane0", "plane1")}
    assert names <= {entry.name for entry in bpffs.iterdir()}
    assert any(line.startswith("STATUS=") for line in said)
    for _ in range(3):
        supervisor.until("WATCHDOG=1", 5)
    process.send_signal(signal.SIGHUP)
    said = supervisor.until("RELOADING=1", 5)
    assert any(line.startswith("MONOTONIC_USEC=") for line in said)
    supervisor.until("READY=1")
    process.send_signal(signal.SIGTERM)
    supervisor.until("STOPPING=1", 5)
    assert process.wait(20) == 0


def test_service_serves_the_socket_it_is_given(supervised: tuple[Lab, Supervisor]) -> None:
    """Like with a socket unit, the socket stays when the daemon ends, and callers wait."""
    running, _ = supervised
    path = state.places(running.name, "h1").socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(16)
        with netns.entered(running.namespace("h1")):
            places = state.places(running.name, "h1")
            command = [
                sys.executable, "-c", _ACTIVATE, str(listener.fileno()),
                sys.executable, "-m", "mrcd", "--config", str(places.config),
                "--socket", str(places.socket),
                "--state-dir", str(places.folder), "--bpffs", str(places.bpffs),
                "--cache-dir", str(state.CACHE_DIR),
            ]  # fmt: skip
            process = subprocess.Popen(
                command, pass_fds=[listener.fileno()], cwd=ROOT,
                stdout=places.log.open("ab"), stderr=subprocess.STDOUT,
            )  # fmt: skip
        eventually(lambda: lab_hosts.status(running.name, "h1"), "it answers there", SETTLED_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert path.exists()
