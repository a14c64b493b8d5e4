# SPDX-License-Identifier: GPL-2.0-only
"""Dumps and news of links, addresses and routes, with only the attributes that are compared.

mrcd looks at its interfaces twice a second, and a host with thousands of peers has as many routes.
pyroute2 reads every attribute of every message, which takes about a millisecond for each; this
module takes some microseconds (rtnetlink(7)). Everything happens in the caller's network namespace.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mrcd.linux.interfaces import Bucket, LinkState

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")
"""rtmsg: family, length of dst, of src, tos, table, protocol, scope, type, flags."""
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_QUEUE = struct.Struct("=BxxxiIII")  # tcmsg: family, index, handle, parent, info
_BUCKET = struct.Struct("=8xI12xII")
"""tc_tbf_qopt: rate in bytes a second, limit in bytes, depth in ticks of 64 ns."""
_TICK_SHIFT = 6
_NESTED: Final = 0x3FFF  # without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER
_REQUEST, _DUMP, _INTERRUPTED = 0x1, 0x300, 0x10
_ERROR, _DONE = 2, 3
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_NEWADDR, _DELADDR, _GETADDR = 20, 21, 22
_NEWROUTE, _DELROUTE, _GETROUTE = 24, 25, 26
_NEWQDISC, _GETQDISC, _ROOT = 36, 38, 0xFFFFFFFF
_TCA_KIND, _TCA_OPTIONS, _TCA_TBF_PARMS = 1, 2, 1
_SOL_NETLINK, _STRICT = 270, 12
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_QDISC = 1, 3, 4, 5, 6
_IFLA_MASTER, _IFLA_LINKINFO, _IFLA_CARRIER = 10, 18, 33
_IFLA_GSO_MAX_SEGS, _IFLA_GSO_MAX_SIZE, _IFLA_XDP, _IFLA_NEW_NETNSID = 40, 41, 43, 45
_INFO_KIND, _XDP_ATTACHED = 1, 2
_INFO_DATA, _VXLAN_PORT = 2, 15
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_METRICS, _RTA_VIA, _RTAX_MTU = 1, 4, 5, 8, 18, 2
_TABLE_MAIN, _TYPE_UNICAST = 254, 1
_TRIES = 3
"""Number of times that a dump is asked for if it changes meanwhile."""
_GROUPS: Final = 0x1 | 0x8 | 0x10 | 0x100 | 0x40 | 0x400
"""Links, queues, and addresses and routes of IPv4 and IPv6 (linux/rtnetlink.h, RTMGRP_*)."""


@dataclass(frozen=True, slots=True)
class Changed:
    """News of a link, of its queue or addresses, or of a route to `dst`.

    `index` is 0 for a route that several interfaces share. `gone`: the object was deleted.
    `moved`: the link went to another network namespace.
    """

    index: int
    dst: str | None = None
    gone: bool = False
    moved: bool = False


# ---- reading


def links() -> dict[int, LinkState]:
    """Return all interfaces by index."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    found = (_link(data) for kind, data in _dump(_GETLINK, body) if kind == _NEWLINK)
    return {link.index: link for link in found}


