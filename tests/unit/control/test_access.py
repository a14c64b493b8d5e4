# SPDX-License-Identifier: GPL-2.0-only
"""Test which callers may call which methods over the control socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.console import exits
from cli.main import mrcctl
from mrcd.control import access
from mrcd.control.access import Access, Caller, is_writing
from mrcd.control.methods import Control
from rigs.control_double import NOBODY, FakeSource, server_of, serving

GID = 4321
RULE = Access(uid=1234, group="mrcd", gid=GID)
READING = {
    "GetConfig", "GetDatapath", "GetMap", "GetStats", "GetStatus", "ListConnections", "ListDenied",
    "ListFaults", "ListPaths", "ListPeers", "Monitor", "WatchPaths",
}  # fmt: skip
WRITING = {
    "Allow", "ApplyConfig", "Capture", "ConfirmConfig", "Deny", "DiffConfig", "Drain", "ForgetPeer",
    "Invite", "MeasurePlane", "ProbePaths", "RevokePeer", "RotateKeys", "SetLogLevel", "Undrain",
}  # fmt: skip


@pytest.mark.parametrize(
    ("uid", "groups", "may"),
    [
        (0, {0}, True),
        (1234, {1234}, True),  # the daemon's own
        (1000, {1000, GID}, True),
        (1000, {GID}, True),
        (1000, {1000}, False),
        (1000, {0}, False),  # membership in root's group is not enough
        (65534, set(), False),
    ],
)
def test_who_may_write(uid: int, groups: set[int], may: bool) -> None:
    assert RULE.may_write(Caller(1, uid, frozenset(groups))) is may


def test_without_the_group_nobody_is_in_it() -> None:
    rule = Access(uid=0, group="mrcd", gid=None)
    assert not rule.may_write(Caller(1, 1000, frozenset({1000})))
    assert "which does not exist here" in rule.writers


def test_a_group_that_is_not_there() -> None:
    assert access.of_host("no-such-group-here").gid is None
    assert access.of_host("root").gid == 0


def test_every_method_is_for_writers_or_for_all() -> None:
    methods = {name for name in vars(Control) if name[0].isupper()}
    assert methods == READING | WRITING
    assert {name for name in methods if is_writing(getattr(Control, name))} == WRITING


def as_user(uid: int, gid: int, groups: list[int]) -> Callable[[], None]:
    def become() -> None:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    return become


CONNECT = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect("\\0" + sys.argv[1])
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_credentials_are_the_kernels(tmp_path: Path) -> None:
    path = f"\0mrcd-{tmp_path}"  # abstract, so that no folder keeps other users out
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        child = subprocess.Popen(
            ["/usr/bin/python3", "-c", CONNECT, path[1:]],
            stdin=subprocess.PIPE,
            preexec_fn=as_user(65534, 65534, [GID, 77]),
        )
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            caller = access.caller_of(connection)
        child.communicate(timeout=20)
    assert caller == Caller(child.pid, 65534, frozenset({65534, GID, 77}))


def run(path: Path, *args: str) -> Result:
    return CliRunner().invoke(mrcctl, ["--socket", str(path), *args], prog_name="mrcctl")


def refuse_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every caller as an unprivileged user from here on."""
    monkeypatch.setattr(access, "caller_of", lambda _: Caller(99, 1000, frozenset({1000})))


@pytest.mark.parametrize(
    "command",
    [
        ["plane", "drain", "1"],
        ["plane", "undrain", "1"],
        ["path", "deny", "p1"],
        ["path", "allow", "p1"],
        ["path", "probe", "h2"],
        ["config", "diff", "-"],
        ["config", "apply", "-"],
        ["config", "confirm"],
        ["capture"],
    ],
)
def test_a_watcher_may_change_nothing_and_is_told_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    refuse_us(monkeypatch)
    source = FakeSource()
    with serving(tmp_path / "sock", source, NOBODY):
        result = run(tmp_path / "sock", *command)
    assert result.exit_code == exits.NOT_PERMITTED
    assert "uid 1000 may only watch" in result.stderr
    assert "root, uid 65534 (mrcd's own) and members of group nosuch" in result.stderr
    assert (source.drained, source.rules, source.configuration.unconfirmed) == (set(), [], None)
    assert source.wanted is None


@pytest.mark.parametrize(
    "command",
    [["status"], ["peer", "list"], ["path", "list"], ["stats"], ["config", "show"]],
)
def test_a_watcher_may_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    refuse_us(monkeypatch)
    with serving(tmp_path / "sock", FakeSource(), NOBODY):
        assert run(tmp_path / "sock", *command).exit_code == exits.DONE


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another group")
def test_the_socket_belongs_to_the_group(tmp_path: Path) -> None:
    async def owner(rule: Access) -> tuple[int, int]:
        async with server_of(tmp_path / "sock", FakeSource(), rule=rule):
            found = (tmp_path / "sock").stat()
            return found.st_gid, found.st_mode & 0o777

    assert asyncio.run(owner(RULE)) == (GID, 0o660)
    assert asyncio.run(owner(NOBODY)) == (os.getegid(), 0o660)


def test_a_socket_given_by_a_service_manager_is_served_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(path))
    path.chmod(0o666)

    async def serve() -> None:
        async with server_of(path, FakeSource(), activated=listener):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"method":"io.mrcd.Control.GetStatus"}\0')
            async with asyncio.timeout(10):
                assert b'"host":"h1"' in await reader.readuntil(b"\0")
            writer.close()

    asyncio.run(serve())
    assert path.stat().st_mode & 0o777 == 0o666
