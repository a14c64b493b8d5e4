# SPDX-License-Identifier: GPL-2.0-only
"""The daemon's end of the channel to the privileged process.

While a channel is in `use`, functions of mrcd.linux that need a capability ask the privileged
process instead of the kernel. Without one, as in `mrcctl` and the labs, they act themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from mrcd.linux.privileged.requests import BYTES_MAX, FDS_MAX, Request, encode

_END_S = 5.0
_WAIT_S = 30.0
"""No request takes longer, but for the kernel's lock of all interfaces, which others may hold."""


class PrivilegedGone(OSError):
    """The privileged process has ended; nothing that needs it works any more."""


class Channel:
    """A connection to the privileged process."""

    def __init__(self, sock: socket.socket, child: int | None = None) -> None:
        """Use a connected socket; `child`: the privileged process, if it is a child of this one."""
        self._socket = sock
        self._child = child
        self._turn = threading.Lock()  # one request at a time
        sock.settimeout(_WAIT_S)

    def fileno(self) -> int:
        """Return the descriptor, which becomes readable when the privileged process ends."""
        return self._socket.fileno()

    def ask(self, request: Request, fds: Sequence[int] = ()) -> Any:
        """Have a request carried out and return the answer's value.

        Raise OSError with the kernel's number if it was refused. A descriptor that comes with the
        answer is returned by `ask_fd`.
        """
        value, found = self._exchange(request, fds)
        for fd in found:
            os.close(fd)
        return value

    def ask_fd(self, request: Request, fds: Sequence[int] = ()) -> int:
        """As `ask`, but return the descriptor that comes with the answer."""
        _value, found = self._exchange(request, fds)
        return found[0]

    def _exchange(self, request: Request, fds: Sequence[int]) -> tuple[Any, list[int]]:
        with self._turn:
            try:
                socket.send_fds(self._socket, [encode(request)], fds)
                answer, found, _flags, _source = socket.recv_fds(self._socket, BYTES_MAX, FDS_MAX)
            except OSError as error:
                raise PrivilegedGone(error.errno, f"cannot {request.what()}: {error}") from error
        if not answer:
            raise PrivilegedGone(0, f"cannot {request.what()}: the privileged process has ended")
        given = json.loads(answer)
        if "error" in given:
            raise OSError(given["error"], given["text"])
        return given["value"], found

    def close(self) -> None:
        """Close the connection, which ends the privileged process. Wait for a child's end."""
        self._socket.close()
        if self._child is not None:
            _wait_for(self._child)
            self._child = None


def _wait_for(child: int) -> None:
    """Wait for a child's end, but not as long as the kernel's lock of all interfaces may take."""
    with contextlib.suppress(OSError), open(os.pidfd_open(child)) as ended:
        if select.select([ended], [], [], _END_S)[0]:
            os.waitpid(child, 0)


_channel: Channel | None = None


def current() -> Channel | None:
    """Return the channel that is in use, or None where this process acts itself."""
    return _channel


@contextlib.contextmanager
def use(channel: Channel) -> Iterator[None]:
    """Have everything that needs a capability done over a channel during a block."""
    global _channel  # one process has one channel
    _channel = channel
    try:
        yield
    finally:
        _channel = None
        channel.close()
