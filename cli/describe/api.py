# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl api``: a description of the control API for programs."""

from __future__ import annotations

import click

from cli.console.client import Client
from cli.console.options import HELP_NAMES
from cli.console.render import print_json


@click.group(context_settings=HELP_NAMES)
def api() -> None:
    """Describe the control API: its interface, and the schema of --json output."""


@api.command()
def schema() -> None:
    """Print the JSON Schema of --json output and of the API replies.

    No daemon is needed. The schema is the same as docs/api.schema.json.
    """
    from cli.describe.schema import schema as built  # noqa: PLC0415

    print_json(built())


@api.command()
@click.pass_obj
def interface(socket: str) -> None:
    """Print the running daemon's varlink interface with a comment on each method."""
    with Client(socket) as client:
        click.echo(client.describe(), nl=False)
