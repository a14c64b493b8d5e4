# SPDX-License-Identifier: GPL-2.0-only
"""Test that the log's level changes while a process runs, and goes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from io import StringIO

import pytest

from mrcd.service import log
from mrcd.service.log import LEVELS
from mrcd.service.loglevel import Level

LOGGER = log.get_logger()


@pytest.fixture
def lines() -> Iterator[StringIO]:
    stream = StringIO()
    log.configure("json", stream=stream, strict=True)
    yield stream
    log.configure("json", stream=stream, strict=True)


def events(stream: StringIO) -> list[tuple[str, str]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    stream.truncate(0)
    stream.seek(0)
    return [(line["event"], line["level"]) for line in found if line["event"] != "log.level"]


def say() -> None:
    LOGGER.debug("message.sent")
    LOGGER.info("plane.up")
    LOGGER.warning("path.withdrawn")
    LOGGER.error("clock.failed")


SAID = [
    ("message.sent", "debug"),
    ("plane.up", "info"),
    ("path.withdrawn", "warning"),
    ("clock.failed", "error"),
]


@pytest.mark.parametrize(
    ("level", "first"), [("debug", 0), ("info", 1), ("warning", 2), ("error", 3)]
)
def test_level_counts_at_once_for_loggers_in_use(
    lines: StringIO, level: log.LogLevel, first: int
) -> None:
    say()
    assert events(lines) == SAID[1:]
    Level().set(level)
    assert log.current_level() == level
    assert log.debugging() is (level == "debug")
    say()
    assert events(lines) == SAID[first:]


@pytest.mark.parametrize("level", list(LEVELS))
def test_each_change_is_logged(lines: StringIO, level: log.LogLevel) -> None:
    changing = Level()
    assert changing.set(level) == "info"
    (line,) = (json.loads(text) for text in lines.getvalue().splitlines())
    assert (line["event"], line["to"], line["before"]) == ("log.level", level, "info")
    assert changing.set("info") == level
    assert len(lines.getvalue().splitlines()) == 2


def test_level_goes_back_after_a_time_unless_it_is_set_again(lines: StringIO) -> None:
    async def scenario() -> None:
        level = Level()
        level.set("debug", 0.01)
        async with asyncio.timeout(5):
            while log.current_level() != "info":
                await asyncio.sleep(0.001)
        level.set("debug", 0.01)
        level.set("error")
        await asyncio.sleep(0.05)
        assert log.current_level() == "error"

    asyncio.run(scenario())
