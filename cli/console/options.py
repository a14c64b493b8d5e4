# SPDX-License-Identifier: GPL-2.0-only
"""Options that several commands share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import click

from cli.console import suggestions
from cli.console.planeargument import Plane

T = TypeVar("T")

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def _or_before(ctx: click.Context, _parameter: click.Parameter, given: bool) -> bool:
    """Return whether JSON is wanted: --json stands here, or before the command."""
    return given or bool(ctx.find_root().params.get("as_json", False))


json_option = click.option(
    "-j", "--json", "as_json", is_flag=True, callback=_or_before, help="Print JSON."
)


paths_plane_option = click.option(
    "--plane",
    type=Plane(),
    metavar="PLANE",
    help="Only the paths of this plane: its number (2), p2 or its NIC (eth2).",
)


ASK_S = 0.2
"""Seconds between two questions of --wait."""


def wait_option(help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --wait [SECONDS]; without a number it waits for ever."""
    return click.option(
        "--wait",
        type=click.FloatRange(0),
        is_flag=False,
        flag_value=math.inf,
        metavar="[SECONDS]",
        help=help_text,
    )


def awaited(ask: Callable[[], T], enough: Callable[[T], bool], seconds: float) -> T:
    """Ask until the answer is enough, and return it, or the last one within `seconds`."""
    until = time.monotonic() + seconds
    while True:
        answer = ask()
        left = until - time.monotonic()
        if left <= 0 or enough(answer):
            return answer
        time.sleep(min(left, ASK_S))


def probe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --plane and --count to a command that sends EV probes."""
    for parameter in (
        click.option(
            "--count",
            type=click.IntRange(1, 100),
            default=10,
            show_default=True,
            metavar="N",
            help="Probes to send over each path.",
        ),
        paths_plane_option,
    ):
        command = parameter(command)
    return command


peer_option = click.option(
    "--peer", metavar="NAME", help="Only this peer.", shell_complete=suggestions.peers
)
