# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl plane``: the planes, and taking one out of service."""

from __future__ import annotations

import click

from cli.client import Client
from cli.options import HELP_NAMES, json_option
from cli.planeargument import plane_argument
from cli.render import print_json, warn_unsaved
from cli.status import plane_reasons, plane_state, planes_table
from mrcd.model import PlaneInfo


@click.group(context_settings=HELP_NAMES)
def plane() -> None:
    """Show the planes (the NICs to the fabric), or drain one."""


@plane.command("list")
@json_option
@click.pass_obj
def list_(socket: str, as_json: bool) -> None:
    """List the planes with their state and traffic, and what is wrong with them."""
    with Client(socket) as client:
        planes = client.status().planes
    if as_json:
        print_json({"planes": planes})
    else:
        click.echo("\n".join([planes_table(planes), *plane_reasons(planes)]))


@plane.command()
@plane_argument
@click.option("--force", is_flag=True, help="Drain even if that leaves no usable plane.")
@json_option
@click.pass_obj
def drain(socket: str, plane: int, force: bool, as_json: bool) -> None:
    """Take a plane out of service until `plane undrain`, even across a restart.

    PLANE is its number (2), p2 or its NIC (eth2). mrcd stops sending on the plane and tells the
    peers at once to stop sending to it.
    """
    with Client(socket) as client:
        found = client.drain(plane, force=force)
    _show(found, as_json)


@plane.command()
@plane_argument
@json_option
@click.pass_obj
def undrain(socket: str, plane: int, as_json: bool) -> None:
    """Put a plane back into service; PLANE is its number (2), p2 or its NIC (eth2)."""
    with Client(socket) as client:
        found = client.undrain(plane)
    _show(found, as_json)


def _show(found: PlaneInfo, as_json: bool) -> None:
    warn_unsaved(found.unsaved)
    if as_json:
        print_json(found)
    else:
        click.echo(f"plane {found.index} ({found.interface}): {plane_state(found)}")
