# SPDX-License-Identifier: GPL-2.0-only
"""The daemon: one engine after another behind one control socket, until it is asked to end.

The operator's policy ([service] on_stop) decides what a stop does to the data path. A daemon that
fails leaves the data path running, because the next daemon takes it over. Only a start that fails
removes what it has made itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from socket import socket as Socket
from typing import TYPE_CHECKING

from mrcd.config.config import Config, ConfigError
from mrcd.control.server import ControlServer
from mrcd.datapath import pins
from mrcd.linux.netlink import Netlink
from mrcd.report.report import Report
from mrcd.running import Running
from mrcd.service.log import get_logger
from mrcd.service.notify import Notifier
from mrcd.service.tasks import Tasks, fatal

if TYPE_CHECKING:
    from mrcd.report.exporter import Exporter

log = get_logger()


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a daemon's files.

    `listener` is a control socket that already listens, if any. `cache_dir` keeps compiled
    programs.
    """

    socket: Path
    state_dir: Path
    bpffs: Path
    listener: Socket | None = None
    cache_dir: Path | None = None


class Daemon:
    """One mrcd."""

    def __init__(self, config: Config, places: Places, notifier: Notifier) -> None:
        self._places = places
        self._notifier = notifier
        self._failure: Exception | None = None
        self._tasks = Tasks(fatal(self._failed))
        self.running = Running(
            config,
            places.state_dir,
            places.bpffs,
            self._tasks,
            self._failed,
            self._expose,
            places.cache_dir,
        )
        self._report: Report
        self._exporter: Exporter | None = None

    def stop(self) -> None:
        """Ask the daemon to end; run() returns soon after."""
        self.running.stop()

    def fail(self, error: Exception) -> None:
        """Make the daemon end because of an error, and leave the data path as it is."""
        self._failed(error)

    async def run(self) -> None:
        """Bring everything up, serve until stop(), and end as [service] on_stop says.

        Raise the error that ended it, if any.
        """
        places = self._places
        places.state_dir.mkdir(parents=True, exist_ok=True)
        pins.prepare(places.bpffs)
        with pins.owned(places.bpffs):
            async with Netlink() as nl, contextlib.AsyncExitStack() as stack:
                await self.running.start(nl)
                self._report = Report(self.running)
                server = ControlServer(
                    places.socket, self._report, self.running, activated=places.listener
                )
                try:
                    await stack.enter_async_context(server)
                    await self._expose()
                    stack.push_async_callback(self._hide)
                    stack.push_async_callback(self._tasks.cancel)
                    self._tasks.spawn(self._feed_watchdog())
                    self._ready()
                    await self.running.serve()
                finally:
                    await self._end()
        if self._failure is not None:
            raise self._failure
        log.info("daemon.stopped")

    def _failed(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.stop()

    async def _end(self) -> None:
        """Let go of the data path as the policy says; after a failure it is kept."""
        policy = self.running.config.service.on_stop if self._failure is None else "keep"
        if self.running.engine.made:  # and not ready yet: this start has failed
            policy = "detach"
        log.info("daemon.stopping", on_stop=policy)
        self._notifier.stopping("stopping" if policy != "drain" else "draining")
        await self.running.end(policy)

    def reload(self) -> None:
        """SIGHUP: apply the configuration file as it is now."""
        self._tasks.spawn(self._reload())

    async def _reload(self) -> None:
        self._notifier.reloading()
        try:
            await self.running.reload()
        except (ConfigError, OSError) as error:
            log.error("config.refused", reason=str(error))
        finally:
            self._ready_again()

    # ---- the supervisor

    def _ready(self) -> None:
        config = self.running.config
        self.running.engine.made = False
        log.info("daemon.ready", host=config.host.name, peers=len(config.peers))
        self._ready_again()

    def _ready_again(self) -> None:
        config = self.running.config
        self._notifier.ready(f"host {config.host.name}, {len(config.peers)} peers")

    async def _feed_watchdog(self) -> None:
        """Feed it only while the clock of the data path really runs, which its beats show."""
        if self._notifier.watchdog_s is None:
            return
        before = -1
        while True:
            beats = self.running.engine.clock.beats()
            if beats != before or self.running.restarting:
                self._notifier.alive()
            before = beats
            await asyncio.sleep(self._notifier.watchdog_s / 3)

    # ---- metrics

    async def _expose(self) -> None:
        """Serve the metrics if the configuration asks for it. OSError if that fails."""
        await self._hide()
        endpoint = self.running.config.metrics.endpoint
        if endpoint is None:
            return
        # Imported here because their library takes memory, which only a host with metrics pays.
        from mrcd.report.exporter import Exporter  # noqa: PLC0415
        from mrcd.report.snapshot import Snapshots  # noqa: PLC0415

        exporter = Exporter(endpoint, Snapshots(self.running, self._report).take)
        await exporter.__aenter__()
        self._exporter = exporter

    async def _hide(self) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            await exporter.__aexit__(None, None, None)
