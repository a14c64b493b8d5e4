# SPDX-License-Identifier: GPL-2.0-only
"""State that outlives a process: a JSON file that is replaced as a whole.

Who reads sees the old or the new content, also after a crash; never a part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Unreadable(Exception):
    """There is a file, but it is not what we would have written; the message says why."""


def write(path: Path, content: object) -> None:
    """Replace the file; OSError says what failed, and then the old one is still there."""
    replace(path, (json.dumps(content, indent=1) + "\n").encode())


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """The same with bytes. `durable`: also a power cut leaves the old or the new content."""
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)


def read(path: Path, take: Callable[[Any], T]) -> T | None:
    """What `take` makes of the content, None where there is no file; else Unreadable.

    `take` need not check the content's shape: what is absent or of another type counts as
    Unreadable.
    """
    try:
        return take(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(str(error)) from error
