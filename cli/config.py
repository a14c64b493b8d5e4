# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl config``: the running configuration, and how it becomes another one."""

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
    """The configuration: show it, check a file, apply it without a restart."""


@config.command()
@json_option
@click.pass_obj
def show(socket: str, as_json: bool) -> None:
    """Print the running configuration as TOML that `config apply` takes."""
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
    """Check FILE and the fabric file it names; exit 2 with every problem.

    Needs no daemon. Without FILE: the file that the daemon was started with.
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
@click.option("--check", is_flag=True, help="Exit with 1 when anything would change.")
@json_option
@click.pass_context
def diff(ctx: click.Context, file: str | None, check: bool, as_json: bool) -> None:
    """Show what applying FILE (- is stdin) would change, and what of it needs a restart.

    Without FILE: the file that the daemon was started with. The daemon looks for a fabric file
    without a folder beside its own configuration.
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
    help="Return to the former configuration unless `config confirm` follows in this time.",
)
@json_option
@click.pass_obj
def apply(socket: str, file: str | None, confirm: int | None, as_json: bool) -> None:
    """Make the daemon run with FILE (- is stdin), as `config diff` shows it.

    Without FILE: the file that the daemon was started with. Nothing is applied when anything of
    it is wrong. The daemon's own file stays as it is; where it says otherwise, the command tells
    how to keep what runs.
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
    """Keep the configuration that `config apply --confirm` has made."""
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
    """What to say when the daemon's own file is not what runs; `file`: what was applied.

    A file that cannot be read, or has errors, is not what runs either.
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
        f"not saved: {own} says otherwise, and mrcd reads it when it starts or is sent SIGHUP;"
        f" to keep what runs: {' && '.join(steps)}"
    )


def render(reply: ChangesReply) -> str:
    """A line for each change."""
    changes = reply["diff"].changes
    if not changes:
        return "no change"
    lines = [_line(change) for change in changes]
    late = sum(change.how == "restart" for change in changes)
    if late:
        lines.append(f"{late} of {len(changes)} build the data path anew, and with it all QPs")
    return "\n".join(lines)


def _line(change: ConfigChange) -> str:
    shade = GOOD if change.how == "live" else WARN
    old = "(not there)" if change.old is None else change.old
    new = "(removed)" if change.new is None else change.new
    return f"{change.path}: {old} -> {new}  [{colour(change.how, shade)}]"


def _text(socket: str, file: str | None) -> str:
    """The text to send."""
    if file == "-":
        return sys.stdin.read()
    path = Path(file) if file is not None else _running(socket)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{path} is not UTF-8 text; TOML files are") from error


def _running(socket: str, default: str | None = None) -> Path:
    """The file that the daemon was started with; without a daemon the default, if any."""
    try:
        with Client(socket) as client:
            return Path(client.status().config)
    except Unreachable:
        if default is None:
            raise
        return Path(default)
