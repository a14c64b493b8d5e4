# SPDX-License-Identifier: GPL-2.0-only
"""Serve the varlink interface ``io.mrcd.Control`` on the control socket.

The socket's mode (0660, group mrcd where it exists) decides which processes may connect. A client's
credentials decide which methods it may call (mrcd/control/access.py). ``org.varlink.service`` is
served beside the interface, so ``varlinkctl introspect`` and ``varlinkctl call`` work without any
part of this project.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Self

from asyncvarlink import VarlinkInterfaceRegistry, VarlinkTransport
from asyncvarlink.serviceinterface import VarlinkServiceInterface

from mrcd import __version__
from mrcd.control import access
from mrcd.control.access import Access
from mrcd.control.methods import Control
from mrcd.control.streams import ControlProtocol
from mrcd.report.report import Report
from mrcd.running import Running
from mrcd.service.log import get_logger

SOCKET_MODE = 0o660
BACKLOG = 64
WATCHERS_MAX = 64
"""Limit on connections of callers that may only watch; callers that may write are always accepted.
"""
ACCEPT_PAUSE_S = 1.0

log = get_logger()


class ControlError(Exception):
    """The control socket cannot be set up; the message says where, why and what to do."""


class ControlServer:
    """Serves the control API of a daemon from `start` until `close`."""

    def __init__(
        self,
        path: Path,
        report: Report,
        running: Running,
        *,
        rule: Access | None = None,
        activated: socket.socket | None = None,
    ) -> None:
        """Prepare the server without listening.

        `rule` decides which callers may write; the default is that of this host. `activated` is a
        listening socket from a service manager; it is neither changed nor removed.
        """
        self._path = path
        self._rule = access.of_host() if rule is None else rule
        self._registry = VarlinkInterfaceRegistry()
        self._registry.register_interface(
            VarlinkServiceInterface("mrcd", "mrcd", __version__, "", self._registry)
        )
        self._registry.register_interface(Control(report, running))
        self._activated = activated
        self._listener: socket.socket | None = None
        self._clients: set[ControlProtocol] = set()
        self._inode: int | None = None

    async def start(self) -> None:
        """Listen. Raises ControlError if another daemon answers there or the path is unusable."""
        if self._activated is None:
            listener = _listen(self._path, self._rule)
            self._inode = self._path.stat().st_ino
        else:
            listener = self._activated
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listener = listener
        self._accept_again()

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptor is left, so connections stay in the backlog
            log.error("control.accept_failed", error=str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
            return
        caller = access.caller_of(connection)
        watchers = sum(not self._rule.may_write(client.caller) for client in self._clients)
        if watchers >= WATCHERS_MAX and not self._rule.may_write(caller):
            reason = f"{watchers} watchers are connected already"
            log.warning("control.client_dropped", reason=reason, uid=caller.uid, pid=caller.pid)
            connection.close()
            return
        client = ControlProtocol(self._registry, self._rule, caller, self._clients.discard)
        self._clients.add(client)
        # Without a boundary predictor the library reads once for each event. Otherwise it reads
        # until nothing is left, and a client that never stops sending would occupy it for ever.
        VarlinkTransport(
            asyncio.get_running_loop(), connection, connection, client, boundary_predictor=None
        )

    async def close(self) -> None:
        """Hang up on every client and remove the socket, unless another daemon replaced it."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        clients = list(self._clients)
        await asyncio.gather(*(client.ended() for client in clients))
        while self._clients:  # a client that has just connected may not have a transport yet
            for client in list(self._clients):
                client.abort()
            await asyncio.sleep(0)
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _listen(path: Path, rule: Access) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_stale(path)
        # A chmod after bind would leave a gap, so the umask sets the mode from the start.
        umask = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(umask)
        if rule.gid is not None:
            _give(path, rule.gid)
    except OSError as error:
        listener.close()
        raise ControlError(f"cannot listen on the control socket {path}: {error}") from error
    except ControlError:
        listener.close()
        raise
    return listener


def _give(path: Path, gid: int) -> None:
    """Give the socket to the group that may write.

    A daemon that is neither root nor a member of that group leaves its own group on the socket.
    """
    with contextlib.suppress(PermissionError):
        os.chown(path, -1, gid)


def _remove_stale(path: Path) -> None:
    """Remove a socket without a listener. Raises ControlError for a live one or another file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ControlError(f"{path} exists and is not a socket: remove it or choose --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        # EAGAIN means that a listener's backlog is full, so the listener is alive.
        code = probe.connect_ex(os.fspath(path))
    if code != errno.ECONNREFUSED:
        raise ControlError(
            f"another mrcd answers on {path}: stop it first, or choose another --socket"
        )
    path.unlink()
