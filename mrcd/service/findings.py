# SPDX-License-Identifier: GPL-2.0-only
"""What is wrong at present with this host and was not put right, with the remedy.

Each part of the daemon that looks after something puts its own findings here. `mrcctl status` shows
them all, and the daemon counts as degraded while there are any.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrcd.service.log import get_logger

log = get_logger()


class Findings:
    """Sentences for the operator, by their source and what they are about."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, str]] = {}

    def replace(self, source: str, found: Mapping[str, str]) -> None:
        """Replace all that a source has found: by what it is about, what is wrong and the remedy.

        The log tells what is new and what has gone.
        """
        before = self._found.get(source, {})
        self._found[source] = dict(found)
        for about, reason in found.items():
            if about not in before:
                log.error("trouble.found", about=about, reason=reason)
        for about in before.keys() - found.keys():
            log.info("trouble.ended", about=about)

    def put(self, source: str, about: str, reason: str) -> None:
        """Add a finding, or change its text."""
        self.replace(source, {**self._found.get(source, {}), about: reason})

    def drop(self, source: str, about: str) -> None:
        """Remove a finding, if it is there."""
        others = {key: text for key, text in self._found.get(source, {}).items() if key != about}
        self.replace(source, others)

    @property
    def lines(self) -> list[str]:
        """The text of every finding."""
        return [text for found in self._found.values() for text in found.values()]
