# SPDX-License-Identifier: GPL-2.0-only
"""Exit codes of mrcctl, and the errors that lead to them.

| code | meaning |
|------|---------|
| 0 | done |
| 1 | failed |
| 2 | wrong usage, or a configuration or fabric file with errors |
| 3 | the daemon is not reachable |
| 4 | no such object |
| 5 | not permitted |
| 6 | degraded (``status``), or something is wrong (``doctor``); the output is complete |
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
    """A failed command. The message says what failed, on what object, and how to fix it."""

    exit_code = FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to stderr."""
        click.echo(f"mrcctl: {self.format_message()}", file=file, err=file is None)


class BadConfiguration(CommandError):
    """An error in a file that was given to the command."""

    exit_code = USAGE


class Unreachable(CommandError):
    """A daemon that does not answer."""

    exit_code = UNREACHABLE


class NoSuchObject(CommandError):
    """A name on the command line that no object has; the message lists the known ones."""

    exit_code = NO_SUCH_OBJECT

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = ", ".join(known)
        super().__init__(f"no {kind} {name!r}; known: {names or 'none'}")


class BadElement(CommandError):
    """A fabric element that does not exist; the message lists those that do."""

    exit_code = NO_SUCH_OBJECT


class NotPermitted(CommandError):
    """An action that the user is not permitted to perform."""

    exit_code = NOT_PERMITTED
