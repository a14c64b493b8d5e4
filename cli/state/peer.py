# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl peer``: the remote hosts."""

from __future__ import annotations

from dataclasses import asdict
from itertools import zip_longest

import click

from cli.console import suggestions
from cli.console.client import Client
from cli.console.exits import NoSuchObject
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import BAD, GOOD, WARN, Cell, colour, print_json, table
from mrcd.model import PeerInfo
from mrcd.wording import duration

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
            if each.other_file is not None:
                click.echo(f"{colour('?', WARN)} {each.other_file}")


@peer.command("show")
@click.argument("name", metavar="PEER", shell_complete=suggestions.peers)
@json_option
@click.pass_obj
def show(socket: str, name: str, as_json: bool) -> None:
    """Show all that is known of one peer."""
    with Client(socket) as client:
        known = client.peers()["peers"]
    found = next((each for each in known if each.name == name), None)
    if found is None:
        raise NoSuchObject("peer", name, [each.name for each in known])
    if as_json:
        print_json(found)
        return
    members = asdict(found)
    width = max(map(len, members))
    for member, value in members.items():
        click.echo(f"{member.ljust(width)}  {_shown(value)}")
    if found.endpoints is not None:
        click.echo(f"\n{render_ways(found)}")


@peer.command("forget")
@click.argument("name", metavar="PEER", shell_complete=suggestions.peers)
@json_option
@click.pass_obj
def forget(socket: str, name: str, as_json: bool) -> None:
    """Take a host out of the peers that was admitted (admit = true) and that no file lists.

    Stop its mrcd first: a host that knows the secret is admitted again when it asks again.
    """
    with Client(socket) as client:
        reply = client.forget_peer(name)
    if as_json:
        print_json(reply)
    else:
        click.echo(f"{name} is no peer any more")


@peer.command("revoke")
@click.argument("name", metavar="PEER", shell_complete=suggestions.peers)
@click.option("--force", is_flag=True, help="Also if no host of this name is known here.")
@json_option
@click.pass_obj
def revoke(socket: str, name: str, force: bool, as_json: bool) -> None:
    """Put a host out for good, on all hosts: it is no peer any more, and its key is of no use.

    For hosts that find each other (discover = true), on one with the secret. Hosts that are away
    hear of it when they are back. `mrcctl invite` lets the host in again, with another key.
    """
    with Client(socket) as client:
        reply = client.revoke_peer(name, force=force)
    if as_json:
        print_json(reply)
        return
    click.echo(f"{name} is out")
    if reply["withdrawn"]:
        click.echo(f"invitations that were withdrawn: {reply['withdrawn']}")
    if reply["secret_known"]:
        click.echo(
            f"{colour('!', BAD)} {name} may know the secret, by which it can come back under "
            "another name, and invite others: give the other hosts a new one "
            "(`mrcctl key generate --secret`), or invite them",
            err=True,
        )


def _shown(value: object) -> str:
    """Return a member of a peer as a line shows it."""
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "none" if value is None else str(value)


def render_ways(peer: PeerInfo) -> str:
    """Return a table with a row for each way to a peer that is not in a fabric."""
    spare, rows = peer.spare or (), list[list[Cell]]()
    columns = peer.endpoints or (), peer.through or (), peer.ways_mbps or ()
    for plane, (end, through, mbps) in enumerate(zip_longest(*columns)):
        if end:
            rate = f"{mbps} Mb/s" if mbps else "unknown"
            usable = "yes" if plane in peer.planes_usable else "no"
            use = "spare" if plane in spare else "data"
            rows.append([plane, end, through or "none", rate, usable, use])
    return table(["PLANE", "TO", "THROUGH", "RATE", "USABLE", "USE"], rows)


def _shares(shares: list[float]) -> str:
    return "/".join(f"{100 * share:.0f}" for share in shares) + " %"


def _age(peer: PeerInfo) -> str:
    return "none" if peer.key_age_s is None else duration(peer.key_age_s)


def render(peers: list[PeerInfo]) -> str:
    """Return a table with a row for each peer.

    It has a column of entries only if some peer was admitted, a column of shares only if some plane
    has less than its full share, and columns of keys only if there are any.
    """
    keys = any(peer.public_key is not None for peer in peers)
    admitted = any(peer.admitted for peer in peers)
    uneven = any(share < 1 for peer in peers for share in peer.shares)
    return table(
        [
            "PEER",
            *["ENTRY"] * admitted,
            "STATE",
            "HEARD",
            "PLANES",
            *["SHARES"] * uneven,
            "QPS",
            "VERSION",
            "FRAMING",
            "MTU",
            "TX PACKETS",
            "RX PACKETS",
            *["KNOWN BY", "KEY", "KEY AGE"] * keys,
            "ADDRESSES",
        ],
        [
            [
                peer.name,
                *["admitted" if peer.admitted else "file"] * admitted,
                peer.state,
                "never" if peer.last_heard_s is None else f"{duration(peer.last_heard_s)} ago",
                ",".join(map(str, peer.planes_usable)) or "none",
                *[_shares(peer.shares)] * uneven,
                peer.qps,
                "none" if peer.version is None else peer.version,
                peer.framing,
                peer.mtu,
                peer.tx_packets,
                peer.rx_packets,
                *[peer.known_by, peer.public_key, _age(peer)] * keys,
                " ".join([*peer.addresses, *(peer.followed or ())]),
            ]
            for peer in peers
        ],
        [{1 + admitted: STATE_COLOURS[peer.state]} for peer in peers],
    )
