# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl iface``: mrc0 and the planes' NICs."""

from __future__ import annotations

import click

from cli.console.client import Client
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import BAD, GOOD, Cell, print_json, table
from cli.state.status import plane_state
from mrcd.model import InterfacesReply, Status


@click.group(context_settings=HELP_NAMES)
def iface() -> None:
    """Show the interfaces: mrc0 and the planes' NICs."""


@iface.command("list")
@json_option
@click.pass_obj
def list_(socket: str, as_json: bool) -> None:
    """List mrc0 and the planes' NICs with state, MTU, addresses and traffic."""
    with Client(socket) as client:
        status = client.status()
    if as_json:
        reply: InterfacesReply = {
            "schema_version": status.schema_version,
            "mrc0": status.mrc0,
            "planes": status.planes,
        }
        print_json(reply)
    else:
        click.echo(render(status))


def render(status: Status) -> str:
    """Return a table with a row for each interface, mrc0 first."""
    mrc0, planes = status.mrc0, status.planes
    rows: list[list[Cell]] = [
        [
            mrc0.name,
            "mrc0",
            "up" if status.state in ("ok", "degraded") else status.state,
            mrc0.mtu,
            mrc0.tx_packets,
            mrc0.tx_bytes,
            mrc0.rx_packets,
            mrc0.rx_bytes,
            " ".join(mrc0.addresses),
        ]
    ]
    for plane in planes:
        rows.append(
            [
                plane.interface,
                f"plane {plane.index}",
                plane_state(plane),
                plane.mtu or None,
                plane.tx_packets,
                plane.tx_bytes,
                plane.rx_packets,
                plane.rx_bytes,
                plane.address,
            ]
        )
    columns = ["INTERFACE", "ROLE", "STATE", "MTU", "TX PACKETS", "TX BYTES", "RX PACKETS"]
    colours = [{}, *({2: GOOD if plane.usable else BAD} for plane in planes)]
    return table([*columns, "RX BYTES", "ADDRESSES"], rows, colours)
