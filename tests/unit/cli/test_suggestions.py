# SPDX-License-Identifier: GPL-2.0-only
"""Test the names that shells complete: what exists, and nothing without a daemon or a lab."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from cli.lab import state
from cli.main import mrcctl
from mrcd.fabric import description
from tests.unit.command_line import run

FEW = {"h1", "h2", "h3"}


def offered(socket: Path, *words: str) -> set[str]:
    """Return what is offered for the last of these words."""
    *before, typed = words
    shell = ShellComplete(mrcctl, {}, "mrcctl", "_MRCCTL_COMPLETE")
    found = shell.get_completions(["--socket", str(socket), *before], typed)
    return {item.value for item in found}


@pytest.mark.parametrize(
    "words",
    [
        ("plane", "drain"),
        ("plane", "undrain"),
        ("path", "list", "--plane"),
        ("path", "probe", "h2", "--plane"),
        ("ping", "h2", "--plane"),
        ("capture", "--plane"),
    ],
)
def test_planes(server: Path, path: Path, words: tuple[str, ...]) -> None:
    assert offered(server, *words, "") == {"0", "1", "plane0", "plane1"}
    assert offered(server, *words, "plane1") == {"plane1"}
    assert offered(path.with_name("nobody"), *words, "") == set()


@pytest.mark.parametrize(
    "words",
    [
        ("peer", "show"),
        ("path", "probe"),
        ("path", "list", "--peer"),
        ("path", "deny", "p1", "--peer"),
        ("capture", "--peer"),
        ("key", "rotate"),
    ],
)
def test_peers(server: Path, words: tuple[str, ...]) -> None:
    assert offered(server, *words, "") == {"h2", "h3"}


def test_elements_to_deny(server: Path) -> None:
    assert offered(server, "path", "deny", "") == {
        "h2", "h3",
        "p0", "p0t0-1", "p0t0-2", "p0t1-1", "p0t1-2",
        "p1", "p1t0-1", "p1t0-2", "p1t1-1", "p1t1-2",
    }  # fmt: skip
    assert offered(server, "path", "deny", "p1t1") == {"p1t1-1", "p1t1-2"}
    assert offered(server, "path", "deny", "p1t0-2:") == {"p1t0-2:p1t1-1", "p1t0-2:p1t1-2"}
    assert offered(server, "path", "deny", "h2:") == {"h2:p0", "h2:p1"}
    assert offered(server, "path", "deny", "0x") == {"0x10010000"}


def test_what_is_denied_may_be_allowed(server: Path, path: Path) -> None:
    assert offered(server, "path", "allow", "") == set()
    run(server, "path", "deny", "p1t1-2")
    assert offered(server, "path", "allow", "") == {"p1t1-2"}
    assert offered(path.with_name("nobody"), "path", "allow", "") == set()


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two labs are up: lab with two hosts, and big with three."""
    monkeypatch.setattr(state, "ROOT", tmp_path)
    for name, hosts in (("lab", 2), ("big", 3)):
        (tmp_path / name).mkdir()
        made = description.generate(name=name, hosts=hosts, planes=2)
        (tmp_path / name / "fabric.toml").write_text(description.dumps(made))
        (tmp_path / name / "lab.json").write_text(
            f'{{"name": "{name}", "namespaces": [], "daemons": true, "faults": []}}'
        )


@pytest.mark.usefixtures("labs")
def test_labs_and_their_hosts(path: Path) -> None:
    for words in (("lab", "down"), ("lab", "status"), ("lab", "exec"), ("lab", "fault")):
        assert offered(path, *words, "--name", "") == {"big", "lab"}
    assert offered(path, "sid", "verify", "--lab", "b") == {"big"}
    assert offered(path, "lab", "exec", "") == {"h1", "h2"}
    assert offered(path, "lab", "exec", "--name", "big", "") == FEW
    assert offered(path, "lab", "exec", "--name", "none", "") == set()


@pytest.mark.usefixtures("labs")
def test_elements_and_actions_of_a_lab(path: Path) -> None:
    assert offered(path, "lab", "fault", "p1t") == {"p1t0-1", "p1t0-2", "p1t1-1", "p1t1-2"}
    assert offered(path, "lab", "fault", "p1t0-1:") == {"p1t0-1:p1t1-1", "p1t0-1:p1t1-2"}
    assert offered(path, "lab", "fault", "--name", "big", "h3:") == {"h3:p0", "h3:p1"}
    assert offered(path, "lab", "fault", "p1", "b") == {"blackhole"}
    assert offered(path, "lab", "fault", "p1", "") >= {"down", "loss=", "clear"}


def test_without_a_lab_there_is_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "ROOT", tmp_path / "nowhere")
    assert offered(path, "lab", "exec", "") == offered(path, "lab", "down", "--name", "") == set()
