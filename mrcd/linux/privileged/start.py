# SPDX-License-Identifier: GPL-2.0-only
"""Start the privileged process, and give up the capabilities of this one."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

from mrcd.linux import rights, seccomp
from mrcd.linux.privileged.client import Channel
from mrcd.linux.privileged.permits import Permits

_SERVER = "mrcd.linux.privileged.server"


def start(permits: Permits, config: Path, cache: Path | None) -> Channel:
    """Start the privileged process of a daemon with this configuration; then give everything up.

    Call this while the process has one thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    arguments = [str(config), permits.folder, str(cache or ""), permits.dumps()]
    with theirs:
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", _SERVER, *arguments],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
        )
    give_up()
    return Channel(ours, child)


def connect(path: Path) -> Channel:
    """Have a service manager start the privileged process at the other end of a socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot reach {path}: {error.strerror}") from error
    give_up()
    return Channel(sock)


def give_up() -> None:
    """Give up every capability."""
    rights.give_up()
    seccomp.only_bpf_commands(seccomp.DAEMON_BPF)


def has_ended(channel: Channel) -> bool:
    """Return whether the privileged process is gone."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    return bool(poll.poll(0))
