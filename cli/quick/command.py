# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl quick``: connect the hosts of a network without writing any file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket as sockets
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from cli.console.client import Client
from cli.console.compiling import Compiling
from cli.console.exits import DEGRADED, CommandError, NoSuchObject, NotPermitted, Unreachable
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import print_json
from cli.quick import undoing
from mrcd.model import PeerInfo, Status

if TYPE_CHECKING:
    from cli.quick.credentials import Credentials
    from cli.quick.discovery import Plan
    from mrcd.handshake.invitation import Invitation

FOLDER = "/run/mrcd/quick"
STARTED_S = 120.0
TOLD_S = 5.0
"""After this time it is said what mrcd waits for."""
REFUSALS = (" does not take this host: ", "this host may not join: ", ": this host and one at ")
"""By one of these, status says that waiting is of no use."""
INTRODUCED = 4
"""The most other hosts that are listed with their addresses."""
SAVED = ("mrcd.toml", "fabric.secret", "membership.json")
"""The files that are of use to the service."""

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, resolve_path=True),  # as the processes have it
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
@click.option(
    "--hosts",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Wait for this number of hosts in all; 1: for none, as on the first one.",
)
@click.option(
    "--wait",
    metavar="SECONDS",
    default=60,
    show_default=True,
    help="Give up after this number of seconds.",
)
@click.option(
    "--forward",
    is_flag=True,
    help="Hand packets on between the NICs, for hosts that have no network in common.",
)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    metavar="ADDRESS",
    help="Find the others through a member's plane NIC with this address, where there are routers "
    "in between; may be repeated. On the first host: its own.",
)
@click.option(
    "--invitation",
    type=click.File(),
    metavar="FILE",
    help="Join by the invitation in FILE (-: on the standard input) in place of a secret.",
)
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
    forward: bool,
    seeds: tuple[str, ...],
    invitation: TextIO | None,
    insecure: bool,
    bpffs: str | None,
    cache_dir: str | None,
    folder: Path,
) -> None:
    """Find the other hosts by NIC..., and start mrcd.

    Run it on all hosts within a minute; each NIC becomes a plane, and two hosts share those whose
    networks both are on. They need one secret: it is asked for, or made and shown once. A host with
    an invitation (`mrcctl invite`) needs none. Hosts behind routers need a seed as well: the
    address of any member. Nothing is written but files in /run.
    """
    from cli.quick import files  # noqa: PLC0415
    from cli.quick.credentials import Credentials  # noqa: PLC0415

    where = undoing.here(socket, bpffs)
    refuse_nics(nics, link_local=not seeds)
    _refuse_seeds(seeds, insecure=insecure, forward=forward)
    _refuse_second(where, folder)
    _refuse_firewall()
    if forward and insecure:
        raise click.UsageError("--forward needs a secret: hosts go on finding each other by it")
    invited = None if invitation is None else _invited(invitation, name, insecure=insecure)
    own = name or (files.name_of(sockets.gethostname()) if invited is None else invited.name)
    refuse_name(own)
    given = addresses or files.addresses_of(own)
    secret = None if insecure or invited is not None else ask_secret()
    credentials = Credentials(own, secret, invited)
    links = _links_down(nics)
    folder.mkdir(mode=0o700, parents=True)
    try:
        undoing.write(folder, where, links)
        _raise_links(links)
        plan = _found(own, given, nics, credentials, folder, hosts, wait, seeds)
        text = files.configuration(
            own, given, nics, plan, by=credentials.file, forward=forward, seeds=seeds
        )
        _write(folder, text)
    except BaseException:
        undoing.lower_links(links)
        shutil.rmtree(folder)
        raise
    from cli.lab import processes  # noqa: PLC0415

    try:
        _start(folder, where, cache_dir, max(hosts - 1, len(plan.peers)), wait, bool(seeds))
    except CommandError as error:
        end = processes.end_of(folder / "mrcd.log")
        undoing.take_down(folder, where.socket)
        raise CommandError(
            f"{error}; everything is down again. The end of its log:\n{end}"
        ) from None
    click.echo(f"{own}: mrc0 has {', '.join(given)}", err=True)
    with contextlib.suppress(CommandError), Client(where.socket) as client:
        click.echo(introduction(client.peers()["peers"]), err=True, nl=False)


