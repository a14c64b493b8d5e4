# SPDX-License-Identifier: GPL-2.0-only
"""Cables of virtual machines that are two taps and a bridge, in a network namespace of their own.

Unlike qemu's unix sockets, taps have several queues, and segments of TCP cross them whole.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator

_MTU = 9216
_SIDES = ("near", "far")


def name(cable: int, side: str) -> str:
    """Return the name of a cable's tap."""
    return f"cable{cable}{side}"


@contextlib.contextmanager
def made(cables: Iterable[int], *, several: bool) -> Iterator[str]:
    """Make the taps of these cables; yield their namespace, which is removed at the end.

    several: whether they have several queues.
    """
    queues = ["multi_queue"] if several else []
    space = f"mrcd-vm-{os.getpid()}"
    _ip("netns", "add", space)
    try:
        for cable in cables:
            bridge = f"cable{cable}"
            _ip("-n", space, "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
            _ip("-n", space, "link", "set", bridge, "up", "mtu", str(_MTU))
            for tap in (name(cable, side) for side in _SIDES):
                _ip("-n", space, "tuntap", "add", tap, "mode", "tap", *queues, "vnet_hdr")
                _ip("-n", space, "link", "set", tap, "up", "mtu", str(_MTU), "master", bridge)
        yield space
    finally:
        _ip("netns", "del", space)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
