# SPDX-License-Identifier: GPL-2.0-only
"""Test what the daemon's process loads, and what it logs of callbacks that fail."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrcd.main import EXIT_CONFIG, EXIT_FAILED, _report


class Loop:
    """What the default handler was told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.told.append(context)


def test_report__a_call_that_was_cancelled_is_no_error() -> None:
    loop: Any = Loop()
    _report(loop, {"message": "in callback", "exception": asyncio.CancelledError()})
    assert loop.told == []


def test_report__everything_else_is_logged() -> None:
    loop: Any = Loop()
    _report(loop, {"message": "in callback", "exception": OSError("gone")})
    _report(loop, {"message": "a task was destroyed"})
    assert [each["message"] for each in loop.told] == ["in callback", "a task was destroyed"]


class Supervisor:
    """What systemd gives a service: a control socket with a call that waits, and NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(folder / "control"))
        self.listener.listen()
        self.waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.waiting.settimeout(60)
        self.waiting.connect(str(folder / "control"))
        self.states = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.states.bind(str(folder / "notify"))
        self.states.setblocking(False)
        self.folder = folder

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Start mrcd as systemd does, and return how it ended."""
        # LISTEN_PID has to be right, so the shell becomes mrcd.
        script = f'exec 3<&{self.listener.fileno()}; export LISTEN_PID=$$; exec "$@"'
        return subprocess.run(
            ["bash", "-c", script, "bash", sys.executable, "-m", "mrcd", *words],
            pass_fds=[self.listener.fileno()],
            env=os.environ | {"LISTEN_FDS": "1", "NOTIFY_SOCKET": str(self.folder / "notify")},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def calls_waiting(self) -> bool:
        """Return whether systemd would start the service for a call."""
        return bool(select.select([self.listener], [], [], 0)[0])

    def close(self) -> None:
        for sock in (self.listener, self.waiting, self.states):
            sock.close()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[host\n", "mrcd.toml"),
        ('[host]\nname = "h1"\nfabric = "nowhere.toml"\n', "nowhere.toml"),
        (
            '[host]\nname = "a"\n[mrc0]\naddresses = ["10.0.0.1/24"]\n[[plane]]\n'
            'interface = "lo"\n[keys]\nsecret_file = "none"\n',
            "there is no such file",
        ),
    ],
)
def test_bad_configuration__has_a_status_of_its_own_and_leaves_no_call_waiting(
    supervisor: Supervisor, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "mrcd.toml").write_text(text)
    done = supervisor.start("--config", str(tmp_path / "mrcd.toml"))
    assert (done.returncode, said in done.stderr) == (EXIT_CONFIG, True), done.stderr
    assert not supervisor.calls_waiting()
    assert supervisor.waiting.recv(1) == b"", "the caller is told"
    assert [*tmp_path.glob("failures")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="anybody else lacks capabilities")
def test_failure__is_counted_for_a_supervisor_and_the_call_waits(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "mrcd.toml").write_text(
        '[host]\nname = "a"\n[mrc0]\naddresses = ["10.0.0.1/24"]\n[[plane]]\n'
        'interface = "nowhere"\n[[peer]]\nname = "b"\nendpoints = ["fe80::1%nowhere"]\n'
        'allowed = ["10.0.0.2/32"]\n[keys]\ninsecure = true\n'
    )
    (tmp_path / "none").touch()
    words = (
        "--config", str(tmp_path / "mrcd.toml"), "--socket", str(tmp_path / "mrcd.sock"),
        "--bpffs", str(tmp_path / "none" / "bpf"),
    )  # fmt: skip
    for failures in (1, 2, 3):
        done = supervisor.start(*words)
        assert done.returncode == EXIT_FAILED, done.stderr
        assert json.loads((tmp_path / "failures").read_text())[0] == failures
        assert supervisor.calls_waiting(), "the next start answers it"
    told = supervisor.states.recv(4096) + supervisor.states.recv(4096)
    assert b"WATCHDOG=1" in told
    assert b"STATUS=failed, next start in 1 s: " in told


def test_daemon_loads_nothing_that_only_mrcctl_shows_with() -> None:
    """Each library costs memory on every host (mrcd/service/lean.py)."""
    script = "import sys, mrcd.main; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"structlog", "click"} <= set(done.stdout.split())
    assert not {"rich", "pygments", "bcc"} & set(done.stdout.split())
