# SPDX-License-Identifier: GPL-2.0-only
"""UDP sockets at the address of a NIC that tell what routers and hosts say of their datagrams."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

from mrcd.linux.boundsocket import Address as Address
from mrcd.linux.boundsocket import plane_socket

DISCARD_PORT: Final = 9
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_MSG_ERRQUEUE = 0x2000
_EXTENDED = struct.Struct("=IBBBxII")  # struct sock_extended_err: errno, origin, type, code, ...
_FROM_ICMP, _FROM_ICMP6 = 2, 3
_MEANINGS = {  # types and codes of RFC 792 and 1812, and of RFC 4443: nothing there, and prohibited
    _FROM_ICMP: ({(3, 3)}, {(3, 9), (3, 10), (3, 13)}),
    _FROM_ICMP6: ({(1, 4)}, {(1, 1), (1, 5), (1, 6)}),
}
_CONTROL_MAX, _DATA_MAX = 512, 512


@dataclass(frozen=True, slots=True)
class Returned:
    """An ICMP error to a datagram of ours.

    It was for `port` of `target`, and `by` has sent the error. closed: nothing has the port.
    prohibited: a filter does not let it pass. With neither, there is no way.
    """

    target: str
    port: int
    by: str
    closed: bool = False
    prohibited: bool = False


def open_at(nic: str, address: Address, port: int) -> socket.socket:
    """Return a socket at a port of an address of a NIC, which hears errors. Raises OSError."""
    sock = plane_socket(socket.SOCK_DGRAM, 0, os.fsencode(nic), address, port)
    try:
        if address.version == 4:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
    except OSError:
        sock.close()
        raise
    return sock


def returned(sock: socket.socket) -> list[Returned]:
    """Return the ICMP errors that have arrived at a socket since the last call."""
    found: list[Returned] = []
    while True:
        try:
            _data, control, _flags, target = sock.recvmsg(_DATA_MAX, _CONTROL_MAX, _MSG_ERRQUEUE)
        except OSError:  # there is none, or no more
            return found
        for _level, _kind, value in control:
            if (error := _error(value, target)) is not None:
                found.append(error)


def _error(value: bytes, target: tuple[str, int]) -> Returned | None:
    """Return the error in a control message, which has the address of its sender behind it."""
    if len(value) < _EXTENDED.size:
        return None
    _errno, origin, kind, code, _info, _data = _EXTENDED.unpack_from(value)
    offender = value[_EXTENDED.size :]
    if origin == _FROM_ICMP and len(offender) >= 8:
        by = socket.inet_ntop(socket.AF_INET, offender[4:8])
    elif origin == _FROM_ICMP6 and len(offender) >= 24:
        by = socket.inet_ntop(socket.AF_INET6, offender[8:24])
    else:
        return None
    closed, prohibited = _MEANINGS[origin]
    return Returned(
        target[0].partition("%")[0],
        target[1],
        by,
        (kind, code) in closed,
        (kind, code) in prohibited,
    )
