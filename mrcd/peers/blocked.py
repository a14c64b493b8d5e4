# SPDX-License-Identifier: GPL-2.0-only
"""Find out that hand-shakes of peers arrive and do not reach our sockets (pure).

The programs count what they pass to the host's stack; what stands between that and a socket is the
firewall of this host. A full socket's buffer drops packets, too, but not all of them.
"""

from __future__ import annotations

from typing import Final

LEAST: Final = 4
"""So many packets are passed on and none is read before that is said."""


class Blocked:
    """Compares both counts from time to time."""

    def __init__(self) -> None:
        self._read = -1
        self._passed = 0
        self._blocked = False

    def look(self, passed: int, read: int) -> bool:
        """Return whether packets are blocked, given how many were passed on and read so far."""
        if read != self._read:
            self._read, self._passed, self._blocked = read, passed, False
        elif passed - self._passed >= LEAST:
            self._blocked = True
        return self._blocked
