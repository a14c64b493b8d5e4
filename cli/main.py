# SPDX-License-Identifier: GPL-2.0-only
"""The ``mrcctl`` command. Each subcommand is imported only when it is used, for a fast start."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import click

from cli import DEFAULT_SOCKET
from cli.console.options import HELP_NAMES
from mrcd import __version__

# Name: (module, one line for --help). The module's attribute has the command's name. The line
# repeats the command's own help, so that --help need not import all modules; a test compares them.
SUBCOMMANDS: Mapping[str, tuple[str, str]] = {
    "status": (
        "cli.state.status",
        "Show the daemon, mrc0, the planes and the data path; exit 6 when degraded.",
    ),
    "plane": (
        "cli.state.plane",
        "Show the planes (the NICs to the fabric), drain or measure them.",
    ),
    "iface": ("cli.state.iface", "Show the interfaces: mrc0 and the planes' NICs."),
    "peer": ("cli.state.peer", "Show the peers: the remote hosts."),
    "path": ("cli.state.path", "Show, probe, deny and watch paths: the EVs of each QP."),
    "conn": ("cli.state.conn", "Show the connections: the QPs with each peer."),
    "fault": (
        "cli.state.faults",
        "Show what loses or delays packets: links and switches, or NICs, pairs and hosts.",
    ),
    "quick": ("cli.quick.command", "Connect the hosts of a network without writing any file."),
    "invite": (
        "cli.host.invite",
        "Print an invitation, by which one host called NAME can join without the secret.",
    ),
    "watch": (
        "cli.quick.watch",
        "Name what loses, delays or changes packets between hosts, without mrcd, until Ctrl-C.",
    ),
    "key": ("cli.host.key", "Make keys, show public ones, and renew the keys of packets."),
    "config": (
        "cli.host.config",
        "Show the configuration, check a file, or apply it without a restart.",
    ),
    "log": ("cli.state.log", "Show and change how much the daemon logs."),
    "stats": (
        "cli.state.stats",
        "Show the counters of the data path and the daemon, with their meaning.",
    ),
    "ping": (
        "cli.state.ping",
        "Probe every path to PEER and show loss and round trips; exit 1 on any loss.",
    ),
    "capture": (
        "cli.capture.command",
        "Show or write every packet sent or received on a plane, until interrupted.",
    ),
    "top": (
        "cli.top.command",
        "Watch planes, peers and paths live; the paths in trouble come first.",
    ),
    "report": (
        "cli.report.command",
        "Write a page on this host: state, fabric map, planes, faults, peers, paths, rates.",
    ),
    "monitor": (
        "cli.state.monitor",
        "Report rates of planes, peers and counters until interrupted.",
    ),
    "doctor": (
        "cli.doctor.command",
        "Find what keeps mrcd from working here, and its fix; exit 6 if something is wrong.",
    ),
    "debug": ("cli.doctor.debug", "Collect the material for a bug report."),
    "datapath": (
        "cli.host.datapath",
        "Manage the BPF programs in the kernel, which outlive the daemon.",
    ),
    "fabric": (
        "cli.fabric.command",
        "Plan a fabric, make or check a fabric file, or draw the running fabric.",
    ),
    "sid": ("cli.fabric.sid", "Compare the kernel's uSID routes with the intended ones."),
    "api": (
        "cli.describe.api",
        "Describe the control API: its interface, and the schema of --json output.",
    ),
    "completion": (
        "cli.describe.completion",
        "Print the script that completes mrcctl's commands, options and names in a shell.",
    ),
    "lab": ("cli.lab.command", "Build and break a fabric of network namespaces to try mrcd in."),
}


class LazyGroup(click.Group):
    """A command group that imports only the command that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table, the most needed first."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command = getattr(importlib.import_module(SUBCOMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list in --help from the table alone, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in SUBCOMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, but list the known ones if it does not exist."""
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}; known: {', '.join(SUBCOMMANDS)}.")
        found = super().resolve_command(ctx, args)
        if ctx.params.get("as_json"):
            _check_json(ctx, *found)
        return found


def _check_json(
    ctx: click.Context, name: str | None, command: click.Command | None, args: list[str]
) -> None:
    """Fail if --json stands before a command that has no such option."""
    words = [name or ""]
    for word in args:
        if not isinstance(command, click.Group) or word.startswith("-"):
            break
        words.append(word)
        command = command.get_command(ctx, word)
    if command is None or isinstance(command, click.Group):
        return  # the command itself says what is wrong
    if all(parameter.name != "as_json" for parameter in command.params):
        ctx.fail(f"`{' '.join(words)}` prints no JSON: leave --json out.")


@click.command(
    cls=LazyGroup,
    context_settings=HELP_NAMES,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.option(
    "--socket",
    metavar="PATH",
    envvar="MRCD_SOCKET",
    default=DEFAULT_SOCKET,
    show_default=True,
    show_envvar=True,
    help="The daemon's control socket.",
)
@click.option("-j", "--json", "as_json", is_flag=True, hidden=True)
@click.version_option(__version__, prog_name="mrcctl")
@click.pass_context
def mrcctl(ctx: click.Context, socket: str, as_json: bool) -> None:
    """Inspect and control mrcd, the multipath reliable connection daemon.

    Exit codes: 0 done, 1 failed, 2 wrong usage or bad configuration, 3 daemon not reachable,
    4 no such object, 5 not permitted, 6 degraded or something wrong.
    """
    ctx.obj = socket
    if ctx.invoked_subcommand is None:
        _show_status(ctx, as_json)


def _show_status(ctx: click.Context, as_json: bool) -> None:
    """Do what `mrcctl status` does, and name --help if there is no daemon to ask."""
    from cli.console.exits import Unreachable  # noqa: PLC0415
    from cli.state.status import status  # noqa: PLC0415

    try:
        ctx.invoke(status, as_json=as_json)
    except Unreachable as error:
        raise Unreachable(
            f"{error.format_message()}\n`mrcctl --help` lists the commands; without one,"
            " mrcctl shows the status."
        ) from error


def main(argv: list[str] | None = None, **extra: Any) -> None:
    """Run ``mrcctl``; does not return."""
    if "_MRCCTL_COMPLETE" in os.environ:  # a shell asks for completions
        from cli.describe.completion import register  # noqa: PLC0415

        register()
    mrcctl.main(args=argv, prog_name="mrcctl", **extra)
