# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl key``: make this host's keys, show the public one, and renew the keys of packets."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import click

from cli.console import suggestions
from cli.console.client import Client
from cli.console.exits import BadConfiguration, CommandError, NotPermitted
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import print_json

PRIVATE_KEY = "/etc/mrcd/host.key"
SECRET = "/etc/mrcd/fabric.secret"  # the name of a file


@click.group(context_settings=HELP_NAMES)
def key() -> None:
    """Make keys, show public ones, and renew the keys of packets."""


@key.command()
@click.argument("file", required=False, metavar="[FILE]")
@click.option(
    "--secret",
    is_flag=True,
    help="Make a secret for all hosts (secret_file, preshared_key_file) instead of a private key.",
)
@click.option("--force", is_flag=True, help="Replace the key in FILE if there is one.")
@json_option
def generate(file: str | None, secret: bool, force: bool, as_json: bool) -> None:
    """Write a new private key to FILE, with mode 0600, and print the public key.

    The default FILE is /etc/mrcd/host.key, or /etc/mrcd/fabric.secret with --secret. A secret
    has no public key; copy its file to every host of the fabric.
    """
    from mrcd.config import keyfiles  # noqa: PLC0415  # imports a library of cryptography
    from mrcd.handshake import identity  # noqa: PLC0415

    path = Path(file or (SECRET if secret else PRIVATE_KEY))
    random = secrets.token_bytes(identity.KEY_BYTES)
    made = identity.Secret(random) if secret else identity.private_key(random)
    try:
        keyfiles.write(path, made, replace=force)
    except keyfiles.KeyFileExists as error:
        raise CommandError(str(error)) from error
    except PermissionError as error:
        raise NotPermitted(f"cannot write {path}: {error.strerror}; run it as root") from error
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    public = None if secret else identity.encode_key(identity.public_key(made))
    if as_json:
        print_json({"file": str(path), "public_key": public})
        return
    if public is None:
        click.echo(f"wrote a secret to {path}: copy it to every host, and let nobody else read it")
        return
    click.echo(f"wrote a private key to {path}; the public key, for the fabric file:", err=True)
    click.echo(public)


@key.command()
@click.argument("file", required=False, metavar="[FILE]")
@json_option
def public(file: str | None, as_json: bool) -> None:
    """Print the public key of the private key in FILE, or on stdin without FILE (or with -)."""
    from mrcd.config import keyfiles  # noqa: PLC0415
    from mrcd.handshake import identity  # noqa: PLC0415

    if file is None and sys.stdin.isatty():
        raise click.UsageError(f"give FILE, for example {PRIVATE_KEY}, or a private key on stdin")
    try:
        if file in (None, "-"):
            private = identity.Secret(identity.decode_key(sys.stdin.read(keyfiles.TEXT_MAX)))
        else:
            private = keyfiles.read(Path(str(file)))
    except identity.BadKey as error:
        raise BadConfiguration(f"stdin {error}") from error
    except keyfiles.KeyFileError as error:
        raise BadConfiguration(f"{file}: {error}") from error
    found = identity.encode_key(identity.public_key(private))
    if as_json:
        print_json({"public_key": found})
    else:
        click.echo(found)


@key.command()
@click.argument("peer", required=False, metavar="[PEER]", shell_complete=suggestions.peers)
@json_option
@click.pass_obj
def rotate(socket: str, peer: str | None, as_json: bool) -> None:
    """Agree on new keys of packets with PEER, or with all peers, without losing a packet.

    The daemon does this by itself every two minutes (rotate_s). Exits 1 if a peer did not answer
    within a few seconds.
    """
    with Client(socket) as client:
        reply = client.rotate_keys(peer)
    if as_json:
        print_json(reply)
    else:
        if reply["rotated"]:
            click.echo(f"new keys with {', '.join(reply['rotated'])}")
        if reply["unanswered"]:
            click.echo(f"no answer yet from {', '.join(reply['unanswered'])}; it is asked again")
    if reply["unanswered"]:
        click.get_current_context().exit(1)
