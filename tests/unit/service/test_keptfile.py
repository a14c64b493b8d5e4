# SPDX-License-Identifier: GPL-2.0-only
"""Test state files with a copy: damage and full disks are named, and lose as little as possible."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from mrcd.service import statefile
from mrcd.service.findings import Findings
from mrcd.service.keptfile import KeptFile


class Folder:
    """A folder with one kept file of numbers, and what was found wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path / "kept.json"
        self.copy = path / "kept.json.copy"
        self.findings = Findings()
        self.file = KeptFile(self.path, "the numbers", self.findings)

    def load(self) -> list[int] | None:
        return self.file.load(lambda content: list(content["numbers"]))

    def save(self, *numbers: int) -> None:
        self.file.save({"numbers": numbers})

    @property
    def lines(self) -> list[str]:
        return self.findings.lines


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_nothing_was_ever_saved(folder: Folder) -> None:
    assert folder.load() is None
    assert folder.lines == []


def test_file_and_copy_hold_the_same(folder: Folder) -> None:
    folder.save(1)
    folder.save(1, 2)
    assert folder.load() == [1, 2]
    assert folder.path.read_bytes() == folder.copy.read_bytes()
    assert sorted(folder.path.parent.iterdir()) == [folder.path, folder.copy]
    assert folder.lines == []


DAMAGE = ["", '{"numbers": [1', '{"other": 1}', "\x00" * 40, "7"]


@pytest.mark.parametrize("text", DAMAGE)
def test_damaged_file_is_named_and_its_copy_used(folder: Folder, text: str) -> None:
    folder.save(1, 2)
    folder.path.write_text(text)
    assert folder.load() == [1, 2]
    (line,) = folder.lines
    assert line.startswith(f"{folder.path} is damaged (")
    assert "the numbers are those of its copy kept.json.copy" in line
    assert "remedy: check the numbers" in line


def test_missing_file_is_damage_if_there_is_a_copy(folder: Folder) -> None:
    folder.save(1, 2)
    folder.path.unlink()
    assert folder.load() == [1, 2]
    assert f"{folder.path} is missing, but its copy is there" in folder.lines[0]


@pytest.mark.parametrize("text", DAMAGE)
def test_damaged_twice_is_lost_and_says_so(folder: Folder, text: str) -> None:
    folder.save(1, 2)
    folder.path.write_text(text)
    folder.copy.write_text(text)
    assert folder.load() is None
    (line,) = folder.lines
    assert "so the numbers are lost" in line
    assert "remedy: give the numbers again" in line


def test_damage_ends_with_the_next_change(folder: Folder) -> None:
    folder.save(1)
    folder.path.write_text("{")
    folder.load()
    folder.save(1, 2)
    assert folder.lines == []
    assert json.loads(folder.path.read_text()) == {"numbers": [1, 2]}


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_named_until_there_is_room(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(1)
    with monkeypatch.context() as full:
        full.setattr(statefile, "write", refuse)
        folder.save(1, 2)
        folder.file.save_again()
        assert "will not survive a restart of mrcd" in str(folder.file.unsaved)
        (line,) = folder.lines
        assert "(No space left on device)" in line
    assert folder.load() == [1]
    folder.file.save_again()
    assert (folder.file.unsaved, folder.lines) == (None, [])
    assert folder.load() == [1, 2]


def test_copy_that_cannot_be_written_holds_what_was_there(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(1)
    write = statefile.write

    def only_the_file(path: Path, content: object) -> None:
        if path == folder.copy:
            refuse()
        write(path, content)

    monkeypatch.setattr(statefile, "write", only_the_file)
    folder.save(1, 2)
    assert folder.lines == []
    folder.path.write_text("{")
    assert folder.load() == [1]


def test_draft_that_could_not_be_written_leaves_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        statefile.write(tmp_path / "kept.json", [1])
    assert list(tmp_path.iterdir()) == []
