# SPDX-License-Identifier: GPL-2.0-only
"""Keep the planes that an operator has drained in the state folder, so they survive a restart."""

from __future__ import annotations

from pathlib import Path

from mrcd.service.findings import Findings
from mrcd.service.keptfile import KeptFile

NAME = "drained.json"


class Drains:
    """The file of drained planes."""

    def __init__(self, folder: Path, findings: Findings) -> None:
        self._file = KeptFile(folder / NAME, "the drained planes", findings)

    def load(self, planes: int) -> set[int]:
        """Return the drained planes, of `planes` in all."""
        found = self._file.load(lambda content: list(content["drained"])) or ()
        return {plane for plane in found if isinstance(plane, int) and 0 <= plane < planes}

    def save(self, drained: set[int]) -> None:
        """Replace the file. If that fails, it is named, and `save_again` tries again."""
        self._file.save({"drained": sorted(drained)})

    def save_again(self) -> None:
        """Try again to write what could not be written."""
        self._file.save_again()

    @property
    def unsaved(self) -> str | None:
        """Why the drained planes would not survive a restart; None if they would."""
        return self._file.unsaved
