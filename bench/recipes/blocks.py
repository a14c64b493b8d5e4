# SPDX-License-Identifier: GPL-2.0-only
"""Write blocks to a storage one after another, time each, and compare what is there at the end.

Clients run in a host of the lab and may need the distribution's interpreter, so this module imports
nothing but the standard library. A client leaves two files of JSON in the folder that it is given:
`began`, the time when its first write began, and `record`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BYTES = 1 << 16
PLACES = 1000
"""Writes go to so many places in turn, and overwrite what is there."""

_NOISE = random.Random(1).randbytes(2 * BYTES)


class WriteFailed(Exception):
    """A write that the storage refused or did not take whole."""


@dataclass(frozen=True, slots=True)
class Record:
    """The writes that have ended: when each began and ended (CLOCK_MONOTONIC, ns).

    `problem` is why the client stopped early; empty if it did not.
    """

    began_ns: Sequence[int]
    ended_ns: Sequence[int]
    problem: str

    def last(self) -> Mapping[int, int]:
        """Return the number of the last write to each place."""
        return {number % PLACES: number for number in range(len(self.ended_ns))}


def block(number: int) -> bytes:
    """Return what a write consists of; no two writes to a place have the same bytes."""
    start = number % BYTES
    return _NOISE[start : start + BYTES]


def write_for(seconds: float, write: Callable[[int, bytes], None], folder: Path) -> None:
    """Call `write` with a place and a block, over and over, and leave the record in a folder."""
    began: list[int] = []
    ended: list[int] = []
    problem = ""
    start_ns = before_ns = time.monotonic_ns()
    _save(folder / "began", start_ns)
    try:
        while before_ns < start_ns + int(seconds * 1e9):
            content = block(len(ended))
            before_ns = time.monotonic_ns()
            write(len(ended) % PLACES, content)
            began.append(before_ns)
            ended.append(time.monotonic_ns())
    except WriteFailed as failure:
        problem = str(failure)
    _save(folder / "record", asdict(Record(began, ended, problem)))


def load(folder: Path) -> Record:
    """Return the record that a client has left."""
    return Record(**json.loads((folder / "record").read_text()))


def lacking(last: Mapping[int, int], read: Callable[[int], bytes]) -> int:
    """Return the places where the bytes read are not those of the last write."""
    return sum(read(place) != block(number) for place, number in last.items())


def _save(file: Path, content: object) -> None:
    """Write a file that appears as a whole."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.rename(file)