def vxlan_port(index: int) -> int | None:
    """Return the UDP port of a vxlan device; None if there is no such device."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    for kind, data in _dump(_GETLINK, body):
        if kind == _NEWLINK and _LINK.unpack_from(data)[2] == index:
            info = attributes(attributes(data[_LINK.size :]).get(_IFLA_LINKINFO, b""))
            if _text(info.get(_INFO_KIND, b"")) == "vxlan":
                port = attributes(info.get(_INFO_DATA, b"")).get(_VXLAN_PORT, b"")
                return int.from_bytes(port, "big")
    return None


def addresses() -> dict[int, set[str]]:
    """Return the addresses of each interface as address/prefix length, by its index."""
    found: dict[int, set[str]] = {}
    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    for kind, data in _dump(_GETADDR, body):
        if kind == _NEWADDR:
            family, bits, _flags, _scope, index = _ADDRESS.unpack_from(data)
            given = attributes(data[_ADDRESS.size :])
            packed = given.get(_IFA_LOCAL, given.get(_IFA_ADDRESS, b""))
            found.setdefault(index, set()).add(f"{socket.inet_ntop(family, packed)}/{bits}")
    return found


def routes(index: int) -> tuple[dict[str, int], dict[str, str]]:
    """Return the unicast routes of the main table by an interface: prefix to MTU, 0 if not set.

    The second map has the next hops, by the prefixes of those routes that have one.
    """
    found: dict[str, int] = {}
    hops: dict[str, str] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        body = _ROUTE.pack(family, 0, 0, 0, _TABLE_MAIN, 0, 0, _TYPE_UNICAST, 0)
        body += _ATTRIBUTE.pack(8, _RTA_OIF) + index.to_bytes(4, sys.byteorder)
        for kind, data in _dump(_GETROUTE, body):
            if kind == _NEWROUTE:
                dst, given = _route(data)
                metrics = attributes(given.get(_RTA_METRICS, b""))
                found[dst] = _number(metrics.get(_RTAX_MTU, b""))
                if (hop := _next_hop(family, given)) is not None:
                    hops[dst] = hop
    return found, hops


def _next_hop(family: int, given: Mapping[int, bytes]) -> str | None:
    """Return the neighbour by which a route leads, of either family (RTA_VIA, RFC 8950)."""
    if (packed := given.get(_RTA_GATEWAY)) is not None:
        return socket.inet_ntop(family, packed)
    if (via := given.get(_RTA_VIA)) is not None:
        return socket.inet_ntop(int.from_bytes(via[:2], sys.byteorder), via[2:])
    return None


def ways(addresses: Iterable[str]) -> dict[str, int]:
    """Return the index of the interface by which packets to each address leave, as rules say.

    Addresses to which nothing leads are left out.
    """
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        for number, address in enumerate(addresses, 1):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            packed = socket.inet_pton(family, address)
            body = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
            body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _RTA_DST) + packed
            sock.send(_HEADER.pack(_HEADER.size + len(body), _GETROUTE, _REQUEST, number, 0) + body)
            for kind, _flags, sequence, data in messages(sock.recv(1 << 14)):
                if kind == _NEWROUTE and sequence == number:
                    found[address] = _number(_route(data)[1].get(_RTA_OIF, b""))
    return found


def buckets(indices: Iterable[int]) -> dict[int, Bucket]:
    """Return the token buckets (tbf) that are the root queues of these interfaces, by index."""
    wanted = set(indices)
    if not wanted:
        return {}
    found = {}
    for kind, data in _dump(_GETQDISC, _QUEUE.pack(0, 0, 0, 0, 0)):
        _family, index, _handle, parent, _info = _QUEUE.unpack_from(data)
        if kind != _NEWQDISC or parent != _ROOT or index not in wanted:
            continue
        given = attributes(data[_QUEUE.size :])
        if _text(given.get(_TCA_KIND, b"")) == "tbf":
            parms = attributes(given.get(_TCA_OPTIONS, b"")).get(_TCA_TBF_PARMS, b"")
            rate, limit, ticks = _BUCKET.unpack_from(parms)
            found[index] = Bucket(rate, round(rate * (ticks << _TICK_SHIFT) / 1e9), limit)
    return found


def _dump(kind: int, body: bytes) -> list[tuple[int, bytes]]:
    """Return type and body of each message of a dump."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.setsockopt(_SOL_NETLINK, _STRICT, 1)
        for number in range(1, _TRIES + 1):
            request = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _DUMP, number, 0)
            sock.send(request + body)
            found, whole = _answer(sock, number)
            if whole:
                break
    return found


