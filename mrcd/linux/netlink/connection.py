# SPDX-License-Identifier: GPL-2.0-only
"""A conversation with the kernel: requests, dumps, and the exception for a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mrcd.linux import netns as namespaces

_SIOCGIFINDEX = 0x8933
IP_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class NetlinkFailed(OSError):
    """A refusal by the kernel; the message says what was tried on what."""


@contextlib.contextmanager
def trying(what: str, *, missing_ok: bool = False, present_ok: bool = False) -> Iterator[None]:
    """Turn a refusal into NetlinkFailed, except those that mean 'done already'."""
    try:
        yield
    except NetlinkError as error:
        if present_ok and error.code == errno.EEXIST:
            return
        if missing_ok and error.code in (errno.ENOENT, errno.ENODEV, errno.ESRCH):
            return
        if missing_ok and error.code in (errno.EADDRNOTAVAIL, errno.EINVAL):
            return
        detail = os.strerror(error.code) if error.code else str(error)
        extra = error.args[1] if len(error.args) > 1 and error.args[1] else ""
        hint = f" ({extra})" if extra and extra != detail else ""
        raise NetlinkFailed(error.code, f"could not {what}: {detail}{hint}") from None


def family_of(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


class Connection:
    """A socket to the kernel in one network namespace, the base of the other classes here."""

    def __init__(self, netns: str | None = None) -> None:
        self.netns = netns
        self._ipr: Any = None
        self._ioctl: socket.socket | None = None
        self._dumping = asyncio.Lock()

    async def __aenter__(self) -> Self:
        with namespaces.entered(self.netns):
            self._ipr = AsyncIPRoute()
            # Reading the property opens the socket, which must happen inside the namespace.
            self._ipr.socket.fileno()
            self._ioctl = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        await self._ipr.setup_endpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ipr.close()
        if self._ioctl is not None:
            self._ioctl.close()

    def index(self, name: str) -> int:
        """Return the interface's index; raise NetlinkFailed (ENODEV) when there is none."""
        assert self._ioctl is not None, "use Netlink as an async context manager"
        request = struct.pack("16si20x", os.fsencode(name), 0)
        try:
            answer = fcntl.ioctl(self._ioctl, _SIOCGIFINDEX, request)
        except OSError as error:
            where = f" in {self.netns}" if self.netns else ""
            raise NetlinkFailed(error.errno, f"no interface {name}{where}") from None
        return int(struct.unpack_from("i", answer, 16)[0])

    def exists(self, name: str) -> bool:
        """Return whether there is an interface of that name."""
        try:
            self.index(name)
        except NetlinkFailed:
            return False
        return True

    async def _dump(self, ask: Callable[..., Any], **what: Any) -> AsyncGenerator[Any, None]:
        """Yield the messages of one dump; the kernel allows one at a time on a socket (EBUSY)."""
        async with self._dumping:
            with trying(f"dump by {getattr(ask, '__name__', ask)}"):
                messages = [message async for message in await ask(**what)]
        for message in messages:
            yield message
