# SPDX-License-Identifier: GPL-2.0-only
"""Test state files: replaced as a whole, checked when read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrcd.service import statefile


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for number in (1, 2):
        statefile.write(path, {"number": number})
        assert statefile.read(path, lambda content: content["number"]) == number
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_is_no_error(tmp_path: Path) -> None:
    assert statefile.read(tmp_path / "state.json", list) is None


@pytest.mark.parametrize("text", ["", "{", '{"other": 1}', "[]", "7", '{"number": [1'])
def test_anything_else_is_unreadable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(statefile.Unreadable):
        statefile.read(path, lambda content: content["number"])


def test_bytes_that_are_no_text_are_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(statefile.Unreadable):
        statefile.read(path, list)


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    statefile.write(path, [1])
    with pytest.raises(TypeError):
        statefile.write(path, [object()])
    assert statefile.read(path, list) == [1]
    assert list(tmp_path.iterdir()) == [path]