@quick.command("status")
@json_option
@folder_option
@click.pass_context
def status_(ctx: click.Context, /, as_json: bool, folder: Path) -> None:
    """Show what `quick up` started: whether it runs, where its files are, and its status.

    Exit 1 if nothing is up, 3 if its mrcd does not answer, 6 when it is degraded.
    """
    from cli.state import status  # noqa: PLC0415

    if not folder.is_dir():
        raise CommandError(f"nothing is up: there is no {folder}")
    places = undoing.read(folder, ctx.obj)
    try:
        with Client(places.socket) as client:
            answer = client.status()
    except Unreachable:
        raise Unreachable(
            f"`quick up` was run here, and its mrcd does not answer at {places.socket}: see "
            f"{folder}/mrcd.log; `mrcctl quick down` removes what is there"
        ) from None
    if as_json:
        print_json(answer)
    else:
        click.echo(f"up, by the files in {folder}; `mrcctl quick down` takes it down")
        click.echo(status.render(answer))
    ctx.exit(DEGRADED if answer.state == "degraded" else 0)


@quick.command()
@folder_option
@click.pass_obj
def down(socket: str, folder: Path) -> None:
    """Stop what `quick up` started, and remove all of it.

    What an mrcd that was killed has left is removed as well. The files go last: as long as anything
    is left, the command says what, and can be repeated.
    """
    _refuse_others()
    if not folder.is_dir():
        raise CommandError(f"nothing is up: there is no {folder}")
    undoing.take_down(folder, socket)


@quick.command()
@click.argument("target", type=click.Path(path_type=Path), default=Path("/etc/mrcd"))
@click.option("--force", is_flag=True, help="Replace files that are there.")
@folder_option
def save(target: Path, force: bool, folder: Path) -> None:
    """Write the present configuration and its secret to TARGET, for the service mrcd.

    The default TARGET is /etc/mrcd. In place of a secret, a host that was invited has its keys.
    """
    from mrcd.config import keyfiles  # noqa: PLC0415

    names = [file for file in SAVED if (folder / file).exists()]
    if not names:
        raise CommandError(f"nothing is up: there is no {folder}/mrcd.toml")
    there = [str(target / file) for file in names if (target / file).exists()]
    if there and not force:
        raise CommandError(f"{', '.join(there)}: exists; --force replaces it")
    target.mkdir(parents=True, exist_ok=True)
    for file in names:
        source = folder / file
        mode = stat.S_IMODE(source.stat().st_mode)
        keyfiles.place(target / file, source.read_bytes(), mode, replace=True)
        click.echo(target / file)


def refuse_name(name: str) -> None:
    """Raise UsageError for a name that a host cannot have."""
    from mrcd.config.network import bad_name  # noqa: PLC0415

    if wrong := bad_name(name):
        raise click.UsageError(f"{name!r} {wrong}: give --name")


def refuse_nics(nics: Sequence[str], *, link_local: bool = True) -> None:
    """Raise UsageError for NICs that can be no planes.

    CommandError where IPv6 is off, and hosts are to be found by their link-local addresses.
    """
    from mrcd.handshake.hello import NICS_MAX  # noqa: PLC0415

    twice = sorted({nic for nic in nics if nics.count(nic) > 1})
    if twice:
        raise click.UsageError(f"{', '.join(twice)}: named twice; each NIC is a plane of its own")
    if len(nics) > NICS_MAX:
        raise click.UsageError(f"{len(nics)} NICs are too many: {NICS_MAX} planes at most")
    if "lo" in nics:
        raise click.UsageError("lo: other hosts are not behind the loopback interface")
    off = [nic for nic in nics if link_local and _ipv6_is_off(nic)]
    if off:
        keys = " ".join(f"net.ipv6.conf.{nic}.disable_ipv6=0" for nic in off)
        raise CommandError(
            f"IPv6 is off on {', '.join(off)}, and by it the hosts find each other: "
            f"`sysctl -w {keys}`; or name a member's IPv4 address by --seed"
        )


def _ipv6_is_off(nic: str) -> bool:
    """Return whether the kernel has no IPv6 for a NIC, as far as this process can see."""
    folder = Path("/proc/sys/net/ipv6/conf")
    if not folder.is_dir():
        return True
    try:
        return (folder / nic / "disable_ipv6").read_text().strip() == "1"
    except OSError:  # there is no such NIC, which is said later
        return False


