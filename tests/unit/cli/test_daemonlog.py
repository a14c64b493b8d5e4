# SPDX-License-Identifier: GPL-2.0-only
"""Test what a bug report has of the daemon's log: its end, from where it is, without secrets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.console.exits import CommandError
from cli.state import daemonlog

WAITS = "import sys; sys.stdin.read()  # mrcd"


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journalctl that prints what it was asked for."""
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def process(stderr: int, code: str = WAITS) -> Iterator[int]:
    """Yield the pid of a process that logs to a file descriptor."""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=stderr) as running:
        deadline = time.monotonic() + 20
        while not Path(f"/proc/{running.pid}/cmdline").read_bytes():  # the kernel begins it
            assert time.monotonic() < deadline
        yield running.pid
        assert running.stdin is not None
        running.stdin.close()


def logged(text: bytes, folder: Path) -> str:
    """Return what is read of the log of a daemon that has written this text to a file."""
    (folder / "mrcd.log").write_bytes(text)
    with (folder / "mrcd.log").open("ab") as file:
        (found,) = (daemonlog.read(pid).decode() for pid in process(file.fileno()))
    return found


def test_a_file_is_read(tmp_path: Path) -> None:
    assert logged(b"daemon.ready\npeer.established peer=b\n", tmp_path) == (
        "daemon.ready\npeer.established peer=b\n"
    )


def test_only_the_end_of_a_long_one(tmp_path: Path) -> None:
    lines = [f"event n={number}" for number in range(daemonlog.LINES + 5)]
    found = logged("\n".join([*lines, ""]).encode(), tmp_path).splitlines()
    assert found == ["(earlier lines are left out)", *lines[5:]]


def test_no_more_than_a_mebibyte_of_long_lines(tmp_path: Path) -> None:
    line = b"x" * 9999 + b"\n"
    first, *rest = logged(line * 200, tmp_path).splitlines()
    assert first == "(earlier lines are left out)"
    assert {len(each) for each in rest} == {9999}
    assert len(rest) == daemonlog.BYTES // len(line)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('config.refused keys.secret: "S3": unknown key', "unknown key"),
        ('{"event": "x", "psk": "S3", "peer": "b"}', '"peer": "b"'),
        ("x private_key=S3 peer=b", "peer=b"),
        ("x auth_token='S 3' peer=b", "peer=b"),
        ("keys.agreed peer=b", "keys.agreed peer=b"),
        ("x public_key=DW5kW0zL peer=b", "public_key=DW5kW0zL peer=b"),
        ("config.changed path=transport.mpr old=1 new=2", "path=transport.mpr old=1 new=2"),
    ],
)
def test_secrets_are_left_out(line: str, kept: str) -> None:
    cleaned = daemonlog.without_secrets(line)
    assert "S3" not in cleaned
    assert "S 3" not in cleaned
    assert kept in cleaned


@pytest.mark.usefixtures("journalctl")
def test_a_service_is_looked_up_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = socket.socketpair()
    with one, other:
        for pid in process(one.fileno()):
            monkeypatch.setattr(daemonlog, "_unit", lambda _process: "mrcd-b.service")
            assert daemonlog.read(pid).decode().startswith("--unit mrcd-b.service --lines 2000")
            monkeypatch.setattr(daemonlog, "_unit", lambda _process: None)
            assert daemonlog.read(pid).decode().startswith(f"_PID={pid} --lines 2000")


def test_the_service_of_a_process(tmp_path: Path) -> None:
    for text, unit in (
        ("0::/system.slice/mrcd.service\n", "mrcd.service"),
        ("0::/user.slice/session-1.scope\n", None),
    ):
        (tmp_path / "cgroup").write_text(text)
        assert daemonlog._unit(tmp_path) == unit


@pytest.mark.usefixtures("journalctl")
def test_without_the_daemon_it_is_that_of_the_unit() -> None:
    assert daemonlog.read(None).decode().startswith("--unit mrcd --lines 2000")
    for pid in process(subprocess.DEVNULL, "import sys; sys.stdin.read()"):  # some other program
        assert daemonlog.read(pid).decode().startswith("--unit mrcd --lines 2000")


def test_an_empty_journal_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    program.write_text('#!/bin/sh\necho "-- No entries --"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="the journal has no entries of --unit mrcd"):
        daemonlog.read(None)


def test_where_it_cannot_be_read_it_says_so() -> None:
    for pid in process(subprocess.DEVNULL):
        with pytest.raises(CommandError, match="logs to /dev/null, which cannot be read again"):
            daemonlog.read(pid)
