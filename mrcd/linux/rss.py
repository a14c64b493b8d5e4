# SPDX-License-Identifier: GPL-2.0-only
"""How a NIC spreads what arrives over its receive queues (RSS), by SIOCETHTOOL (linux/ethtool.h).

pyroute2 0.9.7 knows the number of queues, but neither the hash nor the rules that go before it. All
functions act in the calling thread's network namespace, and reading takes no capability.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pyroute2.ethtool.ioctl import IoctlEthtool, NoSuchDevice, NotSupportedError

_SIOCETHTOOL = 0x8946
_GRXFH, _GRXCLSRLCNT, _GRXCLSRULE, _GRXCLSRLALL = 0x29, 0x2E, 0x2F, 0x30
_IPV6_FLOW, _IPV6_USER_FLOW = 0x11, 0x0E
_RXH_IP_SRC = 1 << 4

# struct ethtool_rxnfc: what is asked, the flow's specification, and the number of rules.
_ASKED = struct.Struct("=IIQ")
_FLOW_TYPE_AT, _PROTOCOL_AT, _MASK_AT = 16, 16 + 4 + 37, 16 + 4 + 72 + 37
_LOCATION_AT, _COUNT_AT, _BYTES = 16 + 160, 16 + 168, 192
_LOCATIONS_AT = _COUNT_AT + 4


@dataclass(frozen=True, slots=True)
class Spreading:
    """How an interface spreads packets over receive queues.

    `by_source`: the hash of IPv6 packets covers the source address; None if the driver does not
    say. `ruled`: IPv6 next headers whose packets a rule puts into one queue.
    """

    queues: int
    by_source: bool | None = None
    ruled: frozenset[int] = frozenset()


def of(name: str) -> Spreading:
    """Return how interface `name` spreads what arrives; one queue if the driver does not say."""
    queues = 1
    refusals = (OSError, NoSuchDevice, NotSupportedError)
    with contextlib.closing(IoctlEthtool(name)) as device, contextlib.suppress(*refusals):
        found = device.get_channels()
        queues = max(1, int(found.rx_count) + int(found.combined_count))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return Spreading(queues, _by_source(sock, name), frozenset(_ruled(sock, name)))


def _ask(sock: socket.socket, name: str, request: bytes) -> bytes:
    """Return the answer in the place of a request."""
    buffer = ctypes.create_string_buffer(request, len(request))
    call = struct.pack("16sQ16x", os.fsencode(name), ctypes.addressof(buffer))  # struct ifreq
    fcntl.ioctl(sock, _SIOCETHTOOL, call)
    return buffer.raw


def _request(command: int, flow_type: int = 0) -> bytearray:
    return bytearray(_ASKED.pack(command, flow_type, 0).ljust(_BYTES, b"\0"))


def _by_source(sock: socket.socket, name: str) -> bool | None:
    try:
        answer = _ask(sock, name, bytes(_request(_GRXFH, _IPV6_FLOW)))
    except OSError:
        return None
    return bool(_ASKED.unpack_from(answer)[2] & _RXH_IP_SRC)


def _ruled(sock: socket.socket, name: str) -> Iterator[int]:
    """Yield the IPv6 next headers for which there is a rule."""
    with contextlib.suppress(OSError):
        answer = _ask(sock, name, bytes(_request(_GRXCLSRLCNT)))
        (count,) = struct.unpack_from("=I", answer, _COUNT_AT)
        request = _request(_GRXCLSRLALL)
        struct.pack_into("=I", request, _COUNT_AT, count)
        answer = _ask(sock, name, bytes(request).ljust(_LOCATIONS_AT + 4 * count, b"\0"))
        for location in struct.unpack_from(f"={count}I", answer, _LOCATIONS_AT):
            request = _request(_GRXCLSRULE)
            struct.pack_into("=I", request, _LOCATION_AT, location)
            rule = _ask(sock, name, bytes(request))
            (flow_type,) = struct.unpack_from("=I", rule, _FLOW_TYPE_AT)
            if flow_type == _IPV6_USER_FLOW and rule[_MASK_AT] == 0xFF:
                yield rule[_PROTOCOL_AT]
