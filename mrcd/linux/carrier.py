# SPDX-License-Identifier: GPL-2.0-only
"""Changes of links, from a netlink socket of their own that is read without delay.

The general netlink socket shares its queue with neighbours. Its parser reads every attribute of
every message, which takes a millisecond for each message. News of a dead cable must not wait for
that.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections.abc import Callable, Iterator

from mrcd.linux.interfaces import Link, LinkChanged

_GROUP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_CARRIER = 1, 3, 4, 33
_WANTED = {_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_CARRIER}
_IFF_UP = 0x1


def _aligned(length: int) -> int:
    return length + 3 & ~3


def link_changes(data: bytes) -> Iterator[LinkChanged]:
    """Yield the changes of links in one datagram of the kernel; skip all other messages."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        if kind in (_RTM_NEWLINK, _RTM_DELLINK) and length >= _HEADER.size + _LINK.size:
            family, _type, index, flags, _change = _LINK.unpack_from(data, at + _HEADER.size)
            # Bridges send messages of their own family about their ports.
            if family == socket.AF_UNSPEC:
                found = _attributes(data[at + _HEADER.size + _LINK.size : at + length])
                yield LinkChanged(_link(index, flags, found), gone=kind == _RTM_DELLINK)
        at += _aligned(length)


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        if kind in _WANTED:
            found[kind] = data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)
    return found


def _link(index: int, flags: int, found: dict[int, bytes]) -> Link:
    return Link(
        index=index,
        name=found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        mac=found.get(_IFLA_ADDRESS, b""),
        mtu=int.from_bytes(found.get(_IFLA_MTU, b""), sys.byteorder),
        up=bool(flags & _IFF_UP),
        carrier=found.get(_IFLA_CARRIER, b"\0") != b"\0",
    )


class CarrierWatch:
    """Calls back for every change of a link, from `start` until `close`."""

    def __init__(
        self, on_change: Callable[[LinkChanged], None], on_overrun: Callable[[], None]
    ) -> None:
        """Call `on_change` for each change, and `on_overrun` when changes were lost.

        After an overrun all links must be read again.
        """
        self._on_change = on_change
        self._on_overrun = on_overrun
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Subscribe. A dump of the links made afterwards misses no change."""
        sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        sock.bind((0, _GROUP_LINK))
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock, self._readable)

    def _readable(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._on_overrun()
                continue
            for change in link_changes(data):
                self._on_change(change)

    def close(self) -> None:
        """Unsubscribe."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
