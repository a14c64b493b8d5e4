# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl path``."""

from __future__ import annotations

import click

from cli.client import Client
from cli.options import HELP_NAMES, json_option, peer_option
from cli.render import BAD, GOOD, WARN, micros, print_json, table
from mrcd.model import PathInfo

STATE_COLOURS = {"GOOD": GOOD, "SKIP": WARN, "ASSUMED_BAD": BAD, "DENIED": BAD}


@click.group(context_settings=HELP_NAMES)
def path() -> None:
    """Paths: the EVs of each QP and the links they name."""


@path.command("list")
@peer_option
@json_option
@click.pass_obj
def list_(socket: str, peer: str | None, as_json: bool) -> None:
    """List the paths with their state and what they carried."""
    with Client(socket) as client:
        reply = client.paths(peer)
    if as_json:
        print_json(reply)
    else:
        click.echo(render(reply["paths"]))


def render(paths: list[PathInfo]) -> str:
    """A row for each path."""
    return table(
        ["PEER", "QP", "EV", "PLANE", "T1", "STATE", "ROLE",
         "SENT", "ACKED", "LOST", "MARKED", "SRTT", "USIDS"],
        [
            [
                path.peer,
                path.qp,
                f"0x{path.ev:08x}",
                path.plane,
                path.t1 or None,
                path.state,
                "slow" if path.slow else path.role,
                path.sent,
                path.acked,
                path.lost,
                path.marked,
                micros(path.srtt_us),
                path.usids,
            ]
            for path in paths
        ],
        [{5: STATE_COLOURS[path.state]} for path in paths],
    )
