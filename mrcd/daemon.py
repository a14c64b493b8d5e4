# SPDX-License-Identifier: GPL-2.0-only
"""The daemon: one engine after another behind one control socket, until it is asked to end.

What a stop does to the data path is the operator's policy ([service] on_stop). A daemon that fails
leaves it running, because the next one takes it over; only a start that fails removes what it had
made itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket as Socket
from typing import TYPE_CHECKING

from mrcd.config import config as configuration
from mrcd.config.config import Config, ConfigError
from mrcd.config.diff import diff as differences
from mrcd.config.diff import needs_restart
from mrcd.control.backend import CannotApply
from mrcd.control.server import ControlServer
from mrcd.datapath import pins
from mrcd.datapath.detach import detach_with
from mrcd.engine import Engine
from mrcd.linux.netlink import Netlink
from mrcd.model import ConfigChanges
from mrcd.report.report import Report
from mrcd.service.log import get_logger
from mrcd.service.notify import Notifier
from mrcd.service.tasks import Tasks, fatal

if TYPE_CHECKING:
    from mrcd.report.exporter import Exporter
    from mrcd.report.snapshot import Snapshots

log = get_logger()

NICE = -10
"""The daemon does little, but where applications keep every CPU busy, peers should not go on
sending to a dead NIC for a time slice or two."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where this daemon keeps things. `listener`: its control socket, if somebody else made it."""

    socket: Path
    state_dir: Path
    bpffs: Path
    listener: Socket | None = None


