# SPDX-License-Identifier: GPL-2.0-only
"""Find the peers for which new connections shall not wait, since nothing is heard of them (pure).

The programs refuse new connections to such peers (bpf/unreachable.c). What they are told of a peer
is true for a short time only, and is said again while it lasts: a daemon that dies leaves no peer
refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

GRACE_NS: Final = 3_000_000_000
"""A peer that is neither heard nor silent may be about to start, and has this time to do so. It is
the time that Ethernet gives a neighbour to answer."""
LEASE_NS: Final = 10_000_000_000
"""What is said of a peer holds for this time."""
LOOK_NS: Final = 1_000_000_000
"""The interval at which to look for such peers ..."""
LOOK_CROWD_NS: Final = 4_000_000_000
"""... and with a crowd of peers, which takes a while; less than half of the time that is said."""


class Unheard:
    """The peers of which nothing is heard, and until when the programs know it."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._until: dict[str, int] = {}

    def look(self, peers: Iterable[tuple[str, bool]], now_ns: int) -> dict[str, int]:
        """Return what is to be said now, by peer: until when it is unheard, and 0 if it is heard.

        `peers` are those that cannot be reached now, and whether the silence of each has lasted
        for long. All others are heard.
        """
        lasting = dict(peers)
        self._since = {name: self._since.get(name, now_ns) for name in lasting}
        said = {name: 0 for name in self._until if name not in lasting}
        for name, for_long in lasting.items():
            if not for_long and now_ns - self._since[name] < GRACE_NS:
                continue
            if self._until.get(name, 0) < now_ns + LEASE_NS // 2:
                said[name] = now_ns + LEASE_NS
        for name, until in said.items():
            if until:
                self._until[name] = until
            else:
                del self._until[name]
        return said

    def heard(self, name: str) -> dict[str, int]:
        """Return what is to be said because a peer can be reached again."""
        self._since.pop(name, None)
        return {} if self._until.pop(name, None) is None else {name: 0}

    def forget(self, name: str) -> None:
        """Forget a peer that is removed."""
        self.heard(name)
