# SPDX-License-Identifier: GPL-2.0-only
"""What a shell completes on the command line of ``mrcctl``: names that exist at this moment.

Each function is one of click's: it returns the names that start with `typed`. Without a daemon or
the permission to ask it there are none, and no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from cli import DEFAULT_SOCKET

if TYPE_CHECKING:
    from cli.console.client import Client


def socket_of(ctx: click.Context) -> str:
    """Return the control socket of a command line."""
    return ctx.find_root().params.get("socket") or DEFAULT_SOCKET


def _asked(ctx: click.Context, ask: Callable[[Client], Iterable[str]]) -> list[str]:
    from cli.console.client import Client  # noqa: PLC0415
    from cli.console.exits import CommandError  # noqa: PLC0415

    try:
        with Client(socket_of(ctx)) as client:
            return [*ask(client)]
    except CommandError:
        return []


def fitting(names: Iterable[str], typed: str) -> list[str]:
    """Return the names that begin with what was typed, each once."""
    return [name for name in dict.fromkeys(names) if name.startswith(typed)]


def peers(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the daemon's peers."""
    found = _asked(ctx, lambda client: (peer.name for peer in client.peers()["peers"]))
    return fitting(found, typed)


def planes(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the numbers and the NICs of the daemon's planes."""
    found = _asked(ctx, _planes)
    return fitting(found, typed)


def _planes(client: Client) -> list[str]:
    planes = client.status().planes
    return [str(plane.index) for plane in planes] + [plane.interface for plane in planes]


def elements(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return what `path deny` takes: links after the first colon, EVs after 0x."""
    if typed.startswith("0"):
        found = _asked(ctx, lambda client: (f"0x{p.ev:08x}" for p in client.paths(None)["paths"]))
        return sorted(fitting(found, typed))
    found = _asked(ctx, _elements)
    return one_level(found, typed)


def _elements(client: Client) -> list[str]:
    told = client.fabric_map()
    names = [f"p{plane}" for plane in range(told["planes"])]
    names += [peer.name for peer in client.peers()["peers"]]
    return names + [element.name for element in told["elements"]]


def one_level(names: Iterable[str], typed: str) -> list[str]:
    """Return the names that fit; links, which are many, only once a colon has been typed."""
    return [name for name in fitting(names, typed) if ":" in typed or ":" not in name]


def denied(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the elements of the denylist."""
    found = _asked(ctx, lambda client: (rule.element for rule in client.denied()["rules"]))
    return fitting(found, typed)