class Daemon:
    """One mrcd."""

    def __init__(self, config: Config, places: Places, notifier: Notifier) -> None:
        self._config = config
        self._places = places
        self._notifier = notifier
        self._wake = asyncio.Event()
        self._stopping = False
        self._failure: Exception | None = None
        self._changing = asyncio.Lock()
        self._next: Config | None = None  # for the next engine
        self._restarting = False  # compiling takes seconds, in which no clock runs
        self._restarted: asyncio.Future[None] | None = None
        self._former: Config | None = None  # returns unless the running one is confirmed
        self._return: asyncio.TimerHandle | None = None
        self._tasks = Tasks(fatal(self._failed))
        self._engine: Engine
        self._report: Report | None = None
        self._exporter: Exporter | None = None
        self._snapshots: Snapshots | None = None

    def stop(self) -> None:
        """Ask the daemon to end; run() returns soon after."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Bring everything up, serve until stop(), end as [service] on_stop says.

        Raises what went wrong.
        """
        places = self._places
        with contextlib.suppress(OSError):  # better on time; works without the right to it
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        places.state_dir.mkdir(parents=True, exist_ok=True)
        pins.prepare(places.bpffs)
        with pins.owned(places.bpffs):
            async with Netlink() as nl, contextlib.AsyncExitStack() as stack:
                self._nl = nl
                await self._start_engine()
                self._report = report = Report(self._engine, self, places.bpffs)
                server = ControlServer(places.socket, report, activated=places.listener)
                try:
                    await stack.enter_async_context(server)
                    await self._expose()
                    stack.push_async_callback(self._hide)
                    stack.push_async_callback(self._tasks.cancel)
                    self._tasks.spawn(self._feed_watchdog())
                    self._ready()
                    await self._serve()
                finally:
                    await self._end(report)
        if self._failure is not None:
            raise self._failure
        log.info("daemon.stopped")

    async def _serve(self) -> None:
        """Until stop(), one engine after the other."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            if self._next is not None:
                await self._restart_engine()

    # ---- engines

    async def _start_engine(self) -> None:
        engine = Engine(
            self._nl, self._config, self._places.bpffs, self._places.state_dir, self._failed
        )
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            if engine.made:
                await self._take_down()
            raise
        self._engine = engine

    async def _restart_engine(self) -> None:
        """Build the data path anew for `_next`; where that fails, for what ran before."""
        former, self._config, self._next = self._config, self._next or self._config, None
        waiting, self._restarted = self._restarted, None
        log.info("datapath.restarting")
        self._restarting = True
        await self._engine.close()
        try:
            await self._start_engine()
        except Exception as error:
            self._config = former
            await self._start_engine()
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        else:
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        finally:
            self._restarting = False
            self._engine.made = False
            self._follow()

    def _failed(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.stop()

    async def _end(self, report: Report) -> None:
        """Let go of the data path as the policy says; after a failure it is kept."""
        report.stopping = True
        self._stopping = True
        policy = self._config.service.on_stop if self._failure is None else "keep"
        if self._engine.made:  # and not ready yet: this start has failed
            policy = "detach"
        if self._restarted is not None and not self._restarted.done():
            self._restarted.set_exception(CannotApply("mrcd is ending"))
        log.info("daemon.stopping", on_stop=policy)
        self._notifier.stopping("stopping" if policy != "drain" else "draining")
        if self._return is not None:
            self._return.cancel()
        if policy == "drain" and not await self._engine.drain():
            log.warning("drain.incomplete")
        await self._engine.close()
        if policy != "keep":
            await self._take_down()

    async def _take_down(self) -> None:
        """Remove programs, pins and interfaces of this daemon."""
        report = await detach_with(self._nl, self._places.bpffs)
        if report.detached or report.failed:
            log.info("datapath.detached", removed=len(report.detached), failed=report.failed)

    # ---- the supervisor

    def _ready(self) -> None:
        self._engine.made = False
        log.info("daemon.ready", host=self._config.host.name, peers=len(self._config.peers))
        self._ready_again()

    async def _feed_watchdog(self) -> None:
        """Feed it only while the programs of the clock really run: they move a number on."""
        if self._notifier.watchdog_s is None:
            return
        before = -1
        while True:
            beats = self._engine.clock.beats() if self._engine.clock.is_alive() else before
            if beats != before or self._restarting:
                self._notifier.alive()
            before = beats
            await asyncio.sleep(self._notifier.watchdog_s / 3)

    # ---- metrics

    async def _expose(self) -> None:
        """Serve the metrics where the configuration says, if it does. OSError if that fails."""
        await self._hide()
        endpoint = self._config.metrics.endpoint
        if endpoint is None:
            return
        # Its library takes memory; only who wants metrics pays for it.
        from mrcd.report.exporter import Exporter  # noqa: PLC0415
        from mrcd.report.snapshot import Snapshots  # noqa: PLC0415

        assert self._report is not None
        self._snapshots = snapshots = Snapshots(self._engine, self._report)
        exporter = Exporter(endpoint, snapshots.take)
        await exporter.__aenter__()
        self._exporter = exporter

    async def _hide(self) -> None:
        exporter, self._exporter, self._snapshots = self._exporter, None, None
        if exporter is not None:
            await exporter.__aexit__(None, None, None)

    def _follow(self) -> None:
        """What looks at the engine looks at this one from now on."""
        if self._report is not None:
            self._report.follow(self._engine)
        if self._snapshots is not None:
            self._snapshots.engine = self._engine

    # ---- the configuration

    def reload(self) -> None:
        """SIGHUP: apply the configuration file as it is now."""
        self._tasks.spawn(self._reload())

    async def _reload(self) -> None:
        self._notifier.reloading()
        try:
            wanted = configuration.load(self._config.path)
            async with self._changing:
                self._forget_former()
                await self._change(wanted)
        except (ConfigError, OSError) as error:
            log.error("config.refused", reason=str(error))
        finally:
            self._ready_again()

    def _ready_again(self) -> None:
        self._notifier.ready(f"host {self._config.host.name}, {len(self._config.peers)} peers")

    def diff(self, text: str) -> ConfigChanges:
        """What a configuration would change. ConfigError with every problem it has."""
        return self._diff(configuration.loads(text, self._config.path))

    def _diff(self, wanted: Config) -> ConfigChanges:
        return differences(self._config, wanted, fits=self._engine.fits(wanted))

    async def apply(self, text: str, confirm_s: int) -> ConfigChanges:
        """Make a configuration the running one; the file stays as it is.

        With confirm_s the former one returns after that time unless `confirm` is called.
        ConfigError with every problem of the text; other errors leave what ran before.
        """
        wanted = configuration.loads(text, self._config.path)
        async with self._changing:
            former = self._former or self._config
            self._forget_former()
            changes = await self._change(wanted)
            if confirm_s > 0 and former != wanted:
                self._former = former
                loop = asyncio.get_running_loop()
                self._return = loop.call_later(confirm_s, self._return_to_former)
                return replace(changes, confirm_s=confirm_s)
            return changes

    def confirm(self) -> None:
        """Keep the configuration that was applied last. CannotApply when none waits."""
        if self._former is None:
            raise CannotApply("no configuration waits to be confirmed")
        self._forget_former()

    def _forget_former(self) -> None:
        self._former = None
        if self._return is not None:
            self._return.cancel()
            self._return = None

    def _return_to_former(self) -> None:
        self._tasks.spawn(self._take_former())

    async def _take_former(self) -> None:
        async with self._changing:
            former = self._former
            self._forget_former()
            if former is not None:
                log.warning("config.returned", reason="not confirmed in time")
                await self._change(former)

    async def _change(self, wanted: Config) -> ConfigChanges:
        changes = self._diff(wanted)
        if needs_restart(changes):
            self._next = wanted
            self._restarted = asyncio.get_running_loop().create_future()
            waiting = self._restarted
            self._wake.set()
            await waiting
        else:
            await self._apply_live(wanted)
        for change in changes.changes:
            log.info("config.changed", path=change.path, old=change.old, new=change.new,
                     how=change.how)  # fmt: skip
        return changes

    async def _apply_live(self, wanted: Config) -> None:
        former = self._config
        try:
            await self._engine.apply(wanted)
            self._config = wanted
            if wanted.metrics != former.metrics:
                await self._expose()
        except Exception:
            self._config = former
            await self._engine.apply(former)
            if wanted.metrics != former.metrics:
                await self._expose()
            raise
        finally:
            self._follow()
