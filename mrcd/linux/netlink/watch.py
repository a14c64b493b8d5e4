# SPDX-License-Identifier: GPL-2.0-only
"""Changes of links and neighbours, as events."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any, Self

from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_DELNEIGH, RTM_NEWLINK, RTM_NEWNEIGH
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from mrcd.linux.interfaces import Event, LinkChanged, Resync
from mrcd.linux.netlink.connection import IP_FAMILIES
from mrcd.linux.netlink.messages import link_of, neighbor_of


class Watch:
    """An endless asynchronous iterator over events; close it by aclose()."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._marshal = MarshalRtnl()
        self._waiting: deque[Event] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        loop = asyncio.get_running_loop()
        while not self._waiting:
            try:
                data = await loop.sock_recv(self._sock, 1 << 16)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._drain()
                return Resync()
            self._waiting.extend(_parse(self._marshal, data))
        return self._waiting.popleft()

    def _drain(self) -> None:
        """Empty the queue: until then the kernel drops further events without reporting it."""
        while True:
            try:
                self._sock.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    async def aclose(self) -> None:
        """Stop watching."""
        self._sock.close()


def _parse(marshal: Any, data: bytes) -> Iterator[Event]:
    """Yield the events of one datagram from the kernel."""
    for message in marshal.parse(data):
        kind = message["header"]["type"]
        if kind in (RTM_NEWLINK, RTM_DELLINK):
            # Bridges send link and neighbour messages of their own family.
            if message["family"] == socket.AF_UNSPEC:
                yield LinkChanged(link=link_of(message), gone=kind == RTM_DELLINK)
        elif kind in (RTM_NEWNEIGH, RTM_DELNEIGH) and message["family"] in IP_FAMILIES:
            yield neighbor_of(message)
