# SPDX-License-Identifier: GPL-2.0-only
"""Changes of links, from a netlink socket of their own that is read without delay.

The general netlink socket shares its queue with neighbours. Its parser reads every attribute of
every message, which takes a millisecond for each message. News of a dead cable must not wait for
that.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Iterator

from mrcd.linux.interfaces import Link, LinkChanged
from mrcd.linux.rtnl import Subscription, attributes, messages

_GROUP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_CARRIER = 1, 3, 4, 33
_IFF_UP = 0x1


def link_changes(data: bytes) -> Iterator[LinkChanged]:
    """Yield the changes of links in one datagram of the kernel; skip all other messages."""
    for kind, _flags, _sequence, body in messages(data):
        if kind in (_RTM_NEWLINK, _RTM_DELLINK) and len(body) >= _LINK.size:
            family, _type, index, flags, _change = _LINK.unpack_from(body)
            # Bridges send messages of their own family about their ports.
            if family == socket.AF_UNSPEC:
                link = _link(index, flags, attributes(body[_LINK.size :]))
                yield LinkChanged(link, gone=kind == _RTM_DELLINK)


def _link(index: int, flags: int, found: dict[int, bytes]) -> Link:
    return Link(
        index=index,
        name=found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        mac=found.get(_IFLA_ADDRESS, b""),
        mtu=int.from_bytes(found.get(_IFLA_MTU, b""), sys.byteorder),
        up=bool(flags & _IFF_UP),
        carrier=found.get(_IFLA_CARRIER, b"\0") != b"\0",
    )


class CarrierWatch(Subscription):
    """Calls back for every change of a link, from `start` until `close`."""

    def __init__(
        self, on_change: Callable[[LinkChanged], None], on_overrun: Callable[[], None]
    ) -> None:
        """Call `on_change` for each change, and `on_overrun` when changes were lost.

        After an overrun all links must be read again.
        """
        super().__init__(_GROUP_LINK, self._read, on_overrun)
        self._on_change = on_change

    def _read(self, data: bytes) -> None:
        for change in link_changes(data):
            self._on_change(change)
