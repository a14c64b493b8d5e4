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

import difflib
from collections.abc import Iterable, Sequence
from typing import IO, Any

import click

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NO_SUCH_OBJECT = 4
NOT_PERMITTED = 5
DEGRADED = 6
NAMES_LISTED = 32
"""The most names that a message lists."""


class CommandError(click.ClickException):
    """A failed command. The message says what failed, on what object, and how to fix it."""

    exit_code = FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to stderr."""
        click.echo(f"mrcctl: {self.format_message()}", file=file, err=file is None)


class BadConfiguration(CommandError):
    """An error in a file that was given to the command."""

    exit_code = USAGE


class RefusedConfiguration(BadConfiguration):
    """A configuration that the daemon refuses.

    Each problem begins with the file it is in. The daemon takes a text for that of its own file.
    """

    def __init__(self, problems: Sequence[str], name: str | None = None) -> None:
        super().__init__("\n".join([_heading(name), *problems]))
        self.problems = tuple(problems)

    def in_file(self, name: str, own: str) -> RefusedConfiguration:
        """Return the same with the name of the file that was read, for the daemon's `own`."""
        return RefusedConfiguration(
            [
                f"{name}: {problem.removeprefix(f'{own}: ')}"
                if problem.startswith(f"{own}: ")
                else problem
                for problem in self.problems
            ],
            name,
        )


def _heading(name: str | None) -> str:
    return f"{name} is refused, nothing was changed:" if name else "refused, nothing was changed:"


class Unreachable(CommandError):
    """A daemon that does not answer."""

    exit_code = UNREACHABLE


class NoSuchObject(CommandError):
    """A name on the command line that no object has; the message lists the known ones.

    Of many, it lists the first, and those that look like the name.
    """

    exit_code = NO_SUCH_OBJECT

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = [*known]
        listed = ", ".join(names[:NAMES_LISTED]) or "none"
        if len(names) > NAMES_LISTED:
            listed += f" and {len(names) - NAMES_LISTED:,} more"
            if close := difflib.get_close_matches(name, names):
                listed += f"; did you mean {' or '.join(close)}?"
        super().__init__(f"no {kind} {name!r}; known: {listed}")


class BadElement(CommandError):
    """A fabric element that does not exist; the message lists those that do."""

    exit_code = NO_SUCH_OBJECT


class NotPermitted(CommandError):
    """An action that the user is not permitted to perform."""

    exit_code = NOT_PERMITTED
