# SPDX-License-Identifier: GPL-2.0-only
"""The control socket: the varlink interface ``io.mrcd.Control`` on a unix socket.

Who may connect is decided by the socket's mode (0660), not by the methods, most of which only
read. ``org.varlink.service`` is served beside it, so ``varlinkctl introspect`` and
``varlinkctl call`` work without anything of this project.

No ``from __future__ import annotations`` here: asyncvarlink builds the interface from the
annotations and needs the types themselves.
"""

import asyncio
import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol, Self

from asyncvarlink import (
    FileDescriptorArray,
    TypedVarlinkErrorReply,
    VarlinkInterface,
    VarlinkInterfaceRegistry,
    VarlinkInterfaceServerProtocol,
    VarlinkMethodCall,
    VarlinkMethodReply,
    VarlinkMethodSignature,
    VarlinkUnixServer,
    create_unix_server,
    varlinkmethod,
)
from asyncvarlink.conversion import ConversionError
from asyncvarlink.serviceinterface import InvalidParameter, VarlinkServiceInterface

from mrcd import __version__
from mrcd.denials import CutsOff, NotDenied
from mrcd.denylist import NoSuchElement
from mrcd.log import get_logger
from mrcd.model import (
    SCHEMA_VERSION,
    ConnectionsReply,
    ConnInfo,
    DeniedInfo,
    DeniedReply,
    DenyReply,
    FaultsReply,
    MapReply,
    MonitorReply,
    MonitorSample,
    PathEvent,
    PathInfo,
    PathProbe,
    PathsReply,
    PeerInfo,
    PeersReply,
    PlaneInfo,
    PlaneReply,
    ProbesReply,
    StatsInfo,
    StatsReply,
    Status,
    StatusReply,
    WatchPathsReply,
)
from mrcd.ports import LastPlane

INTERFACE = "io.mrcd.Control"
SOCKET_MODE = 0o660
INTERVAL_MIN_MS = 10  # a sample reads every map once: more often would only measure itself
INTERVAL_MAX_MS = 3_600_000
PROBES_MAX = 100  # of each path: a second of probing

log = get_logger()


class Source(Protocol):
    """Where the answers come from: the daemon.

    The methods run on the event loop and must not block. ``peer`` is ``None`` for all peers; a
    name was already checked against ``peers()``, a plane against ``status()``.
    """

    def status(self) -> Status:
        """The daemon as a whole."""

    def peers(self) -> list[PeerInfo]:
        """Every configured peer."""

    def paths(self, peer: str | None) -> list[PathInfo]:
        """Every path of every QP."""

    def connections(self, peer: str | None) -> list[ConnInfo]:
        """Every QP."""

    def stats(self) -> StatsInfo:
        """All counters."""

    async def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        """Add a rule to the denylist; False when it was there.

        Raises NoSuchElement, or CutsOff without ``force``.
        """

    async def allow(self, element: str, peer: str | None) -> None:
        """Remove a rule. Raises NoSuchElement or NotDenied."""

    def denied(self) -> list[DeniedInfo]:
        """The rules of the denylist."""

    def watch_paths(self) -> AsyncGenerator[PathEvent | None, None]:
        """None at once, then every path event."""

    def drain(self, plane: int, force: bool) -> PlaneInfo:
        """Take a plane out of service. mrcd.ports.LastPlane when none would be left."""

    def undrain(self, plane: int) -> PlaneInfo:
        """Put a plane back into service."""

    async def probe(self, peer: str, plane: int | None, count: int) -> list[PathProbe]:
        """Send EV probes over every path of one plane or all to a peer, and wait for answers."""

    def faults(self) -> FaultsReply:
        """What is at fault in the fabric."""

    def fabric_map(self) -> MapReply:
        """Every link and switch, as the survey sees it."""


class ControlError(Exception):
    """The control socket cannot be set up; the message says where, why and what to do."""


class NoSuchPeer(TypedVarlinkErrorReply, interface=INTERFACE):
    """No peer of that name is configured; "known" lists those that are."""

    class Parameters:
        name: str
        known: list[str]


class BadElement(TypedVarlinkErrorReply, interface=INTERFACE):
    """The text names no element of the fabric, or none that is denied; "reason" lists them."""

    class Parameters:
        element: str
        reason: str


class NoPathLeft(TypedVarlinkErrorReply, interface=INTERFACE):
    """The rule would leave no path to these peers; "force" makes it all the same."""

    class Parameters:
        element: str
        peers: list[str]


class NoSuchPlane(TypedVarlinkErrorReply, interface=INTERFACE):
    """There is no plane of that number; "known" lists those there are."""

    class Parameters:
        plane: int
        known: list[int]


class LastUsablePlane(TypedVarlinkErrorReply, interface=INTERFACE):
    """Draining this plane would leave no usable one; "force" does it all the same."""

    class Parameters:
        plane: int


class Internal(TypedVarlinkErrorReply, interface=INTERFACE):
    """The daemon failed to answer; its log has the details."""

    class Parameters:
        message: str


