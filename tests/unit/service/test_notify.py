# SPDX-License-Identifier: GPL-2.0-only
"""Test messages to and sockets from systemd; the test plays the supervisor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mrcd.service import notify
from mrcd.service.notify import Notifier

Heard = Callable[[], list[str]]


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Heard]]:
    """Yield the value of NOTIFY_SOCKET and a list of the lines that arrive there."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@mrcd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if name.startswith("@") else name)
        sock.settimeout(5)
        yield name, lambda: sock.recv(4096).decode().split("\n")


def test_states(supervisor: tuple[str, Heard]) -> None:
    name, heard = supervisor
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("host h1, 3 peers")
    assert heard() == ["READY=1", "STATUS=host h1, 3 peers"]
    notifier.status("one line")
    assert heard() == ["STATUS=one line"]
    notifier.reloading()
    first, second = heard()
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) > 0
    notifier.alive()
    assert heard() == ["WATCHDOG=1"]
    notifier.stopping("draining")
    assert heard() == ["STOPPING=1", "STATUS=draining"]


def test_nobody_listens() -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready("x")


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_watchdog(environment: dict[str, str], seconds: float | None) -> None:
    assert Notifier(environment).watchdog_s == seconds


def test_no_socket_is_handed_over() -> None:
    for environment in ({}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "7"}):
        assert notify.listening(environment, 7) is None


def test_more_than_one_socket_is_refused() -> None:
    with pytest.raises(ValueError, match="LISTEN_FDS=2"):
        notify.listening({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, 7)


_CHILD = """
import os, sys
sys.path.insert(0, {root!r})
from mrcd.service import notify
os.dup2({fd}, 3)
try:
    sock = notify.listening({{"LISTEN_PID": "7", "LISTEN_FDS": "1"}}, 7)
    print(sock.getsockname(), os.get_inheritable(3), sock.getblocking())
except ValueError as error:
    print("refused:", error)
"""


def child(fd: int) -> str:
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(root=root, fd=fd)],
        pass_fds=[fd], capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return done.stdout.strip()


def test_socket_is_taken_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(tmp_path / "mrcd.sock"))
        sock.listen()
        assert child(sock.fileno()) == f"{tmp_path}/mrcd.sock False False"


def test_socket_of_another_kind_is_refused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        assert child(sock.fileno()).startswith("refused: the socket handed over")
