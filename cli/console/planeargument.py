# SPDX-License-Identifier: GPL-2.0-only
"""A plane on the command line: its number (2), its element (p2) or its NIC (eth2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cli.console import suggestions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mrcd.model import PlaneInfo

    Indexed = click.ParamType[int]
else:
    Indexed = click.ParamType  # a generic type only in later versions of click


def plane_named(planes: Sequence[PlaneInfo], text: str) -> int:
    """Return the index of the plane that a text names.

    Raises NoSuchObject if there is none, and UsageError if the text names one plane by its number
    and the NIC of another.
    """
    from cli.console.exits import NoSuchObject  # noqa: PLC0415

    found = [
        plane.index
        for plane in planes
        if text in (str(plane.index), f"p{plane.index}", plane.interface)
    ]
    if not found:
        raise NoSuchObject("plane", text, known(planes))
    if len(found) > 1:
        both = " and ".join(map(str, found))
        raise click.UsageError(f"{text!r} names planes {both}: give the plane's number")
    return found[0]


def known(planes: Sequence[PlaneInfo]) -> list[str]:
    """Return each plane with its NIC, as messages list them."""
    return [f"{plane.index} ({plane.interface})" for plane in planes]


class Plane(Indexed):
    """A plane of the running daemon, which is asked what there is; the value is its index."""

    name = "plane"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the index of the plane that `value` names."""
        from cli.console.client import Client  # noqa: PLC0415

        if isinstance(value, int):
            return value
        if ctx is None or ctx.resilient_parsing:  # a shell completes: the daemon need not be asked
            self.fail("unknown")
        with Client(suggestions.socket_of(ctx)) as client:
            return plane_named(client.status().planes, value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the numbers and the NICs of the daemon's planes; none without a daemon."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415

        return [CompletionItem(name) for name in suggestions.planes(ctx, param, incomplete)]


plane_argument = click.argument("plane", metavar="PLANE", type=Plane())
