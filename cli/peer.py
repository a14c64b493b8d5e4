# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl peer``: the remote hosts."""

from __future__ import annotations

import click

from cli.client import Client
from cli.options import HELP_NAMES, json_option
from cli.render import BAD, GOOD, WARN, colour, duration, print_json, table
from mrcd.model import PeerInfo

STATE_COLOURS = {"established": GOOD, "connecting": WARN, "silent": BAD}


@click.group(context_settings=HELP_NAMES)
def peer() -> None:
    """Show the peers: the remote hosts."""


@peer.command("list")
@json_option
@click.pass_obj
def list_(socket: str, as_json: bool) -> None:
    """List the configured peers with their state, planes and traffic."""
    with Client(socket) as client:
        reply = client.peers()
    if as_json:
        print_json(reply)
    else:
        click.echo(render(reply["peers"]))
        for each in reply["peers"]:
            if each.refused is not None:
                click.echo(f"{colour('!', BAD)} {each.refused}")


def _shares(shares: list[float]) -> str:
    return "/".join(f"{100 * share:.0f}" for share in shares) + " %"


def render(peers: list[PeerInfo]) -> str:
    """Return a table with a row for each peer.

    It has a column of shares only if some plane has less than its full share.
    """
    uneven = any(share < 1 for peer in peers for share in peer.shares)
    return table(
        [
            "PEER",
            "STATE",
            "HEARD",
            "PLANES",
            *["SHARES"] * uneven,
            "QPS",
            "FRAMING",
            "MTU",
            "TX PACKETS",
            "RX PACKETS",
            "ADDRESSES",
        ],
        [
            [
                peer.name,
                peer.state,
                "never" if peer.last_heard_s is None else f"{duration(peer.last_heard_s)} ago",
                ",".join(map(str, peer.planes_usable)) or "none",
                *[_shares(peer.shares)] * uneven,
                peer.qps,
                peer.framing,
                peer.mtu,
                peer.tx_packets,
                peer.rx_packets,
                " ".join(peer.addresses),
            ]
            for peer in peers
        ],
        [{1: STATE_COLOURS[peer.state]} for peer in peers],
    )
