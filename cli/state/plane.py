# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl plane``: the planes, and taking one out of service."""

from __future__ import annotations

import click

from cli.console import suggestions
from cli.console.client import Client
from cli.console.options import HELP_NAMES, json_option
from cli.console.planeargument import Plane, plane_argument
from cli.console.render import print_json, warn_unsaved
from cli.state.status import plane_reasons, plane_state, planes_table
from mrcd.model import PlaneInfo


@click.group(context_settings=HELP_NAMES)
def plane() -> None:
    """Show the planes (the NICs to the fabric), drain or measure them."""


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


@plane.command()
@click.argument("peer", required=False, shell_complete=suggestions.peers)
@click.option(
    "--plane",
    type=Plane(),
    metavar="PLANE",
    help="Only this plane: its number (2), p2 or its NIC (eth2).",
)
@json_option
@click.pass_obj
def measure(socket: str, peer: str | None, plane: int | None, as_json: bool) -> None:
    """Fill each plane to PEER, then from it, and show what gets through.

    This takes the plane's whole bandwidth for about a second each way: whatever else uses it, of
    these two hosts or of others, is slowed down and loses packets. The planes are filled one after
    another, to all peers without PEER. Loss is measured at 0.8 of the rate that gets through.
    DELAY is the idle round trip, and what queues add in one direction while the plane is full.
    LARGEST is the longest IP packet that gets through.
    """
    from cli.state import measure as measuring  # noqa: PLC0415

    measuring.measure(socket, peer, plane, as_json)


def _show(found: PlaneInfo, as_json: bool) -> None:
    warn_unsaved(found.unsaved)
    if as_json:
        print_json(found)
    else:
        click.echo(f"plane {found.index} ({found.interface}): {plane_state(found)}")
