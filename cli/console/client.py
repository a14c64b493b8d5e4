# SPDX-License-Identifier: GPL-2.0-only
"""A varlink client for the control socket.

A varlink message is a JSON object and a NUL byte, so a blocking socket and msgspec are enough.
The library that the server uses would add asyncio to the start-up time of every command.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from cli import DEFAULT_SOCKET
from cli.console.exits import CommandError, NotPermitted, Unreachable
from cli.console.refused import refused
from mrcd.model import (
    INTERFACE,
    CaptureInfo,
    ChangesReply,
    ConfigReply,
    ConnectionsReply,
    DatapathReply,
    DeniedReply,
    DenyReply,
    FaultsReply,
    ForgetReply,
    InviteReply,
    LogLevel,
    LogReply,
    MapReply,
    MonitorReply,
    MonitorSample,
    PathEvent,
    PathsReply,
    PeersReply,
    PlaneInfo,
    PlaneReply,
    ProbesReply,
    RatesReply,
    RevokeReply,
    RotateReply,
    StatsInfo,
    StatsReply,
    Status,
    StatusReply,
    WatchPathsReply,
)

TIMEOUT_S = 5
APPLY_S = 60  # a change may recreate the QPs with every peer
CAPTURE_S = 300  # compiling takes seconds, and far longer on a busy host
FDS_MAX = 8  # in one reply
MAP_S = 30  # a large fabric has tens of thousands of elements
ROTATE_S = 30  # the daemon waits a few seconds for peers
MEASURE_S = 30  # more than a measurement may take
PROBE_S = 0.1  # for a round of EV probes, including the wait for its turn

T = TypeVar("T")


class _Reply(msgspec.Struct):
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    error: str | None = None
    continues: bool = False


class _Description(msgspec.Struct):
    description: str


class Captured(msgspec.Struct):
    """The reply of Capture; `records` and `state` are file descriptors that the caller closes."""

    capture: CaptureInfo
    ring_bytes: int
    records: int
    state: int


class Client:
    """A connection to the daemon.

    Every method may raise a CommandError of ``cli.console.exits``.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = _connect(path)
        self._buffer = bytearray()
        self._fds: list[int] = []  # received with the latest reply

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def status(self) -> Status:
        """Return the state of the daemon as a whole."""
        return self._call("GetStatus", StatusReply)["status"]

    def peers(self) -> PeersReply:
        """Return every configured peer."""
        return self._list("ListPeers", PeersReply, "peers")

    def paths(
        self, peer: str | None, plane: int | None = None, state: str | None = None
    ) -> PathsReply:
        """Return every path to one peer, or to all; of a plane or in a state, if one is given."""
        return self._list("ListPaths", PathsReply, "paths", peer=peer, plane=plane, state=state)

    def connections(self, peer: str | None) -> ConnectionsReply:
        """Return every QP with one peer, or with all."""
        return self._list("ListConnections", ConnectionsReply, "connections", peer=peer)

    def datapath(self) -> DatapathReply:
        """Return the programs and maps in the kernel, and where the programs are attached."""
        return self._call("GetDatapath", DatapathReply)

    def stats(self) -> StatsInfo:
        """Return all counters."""
        return self._call("GetStats", StatsReply)["stats"]

    def deny(self, element: str, peer: str | None, *, force: bool) -> DenyReply:
        """Deny the paths that cross an element."""
        return self._call("Deny", DenyReply, element=element, peer=peer, force=force)

    def allow(self, element: str, peer: str | None) -> DenyReply:
        """Remove a rule from the denylist."""
        return self._call("Allow", DenyReply, element=element, peer=peer)

    def denied(self) -> DeniedReply:
        """Return the rules of the denylist."""
        return self._call("ListDenied", DeniedReply)

    def watch_paths(self, seconds: float | None = None) -> Iterator[PathEvent | None]:
        """Yield None when the watch has begun, then every path event, for ever or for `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self._send("WatchPaths", {}, more=True)
        continues = True
        while continues:
            reply = self._receive()
            continues = reply.continues
            _set_timeout(self._socket, 0)  # no path may change for days
            yield self._decode(reply, WatchPathsReply)["event"]
            if deadline is not None and not self._more_by(deadline):
                return

    def capture(self, **wanted: Any) -> Captured:
        """Start recording packets, which lasts until this connection is closed.

        Returns when recording has begun. `wanted` holds the parameters of Capture; None leaves
        one out.
        """
        _set_timeout(self._socket, CAPTURE_S)
        self._send("Capture", wanted, more=True)
        begun = self._decode(self._receive(), Captured)
        begun.records, begun.state = self._fds[begun.records], self._fds[begun.state]
        return begun

    def wait_for_end(self, seconds: float) -> None:
        """Wait; if the daemon ends the stream meanwhile, raise its reason."""
        if select.select([self._socket], [], [], seconds)[0]:
            self._decode(self._receive(), dict[str, Any])

    def replies_before(self, other: int, seconds: float) -> bool:
        """Wait for a reply, or for input on the file descriptor `other`; return False for input.

        Returns True also when neither has come within `seconds`: reading the reply then fails.
        """
        if 0 in self._buffer:
            return True
        return other not in select.select([self._socket.fileno(), other], [], [], seconds)[0]

    def _more_by(self, deadline: float) -> bool:
        """Return whether more data arrives before a deadline of time.monotonic()."""
        left = deadline - time.monotonic()
        return left > 0 and (
            0 in self._buffer or bool(select.select([self._socket], [], [], left)[0])
        )

    def drain(self, plane: int, *, force: bool) -> PlaneInfo:
        """Take a plane out of service."""
        return self._call("Drain", PlaneReply, plane=plane, force=force)["plane"]

    def undrain(self, plane: int) -> PlaneInfo:
        """Put a plane back into service."""
        return self._call("Undrain", PlaneReply, plane=plane)["plane"]

    def probe(self, peer: str, plane: int | None, count: int) -> ProbesReply:
        """Send EV probes over every path to a peer."""
        _set_timeout(self._socket, TIMEOUT_S + PROBE_S * count)
        return self._call("ProbePaths", ProbesReply, peer=peer, plane=plane, count=count)

    def measure(self, peer: str, plane: int) -> RatesReply:
        """Fill a plane to a peer and from it; return what got through."""
        _set_timeout(self._socket, MEASURE_S)
        return self._call("MeasurePlane", RatesReply, peer=peer, plane=plane)

    def faults(self) -> FaultsReply:
        """Return the links and switches at fault."""
        return self._call("ListFaults", FaultsReply)

    def fabric_map(self) -> MapReply:
        """Return every link and switch as the survey sees it."""
        _set_timeout(self._socket, MAP_S)
        return self._call("GetMap", MapReply)

    def config_text(self) -> ConfigReply:
        """Return the running configuration as TOML."""
        return self._call("GetConfig", ConfigReply)

    def config_diff(self, text: str) -> ChangesReply:
        """Return what applying a configuration would change."""
        return self._call("DiffConfig", ChangesReply, text=text)

    def config_apply(self, text: str, confirm_s: int) -> ChangesReply:
        """Apply a configuration.

        A `confirm_s` other than 0 restores the former one unless confirmed in that many seconds.
        """
        _set_timeout(self._socket, APPLY_S)
        return self._call("ApplyConfig", ChangesReply, text=text, confirm_s=confirm_s)

    def rotate_keys(self, peer: str | None) -> RotateReply:
        """Agree on new keys with a peer, or with all; the reply names those that did not answer."""
        _set_timeout(self._socket, ROTATE_S)
        return self._call("RotateKeys", RotateReply, peer=peer)

    def set_log_level(self, level: LogLevel, seconds: int | None) -> LogReply:
        """Log events from this level on, for this number of seconds or until mrcd ends."""
        return self._call("SetLogLevel", LogReply, level=level, seconds=seconds)

    def forget_peer(self, peer: str) -> ForgetReply:
        """Take an admitted host out of the peers."""
        _set_timeout(self._socket, APPLY_S)
        return self._call("ForgetPeer", ForgetReply, peer=peer)

    def invite(self, name: str, hours: float) -> InviteReply:
        """Make an invitation for a host."""
        return self._call("Invite", InviteReply, name=name, hours=hours)

    def revoke_peer(self, peer: str, *, force: bool) -> RevokeReply:
        """Put a host out for good."""
        _set_timeout(self._socket, APPLY_S)
        return self._call("RevokePeer", RevokeReply, peer=peer, force=force)

    def config_confirm(self) -> None:
        """Keep the configuration that was applied provisionally."""
        self._call("ConfirmConfig", dict[str, Any])

    def describe(self) -> str:
        """Return the daemon's own description of its interface, in varlink's language."""
        called = "org.varlink.service.GetInterfaceDescription"
        return self._call(called, _Description, interface=INTERFACE).description

    def monitor(self, interval_ms: int, peers: int | None = None) -> Iterator[MonitorSample]:
        """Yield a sample at once and then every ``interval_ms``, for ever.

        ``peers`` limits the number of peers in a sample to those in trouble and the busiest.
        """
        # A sample takes up to the interval to arrive, and longer from a busy host.
        _set_timeout(self._socket, TIMEOUT_S + interval_ms / 1000)
        self._send("Monitor", {"interval_ms": interval_ms, "peers": peers}, more=True)
        continues = True
        while continues:
            reply = self._receive()
            continues = reply.continues
            yield self._decode(reply, MonitorReply)["sample"]

    def _call(self, method: str, kind: type[T], **parameters: Any) -> T:
        self._send(method, parameters)
        return self._decode(self._receive(), kind)

    def _list(self, method: str, kind: type[T], rows: str, **parameters: Any) -> T:
        """Return a list that comes in parts as one; `rows` names the member that is a list."""
        self._send(method, parameters, more=True)
        reply = self._receive()
        whole: Any = self._decode(reply, kind)
        while reply.continues:
            reply = self._receive()
            part: Any = self._decode(reply, kind)
            whole[rows] += part[rows]
        return whole  # type: ignore[no-any-return]

    def _send(self, method: str, parameters: dict[str, Any], *, more: bool = False) -> None:
        """Send a call; parameters that are None are left out."""
        name = method if "." in method else f"{INTERFACE}.{method}"
        given = {key: value for key, value in parameters.items() if value is not None}
        call: dict[str, Any] = {"method": name, "parameters": given}
        if more:
            call["more"] = True
        try:
            self._socket.sendall(msgspec.json.encode(call) + b"\0")
        except OSError as error:
            raise self._lost(error) from error

    def _receive(self) -> _Reply:
        while (end := self._buffer.find(0)) < 0:
            try:
                chunk, fds, *_ = socket.recv_fds(
                    self._socket, 1 << 18, FDS_MAX, socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                raise self._lost(error) from error
            if not chunk:
                raise self._lost(None)
            self._buffer += chunk
            self._fds = fds or self._fds
        message = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return self._checked(message, _Reply)

    def _decode(self, reply: _Reply, kind: type[T]) -> T:
        if reply.error is None:
            return self._checked(bytes(reply.parameters), kind)
        raise refused(reply.error, bytes(reply.parameters), self._path)

    def _checked(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise CommandError(
                f"cannot understand the reply from {self._path}: {error}; "
                "are mrcctl and mrcd of the same version?"
            ) from error

    def _lost(self, error: OSError | None) -> Unreachable:
        if error is None or error.errno in (errno.EPIPE, errno.ECONNRESET):
            return Unreachable(
                f"mrcd at {self._path} closed the connection; is it stopping, or "
                "did it refuse its configuration (`journalctl -u mrcd`)?"
            )
        if isinstance(error, BlockingIOError):
            return Unreachable(f"mrcd at {self._path} did not answer in time; is it stopped?")
        return Unreachable(f"talking to mrcd at {self._path} failed: {error}")


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Use the kernel's timeouts, not settimeout(): that makes the socket non-blocking, and
    # connect() on a non-blocking unix socket fails with EAGAIN when the backlog is full.
    _set_timeout(connection, TIMEOUT_S)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise _refused(path, error) from error
    return connection


def _set_timeout(connection: socket.socket, seconds: float) -> None:
    timeval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def _refused(path: str, error: OSError) -> CommandError:
    if isinstance(error, PermissionError):
        return NotPermitted(
            f"no permission to open {path}: run mrcctl as root, or as a member of its group"
        )
    if isinstance(error, FileNotFoundError):
        why = "there is no such socket"
    elif isinstance(error, ConnectionRefusedError):
        why = "no process is listening on it"
    elif isinstance(error, BlockingIOError):
        why = "the connection was not accepted in time"
    else:
        why = error.strerror or str(error)
    # A non-default socket belongs to a daemon started by hand or by the lab.
    start = (
        "'systemctl start mrcd' or 'mrcd --config /etc/mrcd/mrcd.toml'"
        if os.path.abspath(path) == DEFAULT_SOCKET
        else f"'mrcd --config FILE --socket {path}'"
    )
    return Unreachable(
        f"mrcd is not reachable at {path}: {why}.\n"
        f"Start it with {start}, or name another socket with --socket or MRCD_SOCKET "
        "('mrcctl lab exec HOST -- mrcctl status' asks a lab's host)."
    )
