# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl quick``: connect the hosts of a network without writing any file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from cli.client import Client
from cli.exits import CommandError, NoSuchObject, NotPermitted
from cli.options import HELP_NAMES
from mrcd.model import Status

FOLDER = "/run/mrcd/quick"
STARTED_S = 120.0
_END_S = 15.0

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(FOLDER),
    show_default=True,
    help="Where its files are while it is up.",
)


@click.group(context_settings=HELP_NAMES)
def quick() -> None:
    """Connect the hosts of a network without writing any file."""


@quick.command()
@click.argument("nics", nargs=-1, required=True, metavar="NIC...")
@click.option("--name", help="This host's name.  [default: the system's]")
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="ADDRESS/LENGTH",
    help="An address of mrc0; may be repeated.  [default: of 10.99.0.0/16 and fd99::/64, by name]",
)
@click.option("--hosts", default=2, show_default=True, help="Wait for so many hosts in all.")
@click.option("--wait", default=60, show_default=True, help="Give up after so many seconds.")
@click.option("--insecure", is_flag=True, help="Do without a secret: anyone can pose as a host.")
@click.option("--bpffs", envvar="MRCD_BPFFS", show_envvar=True, help="That of mrcd.")
@click.option("--cache-dir", envvar="MRCD_CACHE_DIR", show_envvar=True, help="That of mrcd.")
@folder_option
@click.pass_obj
def up(
    socket: str,
    nics: tuple[str, ...],
    name: str | None,
    addresses: tuple[str, ...],
    hosts: int,
    wait: int,
    insecure: bool,
    bpffs: str | None,
    cache_dir: str | None,
    folder: Path,
) -> None:
    """Find the other hosts by NIC..., agree on planes and start mrcd.

    Run it on all hosts within a minute; each NIC becomes a plane. They need one secret: it is asked
    for, or made and shown once. Nothing is written but files in /run.
    """
    from mrcd.quick import files  # noqa: PLC0415

    _refuse_second(socket, folder)
    own = name or files.name_of(sockets.gethostname())
    given = addresses or files.addresses_of(own)
    secret = None if insecure else _secret()
    down = _raise_links(nics)
    try:
        text = _agreed(own, given, nics, secret, hosts, wait)
        _write(folder, text, secret, down)
    except BaseException:
        _lower_links(down)
        raise
    places = {"--socket": socket, "--bpffs": bpffs, "--cache-dir": cache_dir}
    _start(folder, {option: place for option, place in places.items() if place is not None})
    click.echo(f"{own}: mrc0 has {', '.join(given)}", err=True)


@quick.command()
@folder_option
def down(folder: Path) -> None:
    """Stop what `quick up` started, and remove all of it."""
    if not folder.is_dir():
        raise CommandError(f"nothing is up: there is no {folder}")
    with contextlib.suppress(FileNotFoundError, ValueError):
        _end(int((folder / "pid").read_text()), folder)
    with contextlib.suppress(FileNotFoundError):
        _lower_links(json.loads((folder / "links").read_text()))
    shutil.rmtree(folder)


@quick.command()
@click.argument("target", type=click.Path(path_type=Path), default=Path("/etc/mrcd"))
@click.option("--force", is_flag=True, help="Replace files that are there.")
@folder_option
def save(target: Path, force: bool, folder: Path) -> None:
    """Write the present configuration and its secret to TARGET, for the service mrcd.

    The default TARGET is /etc/mrcd.
    """
    from mrcd.config import keyfiles  # noqa: PLC0415

    names = [file for file in ("mrcd.toml", "fabric.secret") if (folder / file).exists()]
    if not names:
        raise CommandError(f"nothing is up: there is no {folder}/mrcd.toml")
    there = [str(target / file) for file in names if (target / file).exists()]
    if there and not force:
        raise CommandError(f"{', '.join(there)}: exists; --force replaces it")
    target.mkdir(parents=True, exist_ok=True)
    user = keyfiles.service_user()
    for file in names:
        shutil.copy2(folder / file, target / file)
        if user is not None and os.geteuid() == 0:  # as `mrcctl key generate` does
            os.chown(target / file, user, -1)
        click.echo(target / file)


def _refuse_second(socket: str, folder: Path) -> None:
    if os.geteuid() != 0:
        raise NotPermitted("mrcd needs root: sudo mrcctl quick up ...")
    if folder.exists():
        raise CommandError(f"{folder} is there already: `mrcctl quick down` removes it")
    if _status(socket) is not None:
        raise CommandError(f"an mrcd serves {socket} already: stop it first")


def _status(socket: str) -> Status | None:
    try:
        with Client(socket) as client:
            return client.status()
    except CommandError:
        return None


