# SPDX-License-Identifier: GPL-2.0-only
"""Switch an interface's offloads by SIOCETHTOOL (linux/ethtool.h), without pyroute2."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct

from mrcd.linux.privileged.requests import SetFeatures

_SIOCETHTOOL = 0x8946
_SET = {"tx_checksum": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}


def set_features(request: SetFeatures) -> None:
    """Switch the features that are not None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for feature, command in _SET.items():
            value = getattr(request, feature)
            if value is not None:
                _set(sock, request.name, feature, command, value)


def _set(sock: socket.socket, name: str, feature: str, command: int, value: bool) -> None:
    order = array.array("I", (command, int(value)))  # struct ethtool_value
    call = struct.pack("16sQ16x", os.fsencode(name), order.buffer_info()[0])  # struct ifreq
    try:
        fcntl.ioctl(sock, _SIOCETHTOOL, call)
    except OSError as error:
        code = error.errno or errno.EIO
        raise OSError(code, f"could not set {feature} of {name}: {os.strerror(code)}") from None
