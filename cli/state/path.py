# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl path``: list, probe, deny and watch paths."""

from __future__ import annotations

import contextlib
import sys

import click

from cli.console import suggestions
from cli.console.client import Client
from cli.console.exits import FAILED
from cli.console.options import (
    HELP_NAMES,
    json_option,
    paths_plane_option,
    peer_option,
    probe_options,
)
from cli.console.render import (
    BAD,
    GOOD,
    colour,
    micros,
    print_json,
    print_json_line,
    table,
    warn_unsaved,
)
from cli.state import pathtable
from cli.state.pathtable import STATE_COLOURS
from mrcd.model import DeniedInfo, PathEvent, PathProbe, PathSumsReply


@click.group(context_settings=HELP_NAMES)
def path() -> None:
    """Show, probe, deny and watch paths: the EVs of each QP."""


@path.command("list")
@peer_option
@paths_plane_option
@click.option(
    "--state",
    type=click.Choice(list(STATE_COLOURS), case_sensitive=False),
    help="Only the paths in this state.",
)
@click.option(
    "--summary", is_flag=True, help="A row for each peer and plane instead of one for each path."
)
@click.option("--all", "every", is_flag=True, help="Show all rows, also on a terminal.")
@json_option
@click.pass_obj
def list_(
    socket: str,
    peer: str | None,
    plane: int | None,
    state: str | None,
    summary: bool,
    every: bool,
    as_json: bool,
) -> None:
    """List the paths with their state and packet counts, the worst first.

    The order is ASSUMED_BAD, DENIED, SKIP, GOOD, and within a state by lost packets. LOST counts
    packets taken for lost, also those that arrived after all: only the counter rtx_needless of the
    whole host tells them apart (`stats`). A terminal shows the first 64 rows; --all shows all.
    --json is never cut.
    """
    with Client(socket) as client:
        reply = client.paths(peer, plane, state)
    paths = reply["paths"]
    if summary:
        sums: PathSumsReply = {
            "schema_version": reply["schema_version"],
            "sums": pathtable.summed(paths),
        }
        if as_json:
            print_json(sums)
        else:
            click.echo(pathtable.render_sums(sums["sums"], _limit(every)))
    elif as_json:
        print_json(reply)
    else:
        click.echo(pathtable.render(paths, _limit(every)))


def _limit(every: bool) -> int | None:
    """Return the most rows to show; None: all, as for files and pipes."""
    return None if every or not sys.stdout.isatty() else pathtable.ROWS


@path.command()
@click.argument("peer", shell_complete=suggestions.peers)
@probe_options
@json_option
@click.pass_context
def probe(ctx: click.Context, peer: str, plane: int | None, count: int, as_json: bool) -> None:
    """Send EV probes over every path to PEER; exit 1 if one is lost.

    All paths of the fabric are probed, whatever their state. Traffic is not affected.
    """
    with Client(ctx.obj) as client:
        reply = client.probe(peer, plane, count)
    if as_json:
        print_json(reply)
    else:
        click.echo(render_probes(reply["probes"]))
    if any(found.answered < found.sent for found in reply["probes"]):
        ctx.exit(FAILED)


def render_probes(probes: list[PathProbe]) -> str:
    """Return a table with a row for each path."""
    return table(
        ["EV", "PLANE", "T1", "SENT", "ANSWERED", "LOSS", "MIN", "MEDIAN", "MAX", "USIDS"],
        [
            [
                f"0x{found.ev:08x}",
                found.plane,
                found.t1 or None,
                found.sent,
                found.answered,
                f"{100 * (found.sent - found.answered) / found.sent:.0f} %",
                micros(found.min_us),
                micros(found.median_us),
                micros(found.max_us),
                found.usids,
            ]
            for found in probes
        ],
        [{5: GOOD if found.answered == found.sent else BAD} for found in probes],
    )


@path.command()
@click.argument("element", shell_complete=suggestions.elements)
@peer_option
@click.option("--force", is_flag=True, help="Deny even if that leaves no path to some peer.")
@json_option
@click.pass_obj
def deny(socket: str, element: str, peer: str | None, force: bool, as_json: bool) -> None:
    """Keep packets off the paths that cross an ELEMENT, until `path allow`.

    \b
    ELEMENT  0x10020000 (a path's EV), p1 (plane), p1t0-1 (T0), p1t1-2 (T1),
             p1t0-1:p1t1-2 (link), h2:p1 (NIC link), h2 (peer)

    The rule applies to every QP, including new ones, and survives a restart of mrcd.
    """
    with Client(socket) as client:
        reply = client.deny(element, peer, force=force)
    warn_unsaved(reply["unsaved"])
    if as_json:
        print_json(reply)
    elif reply["changed"]:
        click.echo(f"denied: {_shown(element, peer)}")
    else:
        click.echo(f"denied already: {_shown(element, peer)}")


@path.command()
@click.argument("element", shell_complete=suggestions.denied)
@peer_option
@json_option
@click.pass_obj
def allow(socket: str, element: str, peer: str | None, as_json: bool) -> None:
    """Undo a `path deny` of the same ELEMENT and --peer."""
    with Client(socket) as client:
        reply = client.allow(element, peer)
    warn_unsaved(reply["unsaved"])
    if as_json:
        print_json(reply)
    else:
        click.echo(f"allowed: {_shown(element, peer)}")


def _shown(element: str, peer: str | None) -> str:
    return f"{element}, to {peer}" if peer else element


@path.command()
@json_option
@click.pass_obj
def denied(socket: str, as_json: bool) -> None:
    """List the rules made by `path deny`."""
    with Client(socket) as client:
        reply = client.denied()
    if as_json:
        print_json(reply)
    else:
        click.echo(render_denied(reply["rules"]) if reply["rules"] else "nothing is denied")


def render_denied(rules: list[DeniedInfo]) -> str:
    """Return a table with a row for each rule."""
    rows = [(rule.element, rule.kind, rule.peer or "all", rule.paths) for rule in rules]
    return table(("ELEMENT", "KIND", "PEER", "PATHS"), rows)


@path.command()
@peer_option
@json_option
@click.pass_obj
def watch(socket: str, peer: str | None, as_json: bool) -> None:
    """Report each path that comes into use or goes out of use, until interrupted.

    Times are CLOCK_MONOTONIC, from the kernel. LOST is the time between the sending of the packet
    that counts as lost and the event. --json prints one event a line.
    """
    with contextlib.suppress(KeyboardInterrupt), Client(socket) as client:
        if peer is not None:
            client.paths(peer)  # raises an error if the peer is unknown
        for event in client.watch_paths():
            if event is None:
                if not as_json:
                    click.echo("watching; the time is in seconds since the machine started")
            elif peer in (None, event.peer):
                print_json_line(event) if as_json else click.echo(_line(event))


def _line(event: PathEvent) -> str:
    words = [
        f"{event.time_ns / 1e9:.6f}",
        f"{event.peer} qp {event.qp}",
        f"0x{event.ev:08x} (plane {event.plane}, T1 {event.t1 or '-'})",
        f"{event.from_state} ->",
        colour(event.to_state, STATE_COLOURS[event.to_state]),
        f"on {event.cause}",
    ]
    if event.sent_ns is not None:
        words.append(f"lost {micros((event.time_ns - event.sent_ns) / 1000)}")
    if event.rtt_ns is not None:
        words.append(f"rtt {micros(event.rtt_ns / 1000)}")
    if event.missed:
        words.append(f"({event.missed} events before this one were missed)")
    return "  ".join(words)
