# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl conn``: the QPs with each peer."""

from __future__ import annotations

import click

from cli.console.client import Client
from cli.console.options import HELP_NAMES, json_option, peer_option
from cli.console.render import BAD, GOOD, WARN, micros, print_json, table
from mrcd.model import ConnInfo

STATE_COLOURS = {"RTS": GOOD, "ERROR": BAD}
COLUMNS = (
    "PEER",
    "QP",
    "QPN",
    "REMOTE QPN",
    "STATE",
    "FRAMING",
    "TRIMS",
    "NEXT PSN",
    "UNA PSN",
    "OUTSTANDING",
    "MPR",
    "GRANTED",
    "SRTT",
    "WINDOW",
    "IN FLIGHT",
    "BACKLOG",
    "DELAY",
    "TARGET",
    "RX NEXT PSN",
    "RX WAITING",
    "RETRANSMITS",
)


@click.group(context_settings=HELP_NAMES)
def conn() -> None:
    """Show the connections: the QPs with each peer."""


@conn.command("list")
@peer_option
@json_option
@click.pass_obj
def list_(socket: str, peer: str | None, as_json: bool) -> None:
    """List the QPs with their send and receive windows."""
    with Client(socket) as client:
        reply = client.connections(peer)
    if as_json:
        print_json(reply)
    else:
        click.echo(render(reply["connections"]))


def render(conns: list[ConnInfo]) -> str:
    """Return a table with a row for each QP."""
    return table(
        COLUMNS,
        [
            [
                conn.peer,
                conn.qp,
                f"0x{conn.qpn:06x}",
                f"0x{conn.remote_qpn:06x}",
                conn.state,
                conn.framing,
                "yes" if conn.trims else "no",
                conn.next_psn,
                conn.una_psn,
                conn.outstanding,
                conn.mpr,
                conn.granted,
                micros(conn.srtt_us),
                conn.window_bytes,
                conn.inflight_bytes,
                conn.backlog_bytes,
                micros(conn.delay_us),
                micros(conn.target_us),
                conn.rx_next_psn,
                conn.rx_waiting,
                conn.retransmits,
            ]
            for conn in conns
        ],
        [{4: STATE_COLOURS.get(conn.state, WARN)} for conn in conns],
    )
