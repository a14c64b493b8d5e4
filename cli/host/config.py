# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl config``: show the running configuration, check a file and apply it."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from cli.console.client import Client
from cli.console.exits import (
    FAILED,
    BadConfiguration,
    CommandError,
    RefusedConfiguration,
    Unreachable,
)
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import GOOD, WARN, colour, print_json
from mrcd.model import ChangesReply, ConfigChange

DEFAULT_CONFIG = "/etc/mrcd/mrcd.toml"
STDIN = "standard input"
PEERS_NAMED = 8
"""The most peers that a question names."""

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
    from mrcd.config.keyfiles import with_keys  # noqa: PLC0415

    path = Path(file) if file is not None else _running(socket, DEFAULT_CONFIG)
    try:
        found = with_keys(configuration.load(path))
    except configuration.ConfigError as error:
        if as_json:
            print_json({"file": str(path), "problems": error.problems})
        raise BadConfiguration("\n".join(error.problems)) from error
    if as_json:
        print_json({"file": str(path), "problems": []})
    else:
        click.echo(
            f"{path}: good: host {found.host.name}, {found.fabric.planes} planes, "
            f"{len(found.peers)} peers, {found.mrc0.name} MTU {found.mtu_shown}"
            + ("" if found.keyring else ", insecure")
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
    wanted = _wanted(ctx.obj, file)
    with Client(ctx.obj) as client, _named(client, wanted):
        reply = client.config_diff(wanted.text)
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
@click.option(
    "--yes", is_flag=True, help="Do not ask before changes that reset QPs; needed without terminal."
)
@json_option
@click.pass_obj
def apply(socket: str, file: str | None, confirm: int | None, yes: bool, as_json: bool) -> None:
    """Apply FILE (- is stdin) to the running daemon; `config diff` shows the changes beforehand.

    The default FILE is the one that the daemon was started with. If anything in it is wrong,
    nothing is applied. Changes that reset QPs are applied only after a question, or with --yes.
    The daemon's own file is not changed; if it differs from the running configuration, the command
    prints how to save that.
    """
    wanted = _wanted(socket, file)
    with Client(socket) as client:
        with _named(client, wanted):
            if not yes:
                _agree(client.config_diff(wanted.text)["diff"].changes, wanted.name)
            reply = client.config_apply(wanted.text, confirm or 0)
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
    elif peers := begun_anew(changes):
        lines.append(f"reset the QPs with {peers}")
    return "\n".join(lines)


def begun_anew(changes: Sequence[ConfigChange]) -> str:
    """Return the peers whose QPs live changes reset, as words; empty: none.

    A peer with another key, or elsewhere in the fabric, counts as another host.
    """
    if any(change.path == "keys.insecure" for change in changes):
        return "all peers"
    found = [re.fullmatch(r"peer\.(.+)\.(public_key|host)", change.path) for change in changes]
    names = dict.fromkeys(each[1] for each in found if each is not None)
    more = f" and {len(names) - PEERS_NAMED} more" if len(names) > PEERS_NAMED else ""
    return ", ".join([*names][:PEERS_NAMED]) + more


def _agree(changes: Sequence[ConfigChange], name: str) -> None:
    """Ask whether to make changes that reset QPs; return if there are none or the answer is yes.

    Raises UsageError without a terminal, and CommandError if the answer is no.
    """
    late = [change.path for change in changes if change.how == "restart"]
    peers = "all peers" if late else begun_anew(changes)
    if not peers:
        return
    because = f" ({', '.join(late)})" if late else ""
    what = f"{name} resets the QPs with {peers}{because}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadConfiguration(
            f"{what}: refused, nothing was changed. Give --yes to apply it without a question;"
            " `mrcctl config diff` shows the changes"
        )
    pause = "connections pause until there are new ones"
    if not click.confirm(f"{what}: {pause}. Apply it?", err=True):
        raise CommandError("not applied, nothing was changed")


def _line(change: ConfigChange) -> str:
    shade = GOOD if change.how == "live" else WARN
    old = "(not there)" if change.old is None else change.old
    new = "(removed)" if change.new is None else change.new
    return f"{change.path}: {old} -> {new}  [{colour(change.how, shade)}]"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A text to send to the daemon, and the name that messages give it."""

    text: str
    name: str


@contextlib.contextmanager
def _named(client: Client, wanted: _Wanted) -> Iterator[None]:
    """Have problems name the file that was read instead of the daemon's own."""
    try:
        yield
    except RefusedConfiguration as error:
        raise error.in_file(wanted.name, client.status().config) from error


def _wanted(socket: str, file: str | None) -> _Wanted:
    """Return the text of FILE; the default is the daemon's own file."""
    if file == "-":
        return _Wanted(_stdin(), STDIN)
    path = Path(file) if file is not None else _running(socket)
    try:
        return _Wanted(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{path} is not UTF-8 text, as TOML must be") from error


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{STDIN} is not UTF-8 text, as TOML must be") from error


def _running(socket: str, default: str | None = None) -> Path:
    """Return the file that the daemon was started with; without a daemon, the default if any."""
    try:
        with Client(socket) as client:
            return Path(client.status().config)
    except Unreachable:
        if default is None:
            raise
        return Path(default)
