# SPDX-License-Identifier: GPL-2.0-only
"""Offload features of an interface, by SIOCETHTOOL (linux/ethtool.h).

The old one-feature commands are enough here and need no string tables. The
caller's network namespace counts: enter it first (mrcd.linux.netns.entered).
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from dataclasses import dataclass

_SIOCETHTOOL = 0x8946

_GET_SET = {
    "tx_checksum": (0x16, 0x17),
    "sg": (0x18, 0x19),
    "tso": (0x1E, 0x1F),
    "gso": (0x23, 0x24),
    "gro": (0x2B, 0x2C),
}


@dataclass(frozen=True, slots=True)
class Features:
    """What an interface offloads. `gro` on a veth makes it run NAPI."""

    tx_checksum: bool
    sg: bool
    tso: bool
    gso: bool
    gro: bool


def _value(sock: socket.socket, name: str, feature: str, command: int, value: int) -> int:
    request = array.array("B", struct.pack("=II", command, value))
    address, _ = request.buffer_info()
    ifreq = struct.pack("@16sP16x", os.fsencode(name), address)
    try:
        fcntl.ioctl(sock, _SIOCETHTOOL, ifreq)
    except OSError as error:
        verb = "set" if command == _GET_SET[feature][1] else "read"
        raise OSError(
            error.errno, f"could not {verb} {feature} of {name}: {error.strerror}"
        ) from None
    return int(struct.unpack("=II", request)[1])


def get_features(name: str) -> Features:
    """The features of interface `name` in this thread's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return Features(
            **{key: bool(_value(sock, name, key, get, 0)) for key, (get, _) in _GET_SET.items()}
        )


def set_features(
    name: str,
    *,
    tx_checksum: bool | None = None,
    sg: bool | None = None,
    tso: bool | None = None,
    gso: bool | None = None,
    gro: bool | None = None,
) -> None:
    """Switch the given features of `name`; None leaves one as it is.

    The kernel drops what depends on a feature: without tx_checksum no tso.
    """
    wanted = {"tx_checksum": tx_checksum, "sg": sg, "tso": tso, "gso": gso, "gro": gro}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for feature, value in wanted.items():
            if value is not None:
                _value(sock, name, feature, _GET_SET[feature][1], int(value))
