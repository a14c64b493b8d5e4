# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl api``: what programs need to know of the control API."""

from __future__ import annotations

import click

from cli.client import Client
from cli.options import HELP_NAMES
from cli.render import print_json


@click.group(context_settings=HELP_NAMES)
def api() -> None:
    """The control API: its interface, and the schema of what --json prints."""


@api.command()
def schema() -> None:
    """Print the JSON Schema of what commands print with --json, and the API replies.

    Needs no daemon. It is the same as docs/api.schema.json.
    """
    from cli.schema import schema as built  # noqa: PLC0415

    print_json(built())


@api.command()
@click.pass_obj
def interface(socket: str) -> None:
    """Print the running daemon's varlink interface, with a comment on each method."""
    with Client(socket) as client:
        click.echo(client.describe(), nl=False)
