# SPDX-License-Identifier: GPL-2.0-only
"""What a shell completes of labs: their names, hosts and elements, and faults."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from cli.console.suggestions import fitting, one_level

if TYPE_CHECKING:
    from cli.lab.shape import Shape
    from mrcd.fabric.description import Fabric

ACTIONS = ("down", "blackhole", "loss=", "corrupt=", "rate=", "delay=", "clear")
"""What `mrcctl lab fault` does to an element."""


def labs(_ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the labs of this machine."""
    from cli.lab import state  # noqa: PLC0415

    with contextlib.suppress(OSError):
        return fitting(state.labs(), typed)
    return []


def hosts(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the hosts of the lab that --name names."""
    shaped = [host.name for shape in _shape(ctx) for host in shape.hosts]
    return fitting(shaped or (host.name for fabric in _fabric(ctx) for host in fabric.hosts), typed)


def elements(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return what `lab fault` breaks: links after the first colon."""
    from cli.lab import cablefaults  # noqa: PLC0415

    shaped = [name for shape in _shape(ctx) for name in cablefaults.elements(shape)]
    return one_level(shaped or (name for fabric in _fabric(ctx) for name in _parts(fabric)), typed)


def actions(_ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the actions of `lab fault`."""
    return fitting(ACTIONS, typed)


def _fabric(ctx: click.Context) -> Iterator[Fabric]:
    """Yield the fabric of the lab that --name names; nothing if it is not up."""
    from cli.lab import state  # noqa: PLC0415
    from mrcd.fabric.description import FabricError  # noqa: PLC0415

    with contextlib.suppress(OSError, ValueError, FabricError, state.LabFailed):
        yield state.read_fabric(ctx.params.get("name") or "lab")


def _shape(ctx: click.Context) -> Iterator[Shape]:
    """Yield the shape of the lab that --name names; nothing if it is not up, or has none."""
    from cli.lab import state  # noqa: PLC0415

    with contextlib.suppress(OSError, ValueError, state.LabFailed):
        if (shape := state.read_shape(ctx.params.get("name") or "lab")) is not None:
            yield shape


def _parts(fabric: Fabric) -> Iterator[str]:
    from mrcd.fabric import naming  # noqa: PLC0415

    t0s, t1s = range(1, fabric.t0 + 1), range(1, fabric.t1 + 1)
    for plane in range(fabric.planes):
        yield naming.plane(plane)
        yield from (naming.t0(plane, t0) for t0 in t0s)
        yield from (naming.t1(plane, t1) for t1 in t1s)
        yield from (naming.nic(plane, host.name) for host in fabric.hosts)
        yield from (naming.link(plane, t0, t1) for t0 in t0s for t1 in t1s)