class Control(VarlinkInterface, name=INTERFACE):
    """What mrcd on this host is doing, and which paths it may use."""

    errors = (NoSuchPeer, NoSuchPlane, LastUsablePlane, BadElement, NoPathLeft, Internal)

    def __init__(self, source: Source) -> None:
        self._source = source

    @varlinkmethod
    def GetStatus(self) -> StatusReply:
        """The daemon as a whole: its state, mrc0, the planes, the data path."""
        return {"status": self._source.status()}

    @varlinkmethod
    def ListPeers(self) -> PeersReply:
        """Every configured peer."""
        return {"schema_version": SCHEMA_VERSION, "peers": self._source.peers()}

    @varlinkmethod
    def ListPaths(self, *, peer: str | None = None) -> PathsReply:
        """Every path (an EV of a QP), of one peer or of all."""
        self._check_peer(peer)
        return {"schema_version": SCHEMA_VERSION, "paths": self._source.paths(peer)}

    @varlinkmethod
    def ListConnections(self, *, peer: str | None = None) -> ConnectionsReply:
        """Every QP, of one peer or of all."""
        self._check_peer(peer)
        return {"schema_version": SCHEMA_VERSION, "connections": self._source.connections(peer)}

    @varlinkmethod
    def GetStats(self) -> StatsReply:
        """All counters of the data path and the daemon."""
        return {"stats": self._source.stats()}

    @varlinkmethod
    async def Deny(
        self, *, element: str, peer: str | None = None, force: bool = False
    ) -> DenyReply:
        """Deny the paths that cross an element: an EV (0x10020000), plane (p1), switch (p1t1-2),
        link (p1t0-1:p1t1-2), NIC link (h2:p1) or peer (h2); of one peer or of all."""
        self._check_peer(peer)
        try:
            changed = await self._source.deny(element, peer, force=force)
        except NoSuchElement as error:
            raise BadElement({"element": element, "reason": str(error)}) from error
        except CutsOff as error:
            raise NoPathLeft({"element": element, "peers": [*error.peers]}) from error
        return {"changed": changed, "rules": self._source.denied()}

    @varlinkmethod
    async def Allow(self, *, element: str, peer: str | None = None) -> DenyReply:
        """Take back what Deny of the same element and peer did."""
        self._check_peer(peer)
        try:
            await self._source.allow(element, peer)
        except (NoSuchElement, NotDenied) as error:
            raise BadElement({"element": element, "reason": str(error)}) from error
        return {"changed": True, "rules": self._source.denied()}

    @varlinkmethod
    def ListDenied(self) -> DeniedReply:
        """The rules of the denylist."""
        return {"schema_version": SCHEMA_VERSION, "rules": self._source.denied()}

    @varlinkmethod(delay_generator=False)
    async def WatchPaths(self) -> AsyncIterator[WatchPathsReply]:
        """A reply without an event at once, then one for each path that comes into use or goes
        out of it, until the caller hangs up. Must be called with "more"."""
        async with contextlib.aclosing(self._source.watch_paths()) as events:
            async for event in events:
                yield {"event": event}

    @varlinkmethod
    def Drain(self, *, plane: int, force: bool = False) -> PlaneReply:
        """Take a plane out of service: nothing is sent on it, peers are told not to send to it."""
        self._check_plane(plane)
        try:
            return {"plane": self._source.drain(plane, force)}
        except LastPlane as error:
            raise LastUsablePlane(plane=plane) from error

    @varlinkmethod
    def Undrain(self, *, plane: int) -> PlaneReply:
        """Put a plane back into service, as far as its link allows."""
        self._check_plane(plane)
        return {"plane": self._source.undrain(plane)}

    @varlinkmethod
    async def ProbePaths(
        self, *, peer: str, plane: int | None = None, count: int = 10
    ) -> ProbesReply:
        """Send count (1 to 100) EV probes over every path to a peer, of one plane or of all."""
        self._check_peer(peer)
        if plane is not None:
            self._check_plane(plane)
        if not 1 <= count <= PROBES_MAX:
            raise InvalidParameter(parameter="count")
        probes = await self._source.probe(peer, plane, count)
        return {"schema_version": SCHEMA_VERSION, "probes": probes}

    @varlinkmethod
    def ListFaults(self) -> FaultsReply:
        """Links and switches at fault, as the hosts' survey probes tell."""
        return self._source.faults()

    @varlinkmethod
    def GetMap(self) -> MapReply:
        """Every link and switch of the fabric, as the survey sees it."""
        return self._source.fabric_map()

    @varlinkmethod(delay_generator=False)
    async def Monitor(self, *, interval_ms: int = 1000) -> AsyncIterator[MonitorReply]:
        """A sample at once and then every interval_ms (10 to 3600000), until the caller hangs up.
        Must be called with "more"."""
        if not INTERVAL_MIN_MS <= interval_ms <= INTERVAL_MAX_MS:
            raise InvalidParameter(parameter="interval_ms")
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            yield {"sample": self._sample()}
            # Keep the cadence of the first sample, but never catch up with a burst.
            due = max(due + interval_ms / 1000, loop.time())
            await asyncio.sleep(due - loop.time())

    def _sample(self) -> MonitorSample:
        return MonitorSample(
            monotonic_ns=time.monotonic_ns(),
            status=self._source.status(),
            peers=self._source.peers(),
            stats=self._source.stats(),
        )

    def _check_plane(self, index: int) -> None:
        known = [plane.index for plane in self._source.status().planes]
        if index not in known:
            raise NoSuchPlane({"plane": index, "known": [*known]})

    def _check_peer(self, name: str | None) -> None:
        if name is None:
            return
        known = [peer.name for peer in self._source.peers()]
        if name not in known:
            # The library's annotation asks for list[JSONValue], and lists are invariant.
            raise NoSuchPeer({"name": name, "known": [*known]})


