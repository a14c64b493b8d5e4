# SPDX-License-Identifier: GPL-2.0-only
"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable

import click

from cli import suggestions
from cli.planeargument import Plane

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def _or_before(ctx: click.Context, _parameter: click.Parameter, given: bool) -> bool:
    """Return whether JSON is wanted: --json stands here, or before the command."""
    return given or bool(ctx.find_root().params.get("as_json", False))


json_option = click.option(
    "-j", "--json", "as_json", is_flag=True, callback=_or_before, help="Print JSON."
)


paths_plane_option = click.option(
    "--plane",
    type=Plane(),
    metavar="PLANE",
    help="Only the paths of this plane: its number (2), p2 or its NIC (eth2).",
)


def probe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --plane and --count to a command that sends EV probes."""
    for parameter in (
        click.option(
            "--count",
            type=click.IntRange(1, 100),
            default=10,
            show_default=True,
            metavar="N",
            help="Probes to send over each path.",
        ),
        paths_plane_option,
    ):
        command = parameter(command)
    return command


peer_option = click.option(
    "--peer", metavar="NAME", help="Only this peer.", shell_complete=suggestions.peers
)
