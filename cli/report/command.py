# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl report``: the state of a host and its fabric as one page to keep or to send."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import click

from cli.console.exits import CommandError

_CHOSEN = "mrcd-HOST-TIME.html"


@click.command()
@click.option(
    "--html",
    "file",
    is_flag=False,
    flag_value=_CHOSEN,
    metavar="[FILE]",
    help="Write HTML to FILE; - is standard output; default: mrcd-HOST-TIME.html in this folder.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=5.0,
    show_default=True,
    metavar="S",
    help="How long to watch the counters that rates are computed from.",
)
@click.pass_obj
def report(socket: str, file: str | None, seconds: float) -> None:
    """Write a page on this host: state, fabric map, planes, faults, peers, paths, rates.

    The page is one file that needs no network and no script. It holds no secret, but names and
    addresses of the hosts.
    """
    if file is None:
        raise click.UsageError("give the form of the report: --html [FILE]")
    if file not in ("-", _CHOSEN) and Path(file).exists():  # before the wait
        raise _exists(file)
    from cli.report import data, page  # noqa: PLC0415  # only this command needs them

    found = data.observe(socket, seconds)
    text = page.page(found)
    if file == "-":
        click.echo(text, nl=False)
        return
    if file == _CHOSEN:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(found.time_s))
        host = re.sub(r"[^\w.-]", "_", found.status.host)
        file = f"mrcd-{host}-{stamp}.html"
    _write(file, text.encode())
    click.echo(f"{file}: {len(text.encode()):,} bytes")


def _exists(file: str) -> CommandError:
    return CommandError(f"{file} exists: remove it, or name another file")


def _write(file: str, data: bytes) -> None:
    """Write a new file that only the owner can read."""
    try:
        with open(file, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            out.write(data)
    except FileExistsError as error:
        raise _exists(file) from error
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error
