# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl invite``: let a host join that does not know the secret."""

from __future__ import annotations

import time

import click

from cli.console.client import Client
from cli.console.options import json_option
from cli.console.render import print_json
from mrcd.wording import duration


@click.command()
@click.argument("name")
@click.option(
    "--hours", type=float, default=1.0, show_default=True, help="For how long it can be used."
)
@json_option
@click.pass_obj
def invite(socket: str, name: str, hours: float, as_json: bool) -> None:
    """Print an invitation, by which one host called NAME can join without the secret.

    It is a secret itself until it is used, which is possible once: give it to `mrcctl quick up
    --invitation` on that host, or write it into its file [keys] invitation_file, with mode 600.
    mrcd has to run here meanwhile.
    """
    if not hours > 0:
        raise click.UsageError(f"--hours {hours:g}: an invitation needs some time to be used")
    with Client(socket) as client:
        reply = client.invite(name, hours)
    if as_json:
        print_json(reply)
        return
    click.echo(reply["invitation"])
    left = duration(max(0.0, reply["end_s"] - time.time()))
    click.echo(f"The invitation for {name}, to be used once, within {left}.", err=True)
    if reply["known_by"] is not None:
        click.echo(
            f"There is a host {name} already: its present key ends when the invitation is used.",
            err=True,
        )