class _ControlProtocol(VarlinkInterfaceServerProtocol):
    """One connection.

    Streams are run here and not by the library: it forgets to await ``aclose`` of a generator
    whose client is gone, and leaves streams of closed connections asleep until their next sample.
    """

    def __init__(
        self, registry: VarlinkInterfaceRegistry, every: set[asyncio.Future[None]]
    ) -> None:
        super().__init__(registry)
        self._lookup = registry.lookup_method
        self._every = every  # streams of all connections
        self._streams: set[asyncio.Future[None]] = set()

    def call_received(
        self, call: VarlinkMethodCall, fds: FileDescriptorArray | None
    ) -> asyncio.Future[None] | None:
        method, signature = self._lookup(call)
        if not signature.more:
            reply: asyncio.Future[None] | None = super().call_received(call, fds)
            return reply
        try:
            parameters = signature.parameter_type.fromjson(call.parameters)
        except ConversionError as error:
            raise InvalidParameter(parameter=_where(error)) from error
        stream = asyncio.ensure_future(self._stream(method, signature, parameters))
        for streams in (self._streams, self._every):
            streams.add(stream)
            stream.add_done_callback(streams.discard)
        # The library stops reading while a call runs, and so would not see its caller leave.
        asyncio.get_running_loop().call_soon(self._listen)
        return stream

    def _listen(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    async def _stream(
        self,
        method: Callable[..., Any],
        signature: VarlinkMethodSignature,
        parameters: dict[str, Any],
    ) -> None:
        # A broken pipe and a cancellation both mean that nobody listens any more.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            async with contextlib.aclosing(method(**parameters)) as results:
                async for result in results:
                    body = signature.return_type.tojson(result.parameters)
                    reply = VarlinkMethodReply(body, continues=result.continues)
                    # Shielded: the transport chokes on a cancelled future in its queue.
                    await asyncio.shield(self.send_reply(reply))

    def eof_received(self) -> None:
        """The caller is gone; a stream that has nothing to say would never find out by writing."""
        self._end_streams()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_streams()
        super().connection_lost(exc)

    def _end_streams(self) -> None:
        for stream in self._streams:
            stream.cancel()

    def handle_call_exception(self, exc: BaseException, oneway: bool) -> None:
        log.error("control.call_failed", error=repr(exc), exc_info=exc)
        raise Internal(message=f"{type(exc).__name__}: {exc}")


def _where(error: ConversionError) -> str:
    return ".".join(str(step) for step in error.location) or error.message


class ControlServer:
    """Serves a ``Source`` on a unix socket, from ``start`` until ``close``."""

    def __init__(self, path: Path, source: Source) -> None:
        self._path = path
        self._registry = VarlinkInterfaceRegistry()
        self._registry.register_interface(
            VarlinkServiceInterface("mrcd", "mrcd", __version__, "", self._registry)
        )
        self._registry.register_interface(Control(source))
        self._server: VarlinkUnixServer | None = None
        self._streams: set[asyncio.Future[None]] = set()
        self._inode: int | None = None

    async def start(self) -> None:
        """Listen. Raises ControlError when another daemon answers there or the path is unusable."""
        listener = _listen(self._path)
        self._inode = self._path.stat().st_ino
        self._server = await create_unix_server(
            lambda: _ControlProtocol(self._registry, self._streams), sock=listener
        )
        # The library listens with a backlog of one; a burst of mrcctl would get EAGAIN.
        listener.listen(64)

    async def close(self) -> None:
        """Hang up on every client and remove the socket, unless another daemon replaced it."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        server.close_clients()
        await server.wait_closed()
        for stream in list(self._streams):
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_stale(path)
        # The mode must be right from the start: a chmod after bind leaves a gap.
        umask = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(umask)
    except OSError as error:
        listener.close()
        raise ControlError(f"cannot listen on the control socket {path}: {error}") from error
    except ControlError:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on. A live one, or anything else there, is an error."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ControlError(f"{path} exists and is not a socket: remove it or choose --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        # EAGAIN is a listener whose backlog is full: alive.
        code = probe.connect_ex(os.fspath(path))
    if code != errno.ECONNREFUSED:
        raise ControlError(
            f"another mrcd answers on {path}: stop it first, or choose another --socket"
        )
    path.unlink()
