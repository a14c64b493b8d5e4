# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl top``: a live view of planes, peers and paths."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

from cli.console.client import Client


@click.command()
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Time between two frames.",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="Stop after N frames.")
@click.pass_obj
def top(socket: str, interval: float, count: int | None) -> None:
    """Watch planes, peers and paths live; the paths in trouble come first.

    Arrows and PgUp, PgDn scroll the paths, s sorts them by trouble, lost, sent or round trip in
    turn, / shows only those of a peer or plane, h shows help, and q or Ctrl-C quits. Without a
    terminal, frames are printed one after another, without colour. Programs should use
    `monitor --json`.
    """
    from rich.console import Console  # noqa: PLC0415  # takes longer than the rest of mrcctl

    from cli.top import screen  # noqa: PLC0415

    with (
        contextlib.suppress(KeyboardInterrupt),
        Client(socket) as watching,
        Client(socket) as asking,
        _keys() as keys,
    ):
        shown = screen.Screen(Console(highlight=False), asking)
        shown.run(watching, interval, count, keys)


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Yield the terminal's input, where keys arrive without Enter and without echo; None: none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield None
        return
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield sys.stdin.fileno()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
