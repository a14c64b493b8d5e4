# SPDX-License-Identifier: GPL-2.0-only
"""Test what the daemon's process logs of callbacks that fail."""

from __future__ import annotations

import asyncio
from typing import Any

from mrcd.main import _report


class Loop:
    """What the default handler was told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.told.append(context)


def test_report__a_call_that_was_cancelled_is_no_error() -> None:
    loop: Any = Loop()
    _report(loop, {"message": "in callback", "exception": asyncio.CancelledError()})
    assert loop.told == []


def test_report__everything_else_is_logged() -> None:
    loop: Any = Loop()
    _report(loop, {"message": "in callback", "exception": OSError("gone")})
    _report(loop, {"message": "a task was destroyed"})
    assert [each["message"] for each in loop.told] == ["in callback", "a task was destroyed"]
