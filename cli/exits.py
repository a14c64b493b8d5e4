# SPDX-License-Identifier: GPL-2.0-only
"""Exit codes of mrcctl, and the errors that end in them.

| code | meaning |
|------|---------|
| 0 | done |
| 1 | failed |
| 2 | wrong usage, or a configuration or fabric file with errors |
| 3 | the daemon is not reachable |
| 4 | no such object |
| 5 | not permitted |
| 6 | degraded (``status``), or something is wrong (``doctor``); everything is printed first |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import click

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NO_SUCH_OBJECT = 4
NOT_PERMITTED = 5
DEGRADED = 6


class CommandError(click.ClickException):
    """A command failed; the message says what was tried, on what, and what to do about it."""

    exit_code = FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to stderr."""
        click.echo(f"mrcctl: {self.format_message()}", file=file, err=file is None)


class BadConfiguration(CommandError):
    """A file given to the command has errors."""

    exit_code = USAGE


class Unreachable(CommandError):
    """The daemon does not answer."""

    exit_code = UNREACHABLE


class NoSuchObject(CommandError):
    """The object named on the command line does not exist; the known ones are listed."""

    exit_code = NO_SUCH_OBJECT

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = ", ".join(known)
        super().__init__(f"no {kind} {name!r}; known: {names or 'none'}")


class BadElement(CommandError):
    """The element of the fabric does not exist; the message lists what there is."""

    exit_code = NO_SUCH_OBJECT


class NotPermitted(CommandError):
    """The user may not do this."""

    exit_code = NOT_PERMITTED