def _refuse_seeds(seeds: Sequence[str], *, insecure: bool, forward: bool) -> None:
    """Raise UsageError for seeds that can be none, or not with the other options."""
    if seeds and insecure:
        raise click.UsageError("--seed needs a secret: by it members know each other")
    if seeds and forward:
        raise click.UsageError(
            "--seed and --forward: the one is for hosts behind routers, the other for hosts that "
            "are joined by cables; leave one of the two out"
        )
    versions = set()
    for seed in seeds:
        try:
            versions.add(ip_address(seed).version)
        except ValueError:
            raise click.UsageError(
                f"--seed {seed}: is not an address; give that of a member's plane NIC, without a "
                "port"
            ) from None
    if len(versions) > 1:
        raise click.UsageError("--seed: all have to be IPv4, or all IPv6, as the planes are")


def _refuse_others() -> None:
    if os.geteuid() != 0:
        raise NotPermitted("mrcd needs root: sudo mrcctl quick ...")


def _refuse_second(where: undoing.Places, folder: Path) -> None:
    from mrcd.datapath import pins  # noqa: PLC0415

    _refuse_others()
    if folder.exists():
        raise CommandError(f"{folder} is there already: `mrcctl quick down` removes it")
    if _status(where.socket) is not None:
        raise CommandError(f"an mrcd serves {where.socket} already: stop it first")
    bpffs = Path(where.bpffs)
    if bpffs.is_dir():
        try:
            with pins.owned(bpffs):
                pass
        except pins.PinError as error:
            raise CommandError(str(error)) from error


def _refuse_firewall() -> None:
    """Raise CommandError if this host's firewall drops what other hosts send to find it."""
    from cli.doctor import facts  # noqa: PLC0415
    from cli.doctor.firewall import opening  # noqa: PLC0415
    from mrcd.config.sections import Transport  # noqa: PLC0415
    from mrcd.linux.groupsocket import PORT  # noqa: PLC0415

    for port in (PORT, Transport().control_port):
        chains = facts.closed(port)
        if chains:
            remedy = "; ".join(opening(chains, port))
            raise CommandError(
                f"this host's firewall ({', '.join(chains)}) drops UDP port {port}, by which the "
                f"hosts hear each other: `{remedy}`"
            )


def _status(socket: str) -> Status | None:
    try:
        with Client(socket) as client:
            return client.status()
    except CommandError:
        return None


def ask_secret() -> bytes:
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


