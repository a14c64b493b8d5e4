# SPDX-License-Identifier: GPL-2.0-only
"""The command `mrcd`: read the configuration and run the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from mrcd import __version__
from mrcd.config import config
from mrcd.config.keyfiles import service_user, with_keys
from mrcd.config.permits import permits_of
from mrcd.control.server import ControlError
from mrcd.daemon import Daemon, Places
from mrcd.datapath import pins
from mrcd.datapath.datapath import DatapathError
from mrcd.datapath.pins import PinError
from mrcd.linux.privileged import client, start
from mrcd.linux.privileged.client import Channel, PrivilegedGone
from mrcd.planes.plane import PlaneError
from mrcd.service import backoff, capabilities, log
from mrcd.service.notify import Notifier, listening

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_NOT_PERMITTED = 5

FAILURES = "failures"  # the name of a file

NICE = -10
"""The daemon does little. Where applications keep every CPU busy, a lower priority would make peers
send to a dead NIC for another time slice or two."""


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what a callback raised. That a call was cancelled, because mrcd ends, is no error."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


async def _serve(settings: config.Config, places: Places, channel: Channel) -> None:
    daemon = Daemon(settings, places, Notifier(os.environ))
    loop = asyncio.get_running_loop()

    def look() -> None:
        if start.has_ended(channel):
            loop.remove_reader(channel)
            daemon.fail(PrivilegedGone(0, "the process that holds mrcd's capabilities has ended"))

    loop.set_exception_handler(_report)
    loop.add_reader(channel, look)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    loop.add_signal_handler(signal.SIGHUP, daemon.reload)
    await daemon.run()


def _without_privileges(settings: config.Config, places: Places) -> Channel:
    """Do what only root can, start the process that keeps the capabilities, and give them up."""
    with contextlib.suppress(OSError):  # better on time; works without the right to it
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    pins.prepare(places.bpffs)
    if os.geteuid() == 0 and (user := service_user()) is not None:
        _take_over(places, user)
    permits = permits_of(settings, str(places.bpffs))
    return start.start(permits, settings.path, places.cache_dir)


def _take_over(places: Places, user: int) -> None:
    """Take the files of the service's user over, which root without capabilities may not change.

    The unit takes them back as it starts. Raises PinError if its daemon runs.
    """
    folders = (places.bpffs, places.state_dir)
    below = (path for folder in folders for path in folder.rglob("*"))
    with pins.owned(places.bpffs), contextlib.suppress(OSError):
        for path in (*folders, places.socket.parent, *below):
            if os.path.lexists(path) and path.lstat().st_uid == user:
                os.chown(path, 0, -1, follow_symlinks=False)


def _end_for_good(code: int, problems: Sequence[str]) -> NoReturn:
    """Say what another start would find as well, and exit with a code that the unit names.

    Calls that wait at the control socket of a supervisor are ended: it would start mrcd for them.
    """
    for problem in problems:
        click.echo(f"mrcd: {problem}", err=True)
    with contextlib.suppress(OSError, ValueError):
        listener = listening(os.environ, os.getpid())
        while listener is not None:
            listener.accept()[0].close()
    sys.exit(code)


def _hold(folder: Path, began: float, error: str) -> None:
    """Wait before the exit after which a supervisor starts mrcd again."""
    notifier = Notifier(os.environ)
    if not notifier.supervised:
        return

    def tell(left: int) -> None:
        notifier.alive()
        notifier.status(f"failed, next start in {left} s: {error}")

    backoff.hold(folder / FAILURES, began, tell)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    default=Path("/etc/mrcd/mrcd.toml"),
    show_default=True,
    help="The configuration.",
)
@click.option("--check-config", is_flag=True, help="Check the configuration and exit.")
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=Path("/run/mrcd/mrcd.sock"),
    show_default=True,
    help="The control socket to serve.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    default=Path("/run/mrcd"),
    show_default=True,
    help="Where the daemon keeps its files.",
)
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path, readable=False),  # without it the daemon compiles
    default=Path("/var/cache/mrcd"),
    show_default=True,
    help="Where compiled programs are kept. The daemon compiles what is missing there.",
)
@click.option(
    "--bpffs",
    type=click.Path(path_type=Path),
    default=Path("/sys/fs/bpf/mrcd"),
    show_default=True,
    help="Where programs and maps are pinned.",
)
@click.option(
    "--privileged",
    type=click.Path(path_type=Path),
    default=Path("/run/mrcd/privileged.sock"),
    show_default=True,
    help="Where a daemon that is started without capabilities finds the process that has them.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json", "journal"]),
    default=None,
    help="Default: console on a terminal, journal where stderr leads to it, json otherwise.",
)
@click.version_option(__version__, prog_name="mrcd")
def main(
    path: Path,
    check_config: bool,
    socket: Path,
    state_dir: Path,
    cache_dir: Path,
    bpffs: Path,
    privileged: Path,
    log_format: log.LogFormat | None,
) -> None:
    """Run the daemon behind mrc0: load the data path, maintain connections and paths.

    Runs in the foreground until SIGTERM or SIGINT. [service] on_stop then decides
    what happens to the data path; by default it keeps running, and the next mrcd
    takes it over. SIGHUP rereads and applies the configuration.
    Exits with 0 when stopped, 1 on a failure, 2 on a bad configuration, 5 without
    the capabilities it needs. After 2 and 5 the unit does not start it again, and
    after 1 it does, at growing intervals.
    """
    began = time.monotonic()
    log.configure(log_format)
    logger = log.get_logger()
    try:
        settings = with_keys(config.load(path))
    except config.ConfigError as error:
        _end_for_good(EXIT_CONFIG, error.problems)
    if check_config:
        click.echo(
            f"{path}: good: host {settings.host.name}, {settings.fabric.planes} planes, "
            f"{len(settings.peers)} peers, {settings.mrc0.name} MTU {settings.mtu_shown}"
            + ("" if settings.keyring else ", insecure")
        )
        return
    lacking = capabilities.lacking()
    serviced = privileged.is_socket() and set(lacking) == set(capabilities.NEEDED)
    if lacking and not serviced:
        problem = f"lacks {', '.join(lacking)}: start it as root, or as the unit mrcd.service does"
        _end_for_good(EXIT_NOT_PERMITTED, [problem])
    logger.info("daemon.started", version=__version__, config=str(path), host=settings.host.name)
    if settings.keyring is None:
        logger.warning("daemon.insecure", reason="insecure = true: any machine may pose as a peer")
    try:
        places = Places(socket, state_dir, bpffs, listening(os.environ, os.getpid()), cache_dir)
        channel = start.connect(privileged) if serviced else _without_privileges(settings, places)
        with client.use(channel):
            asyncio.run(_serve(settings, places, channel))
    except config.ConfigError as error:
        _end_for_good(EXIT_CONFIG, error.problems)
    except (ControlError, DatapathError, PinError, PlaneError, OSError, ValueError) as error:
        logger.error("daemon.failed", error=str(error))
        _hold(socket.parent, began, str(error))
        sys.exit(EXIT_FAILED)
