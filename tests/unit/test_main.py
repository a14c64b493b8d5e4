# SPDX-License-Identifier: GPL-2.0-only
"""Test what the daemon's process loads, and what it logs of callbacks that fail."""

from __future__ import annotations

import asyncio
import subprocess
import sys
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


def test_daemon_loads_nothing_that_only_mrcctl_shows_with() -> None:
    """Each library costs memory on every host (mrcd/service/lean.py)."""
    script = "import sys, mrcd.main; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"structlog", "click"} <= set(done.stdout.split())
    assert not {"rich", "pygments", "bcc"} & set(done.stdout.split())
