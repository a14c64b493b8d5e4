# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl sid``: compare the uSID routes in the kernel with the intended ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.console.client import Client
from cli.console.exits import (
    FAILED,
    BadConfiguration,
    BadElement,
    CommandError,
    NotPermitted,
    Unreachable,
)
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import print_json
from cli.lab import suggestions

if TYPE_CHECKING:
    from cli.lab.intent import Finding


@click.group(context_settings=HELP_NAMES)
def sid() -> None:
    """Compare the kernel's uSID routes with the intended ones."""


@sid.command()
@click.option("--switch", metavar="NAME", help="This machine is this Linux switch, as p1t0-1.")
@click.option("--fabric", type=click.Path(path_type=Path), help="The fabric file, for --switch.")
@click.option(
    "--lab",
    metavar="NAME",
    help="Check every host and switch of this lab.",
    shell_complete=suggestions.labs,
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The host's configuration; default: the one its mrcd was started with.",
)
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    switch: str | None,
    fabric: Path | None,
    lab: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Compare the kernel's addresses and routes with the intended ones; exit 1 if they differ.

    On a host, these are its plane addresses, the planes' uSID routes, and mrc0's routes to the
    peers that are set up. On a Linux switch (--switch, --fabric), these are its own uSID and one
    for each neighbour, and no others. Each difference is shown with the command that fixes it.
    """
    if (switch is None) != (fabric is None):
        raise click.UsageError("--switch and --fabric: give both or neither")
    if sum(option is not None for option in (switch, lab, config)) > 1:
        raise click.UsageError("--switch, --lab and --config: only one of them")
    if switch is not None and fabric is not None:
        subject, findings = f"switch {switch}", _switch(fabric, switch)
    elif lab is not None:
        subject, findings = _lab(lab)
    else:
        subject, findings = _host(ctx.obj, config)
    if as_json:
        print_json({"checked": subject, "findings": findings})
    else:
        click.echo(_as_text(subject, findings))
    if findings:
        ctx.exit(FAILED)


def _switch(fabric: Path, name: str) -> list[Finding]:
    from cli.lab import inspection, state  # noqa: PLC0415
    from mrcd.fabric import description  # noqa: PLC0415

    try:
        return inspection.switch(description.load(fabric), name)
    except description.FabricError as error:
        raise BadConfiguration(str(error)) from error
    except state.NoSuchElement as error:
        raise BadElement(str(error)) from error


def _lab(name: str) -> tuple[str, list[Finding]]:
    from cli.lab import inspection, state  # noqa: PLC0415

    try:
        count, findings = inspection.lab(name, _peers)
        broken = inspection.down(name)
    except state.NoSuchElement as error:
        raise BadElement(str(error)) from error
    except state.NotPermitted as error:
        raise NotPermitted(str(error)) from error
    except OSError as error:
        raise CommandError(f"lab {name}: {error}") from error
    faults = f" (faults keep down: {', '.join(broken)})" if broken else ""
    return f"lab {name}, {count} hosts and switches{faults}", findings


def _host(socket: str, config: Path | None) -> tuple[str, list[Finding]]:
    from cli.lab import inspection  # noqa: PLC0415

    # Routes to a peer can be checked only once the daemon has set the peer up.
    peers: list[tuple[list[str], int]] = []
    try:
        with Client(socket) as client:
            config = config or Path(client.status().config)
        peers = _peers(socket)
    except Unreachable as error:
        if config is None:
            raise Unreachable(f"{error}\nOr name its configuration with --config.") from error
    try:
        findings = inspection.host(config, peers)
    except inspection.BadConfig as error:
        raise BadConfiguration(str(error)) from error
    return f"this host ({config}), {len(peers)} peers", findings


def _peers(socket: str) -> list[tuple[list[str], int]]:
    """Return prefixes and MTU of each peer that the mrcd at this socket has set up."""
    with Client(socket) as client:
        return [
            (peer.addresses, peer.mtu)
            for peer in client.peers()["peers"]
            if peer.state != "connecting"
        ]


def _as_text(subject: str, findings: list[Finding]) -> str:
    if not findings:
        return f"{subject}: as intended"
    lines = []
    for finding in findings:
        detail = f": {finding.detail}" if finding.detail else ""
        lines += [f"{finding.node}: {finding.problem} {finding.what}{detail}", f"  {finding.fix}"]
    count = len(findings)
    return "\n".join([*lines, f"{subject}: {count} difference{'s' if count > 1 else ''}"])
