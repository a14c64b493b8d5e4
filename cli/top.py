# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl top``: a live view of planes, peers and paths."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

import click

from cli.client import Client


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

    Press q or Ctrl-C to quit. Without a terminal, frames are printed one after another, without
    colour. Programs should use `monitor --json`.
    """
    from rich.console import Console  # noqa: PLC0415  # takes longer than the rest of mrcctl

    from cli import topscreen  # noqa: PLC0415

    with (
        contextlib.suppress(KeyboardInterrupt),
        Client(socket) as watching,
        Client(socket) as asking,
        _keys(),
    ):
        topscreen.show(Console(highlight=False), watching, asking, interval, count)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Make the key q interrupt like Ctrl-C, without Enter and without echo."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    main = threading.main_thread().ident
    assert main is not None

    def listen() -> None:
        with contextlib.suppress(OSError):
            while key := os.read(sys.stdin.fileno(), 1):
                if key in b"qQ":
                    signal.pthread_kill(main, signal.SIGINT)
                    return

    tty.setcbreak(sys.stdin)
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
