# SPDX-License-Identifier: GPL-2.0-only
"""Test the alarm: it rings once, at the earliest time that was asked for."""

from __future__ import annotations

import asyncio
import time

from mrcd.service.alarm import Alarm

HOUR_NS = 3600 * 10**9


class Rung:
    """An alarm that counts."""

    def __init__(self) -> None:
        self.times = 0
        self.event = asyncio.Event()
        self.alarm = Alarm(self._ring)

    def _ring(self) -> None:
        self.times += 1
        self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(10):
            await self.event.wait()


def test_earlier_time__replaces_a_later_one() -> None:
    async def run() -> None:
        rung = Rung()
        now = time.monotonic_ns()
        rung.alarm.set(now + HOUR_NS)
        rung.alarm.set(now)
        await rung.wait()
        assert rung.times == 1

    asyncio.run(run())


def test_later_time__changes_nothing() -> None:
    async def run() -> None:
        rung = Rung()
        now = time.monotonic_ns()
        rung.alarm.set(now)
        rung.alarm.set(now + HOUR_NS)
        await rung.wait()

    asyncio.run(run())


def test_rings_again__when_it_is_set_again() -> None:
    async def run() -> None:
        rung = Rung()
        for times in (1, 2):
            rung.event.clear()
            rung.alarm.set(time.monotonic_ns())
            await rung.wait()
            assert rung.times == times

    asyncio.run(run())


def test_cancelled__rings_no_more() -> None:
    async def run() -> None:
        rung, other = Rung(), Rung()
        due = time.monotonic_ns()
        rung.alarm.set(due)
        other.alarm.set(due)
        rung.alarm.cancel()
        await other.wait()
        assert rung.times == 0

    asyncio.run(run())
