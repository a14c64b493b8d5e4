# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl plane``: the planes, and taking one out of service."""

from __future__ import annotations

import click

from cli.client import Client
from cli.options import HELP_NAMES, json_option
from cli.render import print_json
from cli.status import plane_state, planes_table
from mrcd.model import PlaneInfo

plane_argument = click.argument("number", metavar="PLANE", type=click.IntRange(0))


@click.group(context_settings=HELP_NAMES)
def plane() -> None:
    """Show the planes (the NICs to the fabric), or drain one."""


@plane.command("list")
@json_option
@click.pass_obj
def list_(socket: str, as_json: bool) -> None:
    """List the planes with their state and traffic."""
    with Client(socket) as client:
        planes = client.status().planes
    if as_json:
        print_json({"planes": planes})
    else:
        click.echo(planes_table(planes))


@plane.command()
@plane_argument
@click.option("--force", is_flag=True, help="Drain even if that leaves no usable plane.")
@json_option
@click.pass_obj
def drain(socket: str, number: int, force: bool, as_json: bool) -> None:
    """Take a plane out of service until `plane undrain`, even across a restart.

    mrcd stops sending on the plane and tells the peers at once to stop sending to it.
    """
    with Client(socket) as client:
        found = client.drain(number, force=force)
    _show(found, as_json)


@plane.command()
@plane_argument
@json_option
@click.pass_obj
def undrain(socket: str, number: int, as_json: bool) -> None:
    """Put a plane back into service."""
    with Client(socket) as client:
        found = client.undrain(number)
    _show(found, as_json)


def _show(found: PlaneInfo, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        click.echo(f"plane {found.index} ({found.interface}): {plane_state(found)}")
