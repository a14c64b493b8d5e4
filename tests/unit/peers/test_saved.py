# SPDX-License-Identifier: GPL-2.0-only
"""Test which sessions are saved across a restart, and which saved files are accepted."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.handshake import LocalQp, Memory, Offer
from mrcd.handshake.channel import ChannelMemory
from mrcd.peers import saved as sessions

OFFER = Offer(1, "h2", "h1", 77, 88, 99, 5, True, False, 8872, 2048, 3, (), ((0x20001, 7),))
MEMORY = Memory(11, 99, 12, 54, (LocalQp(0, 0x360000, 1234),), OFFER)
CHANNEL = ChannelMemory(6, (5, 6), 1 << 62, 7)


pytestmark = pytest.mark.usefixtures("logged")


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    sessions.save(tmp_path, 2975, 7, {"h2": MEMORY}, {"h2": CHANNEL})
    saved = sessions.load(tmp_path, 2975)
    assert saved.sessions == {"h2": MEMORY}
    assert saved.update_id == 7
    assert saved.channels == {"h2": CHANNEL}
    assert [path.name for path in tmp_path.iterdir()] == [sessions.NAME]


def test_nothing_was_saved(tmp_path: Path, logged: io.StringIO) -> None:
    assert sessions.load(tmp_path, 1).sessions == {}
    assert logged.getvalue() == ""


def test_sessions_of_other_maps_are_none(tmp_path: Path, logged: io.StringIO) -> None:
    sessions.save(tmp_path, 2975, 7, {"h2": MEMORY}, {"h2": CHANNEL})
    assert sessions.load(tmp_path, 2976).sessions == {}
    assert logged.getvalue() == ""


def test_sessions_of_another_boot_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.save(tmp_path, 2975, 7, {"h2": MEMORY}, {"h2": CHANNEL})
    monkeypatch.setattr(sessions, "boot_id", lambda: "another")
    assert sessions.load(tmp_path, 2975).sessions == {}


def damaged() -> list[bytes]:
    good = sessions.encode(sessions.Saved(2, "b", 1, 0, {"h2": MEMORY}, {"h2": CHANNEL}))
    other = json.loads(good)
    other["sessions"]["h2"]["qps"] = "none"
    return [
        b"", b"{", b"[]", b"\xff\xfe", good[:-20],
        good.replace(b'"version":2', b'"version":1'), json.dumps(other).encode(),
    ]  # fmt: skip


@pytest.mark.parametrize("content", damaged(), ids=range(len(damaged())))
def test_damaged_file_is_said_and_left_aside(
    tmp_path: Path, logged: io.StringIO, content: bytes
) -> None:
    (tmp_path / sessions.NAME).write_bytes(content)
    assert sessions.load(tmp_path, 1).sessions == {}
    entry = json.loads(logged.getvalue())
    assert entry["event"] == "sessions.ignored"
    assert str(tmp_path) in entry["path"]


@given(st.binary(max_size=200))
def test_decode__any_bytes_are_a_file_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        sessions.decode(data)
