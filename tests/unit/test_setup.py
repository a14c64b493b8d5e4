# SPDX-License-Identifier: GPL-2.0-only
"""Test that `make setup` says at once what a system lacks, before it changes anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "dirname", "grep", "sed", "sha256sum", "cat")


def system(folder: Path, kernel: str, *, apt: bool) -> Path:
    """Make a checkout's scripts and the commands of a system that has no others."""
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("*.py"))
    commands = folder / "bin"
    commands.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    # What must not be called leaves a mark.
    stubs = {"uname": f"echo {kernel}"}
    if apt:
        stubs |= dict.fromkeys(("apt-get", "apt-cache", "dpkg-query"), f"touch {folder}/called")
    for name, line in stubs.items():
        (commands / name).write_text(f"#!/bin/bash\n{line}\n")
        (commands / name).chmod(0o755)
    return commands


def said(folder: Path, commands: Path, *arguments: str) -> str:
    """Run the set-up, which must fail; return what it says."""
    done = subprocess.run(
        [commands / "bash", folder / "scripts" / "setup.sh", *arguments],
        env={"PATH": str(commands)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    assert not (folder / ".venv").exists()
    return done.stderr


@pytest.mark.parametrize("arguments", [(), ("bench",)], ids=["setup", "setup-bench"])
def test_system_without_apt_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    text = said(tmp_path, system(tmp_path, "6.12.0-55.el10.x86_64", apt=False), *arguments)
    assert "lacks apt-get" in text
    assert "use Debian 12" in text
    assert "command not found" not in text


@pytest.mark.parametrize("kernel", ["5.14.0-427.el9.x86_64", "6.0.12", "4.19.0-27-amd64"])
def test_older_kernel_is_named_before_anything_is_installed(tmp_path: Path, kernel: str) -> None:
    text = said(tmp_path, system(tmp_path, kernel, apt=True))
    assert f"lacks Linux 6.1 or later: this is {kernel}" in text
    assert not (tmp_path / "called").exists()


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    text = said(tmp_path, system(tmp_path, "5.15.0-1", apt=False))
    assert "lacks Linux 6.1" in text
    assert "and apt-get" in text


@pytest.mark.parametrize("kernel", ["6.1.0-57-amd64", "6.18.44", "7.3.4+deb13-amd64"])
def test_kernel_that_is_new_enough_is_not_named(tmp_path: Path, kernel: str) -> None:
    text = said(tmp_path, system(tmp_path, kernel, apt=False))
    assert "Linux 6.1" not in text
    assert "lacks apt-get" in text
