# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl config``: show the running configuration, check a file and apply it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cli.client import Client
from cli.exits import FAILED, BadConfiguration, CommandError, Unreachable
from cli.options import HELP_NAMES, json_option
from cli.render import GOOD, WARN, colour, print_json
from mrcd.model import ChangesReply, ConfigChange

DEFAULT_CONFIG = "/etc/mrcd/mrcd.toml"

file_argument = click.argument("file", required=False, metavar="[FILE]")


@click.group(context_settings=HELP_NAMES)
def config() -> None:
    """Show the configuration, check a file, or apply it without a restart."""


@config.command()
@json_option
@click.pass_obj
def show(socket: str, as_json: bool) -> None:
    """Print the running configuration as TOML that `config apply` accepts."""
    with Client(socket) as client:
        reply = client.config_text()
    if as_json:
        print_json(reply)
    else:
        click.echo(reply["text"], nl=False)


@config.command()
@file_argument
@json_option
@click.pass_obj
def check(socket: str, file: str | None, as_json: bool) -> None:
    """Check FILE and the fabric file it names; list every problem and exit 2 if there are any.

    No daemon is needed. The default FILE is the one that the daemon was started with.
    """
    from mrcd.config import config as configuration  # noqa: PLC0415  # reads C headers, slowly

    path = Path(file) if file is not None else _running(socket, DEFAULT_CONFIG)
    try:
        found = configuration.load(path)
    except configuration.ConfigError as error:
        if as_json:
            print_json({"file": str(path), "problems": error.problems})
        raise BadConfiguration("\n".join(error.problems)) from error
    if as_json:
        print_json({"file": str(path), "problems": []})
    else:
        click.echo(
            f"{path}: good: host {found.host.name}, {found.fabric.planes} planes, "
            f"{len(found.peers)} peers, {found.mrc0.name} MTU {found.mtu}"
        )


@config.command()
@file_argument
@click.option("--check", is_flag=True, help="Exit 1 if anything would change.")
@json_option
@click.pass_context
def diff(ctx: click.Context, file: str | None, check: bool, as_json: bool) -> None:
    """Show what applying FILE (- is stdin) would change, and which changes need a restart.

    The default FILE is the one that the daemon was started with. A relative fabric file in it is
    looked for beside the daemon's own configuration.
    """
    text = _text(ctx.obj, file)
    with Client(ctx.obj) as client:
        reply = client.config_diff(text)
    if as_json:
        print_json(reply)
    else:
        click.echo(render(reply))
    if check and reply["diff"].changes:
        ctx.exit(FAILED)


@config.command()
@file_argument
@click.option(
    "--confirm",
    type=click.IntRange(1, 3600),
    metavar="SECONDS",
    help="Restore the former configuration unless `config confirm` follows in this time.",
)
@json_option
@click.pass_obj
def apply(socket: str, file: str | None, confirm: int | None, as_json: bool) -> None:
    """Apply FILE (- is stdin) to the running daemon; `config diff` shows the changes beforehand.

    The default FILE is the one that the daemon was started with. If anything in it is wrong,
    nothing is applied. The daemon's own file is not changed; if it differs from the running
    configuration, the command prints how to save that.
    """
    text = _text(socket, file)
    with Client(socket) as client:
        reply = client.config_apply(text, confirm or 0)
        unsaved = _unsaved(client, file) if reply["diff"].changes else None
    if as_json:
        print_json(reply)
        return
    click.echo(render(reply))
    if reply["diff"].confirm_s is not None:
        click.echo(
            f"applied; the former configuration returns in {reply['diff'].confirm_s} s unless "
            "you run: mrcctl config confirm"
        )
    elif reply["diff"].changes:
        click.echo("applied")
    if unsaved is not None:
        click.echo(unsaved)


@config.command()
@json_option
@click.pass_obj
def confirm(socket: str, as_json: bool) -> None:
    """Keep the configuration that `config apply --confirm` applied."""
    with Client(socket) as client:
        client.config_confirm()
        unsaved = _unsaved(client, None)
    if as_json:
        print_json({"confirmed": True})
        return
    click.echo("confirmed: the configuration stays")
    if unsaved is not None:
        click.echo(unsaved)


def _unsaved(client: Client, file: str | None) -> str | None:
    """Return the advice to print if the daemon's own file differs from the running configuration.

    A file that has errors or cannot be read counts as different. `file` is what was applied.
    """
    own = client.status().config
    try:
        if not client.config_diff(Path(own).read_text(encoding="utf-8"))["diff"].changes:
            return None
    except (OSError, UnicodeDecodeError, CommandError):
        pass
    running = "running.toml"
    steps = [f"mrcctl config show > {running}"] if file in (None, "-") else []
    steps.append(f"cp {running if steps else file} {own}")
    return (
        f"not saved: {own} differs, and mrcd reads it when it starts and on SIGHUP;"
        f" to keep the running configuration: {' && '.join(steps)}"
    )


def render(reply: ChangesReply) -> str:
    """Return a line for each change."""
    changes = reply["diff"].changes
    if not changes:
        return "no change"
    lines = [_line(change) for change in changes]
    late = sum(change.how == "restart" for change in changes)
    if late:
        lines.append(f"{late} of {len(changes)} rebuild the data path and all QPs")
    return "\n".join(lines)


def _line(change: ConfigChange) -> str:
    shade = GOOD if change.how == "live" else WARN
    old = "(not there)" if change.old is None else change.old
    new = "(removed)" if change.new is None else change.new
    return f"{change.path}: {old} -> {new}  [{colour(change.how, shade)}]"


def _text(socket: str, file: str | None) -> str:
    """Return the text to send to the daemon."""
    if file == "-":
        return sys.stdin.read()
    path = Path(file) if file is not None else _running(socket)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{path} is not UTF-8 text, as TOML must be") from error


def _running(socket: str, default: str | None = None) -> Path:
    """Return the file that the daemon was started with; without a daemon, the default if any."""
    try:
        with Client(socket) as client:
            return Path(client.status().config)
    except Unreachable:
        if default is None:
            raise
        return Path(default)
