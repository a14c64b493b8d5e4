# SPDX-License-Identifier: GPL-2.0-only
"""Test `quick status` and `quick save`, without a daemon or with a double of one."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from cli.console import exits
from cli.quick import files, undoing
from cli.quick.command import introduction
from mrcd.model import PeerInfo
from rigs.control_double import FakeSource, serving
from tests.unit.command_line import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like that of a `quick up` that has agreed on something."""
    made = tmp_path / "quick"
    made.mkdir()
    (made / "mrcd.toml").write_text("[host]\n")
    (made / "mrcd.toml").chmod(0o644)
    (made / "fabric.secret").write_text("secret\n")
    (made / "fabric.secret").chmod(0o600)
    undoing.write(made, undoing.here(str(tmp_path / "mrcd.sock"), None), [])
    return made


def test_status__says_what_is_up_and_shows_it(tmp_path: Path, folder: Path) -> None:
    socket = tmp_path / "mrcd.sock"
    with serving(socket, FakeSource()):
        result = run(socket, "quick", "status", "--folder", str(folder))
    assert result.exit_code == exits.DONE, result.output
    assert f"up, by the files in {folder}" in result.output
    assert "mrc0, mtu" in result.output


def test_status__of_nothing_and_of_an_mrcd_that_is_gone(tmp_path: Path, folder: Path) -> None:
    nothing = run(tmp_path / "mrcd.sock", "quick", "status", "--folder", str(tmp_path / "none"))
    assert nothing.exit_code == exits.FAILED
    assert "nothing is up" in nothing.output
    gone = run(tmp_path / "mrcd.sock", "quick", "status", "--folder", str(folder))
    assert gone.exit_code == exits.UNREACHABLE
    assert f"{folder}/mrcd.log" in gone.output


def test_save__leaves_no_moment_in_which_others_can_read_the_secret(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at when each file gets its mode: until then nobody else may read it."""
    seen: dict[str, int] = {}
    change = os.fchmod

    def noting(fd: int, mode: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]
        seen[name] = stat.S_IMODE(os.fstat(fd).st_mode)
        change(fd, mode)

    monkeypatch.setattr(os, "fchmod", noting)
    etc = tmp_path / "etc"
    umask = os.umask(0)
    try:
        done = run(tmp_path / "s", "quick", "save", str(etc), "--folder", str(folder))
    finally:
        os.umask(umask)
    assert done.exit_code == exits.DONE, done.output
    assert len(seen) == 2
    assert set(seen.values()) == {0o600}
    assert stat.S_IMODE((etc / "fabric.secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((etc / "mrcd.toml").stat().st_mode) == 0o644
    assert (etc / "fabric.secret").read_text() == "secret\n"
    assert not [path for path in etc.iterdir() if path.name.startswith(".")]


def known(*names: str) -> list[PeerInfo]:
    """Return peers of these names, each with the addresses that `quick up` gives it."""
    (some, *_) = FakeSource().peers()
    return [
        replace(some, name=name, addresses=[f"{address.partition('/')[0]}/32" for address in given])
        for name, given in ((name, files.addresses_of(name)) for name in names)
    ]


def test_up__says_where_the_others_are() -> None:
    """The reader need not look on the other machine for an address to ping."""
    assert introduction(known("b", "a")) == (
        "a is here: ping 10.99.57.29\nb is here: ping 10.99.254.115\n"
    )
    assert introduction(known("a", "b", "c", "d", "e")) == "5 others are here: `mrcctl peer list`\n"
    assert "No other host is here yet" in introduction([])
