# SPDX-License-Identifier: GPL-2.0-only
"""Test that sessions are kept for the next daemon, and that a disk that is full is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from mrcd.engine.memory import SessionMemory
from mrcd.peers import saved
from mrcd.service.findings import Findings

PEERS: Any = SimpleNamespace(memories={}, channel_memories={})
MAPS = 7


def run(folder: Path, work: Callable[[SessionMemory, Findings], None]) -> None:
    async def main() -> None:
        findings = Findings()
        memory = SessionMemory(folder, MAPS, findings)
        work(memory, findings)
        memory.cancel()

    asyncio.run(main())


def test_nothing_is_written_before_there_are_sessions(tmp_path: Path) -> None:
    def work(memory: SessionMemory, _findings: Findings) -> None:
        memory.changed()
        memory.end()
        assert [*tmp_path.iterdir()] == []

    run(tmp_path, work)


def test_next_daemon_with_the_same_maps_finds_what_was_kept(tmp_path: Path) -> None:
    def work(memory: SessionMemory, _findings: Findings) -> None:
        memory.follow(PEERS, lambda: 41)
        assert memory.load().update_id == 41
        assert saved.load(tmp_path, MAPS + 1).update_id == 0

    run(tmp_path, work)


def test_disk_that_is_full_is_named_until_it_has_room(tmp_path: Path) -> None:
    folder = tmp_path / "missing"

    def work(memory: SessionMemory, findings: Findings) -> None:
        with capture_logs() as logged:
            memory.follow(PEERS, lambda: 41)
            memory.save_again()
        events = [each["event"] for each in logged]
        assert events == ["sessions.not_saved", "trouble.found"]
        (line,) = findings.lines
        assert f"make room in {folder}" in line
        folder.mkdir()
        memory.save_again()
        assert findings.lines == []
        (folder / saved.NAME).unlink()
        memory.save_again()
        assert [*folder.iterdir()] == [], "nothing has changed since"

    run(folder, work)
