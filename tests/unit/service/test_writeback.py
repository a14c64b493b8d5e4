# SPDX-License-Identifier: GPL-2.0-only
"""Test when state that changes often is written."""

from __future__ import annotations

import asyncio
import time

import pytest

from mrcd.service.writeback import GAP_S, SHARE, Writeback


def test_changed__first_at_once_and_those_that_follow_together() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        written: list[float] = []
        both = asyncio.Event()

        def write() -> None:
            written.append(loop.time())
            if len(written) == 2:
                both.set()

        record = Writeback(write)
        record.changed()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(written) == 1
        for _ in range(100):
            record.changed()
        await asyncio.wait_for(both.wait(), 30)
        assert len(written) == 2
        assert written[1] - written[0] >= GAP_S

    asyncio.run(scene())


def test_changed__writing_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        cpu_s = 0.0
        monkeypatch.setattr(time, "thread_time", lambda: cpu_s)

        def write() -> None:
            nonlocal cpu_s
            cpu_s += 3 * GAP_S * SHARE

        record = Writeback(write)
        record.now()
        record.changed()
        assert record._due is not None
        assert record._due.when() - record._written_s == pytest.approx(3 * GAP_S)
        record.cancel()

    asyncio.run(scene())


def test_cancel__nothing_is_written_any_more() -> None:
    async def scene() -> None:
        written: list[float] = []
        record = Writeback(lambda: written.append(time.monotonic()))
        record.changed()
        due = record._due
        assert due is not None
        record.cancel()
        assert due.cancelled()
        assert not written
        record.now()
        assert len(written) == 1

    asyncio.run(scene())
