# SPDX-License-Identifier: GPL-2.0-only
"""Talk to systemd: sd_notify(3), sd_listen_fds(3), sd_watchdog(3).

Without systemd the environment variables are absent, and these functions do nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

_FIRST_FD = 3


class Notifier:
    """A sender of the service's state to the supervisor that started it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_s = _watchdog_s(environment, os.getpid())

    @property
    def supervised(self) -> bool:
        """Whether a supervisor wants to know the state."""
        return bool(self._address)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # The daemon keeps running if its supervisor has gone.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.sendto("\n".join(lines).encode(), self._address)

    def ready(self, status: str) -> None:
        """Report that the service is ready, after its start or after `reloading`."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """Report that the configuration is being reread; `ready` must follow."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self) -> None:
        """Restart the watchdog's timer."""
        self._send("WATCHDOG=1")


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the watchdog's timeout in seconds, None if there is no watchdog for this process."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    try:
        usec = int(environment["WATCHDOG_USEC"])
    except (KeyError, ValueError):
        return None
    return usec / 1e6 if usec > 0 else None


def listening(environment: Mapping[str, str], pid: int) -> socket.socket | None:
    """Return the control socket if a supervisor has opened it for us, else None.

    Raises ValueError when the supervisor hands over something else.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return None
    count = environment.get("LISTEN_FDS", "0")
    if count == "0":
        return None
    if count != "1":
        raise ValueError(f"LISTEN_FDS={count}: mrcd takes one socket, its control socket")
    os.set_inheritable(_FIRST_FD, False)
    sock = socket.socket(fileno=_FIRST_FD)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        name = sock.getsockname()
        sock.detach()
        raise ValueError(f"the socket handed over ({name!r}) is not a Unix stream socket")
    sock.setblocking(False)
    return sock
