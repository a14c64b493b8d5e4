# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl log``: what the daemon logs."""

from __future__ import annotations

from typing import cast, get_args

import click

from cli.console.client import Client
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import print_json
from mrcd.model import SCHEMA_VERSION, LogLevel, LogReply
from mrcd.wording import duration

SECONDS_MAX = 86_400


@click.group(context_settings=HELP_NAMES)
def log() -> None:
    """Show and change how much the daemon logs."""


@log.command()
@click.argument("level", required=False, type=click.Choice(get_args(LogLevel)), metavar="[LEVEL]")
@click.option(
    "--seconds",
    type=click.IntRange(1, SECONDS_MAX),
    metavar="N",
    help="Log from info on again after this time.",
)
@json_option
@click.pass_obj
def level(socket: str, level: str | None, seconds: int | None, as_json: bool) -> None:
    """Show the level of the log, or log from LEVEL on: debug, info, warning or error.

    debug adds messages of daemons, calls of the control API, changes of paths, and news of the
    kernel. A restart goes back to info.
    """
    with Client(socket) as client:
        if level is None:
            if seconds is not None:
                raise click.UsageError("--seconds needs a level: `mrcctl log level debug`")
            now = client.status().log_level
            reply: LogReply = {"schema_version": SCHEMA_VERSION, "level": now, "before": now}
        else:
            reply = client.set_log_level(cast(LogLevel, level), seconds)
    if as_json:
        print_json(reply)
        return
    if level is None:
        click.echo(reply["level"])
        return
    until = "" if seconds is None else f" for {duration(seconds)}"
    click.echo(f"{reply['level']}{until} (before: {reply['before']})")
