# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl monitor``: rates of planes, peers and counters."""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import click

from cli.console.client import Client
from cli.console.options import json_option
from cli.console.render import BAD, GOOD, Cell, bit_rate, colour, print_json_line, table
from cli.state.status import STATE_COLOURS, plane_state
from mrcd.model import MonitorSample, PlaneInfo

PEERS_MAX = 64
"""The text output shows at most this many peers; --json has all of them."""
CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.01, 3600),
    default=1.0,
    show_default=True,
    help="Time between two reports.",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="Stop after N reports.")
@json_option
@click.pass_obj
def monitor(socket: str, interval: float, count: int | None, as_json: bool) -> None:
    """Report rates of planes, peers and counters until interrupted.

    With --json each line is a sample of totals from the daemon; a rate is the difference of two.
    """
    try:
        with Client(socket) as client:
            samples = client.monitor(round(interval * 1000), None if as_json else PEERS_MAX)
            if as_json:
                for number, sample in enumerate(samples, start=1):
                    print_json_line(sample)
                    if number == count:
                        return
            for number, (before, now) in enumerate(pairwise(samples), start=1):
                click.echo((CLEAR if sys.stdout.isatty() else "") + render(before, now))
                if number == count:
                    return
    except KeyboardInterrupt:
        return


def render(before: MonitorSample, now: MonitorSample) -> str:
    """Return the changes between two samples as text."""
    seconds = (now.monotonic_ns - before.monotonic_ns) / 1e9
    state = colour(now.status.state, STATE_COLOURS[now.status.state])
    clock = time.strftime("%H:%M:%S")
    peers = f"peers {now.status.peers_up} of {now.status.peers_total}"
    parts = [
        f"{clock} {now.status.host}: {state}, {peers}",
        *(f"  {colour('!', BAD)} {reason}" for reason in now.status.reasons),
        _planes(before, now, seconds),
        _peers(before, now, seconds),
        _counters(before, now, seconds),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _planes(before: MonitorSample, now: MonitorSample, seconds: float) -> str:
    earlier = {plane.index: plane for plane in before.status.planes}
    pairs = [(earlier.get(plane.index, plane), plane) for plane in now.status.planes]
    return table(
        ["PLANE", "STATE", "TX", "RX", "TX PACKETS/S", "RX PACKETS/S"],
        [
            [
                plane.index,
                plane_state(plane),
                bit_rate((plane.tx_bytes - was.tx_bytes) * 8 / seconds),
                bit_rate((plane.rx_bytes - was.rx_bytes) * 8 / seconds),
                round((plane.tx_packets - was.tx_packets) / seconds),
                round((plane.rx_packets - was.rx_packets) / seconds),
            ]
            for was, plane in pairs
        ],
        [{1: _plane_colour(plane)} for plane in now.status.planes],
    )


def _plane_colour(plane: PlaneInfo) -> str:
    return GOOD if plane.usable else BAD


def _peers(before: MonitorSample, now: MonitorSample, seconds: float) -> str:
    if not now.peers:
        return ""
    earlier = {peer.name: peer for peer in before.peers}
    more = now.status.peers_total - len(now.peers)
    rest = f"\n{more} more peers: those in trouble and the busiest are shown" if more > 0 else ""
    shown = table(
        ["PEER", "STATE", "TX PACKETS/S", "RX PACKETS/S"],
        [
            [
                peer.name,
                peer.state,
                round((peer.tx_packets - was.tx_packets) / seconds),
                round((peer.rx_packets - was.rx_packets) / seconds),
            ]
            for was, peer in ((earlier.get(peer.name, peer), peer) for peer in now.peers)
        ],
    )
    return shown + rest


def _counters(before: MonitorSample, now: MonitorSample, seconds: float) -> str:
    """Return a table of the counters that changed."""
    earlier = {counter.name: counter.value for counter in before.stats.counters}
    rows: list[list[Cell]] = []
    for counter in now.stats.counters:
        if delta := counter.value - earlier.get(counter.name, counter.value):
            rows.append([counter.name, round(delta / seconds), counter.help])
    return table(["COUNTER", "PER SECOND", "MEANING"], rows) if rows else ""
