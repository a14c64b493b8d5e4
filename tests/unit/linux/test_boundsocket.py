# SPDX-License-Identifier: GPL-2.0-only
"""Test what the privileged process does to the sockets that it gives away."""

from __future__ import annotations

import errno
import socket

import pytest

from mrcd.linux.boundsocket import receive_nothing

_SO_DETACH_FILTER = 27


def test_socket_that_receives_nothing_only_sends() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        for sock in (deaf, other):
            sock.bind(("127.0.0.1", 0))
            sock.settimeout(0.1)
        receive_nothing(deaf)
        other.sendto(b"unheard", deaf.getsockname())
        with pytest.raises(TimeoutError):
            deaf.recv(16)
        deaf.sendto(b"heard", other.getsockname())
        assert other.recv(16) == b"heard"
        with pytest.raises(OSError, match="not permitted") as caught:
            deaf.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        assert caught.value.errno == errno.EPERM
