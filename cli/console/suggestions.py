# SPDX-License-Identifier: GPL-2.0-only
"""What a shell completes on the command line of ``mrcctl``: names that exist at this moment.

Each function is one of click's: it returns the names that start with `typed`. Without a daemon, a
lab or the permission to ask there are none, and no error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from cli import DEFAULT_SOCKET

if TYPE_CHECKING:
    from cli.console.client import Client
    from mrcd.fabric.description import Fabric

ACTIONS = ("down", "blackhole", "loss=", "corrupt=", "rate=", "delay=", "clear")
"""What `mrcctl lab fault` does to an element."""


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


def _fitting(names: Iterable[str], typed: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(typed)]


def peers(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the daemon's peers."""
    found = _asked(ctx, lambda client: (peer.name for peer in client.peers()["peers"]))
    return _fitting(found, typed)


def planes(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the numbers and the NICs of the daemon's planes."""
    found = _asked(ctx, _planes)
    return _fitting(found, typed)


def _planes(client: Client) -> list[str]:
    planes = client.status().planes
    return [str(plane.index) for plane in planes] + [plane.interface for plane in planes]


def elements(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return what `path deny` takes: links after the first colon, EVs after 0x."""
    if typed.startswith("0"):
        found = _asked(ctx, lambda client: (f"0x{p.ev:08x}" for p in client.paths(None)["paths"]))
        return sorted(_fitting(found, typed))
    found = _asked(ctx, _elements)
    return _one_level(found, typed)


def _elements(client: Client) -> list[str]:
    told = client.fabric_map()
    names = [f"p{plane}" for plane in range(told["planes"])]
    names += [peer.name for peer in client.peers()["peers"]]
    return names + [element.name for element in told["elements"]]


def _one_level(names: Iterable[str], typed: str) -> list[str]:
    """Return the names that fit; links, which are many, only once a colon has been typed."""
    return [name for name in _fitting(names, typed) if ":" in typed or ":" not in name]


def denied(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the elements of the denylist."""
    found = _asked(ctx, lambda client: (rule.element for rule in client.denied()["rules"]))
    return _fitting(found, typed)


def labs(_ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the labs of this machine."""
    from mrcd.lab import state  # noqa: PLC0415

    with contextlib.suppress(OSError):
        return _fitting(state.labs(), typed)
    return []


def lab_hosts(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the hosts of the lab that --name names."""
    return _fitting((host.name for fabric in _fabric(ctx) for host in fabric.hosts), typed)


def lab_elements(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return what `lab fault` breaks: links after the first colon."""
    return _one_level((name for fabric in _fabric(ctx) for name in _parts(fabric)), typed)


def lab_actions(_ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the actions of `lab fault`."""
    return _fitting(ACTIONS, typed)


def _fabric(ctx: click.Context) -> Iterator[Fabric]:
    """Yield the fabric of the lab that --name names; nothing if it is not up."""
    from mrcd.fabric.description import FabricError  # noqa: PLC0415
    from mrcd.lab import state  # noqa: PLC0415

    with contextlib.suppress(OSError, ValueError, FabricError, state.LabFailed):
        yield state.read_fabric(ctx.params.get("name") or "lab")


def _parts(fabric: Fabric) -> Iterator[str]:
    from mrcd.fabric import naming  # noqa: PLC0415

    t0s, t1s = range(1, fabric.t0 + 1), range(1, fabric.t1 + 1)
    for plane in range(fabric.planes):
        yield naming.plane(plane)
        yield from (naming.t0(plane, t0) for t0 in t0s)
        yield from (naming.t1(plane, t1) for t1 in t1s)
        yield from (naming.nic(plane, host.name) for host in fabric.hosts)
        yield from (naming.link(plane, t0, t1) for t0 in t0s for t1 in t1s)
