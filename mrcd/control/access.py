# SPDX-License-Identifier: GPL-2.0-only
"""Decide which callers of the control socket may change anything, by the kernel's credentials.

Every process that can connect may watch. Only root, the user that mrcd runs as, and members of the
group mrcd may change anything.
"""

from __future__ import annotations

import grp
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

GROUP = "mrcd"
_UCRED = struct.Struct("=iII")
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024  # the most that Python's getsockopt accepts: 256 groups
_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Caller:
    """The process that connected, as of that moment. `groups` includes the primary group."""

    pid: int
    uid: int
    groups: frozenset[int]


@dataclass(frozen=True, slots=True)
class Access:
    """The rule of access. `gid` is None where the group does not exist."""

    uid: int  # the daemon's own
    group: str
    gid: int | None

    def may_write(self, caller: Caller) -> bool:
        """Return whether a caller may change anything."""
        return caller.uid in (0, self.uid) or (self.gid is not None and self.gid in caller.groups)

    @property
    def writers(self) -> str:
        """The callers that may change anything, in words."""
        own = "" if self.uid == 0 else f", uid {self.uid} (mrcd's own)"
        absent = "" if self.gid is not None else ", which does not exist here"
        return f"root{own} and members of group {self.group}{absent}"


def of_host(group: str = GROUP) -> Access:
    """Return the rule on this host for a daemon that runs as the current user."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        gid = None
    return Access(os.geteuid(), group, gid)


def caller_of(connection: socket.socket) -> Caller:
    """Return the process that connected, with the credentials that it had at that moment."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    try:
        more = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # more groups than fit: only the primary one counts
        more = b""
    return Caller(
        pid, uid, frozenset((gid, *(group for (group,) in struct.iter_unpack("=I", more))))
    )


def writes(method: _Method) -> _Method:
    """Mark a method of the control interface as callable by writers only."""
    method.writes = True  # type: ignore[attr-defined]
    return method


def is_writing(method: Callable[..., Any]) -> bool:
    """Return whether a method carries that mark."""
    return bool(getattr(method, "writes", False))
