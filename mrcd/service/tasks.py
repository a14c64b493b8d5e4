# SPDX-License-Identifier: GPL-2.0-only
"""Background tasks with an owner, which is told of failures and ends the tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mrcd.service.log import get_logger

log = get_logger()
_T = TypeVar("_T")


class Tasks:
    """A set of running tasks. `on_failure` is called with an error that ended one of them."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._running)

    def spawn(self, work: Coroutine[None, None, _T]) -> asyncio.Task[_T]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def fatal(tell: Callable[[Exception], None]) -> Callable[[BaseException], None]:
    """Return an `on_failure` for vital tasks: it logs the error and passes it to `tell`."""

    def failed(error: BaseException) -> None:
        log.error("daemon.failed", error=str(error), exc_info=error)
        tell(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    return failed
