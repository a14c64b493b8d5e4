# SPDX-License-Identifier: GPL-2.0-only
"""Keep what the operator decided in a state file with a copy, and tell when either fails.

The copy, `NAME.copy`, is written after the file, so it holds the same or what was there before. A
damaged file is named and the copy is used. A file that cannot be written does not keep a decision
from taking effect: it is named, and written as soon as that is possible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mrcd.service import statefile
from mrcd.service.findings import Findings

T = TypeVar("T")
SOURCE = "files"


class KeptFile:
    """One state file. `what` names its content in sentences, in the plural."""

    def __init__(self, path: Path, what: str, findings: Findings) -> None:
        self._path = path
        self._copy = path.with_name(f"{path.name}.copy")
        self._what = what
        self._findings = findings
        self._waiting: object | None = None  # could not be written
        self._reason = ""

    @property
    def unsaved(self) -> str | None:
        """Why the present content would not survive a restart; None if it would."""
        return None if self._waiting is None else self._reason

    def load(self, take: Callable[[Any], T]) -> T | None:
        """Return what `take` makes of the file, or of its copy if the file is damaged or missing.

        Return None if there is neither.
        """
        try:
            found = statefile.read(self._path, take)
            if found is not None or not self._copy.exists():
                return found
            wrong = "is missing, but its copy is there"
        except statefile.Unreadable as error:
            wrong = f"is damaged ({error})"
        found, used = self._of_copy(take)
        remedy = (
            f"check {self._what} in `mrcctl`; the next change writes the file anew, as does a "
            f"restart after `cp {self._copy} {self._path}`"
        )
        if found is None:
            remedy = f"give {self._what} again, or restore {self._path} and restart mrcd"
        text = f"{self._path} {wrong}: {used}; remedy: {remedy}"
        self._findings.put(SOURCE, f"{self._path.name} damage", text)
        return found

    def _of_copy(self, take: Callable[[Any], T]) -> tuple[T | None, str]:
        try:
            found = statefile.read(self._copy, take)
        except statefile.Unreadable as error:
            return None, f"its copy is damaged, too ({error}), so {self._what} are lost"
        if found is None:
            return None, f"it has no copy, so {self._what} are lost"
        return found, f"{self._what} are those of its copy {self._copy.name}"

    def save(self, content: object) -> None:
        """Replace the content. If that fails, it is named, and `save_again` tries again."""
        about = f"{self._path.name} unsaved"
        try:
            statefile.write(self._path, content)
        except OSError as error:
            self._waiting = content
            self._reason = (
                f"{self._path} could not be written ({error.strerror or error}): {self._what} are "
                "in force, but will not survive a restart of mrcd"
            )
            remedy = f"make room in {self._path.parent}; mrcd then writes the file by itself"
            self._findings.put(SOURCE, about, f"{self._reason}; remedy: {remedy}")
            return
        self._waiting = None
        for over in (about, f"{self._path.name} damage"):
            self._findings.drop(SOURCE, over)
        with contextlib.suppress(OSError):  # it holds what was there before, then
            statefile.write(self._copy, content)

    def save_again(self) -> None:
        """Try again to write what could not be written."""
        if self._waiting is not None:
            self.save(self._waiting)
