# SPDX-License-Identifier: GPL-2.0-only
"""Keep the planes that an operator has drained in the state folder, so they survive a restart."""

from __future__ import annotations

from pathlib import Path

from mrcd.service import statefile
from mrcd.service.log import get_logger

log = get_logger()

NAME = "drained.json"


def load(folder: Path, planes: int) -> set[int]:
    """Return the drained planes. A file that cannot be read is logged and counts as empty."""
    path = folder / NAME
    try:
        found = statefile.read(path, lambda content: list(content["drained"])) or ()
    except statefile.Unreadable as error:
        log.warning("drains.ignored", path=str(path), error=str(error))
        return set()
    return {plane for plane in found if isinstance(plane, int) and 0 <= plane < planes}


def save(folder: Path, drained: set[int]) -> None:
    """Replace the file atomically; raises OSError if that fails."""
    statefile.write(folder / NAME, {"drained": sorted(drained)})
