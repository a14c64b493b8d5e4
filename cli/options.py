# SPDX-License-Identifier: GPL-2.0-only
"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable

import click

from cli import DEFAULT_SOCKET

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

json_option = click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")


def complete_peer(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the daemon's peers whose names start with `typed`; none without a daemon."""
    from cli.client import Client  # noqa: PLC0415
    from cli.exits import CommandError  # noqa: PLC0415

    try:
        with Client(ctx.find_root().params.get("socket") or DEFAULT_SOCKET) as client:
            names = [peer.name for peer in client.peers()["peers"]]
    except CommandError:
        return []
    return [name for name in names if name.startswith(typed)]


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
        click.option("--plane", type=int, metavar="N", help="Only the paths of this plane."),
    ):
        command = parameter(command)
    return command


peer_option = click.option(
    "--peer", metavar="NAME", help="Only this peer.", shell_complete=complete_peer
)
