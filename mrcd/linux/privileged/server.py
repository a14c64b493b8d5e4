# SPDX-License-Identifier: GPL-2.0-only
"""The privileged process: `python -m mrcd.linux.privileged.server CONFIG BPFFS CACHE [PERMITS]`.

Descriptor 0 is the channel to the daemon. When the daemon closes it or dies, this process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from ipaddress import ip_address
from typing import Any

from mrcd.linux import bpf, ethtool, rights, rtnl, sysfs
from mrcd.linux.boundsocket import plane_socket, receive_nothing
from mrcd.linux.netlink import Netlink, changes
from mrcd.linux.privileged import permits, requests
from mrcd.linux.privileged.permits import Permits, Refused, Undone
from mrcd.linux.privileged.requests import BYTES_MAX, FDS_MAX, Request

WORK = (rights.NET_ADMIN, rights.NET_RAW, rights.BPF, rights.SYS_ADMIN)
"""In effect here, if held. Only an mrcd that root starts has CAP_SYS_ADMIN: it writes to a sysfs of
its own network namespace, and names the programs of others."""
LOADING = (rights.BPF, rights.NET_ADMIN, rights.PERFMON)
"""What the loader gets."""
_SO_RCVBUFFORCE = 33
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_VIRTUAL = ("veth", "macvlan", "vxlan")
_Answer = tuple[Any, list[int]]
"""A value, and descriptors to pass on, which are closed here afterwards."""


class Server:
    """Carries out the requests of one daemon."""

    def __init__(self, channel: socket.socket, config: str, folder: str, cache: str) -> None:
        self._channel = channel
        self._config = config
        self._folder = folder
        self._cache = cache
        self._permits: Permits | None = None
        self._stamp: list[tuple[int, int]] = []
        self._undone = recorded(folder)
        self._called: dict[int, str] = {}  # interfaces by index, as the configuration names them
        self._loop = asyncio.new_event_loop()
        self._netlink = self._loop.run_until_complete(Netlink().__aenter__())
        self._loaders: set[int] = set()  # pidfds
        self._work_with_fds: dict[type[Request], Callable[[Any, list[int]], _Answer]] = {
            requests.CreateLink: self._create_link,
            requests.RawSocket: self._raw_socket,
            requests.ForceBuffer: self._force_buffer,
            requests.Load: self._load,
        }

    def permit(self, text: str) -> None:
        """Take permits that were made of the configuration files as they are now."""
        self._permits = permits.loads(text)
        self._stamp = self._stamps()
        self._recognize()

    def serve(self) -> None:
        """Carry out requests until the daemon is gone; loaders go with it."""
        try:
            self._serve()
        finally:
            for loader in self._loaders:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(loader, signal.SIGKILL)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while True:
            for loader in self._loaders:
                poll.register(loader, select.POLLIN)
            for fd, _event in poll.poll():
                if fd in self._loaders:
                    poll.unregister(fd)
                    self._reap(fd)
                elif not self._serve_one():
                    return

    def _reap(self, loader: int) -> None:
        self._loaders.remove(loader)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, loader, os.WEXITED)
        os.close(loader)

    def _serve_one(self) -> bool:
        """Carry out one request; return False when there is no daemon any more."""
        try:
            data, fds, flags, _source = socket.recv_fds(self._channel, BYTES_MAX, FDS_MAX)
        except ConnectionError:
            return False
        if not data:
            return False
        answer, passed = self._answer(data if not flags & socket.MSG_CTRUNC else b"", fds)
        try:
            socket.send_fds(self._channel, [json.dumps(answer).encode()], passed)
        except ConnectionError:
            return False
        finally:
            for fd in (*fds, *passed):
                if fd not in self._loaders:
                    os.close(fd)
        return True

    def _answer(self, data: bytes, fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        try:
            request = requests.decode(data)
            self._check(request)
            value, passed = self._carry_out(request, fds)
            self._recognize_new(request)
        except requests.Malformed as error:
            return {"error": 22, "text": f"refused a malformed request: {error}"}, []
        except OSError as error:
            return {"error": error.errno or 5, "text": str(error.args[1])}, []
        except (ValueError, struct.error) as error:  # a number that no kernel structure holds
            return {"error": 22, "text": f"refused to {request.what()}: {error}"}, []
        return {"value": value}, passed

    # ---- what is allowed

    def _check(self, request: Request) -> None:
        """Raise Refused unless the configuration files allow a request; read changed ones again."""
        if self._permits is None:
            self._read_again()
        assert self._permits is not None
        try:
            self._check_names(request)
        except Refused:
            if self._stamps() == self._stamp:
                raise
            former = self._permits
            self._read_again()
            self._undone = _with(self._undone, former)
            self._check_names(request)

    def _check_names(self, request: Request) -> None:
        """Check a request as it is, and with the names by which its interfaces are configured."""
        assert self._permits is not None
        try:
            permits.check(request, self._permits, self._undone)
        except Refused:
            known = self._as_configured(request)
            if known == request:
                raise
            permits.check(known, self._permits, self._undone)

    def _recognize(self) -> None:
        """Remember the interfaces that the configuration names, since others may rename them."""
        if self._permits is None:
            return
        names = permits.own(self._permits) | self._permits.planes.keys()
        there = {index: name for name in names if (index := _index(name))}
        known = self._called.items()
        self._called = there | {k: name for k, name in known if name in names and _is_there(k)}

    def _recognize_new(self, request: Request) -> None:
        """Remember what a request has made, or found anew under a configured name."""
        named = (getattr(request, field, None) for field in ("name", "dev"))
        if any(name and _index(name) not in self._called for name in named):
            self._recognize()

    def _as_configured(self, request: Request) -> Request:
        """Return a request with the names that its interfaces have in the configuration."""
        if isinstance(request, requests.RenameLink):
            return request
        names = {
            field: self._called.get(_index(name), name)
            for field in ("name", "dev")
            if (name := getattr(request, field, None)) is not None
        }
        return replace(request, **names)

    def _stamps(self) -> list[tuple[int, int]]:
        """Return what changes when one of the configuration files does."""
        files = [self._config, *(self._permits.files if self._permits else ())]
        found = []
        for file in files:
            with contextlib.suppress(OSError):
                there = os.stat(file)
                found.append((there.st_mtime_ns, there.st_ino))
        return found

    def _read_again(self) -> None:
        """Have a process without capabilities read the configuration files."""
        ours, theirs = os.pipe()
        command = [sys.executable, "-m", "mrcd.config.permits", self._config, self._folder]
        pid = os.posix_spawn(
            sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 1)]
        )
        os.close(theirs)
        with open(ours) as answer:
            text = answer.read()
        os.waitpid(pid, 0)
        if not text:
            raise Refused(1, f"cannot read the configuration {self._config}")
        self.permit(text)

    # ---- what is done

    def _carry_out(self, request: Request, fds: list[int]) -> _Answer:
        with_fds = self._work_with_fds.get(type(request))
        if with_fds is not None:
            return with_fds(request, fds)
        if type(request) not in changes.KINDS:
            return OTHERS[type(request)](request), []
        if isinstance(request, requests.RenameLink):
            self._check_renaming(request)
        if isinstance(request, requests.AttachClsact):
            _first(fds)
        if not isinstance(request, requests.DeleteLink) or _kind(request.name) in _VIRTUAL:
            # What is no device of ours is left where it is.
            self._loop.run_until_complete(self._netlink.change(request, fds))
        return None, []

    def _check_renaming(self, request: requests.RenameLink) -> None:
        """Raise Refused unless an interface is ours and had the name.

        A macvlan on the lower interface of mrc0 is mrc0, whatever it has been called meanwhile.
        """
        link = rtnl.links().get(request.index)
        kind = "" if link is None else link.kind
        ours = kind in _VIRTUAL and self._called.get(request.index) == request.name
        if link is not None and not ours and kind == "macvlan" and self._permits is not None:
            mrc0 = self._permits.mrc0
            ours = request.name == mrc0 and link.lower == _index(f"{mrc0}p") != 0
        if not ours:
            raise Refused(1, f"refused to {request.what()}: it never had that name")

    def _create_link(self, request: requests.CreateLink, fds: list[int]) -> _Answer:
        index = self._netlink.index(request.name)
        link = bpf.create_link(_first(fds), index, request.attach, flags=request.flags)
        return None, [link]

    def _raw_socket(self, request: requests.RawSocket, _fds: list[int]) -> _Answer:
        device, address = os.fsencode(request.name), ip_address(request.address)
        sock = plane_socket(socket.SOCK_RAW, request.protocol, device, address, 0)
        receive_nothing(sock)
        return None, [sock.detach()]

    def _force_buffer(self, request: requests.ForceBuffer, fds: list[int]) -> _Answer:
        with socket.socket(fileno=os.dup(_first(fds))) as sock:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, request.size)
        return None, []

    def _load(self, request: requests.Load, fds: list[int]) -> _Answer:
        """Start the loader with more capabilities than this process has in effect."""
        if len(fds) != 2:
            raise OSError(22, "the loader needs two descriptors")
        order = json.loads(request.order) | {"cache": self._cache or None}
        with _file_of(json.dumps(order).encode()) as stdin, rights.inherited(LOADING):
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "mrcd.datapath.loader"],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, stdin, 0),
                    (os.POSIX_SPAWN_DUP2, fds[0], 1),
                    (os.POSIX_SPAWN_DUP2, fds[1], 2),
                ],
                setsigdef=_IGNORED,
            )
        loader = os.pidfd_open(pid)
        self._loaders.add(loader)
        return None, [loader]


@contextlib.contextmanager
def _file_of(content: bytes) -> Iterator[int]:
    """Yield the descriptor of a file in memory that is read from its beginning."""
    fd = os.memfd_create("order")
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _kind(name: str) -> str:
    """Return the type of a virtual interface; empty if it is a NIC or not there."""
    found = rtnl.links().get(_index(name))
    return "" if found is None else found.kind


def _line(asked: requests.QueryLine) -> list[int]:
    index = _index(asked.name)
    if not index:
        raise OSError(errno.ENODEV, f"no interface {asked.name}")
    return bpf.line(index, asked.attach)


def _set_features(asked: requests.SetFeatures) -> None:
    wanted = asdict(asked)
    ethtool.set_features(wanted.pop("name"), **wanted)


OTHERS: dict[type[Request], Callable[[Any], Any]] = {
    requests.SetFeatures: _set_features,
    requests.SpreadReceiving: lambda asked: sysfs.write_steering(asked.name),
    requests.WriteSysctls: lambda asked: sysfs.write_sysctls(asked.name),
    requests.ForgetIpv4Routes: lambda _asked: sysfs.forget_ipv4_routes(),
    requests.QueryLine: _line,
    requests.NameProgram: lambda asked: bpf.named(asked.ident, asked.ifindex),
}
"""What is done without descriptors and netlink."""


def _index(name: str) -> int:
    """Return an interface's index, or 0 if there is none of the name."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _is_there(index: int) -> bool:
    try:
        socket.if_indextoname(index)
    except OSError:
        return False
    return True


