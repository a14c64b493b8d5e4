# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl plane measure``: fill planes one by one, and show what got through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from cli.console.client import Client
from cli.console.exits import FAILED, CommandError
from cli.console.render import BAD, GOOD, WARN, Cell, micros, print_json, table
from cli.state.ping import peer_named
from mrcd.model import SCHEMA_VERSION, PeerInfo, PlaneRate, RatesReply
from mrcd.wording import falls_short

LOSSY = 0.001
"""A link that loses more than this share at less than its rate is not a good one."""
COLUMNS = (
    "PEER", "PLANE", "DIRECTION", "NIC SAYS", "GOT THROUGH", "LOSS", "DELAY", "LARGEST",
)  # fmt: skip


def measure(socket: str, peer: str | None, plane: int | None, as_json: bool) -> None:
    """Measure planes to a peer, or to all; exit 1 if one could not be measured."""
    rates: list[PlaneRate] = []
    failed = False
    for name, index in _wanted(socket, peer, plane):
        try:
            with Client(socket) as client:
                rates += client.measure(name, index)["rates"]
        except CommandError as error:
            failed = True
            click.echo(f"mrcctl: plane {index} to {name}: {error.format_message()}", err=True)
    if as_json:
        reply: RatesReply = {"schema_version": SCHEMA_VERSION, "rates": rates}
        print_json(reply)
    elif rates:
        click.echo("\n".join([render(rates), *sentences(rates)]))
    if failed:
        raise click.exceptions.Exit(FAILED)


def _wanted(socket: str, peer: str | None, plane: int | None) -> list[tuple[str, int]]:
    """Return the peers and planes to be measured, one after another."""
    with Client(socket) as client:
        peers = client.peers()["peers"]
        if peer is not None:
            name = peer_named(peers, peer)
            peers = [each for each in peers if each.name == name]
        else:
            peers = [each for each in peers if each.state == "established"]
        found = [(each.name, index) for each in peers for index in _planes(each, plane)]
    if not found:
        raise CommandError(
            "there is nothing to measure: no peer is established"
            if peer is None
            else f"no plane is usable at this host and at {peer}: see `mrcctl peer show {peer}`"
        )
    return found


def _planes(peer: PeerInfo, plane: int | None) -> list[int]:
    return peer.planes_usable if plane is None else [plane]


def render(rates: Sequence[PlaneRate]) -> str:
    """Return a table with a row for each plane and direction."""
    rows: list[list[Cell]] = []
    colours = []
    for rate in rates:
        rows.append(
            [
                rate.peer,
                f"{rate.plane} ({rate.interface})",
                "to" if rate.direction == "tx" else "from",
                None if rate.nic_mbps is None else f"{rate.nic_mbps} Mb/s",
                f"{'at least ' if rate.at_least else ''}{rate.mbps:.0f} Mb/s",
                None if rate.loss is None else f"{100 * rate.loss:.1f} %",
                f"{micros(rate.rtt_us) or '-'}, full +{micros(rate.queue_median_us)}",
                f"{rate.largest} B",
            ]
        )
        short = WARN if falls_short(rate) else None
        lossy = rate.loss is not None and rate.loss > LOSSY
        colours.append({5: BAD if lossy else GOOD} | ({4: short} if short else {}))
    return table(COLUMNS, rows, colours)


def sentences(rates: Sequence[PlaneRate]) -> Iterator[str]:
    """Yield what is remarkable about what was measured."""
    yield from filter(None, map(falls_short, rates))
    if any(rate.at_least for rate in rates):
        yield (
            '"at least": one of the two hosts was busy sending or receiving, so the plane may '
            "carry more"
        )
    if any(rate.loss is None for rate in rates):
        yield "no LOSS: the receiver could not read all that arrived, so it is not the plane's"
