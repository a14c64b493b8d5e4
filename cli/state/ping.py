# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl ping``: probe every path to a peer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

import click

from cli.console import suggestions
from cli.console.client import Client
from cli.console.exits import FAILED, NoSuchObject
from cli.console.options import json_option, probe_options
from cli.console.render import BAD, GOOD, Cell, micros, print_json, table
from cli.state.path import render_probes
from mrcd.model import PathProbe, PeerInfo


@click.command()
@click.argument("peer", shell_complete=suggestions.peers)
@click.option("--all-paths", is_flag=True, help="Show a row for each path, not for each plane.")
@probe_options
@json_option
@click.pass_context
def ping(
    ctx: click.Context, peer: str, all_paths: bool, plane: int | None, count: int, as_json: bool
) -> None:
    """Probe every path to PEER and show loss and round trips; exit 1 on any loss.

    PEER is a name or an address. EV probes bypass the sockets of both ends, use every path
    whatever its state, and do not affect traffic. --json has every path.
    """
    with Client(ctx.obj) as client:
        name = peer_named(client.peers()["peers"], peer)
        reply = client.probe(name, plane, count)
    probes = reply["probes"]
    if as_json:
        print_json(reply)
    else:
        click.echo(render_probes(probes) if all_paths else render(probes))
        click.echo(_total(name, probes))
    if any(found.answered < found.sent for found in probes):
        ctx.exit(FAILED)


def peer_named(peers: Sequence[PeerInfo], wanted: str) -> str:
    """Return the peer with this name, or the one that this address belongs to.

    Raises NoSuchObject if there is none.
    """
    if wanted in (peer.name for peer in peers):
        return wanted
    from ipaddress import ip_address, ip_network  # noqa: PLC0415

    try:
        address = ip_address(wanted)
    except ValueError:
        raise NoSuchObject("peer", wanted, [peer.name for peer in peers]) from None
    owned = [
        (ip_network(prefix).prefixlen, peer.name)
        for peer in peers
        for prefix in peer.addresses
        if address in ip_network(prefix)
    ]
    if not owned:
        known = [f"{peer.name} ({' '.join(peer.addresses)})" for peer in peers]
        raise NoSuchObject("peer", wanted, known)
    return max(owned)[1]


def render(probes: Sequence[PathProbe]) -> str:
    """Return a table with a row for each plane."""
    rows: list[list[Cell]] = []
    colours = []
    for plane, group in groupby(sorted(probes, key=_plane), key=_plane):
        paths = list(group)
        lost = sum(found.sent - found.answered for found in paths)
        dead = sum(found.answered == 0 for found in paths)
        medians = [found.median_us for found in paths if found.median_us is not None]
        rows.append(
            [
                plane,
                len(paths),
                dead,
                sum(found.sent for found in paths),
                lost,
                f"{100 * lost / sum(found.sent for found in paths):.1f} %",
                micros(min((us for found in paths if (us := found.min_us)), default=None)),
                micros(median(medians) if medians else None),
                micros(max((us for found in paths if (us := found.max_us)), default=None)),
            ]
        )
        colours.append({5: BAD if lost else GOOD})
    columns = ["PLANE", "PATHS", "DEAD", "SENT", "LOST", "LOSS", "MIN", "MEDIAN", "MAX"]
    return table(columns, rows, colours)


def _plane(found: PathProbe) -> int:
    return found.plane


def _total(name: str, probes: Sequence[PathProbe]) -> str:
    lossy = [found for found in probes if found.answered < found.sent]
    sent = sum(found.sent for found in probes)
    lost = sum(found.sent - found.answered for found in lossy)
    share = f" ({100 * lost / sent:.1f} %)" if sent else ""
    return f"{name}: {len(probes)} paths, {len(lossy)} with loss; {lost} of {sent} lost{share}"
