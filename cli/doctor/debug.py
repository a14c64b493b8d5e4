# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl debug``: the material for a bug report."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import click

from cli.console.exits import CommandError
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import print_json


@click.group(context_settings=HELP_NAMES)
def debug() -> None:
    """Collect the material for a bug report."""


@debug.command()
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; default: mrcd-HOST-TIME.tar.gz in this folder.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 600),
    default=3.0,
    show_default=True,
    metavar="S",
    help="How long to watch for path events.",
)
@json_option
@click.pass_obj
def bundle(socket: str, output: Path | None, seconds: float, as_json: bool) -> None:
    """Write one file for a bug report: state, counters, paths, events, facts about this host.

    This takes a few seconds. Configuration values whose keys sound like secrets are left out.
    Parts that cannot be gathered, for example because mrcd is not running, are named.
    """
    from cli.doctor import bundle as bundles  # noqa: PLC0415  # netlink, C headers, tar

    now = int(time.time())
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    folder = f"mrcd-{platform.node()}-{stamp}"
    path = output if output is not None else Path(f"{folder}.tar.gz")
    if path.exists():
        raise CommandError(f"{path} exists: remove it, or choose another with --output")
    found = bundles.gather(bundles.Place(socket, seconds))
    data = bundles.pack(found, folder, now)
    try:
        # "x" never overwrites a file, and only the owner may read the bundle.
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    if as_json:
        print_json({"file": str(path), "contents": [*found.parts], "missing": found.missing})
        return
    click.echo(f"{path}: {len(found.parts)} parts, {len(data):,} bytes")
    for name, reason in found.missing.items():
        click.echo(f"  without {name}: {reason}")
