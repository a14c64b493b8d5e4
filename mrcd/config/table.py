# SPDX-License-Identifier: GPL-2.0-only
"""Read a table of a TOML file key by key: record every problem and continue after it.

A problem reads "file: key: value: what is wrong and what would be right".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HIDDEN = "..."
"""Stands for a value that may be secret in the text of a problem."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the closest known word, or all of them."""
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(options)}" if options else ""


class Table:
    """A TOML table that remembers which keys were read and collects problems."""

    def __init__(self, path: Path, prefix: str, data: dict[str, Any], problems: list[str]) -> None:
        self._path = path
        self._prefix = prefix
        self._data = data
        self._problems = problems
        self._asked: set[str] = set()

    def problem(self, key: str, value: object, wrong: str) -> None:
        """Record a problem with `value` under `key`; `wrong` describes it."""
        self._problems.append(f"{self._path}: {self._full(key)}: {_toml(value)}: {wrong}")

    def _full(self, key: str) -> str:
        return f"{self._prefix}.{key}" if self._prefix else key

    def finish(self, *, show: bool = True) -> None:
        """Record a problem for every key that was not read; `show` its value or not."""
        for key in sorted(self._data.keys() - self._asked):
            value = self._data[key] if show else HIDDEN
            self.problem(key, value, f"unknown key{suggest(key, self._asked)}")

    def raw(self, key: str, default: object) -> object:
        """Return the value unchecked."""
        self._asked.add(key)
        return self._data.get(key, default)

    def table(self, key: str) -> Table:
        """Return a table within this one; an empty one if absent or (with a problem) wrong."""
        value = self.raw(key, {})
        if not isinstance(value, dict):
            self.problem(key, value, f"must be a table: [{key}]")
            value = {}
        return Table(self._path, key, value, self._problems)

    def tables(self, key: str) -> list[Table]:
        """Return a list of tables; an empty one if absent or (with a problem) wrong."""
        value = self.raw(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.problem(key, value, f"must be a list of tables: [[{key}]]")
            return []
        names = (f"{key}[{index}]" for index in range(1, len(value) + 1))
        return [
            Table(self._path, name, item, self._problems)
            for name, item in zip(names, value, strict=True)
        ]

    def text(self, key: str, default: str | None) -> str | None:
        """Return a string; record a problem and return None if it is wrong or missing."""
        value = self.raw(key, default)
        if value is None:
            self._problems.append(
                f'{self._path}: {self._full(key)}: is missing; write {key} = "..."'
            )
            return None
        if not isinstance(value, str) or not value:
            self.problem(key, value, "must be a string that is not empty")
            return None
        return value

    def optional(self, key: str) -> str | None:
        """Return a string; None if absent, empty or (with a problem) wrong."""
        return None if self.raw(key, None) in (None, "") else self.text(key, None)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; if it is wrong, record a problem and return the default."""
        value = self.raw(key, default)
        if isinstance(value, bool):
            return value
        self.problem(key, value, "must be true or false")
        return default

    def strings(self, key: str) -> list[str] | None:
        """Return a list of strings; None if absent or (with a problem) wrong."""
        value = self.raw(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problem(key, value, "must be a list of strings")
            return None
        return value

    def integer(self, key: str, default: int, low: int, high: int, *, power: bool = False) -> int:
        """Return an integer within low..high, a power of two if `power`.

        If it is wrong, record a problem and return the default.
        """
        value = self.raw(key, default)
        span = f"{low} to {high}"
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.problem(key, value, f"must be an integer from {span}")
        elif power and value & (value - 1):
            below = 1 << (value.bit_length() - 1)
            near = " or ".join(str(x) for x in (below, 2 * below) if low <= x <= high)
            self.problem(key, value, f"must be a power of two from {span}: {near}")
        else:
            return value
        return default

    def choice(self, key: str, default: str, options: tuple[str, ...]) -> str:
        """Return one of `options`; if it is wrong, record a problem and return the default."""
        value = self.raw(key, default)
        if isinstance(value, str) and value in options:
            return value
        self.problem(key, value, f"must be one of {', '.join(options)}")
        return default


def _toml(value: object) -> str:
    """Return `value` roughly as written in the file, so that it can be found there."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{...}"
    return f'"{value}"' if not isinstance(value, int | float | list) else str(value)
