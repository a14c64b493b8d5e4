# SPDX-License-Identifier: GPL-2.0-only
"""The command `mrcd`: read the configuration and run the daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import click

from mrcd import __version__
from mrcd.config import config
from mrcd.control.server import ControlError
from mrcd.daemon import Daemon, Places
from mrcd.datapath.datapath import DatapathError
from mrcd.datapath.pins import PinError
from mrcd.planes.planes import PlaneError
from mrcd.service import capabilities, log
from mrcd.service.notify import Notifier, listening

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_NOT_PERMITTED = 5


async def _serve(settings: config.Config, places: Places) -> None:
    daemon = Daemon(settings, places, Notifier(os.environ))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    loop.add_signal_handler(signal.SIGHUP, daemon.reload)
    await daemon.run()


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
    log_format: log.LogFormat | None,
) -> None:
    """Run the daemon behind mrc0: load the data path, maintain connections and paths.

    Runs in the foreground until SIGTERM or SIGINT. [service] on_stop then decides
    what happens to the data path; by default it keeps running, and the next mrcd
    takes it over. SIGHUP rereads and applies the configuration.
    Exits with 0 when stopped, 1 on a failure, 2 on a bad configuration, 5 without
    the capabilities it needs.
    """
    log.configure(log_format)
    logger = log.get_logger()
    try:
        settings = config.load(path)
    except config.ConfigError as error:
        for problem in error.problems:
            click.echo(f"mrcd: {problem}", err=True)
        sys.exit(EXIT_CONFIG)
    if check_config:
        click.echo(
            f"{path}: good: host {settings.host.name}, {settings.fabric.planes} planes, "
            f"{len(settings.peers)} peers, {settings.mrc0.name} MTU {settings.mtu}"
        )
        return
    if lacking := capabilities.lacking():
        click.echo(
            f"mrcd: lacks {', '.join(lacking)}: start it as root, or as the unit mrcd.service does",
            err=True,
        )
        sys.exit(EXIT_NOT_PERMITTED)
    logger.info("daemon.started", version=__version__, config=str(path), host=settings.host.name)
    try:
        places = Places(socket, state_dir, bpffs, listening(os.environ, os.getpid()), cache_dir)
        asyncio.run(_serve(settings, places))
    except (ControlError, DatapathError, PinError, PlaneError, OSError, ValueError) as error:
        logger.error("daemon.failed", error=str(error))
        sys.exit(EXIT_FAILED)