def _invited(file: TextIO, name: str | None, *, insecure: bool) -> Invitation:
    """Return the invitation in a file. UsageError if it cannot be used with the other options."""
    from mrcd.handshake import invitation  # noqa: PLC0415

    if insecure:
        raise click.UsageError("--insecure and --invitation: leave one of the two out")
    try:
        _refuse_exposed(file)
        found = invitation.read(file.readline(invitation.TEXT_MAX * 2))
    except (invitation.BadInvitation, OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the invitation {error}") from error
    if name not in (None, found.name):
        raise click.UsageError(f"--name {name}: the invitation is for {found.name}")
    return found


def _refuse_exposed(file: TextIO) -> None:
    """Raise UsageError for a file of which others have a copy, perhaps."""
    try:
        found = os.fstat(file.fileno())
    except OSError:  # it is none of the kernel's
        return
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        raise click.UsageError(
            f"{file.name}: others may have read the invitation: `chmod 600 {file.name}`, and ask "
            "for another one if they have"
        )


def _found(
    name: str,
    addresses: Sequence[str],
    nics: Sequence[str],
    credentials: Credentials,
    folder: Path,
    hosts: int,
    wait: int,
    seeds: Sequence[str],
) -> Plan:
    """Return what hosts were found, with the files by which they are known written.

    With seeds it is mrcd that finds them.
    """
    from cli.quick.discovery import Plan  # noqa: PLC0415

    if seeds:
        credentials.leave_joining(folder)
        plan = Plan(tuple(range(len(nics))), ())
    else:
        credentials.join(nics, folder, wait)
        plan = _agreed(name, addresses, nics, credentials, hosts, wait)
    credentials.write(folder, addresses, plan)
    return plan


def _agreed(
    name: str,
    addresses: Sequence[str],
    nics: Sequence[str],
    credentials: Credentials,
    hosts: int,
    wait: int,
) -> Plan:
    """Return what this host and the others have agreed on; with `hosts` 1, no others."""
    from cli.quick import discovery, search  # noqa: PLC0415

    if hosts == 1:
        return discovery.Plan(tuple(range(len(nics))), ())
    inner = tuple(each.partition("/")[0] for each in addresses)
    found = discovery.Discovery(name, secrets.token_hex(8), nics, inner, time.time_ns())
    try:
        return search.search(
            found,
            nics,
            credentials.voice,
            hosts=hosts,
            wait_s=wait,
            tell=lambda line: click.echo(line, err=True),
            shown=credentials.shown,
        )
    except (search.NotFound, OSError) as error:
        raise CommandError(str(error)) from error


def _links_down(nics: Sequence[str]) -> list[str]:
    """Return the NICs that are down."""
    from mrcd.linux.netlink import Netlink  # noqa: PLC0415

    async def work() -> list[str]:
        async with Netlink() as nl:
            links = await nl.links()
            _refuse_missing(nics, links)
            return [nic for nic in nics if not links[nic].up]

    return asyncio.run(work())


def _raise_links(nics: Sequence[str]) -> None:
    """Set NICs up."""
    from mrcd.linux.netlink import Netlink  # noqa: PLC0415

    async def work() -> None:
        async with Netlink() as nl:
            _refuse_missing(nics, await nl.links())
            for nic in nics:
                await nl.set_link(nic, up=True)

    asyncio.run(work())


def _refuse_missing(nics: Sequence[str], links: Mapping[str, object]) -> None:
    """Raise NoSuchObject unless all NICs are among the interfaces."""
    missing = [nic for nic in nics if nic not in links]
    if missing:
        raise NoSuchObject("interface", ", ".join(missing), links)


def _write(folder: Path, text: str) -> None:
    from mrcd.config import config  # noqa: PLC0415

    (folder / "mrcd.toml").write_text(text)
    try:
        config.load(folder / "mrcd.toml")
    except config.ConfigError as error:
        raise CommandError(f"what was agreed on cannot be: {error}") from error


def _start(
    folder: Path,
    where: undoing.Places,
    cache_dir: str | None,
    peers: int,
    wait_s: int,
    seeded: bool,
) -> None:
    """Start mrcd with the folder's configuration, and wait until so many peers are connected.

    `seeded`: it has to find them, and says why not.
    """
    from cli.lab.processes import daemon_command  # noqa: PLC0415

    command = [*daemon_command(), "--config", str(folder / "mrcd.toml")]
    command += ["--state-dir", str(folder), "--socket", where.socket, "--bpffs", where.bpffs]
    command += [] if cache_dir is None else ["--cache-dir", cache_dir]
    with (folder / "mrcd.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (folder / "pid").write_text(f"{process.pid}\n")
    began, told = time.monotonic(), ""
    with Compiling([folder / "mrcd.log"]) as compiling:
        while (now := _status(where.socket)) is None or now.peers_up < max(peers, now.peers_total):
            compiling.look()
            if process.poll() is not None:
                raise CommandError(f"mrcd ended with {process.returncode}")
            if now is not None and not now.peers_up:
                every = [*now.warnings, *now.reasons]
                refused = [text for text in every if any(each in text for each in REFUSALS)]
                if refused:
                    raise CommandError("; ".join(refused))
            limit_s = STARTED_S if now is None or now.peers_total >= peers else wait_s
            if time.monotonic() > began + limit_s:
                raise CommandError(f"not within {limit_s:.0f} s: {_unfinished(now, peers)}")
            waiting = "" if now is None else _waiting(now, peers, began, seeded)
            if waiting and waiting != told and (seeded or not told):
                told = waiting
                click.echo(f"waiting: {waiting}", err=True)
            time.sleep(0.1)


def introduction(peers: Sequence[PeerInfo]) -> str:
    """Return lines that say how each of the others can be reached, or where all of them are."""
    if not peers:
        return "No other host is here yet; `mrcctl peer list` shows those that come\n"
    if len(peers) > INTRODUCED:
        return f"{len(peers)} others are here: `mrcctl peer list`\n"
    return "".join(
        f"{peer.name} is here: ping {peer.addresses[0].partition('/')[0]}\n"
        for peer in sorted(peers, key=lambda peer: peer.name)
        if peer.addresses
    )


def _waiting(now: Status, peers: int, began_s: float, seeded: bool) -> str:
    """Return what is to be said of the wait by now: "" for nothing."""
    if seeded and not now.peers_up:
        return "; ".join(now.warnings)
    return _unfinished(now, peers) if time.monotonic() > began_s + TOLD_S else ""


def _unfinished(now: Status | None, peers: int) -> str:
    """Return what is missing until so many peers are connected."""
    if now is None:
        return "mrcd does not answer"
    here = f"{now.peers_up + 1} of {max(peers, now.peers_total) + 1} hosts are connected"
    return "; ".join([here, *now.reasons, *now.warnings])
