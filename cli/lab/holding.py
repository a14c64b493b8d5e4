# SPDX-License-Identifier: GPL-2.0-only
"""Hold a port's packets for a time: the process behind a `delay=` fault.

It runs as a script inside the switch's namespace, with arguments PORT TAP MICROSECONDS. A program
at the port's egress redirects packets to the tap. This process reads each packet, holds it, and
sends it through the port with a mark that lets it pass the program. After SIGTERM the process ends
once all held packets have left. It imports nothing from this package, so that it starts quickly and
stays small.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque

READY = b"ready\n"
MARK = 0x6D726364  # socket mark of packets that have been held

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_FRAME_MAX = 1 << 17
_HELD_MAX_BYTES = 64 << 20  # packets beyond this are lost, as in any queue


def _open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
    fcntl.ioctl(tap, _TUNSETIFF, request)
    return tap


def _open_port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # receives nothing
    port.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    port.bind((name, 0))
    return port


def hold(port: socket.socket, tap: int, delay_ns: int) -> None:
    """Pass packets from the tap to the port, each `delay_ns` later, until SIGTERM."""
    held: deque[tuple[int, bytes]] = deque()
    size = 0
    ending = False

    def end(number: int, frame: object) -> None:
        nonlocal ending
        ending = True

    wake_read, wake_write = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGTERM, end)
    os.write(sys.stdout.fileno(), READY)
    while held or not ending:
        wait_s = max(0, held[0][0] - time.monotonic_ns()) / 1e9 if held else None
        readable, _, _ = select.select([tap] if ending else [tap, wake_read], [], [], wait_s)
        if tap in readable:
            with contextlib.suppress(BlockingIOError):
                while size < _HELD_MAX_BYTES:
                    frame = os.read(tap, _FRAME_MAX)
                    held.append((time.monotonic_ns() + delay_ns, frame))
                    size += len(frame)
        while held and held[0][0] <= time.monotonic_ns():
            _, frame = held.popleft()
            size -= len(frame)
            with contextlib.suppress(OSError):  # the port is down, or its queue is full
                port.send(frame)


if __name__ == "__main__":
    hold(_open_port(sys.argv[1]), _open_tap(sys.argv[2]), int(sys.argv[3]) * 1000)