def _answer(sock: socket.socket, number: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Read a dump's messages to the end; return them, and whether nothing changed meanwhile."""
    found: list[tuple[int, bytes]] = []
    whole = True
    while True:
        for kind, flags, sequence, data in messages(sock.recv(1 << 18)):
            if sequence != number:
                continue
            whole = whole and not flags & _INTERRUPTED
            if kind == _DONE:
                return found, whole
            if kind == _ERROR:
                code = -int.from_bytes(data[:4], sys.byteorder, signed=True)
                raise OSError(code, f"could not read interfaces and routes: {os.strerror(code)}")
            found.append((kind, data))


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags, sequence number and body of each message in a datagram of the kernel."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, sequence, _port = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield kind, flags, sequence, data[at + _HEADER.size : at + length]
        at += length + 3 & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes that data begins with, by type."""
    found = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _NESTED] = data[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3
    return found


def _number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _link(data: bytes) -> LinkState:
    _family, _type, index, flags, _change = _LINK.unpack_from(data)
    given = attributes(data[_LINK.size :])
    return LinkState(
        index=index,
        name=_text(given.get(_IFLA_IFNAME, b"")),
        mac=given.get(_IFLA_ADDRESS, b""),
        mtu=_number(given.get(_IFLA_MTU, b"")),
        up=bool(flags & _IFF_UP),
        arp=not flags & _IFF_NOARP,
        kind=_text(attributes(given.get(_IFLA_LINKINFO, b"")).get(_INFO_KIND, b"")),
        lower=_number(given.get(_IFLA_LINK, b"")),
        master=_number(given.get(_IFLA_MASTER, b"")),
        qdisc=_text(given.get(_IFLA_QDISC, b"")),
        gso=(
            _number(given.get(_IFLA_GSO_MAX_SIZE, b"")),
            _number(given.get(_IFLA_GSO_MAX_SEGS, b"")),
        ),
        xdp=any(attributes(given.get(_IFLA_XDP, b"")).get(_XDP_ATTACHED, b"")),
    )


def _route(data: bytes) -> tuple[str, dict[int, bytes]]:
    family, bits = data[0], data[1]
    given = attributes(data[_ROUTE.size :])
    packed = given.get(_RTA_DST, bytes(4 if family == socket.AF_INET else 16))
    return f"{socket.inet_ntop(family, packed)}/{bits}", given


# ---- news


def changes(data: bytes) -> Iterator[Changed]:
    """Yield what the messages in a datagram of the kernel are about; skip the others."""
    for kind, _flags, _sequence, body in messages(data):
        if kind in (_NEWROUTE, _DELROUTE):
            if body[0] in (socket.AF_INET, socket.AF_INET6):
                dst, given = _route(body)
                yield Changed(_number(given.get(_RTA_OIF, b"")), dst, gone=kind == _DELROUTE)
        elif kind in (_NEWADDR, _DELADDR):
            yield Changed(_ADDRESS.unpack_from(body)[4])
        elif len(body) >= 8:  # ifinfomsg and tcmsg have the index at the same place
            moved = kind == _DELLINK and _IFLA_NEW_NETNSID in attributes(body[_LINK.size :])
            yield Changed(int.from_bytes(body[4:8], sys.byteorder), moved=moved)


class Subscription:
    """Calls `on_data` with each datagram of some groups of rtnetlink, from `start` until `close`.

    `on_overrun` is called when datagrams were lost.
    """

    def __init__(
        self, groups: int, on_data: Callable[[bytes], None], on_overrun: Callable[[], None]
    ) -> None:
        self._groups = groups
        self._on_data = on_data
        self._on_overrun = on_overrun
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Subscribe. What is read afterwards misses no change."""
        sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        sock.bind((0, self._groups))
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
            self._on_data(data)

    def close(self) -> None:
        """Unsubscribe."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None


class News(Subscription):
    """Calls `on_change` with each change until `close`, and with None if some are lost.

    Programs that are detached from an interface without a classifier (tcx, XDP links) are no news.
    """

    def __init__(self, on_change: Callable[[Changed | None], None]) -> None:
        super().__init__(_GROUPS, self._read, lambda: on_change(None))
        self._on_change = on_change

    def _read(self, data: bytes) -> None:
        for change in changes(data):
            self._on_change(change)