def _first(fds: list[int]) -> int:
    if len(fds) != 1:
        raise OSError(22, "the request needs one descriptor")
    return fds[0]


def recorded(folder: str) -> Undone:
    """Return what an earlier daemon recorded in the bpffs folder (mrcd/datapath/pins.py)."""
    found: dict[str, set[Any]] = {
        "device": set(),
        "clsact": set(),
        "address": set(),
        "route": set(),
    }
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            kind, _, name = entry.partition("-")
            if kind in ("device", "clsact"):
                found[kind].add(name)
            elif kind in ("address", "route"):
                with contextlib.suppress(ValueError):
                    name, packed, bits = name.split("~")
                    found[kind].add((name, f"{ip_address(bytes.fromhex(packed))}/{int(bits)}"))
    return Undone(*map(frozenset, found.values()))


def _with(undone: Undone, former: Permits) -> Undone:
    """Let the daemon take away what an earlier configuration has called for."""
    own = permits.own(former)
    planes = [
        (name, plane.address, plane.route)
        for name, plane in former.planes.items()
        if plane.address is not None and plane.route is not None
    ]
    return Undone(
        undone.devices | own,
        undone.filters | own | set(former.planes),
        undone.addresses | {(name, address) for name, address, _route in planes},
        undone.routes | {(name, route) for name, _address, route in planes},
    )


def main() -> None:
    """Serve the daemon at the other end of descriptor 0."""
    config, folder, cache, *given = sys.argv[1:]
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)  # the daemon decides when this process ends
    rights.keep(WORK, LOADING)
    channel = socket.socket(fileno=0)
    server = Server(channel, config, folder, cache)
    if given:
        server.permit(given[0])
    server.serve()


if __name__ == "__main__":
    main()