def _secret() -> bytes:
    """Return the secret that the user types, or a new one, which is shown."""
    from mrcd.handshake import identity  # noqa: PLC0415

    if sys.stdin.isatty():
        text = click.prompt(
            "The hosts' secret (empty: make one)", default="", show_default=False, hide_input=True
        )
    else:
        text = sys.stdin.readline()
    if text.strip():
        try:
            return identity.decode_key(text)
        except identity.BadKey as error:
            raise click.UsageError(f"the secret {error}") from error
    made = secrets.token_bytes(identity.KEY_BYTES)
    click.echo("The secret, for the other hosts (it is not shown again):", err=True)
    click.echo(identity.encode_key(made))
    return made


def _agreed(
    name: str,
    addresses: Sequence[str],
    nics: Sequence[str],
    secret: bytes | None,
    hosts: int,
    wait: int,
) -> str:
    """Return the configuration that this host and the others have agreed on."""
    from mrcd.quick import discovery, files, search  # noqa: PLC0415

    inner = tuple(each.partition("/")[0] for each in addresses)
    found = discovery.Discovery(name, secrets.token_hex(8), len(nics), inner)
    try:
        plan = search.search(
            found,
            nics,
            secret or b"",
            hosts=hosts,
            wait_s=wait,
            tell=lambda line: click.echo(line, err=True),
        )
    except (search.NotFound, OSError) as error:
        raise CommandError(str(error)) from error
    return files.configuration(name, addresses, nics, plan, secret=secret is not None)


def _raise_links(nics: Sequence[str]) -> list[str]:
    """Set the NICs up, and return those that were down."""
    from mrcd.linux.netlink import Netlink  # noqa: PLC0415

    async def work() -> list[str]:
        async with Netlink() as nl:
            links = await nl.links()
            missing = [nic for nic in nics if nic not in links]
            if missing:
                raise NoSuchObject("interface", ", ".join(missing), links)
            down = [nic for nic in nics if not links[nic].up]
            for nic in down:
                await nl.set_link(nic, up=True)
            return down

    return asyncio.run(work())


def _lower_links(nics: Sequence[str]) -> None:
    """Set NICs down again, as far as they are still there."""
    from mrcd.linux.netlink import Netlink  # noqa: PLC0415

    async def work() -> None:
        async with Netlink() as nl:
            for nic in nics:
                with contextlib.suppress(OSError):
                    await nl.set_link(nic, up=False)

    if nics:
        asyncio.run(work())


def _write(folder: Path, text: str, secret: bytes | None, down: Sequence[str]) -> None:
    from mrcd.config import config, keyfiles  # noqa: PLC0415
    from mrcd.handshake.identity import Secret  # noqa: PLC0415

    folder.mkdir(mode=0o700, parents=True)
    (folder / "mrcd.toml").write_text(text)
    (folder / "links").write_text(json.dumps(list(down)))
    if secret is not None:
        keyfiles.write(folder / "fabric.secret", Secret(secret))
    try:
        config.load(folder / "mrcd.toml")
    except config.ConfigError as error:
        shutil.rmtree(folder)
        raise CommandError(f"what was agreed on cannot be: {error}") from error


def _start(folder: Path, places: Mapping[str, str]) -> None:
    """Start mrcd with the folder's configuration, and wait until its peers are connected."""
    from mrcd.lab.processes import daemon_command  # noqa: PLC0415

    command = [*daemon_command(), "--config", str(folder / "mrcd.toml")]
    command += ["--state-dir", str(folder)]
    command += [word for option in places.items() for word in option]
    with (folder / "mrcd.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (folder / "pid").write_text(f"{process.pid}\n")
    deadline = time.monotonic() + STARTED_S
    while (now := _status(places["--socket"])) is None or now.peers_up < now.peers_total:
        if process.poll() is not None:
            raise CommandError(f"mrcd ended with {process.returncode}: see {folder}/mrcd.log")
        if time.monotonic() > deadline:
            raise CommandError(f"the peers do not answer: `mrcctl status`, {folder}/mrcd.log")
        time.sleep(0.1)


def _end(pid: int, folder: Path) -> None:
    """End mrcd and wait for its end. Another process that has its number by now is left alone."""
    if not _runs(pid, folder):
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _END_S
    while _runs(pid, folder):
        if time.monotonic() > deadline:
            raise CommandError(f"mrcd, process {pid}, does not end: kill -9 {pid}")
        time.sleep(0.05)


def _runs(pid: int, folder: Path) -> bool:
    """Return whether a process is the mrcd of this folder."""
    try:
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
