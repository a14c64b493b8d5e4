# SPDX-License-Identifier: GPL-2.0-only
"""Long lists in parts: one reply for each, for callers that ask with "more"; one reply for others.

Encoding one reply of all QPs of thousands of peers would keep the event loop from everything else
for a quarter of a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from asyncvarlink.interface import AnnotatedResult

_Method = TypeVar("_Method", bound=Callable[..., Any])


def in_parts(method: _Method) -> _Method:
    """Mark a method whose replies are the parts of one: their lists are to be joined."""
    method.in_parts = True  # type: ignore[attr-defined]
    return method


def comes_in_parts(method: Callable[..., Any]) -> bool:
    """Return whether a method carries that mark."""
    return bool(getattr(method, "in_parts", False))


class Closing:
    """Closes a method's replies at the end, as contextlib.aclosing does.

    The library holds one reply back, and yields it even when the caller has left and the generator
    is told to end: it has to be told again.
    """

    def __init__(self, replies: AsyncGenerator[AnnotatedResult, None]) -> None:
        self._replies = replies

    async def __aenter__(self) -> AsyncGenerator[AnnotatedResult, None]:
        return self._replies

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._replies.aclose()
        except RuntimeError:
            with contextlib.suppress(StopAsyncIteration):
                await self._replies.aclose()


async def joined(parts: AsyncGenerator[AnnotatedResult, None]) -> AnnotatedResult:
    """Return the whole that the replies are parts of."""
    whole: dict[str, Any] = {}
    async with Closing(parts):
        async for part in parts:
            for name, value in part.parameters.items():
                if isinstance(value, list):
                    whole.setdefault(name, []).extend(value)
                else:
                    whole[name] = value
    return AnnotatedResult(whole)
