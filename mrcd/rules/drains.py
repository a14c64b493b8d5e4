# SPDX-License-Identifier: GPL-2.0-only
"""Which planes an operator has drained: a file in the state folder, so that a restart keeps it."""

from __future__ import annotations

from pathlib import Path

from mrcd.service import statefile
from mrcd.service.log import get_logger

log = get_logger()

NAME = "drained.json"


def load(folder: Path, planes: int) -> set[int]:
    """The drained planes. What cannot be read counts as none, and is logged."""
    path = folder / NAME
    try:
        found = statefile.read(path, lambda content: list(content["drained"])) or ()
    except statefile.Unreadable as error:
        log.warning("drains.ignored", path=str(path), error=str(error))
        return set()
    return {plane for plane in found if isinstance(plane, int) and 0 <= plane < planes}


def save(folder: Path, drained: set[int]) -> None:
    """Replace the file in one step; OSError says what failed."""
    statefile.write(folder / NAME, {"drained": sorted(drained)})
