# SPDX-License-Identifier: GPL-2.0-only
"""A table of a TOML file, read key by key: every problem is noted, none ends the reading.

A problem is "file: key: value: what is wrong and what would be right".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def suggest(word: str, known: Iterable[str]) -> str:
    """What to say behind an unknown word: the one that was meant, or all there are."""
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(options)}" if options else ""


class Table:
    """One TOML table being read: remembers which keys it was asked for, collects problems."""

    def __init__(self, path: Path, prefix: str, data: dict[str, Any], problems: list[str]) -> None:
        self._path = path
        self._prefix = prefix
        self._data = data
        self._problems = problems
        self._asked: set[str] = set()

    def problem(self, key: str, value: object, wrong: str) -> None:
        """Note that `value` under `key` is `wrong`."""
        self._problems.append(f"{self._path}: {self._full(key)}: {_toml(value)}: {wrong}")

    def _full(self, key: str) -> str:
        return f"{self._prefix}.{key}" if self._prefix else key

    def finish(self) -> None:
        """Complain about every key nobody asked for."""
        for key in sorted(self._data.keys() - self._asked):
            self.problem(key, self._data[key], f"unknown key{suggest(key, self._asked)}")

    def raw(self, key: str, default: object) -> object:
        """Whatever stands there, unchecked."""
        self._asked.add(key)
        return self._data.get(key, default)

    def table(self, key: str) -> Table:
        """A table in this one; an empty one when absent or wrong (a problem then)."""
        value = self.raw(key, {})
        if not isinstance(value, dict):
            self.problem(key, value, f"must be a table: [{key}]")
            value = {}
        return Table(self._path, key, value, self._problems)

    def tables(self, key: str) -> list[Table]:
        """A list of tables; an empty one when absent or wrong (a problem then)."""
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
        """A string; None when absent without a default, or wrong (a problem then)."""
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

    def strings(self, key: str) -> list[str] | None:
        """A list of strings; None when absent or wrong (a problem then)."""
        value = self.raw(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problem(key, value, "must be a list of strings")
            return None
        return value

    def integer(self, key: str, default: int, low: int, high: int, *, power: bool = False) -> int:
        """An integer within low..high, a power of two if `power`; the default when wrong."""
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
        """One of `options`; the default when wrong."""
        value = self.raw(key, default)
        if isinstance(value, str) and value in options:
            return value
        self.problem(key, value, f"must be one of {', '.join(options)}")
        return default


def _toml(value: object) -> str:
    """`value` as it stood in the file, near enough to find it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{...}"
    return f'"{value}"' if not isinstance(value, int | float | list) else str(value)
