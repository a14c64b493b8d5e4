# SPDX-License-Identifier: GPL-2.0-only
"""The ``mrcctl`` command. Subcommands are imported when they are used, to start fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from cli import DEFAULT_SOCKET
from cli.options import HELP_NAMES
from mrcd import __version__

# Name: (module, one line for --help). The attribute in the module has the command's name. The
# line repeats the command's own so that --help need not import them all; a test compares.
SUBCOMMANDS: Mapping[str, tuple[str, str]] = {
    "status": (
        "cli.status",
        "Show the daemon, mrc0, the planes and the data path; exit 6 when degraded.",
    ),
    "plane": ("cli.plane", "Planes: the NICs towards the fabric; take one out of service."),
    "iface": ("cli.iface", "Interfaces: mrc0 and the planes' NICs."),
    "peer": ("cli.peer", "Remote hosts."),
    "path": ("cli.path", "Paths: the EVs of each QP and the links they name."),
    "conn": ("cli.conn", "Connections: the QPs with each peer."),
    "fault": ("cli.faults", "Links and switches of the fabric that lose packets or time."),
    "config": (
        "cli.config",
        "The configuration: show it, check a file, apply it without a restart.",
    ),
    "stats": (
        "cli.stats",
        "Show the counters of the data path and the daemon, with their meaning.",
    ),
    "ping": (
        "cli.ping",
        "Probe every path to PEER, a name or an address: loss and round trips; exit 1 on any loss.",
    ),
    "capture": (
        "cli.capture",
        "Show or write every packet that leaves by a plane or arrives at one, until interrupted.",
    ),
    "top": ("cli.top", "Watch planes, peers and paths live; the paths in trouble come first."),
    "monitor": ("cli.monitor", "Report rates of planes, peers and counters until interrupted."),
    "doctor": (
        "cli.doctor",
        "Find what keeps mrcd from working here, with the fix; exit 6 when something is wrong.",
    ),
    "debug": ("cli.debug", "What belongs into a bug report."),
    "datapath": ("cli.datapath", "The BPF programs in the kernel, which outlive the daemon."),
    "fabric": ("cli.fabric", "The fabric: planning one, checking its file, drawing what there is."),
    "sid": ("cli.sid", "uSID routes: those in the kernel against those intended."),
    "api": ("cli.api", "The control API: its interface, and the schema of what --json prints."),
    "completion": (
        "cli.completion",
        "Print the script that makes a shell complete mrcctl's commands, options and peers.",
    ),
    "lab": ("cli.lab", "A fabric of namespaces to try mrcd in."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table: what one looks for first comes first."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command = getattr(importlib.import_module(SUBCOMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in SUBCOMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, naming the known commands when there is no such one."""
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}; known: {', '.join(SUBCOMMANDS)}.")
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings=HELP_NAMES)
@click.option(
    "--socket",
    metavar="PATH",
    envvar="MRCD_SOCKET",
    default=DEFAULT_SOCKET,
    show_default=True,
    show_envvar=True,
    help="The daemon's control socket.",
)
@click.version_option(__version__, prog_name="mrcctl")
@click.pass_context
def mrcctl(ctx: click.Context, socket: str) -> None:
    """Look at and control mrcd, the multipath reliable connection daemon.

    Exit codes: 0 done, 1 failed, 2 wrong usage or bad configuration, 3 daemon not reachable,
    4 no such object, 5 not permitted, 6 degraded or something wrong.
    """
    ctx.obj = socket


def main(argv: list[str] | None = None, **extra: Any) -> None:
    """Entry point of ``mrcctl``. Does not return."""
    mrcctl.main(args=argv, prog_name="mrcctl", **extra)
