# SPDX-License-Identifier: GPL-2.0-only
"""Format output: aligned tables, figures with units, colour only on a terminal, JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from mrcd.model import SCHEMA_VERSION

GOOD = "green"
WARN = "yellow"
BAD = "red"

Cell = str | int | None


def print_json(value: Any) -> None:
    """Print a model object, or a dictionary, as indented JSON with a schema version."""
    click.echo(msgspec.json.format(_versioned(value), indent=2))


def print_json_line(value: Any) -> None:
    """Print the same on one line."""
    click.echo(_versioned(value))


def _versioned(value: Any) -> bytes:
    return msgspec.json.encode({"schema_version": SCHEMA_VERSION} | msgspec.to_builtins(value))


def warn_unsaved(reason: str | None) -> None:
    """Warn on stderr that what was done would not survive a restart of the daemon, if so."""
    if reason is not None:
        click.echo(f"warning: {reason}", err=True)


def colour(text: str, name: str | None) -> str:
    """Return ``text`` in a colour, or unchanged if NO_COLOR is set or stdout is no terminal."""
    if name is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=name)


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    colours: Sequence[dict[int, str]] = (),
) -> str:
    """Return an aligned table; integers are right-aligned, and ``None`` is a dash.

    ``colours`` maps, for each row, the index of a column to the colour of that cell.
    """
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    right = [
        any(isinstance(row[i], int) for row in rows)
        and all(row[i] is None or isinstance(row[i], int) for row in rows)
        for i in range(len(columns))
    ]
    lines = [_line(columns, widths, right, {})]
    for index, row in enumerate(texts):
        lines.append(_line(row, widths, right, colours[index] if colours else {}))
    return "\n".join(lines)


def _line(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], colours: dict[int, str]
) -> str:
    padded = [
        colour(cell.rjust(width) if to_right else cell.ljust(width), colours.get(i))
        for i, (cell, width, to_right) in enumerate(zip(cells, widths, right, strict=True))
    ]
    return "  ".join(padded).rstrip()


def micros(value: float | None) -> str | None:
    """Return a round-trip time, given in microseconds, with its unit."""
    if value is None:
        return None
    return f"{value:.0f} us" if value < 10_000 else f"{value / 1000:.0f} ms"


def size(count: int) -> str:
    """Return a number of bytes in the largest unit that leaves a digit before the point."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count} B"


def bit_rate(bits_per_s: float) -> str:
    """Return a rate in the largest unit that leaves a digit other than 0 before the point."""
    for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:.2f} {unit}"
    return f"{bits_per_s:.0f} b/s"
