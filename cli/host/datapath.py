# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl datapath``: the BPF programs, which outlive the daemon."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from cli.console.client import Client
from cli.console.exits import FAILED, CommandError, NotPermitted, Unreachable
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import BAD, WARN, print_json, size, table

DEFAULT_BPFFS = Path("/sys/fs/bpf/mrcd")


@click.group(context_settings=HELP_NAMES)
def datapath() -> None:
    """Manage the BPF programs in the kernel, which outlive the daemon."""


@datapath.command()
@json_option
@click.pass_obj
def show(socket: str, as_json: bool) -> None:
    """Show the programs and maps, where programs are attached, and what stands before them."""
    with Client(socket) as client:
        answer = client.datapath()
    if as_json:
        print_json(answer)
        return
    hooks = table(
        ["INTERFACE", "PLACE", "PROGRAM", "ID", "BEFORE IT"],
        [
            [
                each.interface,
                each.place,
                each.program,
                "not attached" if each.ident is None else each.ident,
                ", ".join(each.before) or None,
            ]
            for each in answer["hooks"]
        ],
        [{3: BAD} if each.ident is None else {4: WARN} for each in answer["hooks"]],
    )
    maps = table(
        ["MAP", "ID", "ENTRIES", "MEMORY"],
        [[each.name, each.ident, each.entries, size(each.bytes)] for each in answer["maps"]],
    )
    whole = size(sum(each.bytes for each in answer["maps"]))
    programs = len(answer["programs"])
    click.echo(f"{hooks}\n\n{maps}\n\n{programs} programs, {whole} of maps, {answer['bpffs']}")


@datapath.command()
@click.option(
    "--bpffs",
    type=click.Path(path_type=Path),
    default=DEFAULT_BPFFS,
    envvar="MRCD_BPFFS",
    show_default=True,
    show_envvar=True,
    help="The folder where the daemon pinned its links and maps.",
)
@click.option("--force", is_flag=True, help="Detach even if a daemon is running.")
@json_option
@click.pass_obj
def detach(socket: str, bpffs: Path, force: bool, as_json: bool) -> None:
    """Detach the BPF programs and remove their pins: mrc0 stops carrying traffic."""
    if os.geteuid() != 0:
        raise NotPermitted("detaching BPF programs needs root: run it with sudo")
    if not force:
        _refuse_while_running(socket, bpffs)
    # No other command changes the kernel directly, so only this one imports the data path.
    from mrcd.datapath import pins  # noqa: PLC0415
    from mrcd.datapath.detach import detach as detach_all  # noqa: PLC0415

    held = bpffs.is_dir() and not force
    try:
        with pins.owned(bpffs) if held else contextlib.nullcontext():
            report = detach_all(bpffs)
    except pins.PinError as error:  # it has another socket, or is about to open it
        raise CommandError(f"{error}; --force detaches nevertheless") from error
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(report.detached) or f"nothing to detach in {bpffs}")
    for line in report.failed:
        click.echo(f"mrcctl: {line}", err=True)
    if report.failed:
        click.get_current_context().exit(FAILED)


def _refuse_while_running(socket: str, bpffs: Path) -> None:
    """Raise CommandError if a running daemon uses the pins in ``bpffs``."""
    try:
        with Client(socket) as client:
            status = client.status()
    except Unreachable:
        return
    if Path(status.datapath.bpffs) == bpffs:
        raise CommandError(
            f"mrcd (pid {status.pid}) is running and uses {bpffs}: stop it first, or use --force"
        )
