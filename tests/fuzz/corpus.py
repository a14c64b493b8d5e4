# SPDX-License-Identifier: GPL-2.0-only
"""The inputs that are kept for each target: one file, one input in base64 on each line."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
FILE_BYTES = 96 << 10
"""A file is no longer: the shortest inputs are kept. Inputs that have found faults always are."""
_HEAD = "# SPDX-License-Identifier: GPL-2.0-only\n"
_FAULT = "fault "


def _path(target: str) -> Path:
    return FOLDER / f"{target}.txt"


def read(target: str) -> list[bytes]:
    """Return the inputs that are kept for a target."""
    lines = _path(target).read_text().splitlines() if _path(target).exists() else []
    return [
        base64.b64decode(line.removeprefix(_FAULT)) for line in lines if not line.startswith("#")
    ]


def faults(target: str) -> list[bytes]:
    """Return those that have found a fault."""
    lines = _path(target).read_text().splitlines() if _path(target).exists() else []
    return [base64.b64decode(line[len(_FAULT) :]) for line in lines if line.startswith(_FAULT)]


def write(target: str, inputs: Iterable[bytes], found: Iterable[bytes] = ()) -> int:
    """Keep inputs, and those that have found faults; return how many are kept."""
    kept = sorted({*faults(target), *found})
    lines = [f"{_FAULT}{base64.b64encode(data).decode()}\n" for data in kept]
    size = len(_HEAD) + sum(map(len, lines))
    for data in sorted(set(inputs) - set(kept), key=lambda data: (len(data), data)):
        line = base64.b64encode(data).decode() + "\n"
        size += len(line)
        if size > FILE_BYTES:
            break
        lines.append(line)
    FOLDER.mkdir(exist_ok=True)
    _path(target).write_text(_HEAD + "".join(lines))
    return len(lines)


def unpack(inputs: Iterable[bytes], folder: Path) -> None:
    """Write inputs into a folder, as fuzzers read them."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
