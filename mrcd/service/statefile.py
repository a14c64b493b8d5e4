# SPDX-License-Identifier: GPL-2.0-only
"""Keep state that outlives a process in a JSON file that is replaced as a whole.

A reader sees the old or the new content, even after a crash, and never a part of it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Unreadable(Exception):
    """A file exists but holds nothing that mrcd would have written; the message states why."""


def write(path: Path, content: object) -> None:
    """Replace the file with `content` as JSON; if it raises OSError, the old file is intact."""
    replace(path, (json.dumps(content, indent=1) + "\n").encode())


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the file with bytes. `durable`: the old or new content survives a power cut, too."""
    draft = path.with_name(f"{path.name}.new")
    try:
        with draft.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk the rest of it takes room
            draft.unlink(missing_ok=True)
        raise


def read(path: Path, take: Callable[[Any], T]) -> T | None:
    """Return what `take` makes of the content, None if there is no file; else raise Unreadable.

    `take` need not check the content's shape: a missing key or a wrong type counts as Unreadable.
    """
    try:
        return take(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(str(error)) from error
