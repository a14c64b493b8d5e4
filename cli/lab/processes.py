# SPDX-License-Identifier: GPL-2.0-only
"""Start, find and stop the processes of a lab in their namespaces."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from mrcd.linux import netns

STOP_DEADLINE_S = 5.0
_KILL_DEADLINE_S = 5.0
_LOG_LINES = 15


def daemon_command() -> list[str]:
    """Return the command that runs the mrcd of this interpreter."""
    sibling = Path(sys.executable).with_name("mrcd")
    if os.access(sibling, os.X_OK):
        return [str(sibling)]
    return [sys.executable, "-m", "mrcd"]


def spawn(
    namespace: str,
    command: Sequence[str],
    *,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command that differs from this process only in its network namespace.

    Unlike with `ip netns exec` the command keeps our mounts, so it sees our bpffs.
    """
    with netns.entered(namespace):
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )


def end_of(log: Path) -> str:
    """Return the last lines of a log, indented."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        lines = []
    return "\n".join(f"  {line}" for line in lines or ["(empty)"])


def inside(namespaces: Iterable[str]) -> dict[int, str]:
    """Return the processes in these namespaces, pid to namespace, except this process."""
    inodes = {}
    for name in namespaces:
        with contextlib.suppress(FileNotFoundError):
            inodes[netns.inode(name)] = name
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            # A process may end in the meantime, or be a kernel thread.
            with contextlib.suppress(OSError):
                inode = os.stat(f"/proc/{entry}/ns/net").st_ino
                if inode in inodes:
                    found[int(entry)] = inodes[inode]
    return found


def runs_in(pid: int, namespace: str) -> bool:
    """Return whether `pid` runs in this namespace, and is not a reused pid elsewhere."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino == netns.inode(namespace)
    except PermissionError:
        return os.path.exists(f"/proc/{pid}")  # only root may look closer
    except OSError:
        return False


def stop(pids: Iterable[int], deadline_s: float = STOP_DEADLINE_S) -> list[int]:
    """Send SIGTERM, wait, send SIGKILL, wait; return the pids that still exist."""
    handles = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handles[os.pidfd_open(pid)] = pid
    try:
        _signal(handles, signal.SIGTERM)
        left = _wait(handles, deadline_s)
        _signal(left, signal.SIGKILL)
        return sorted(_wait(left, _KILL_DEADLINE_S).values())
    finally:
        for handle in handles:
            os.close(handle)


def _signal(handles: Mapping[int, int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def _wait(handles: Mapping[int, int], deadline_s: float) -> dict[int, int]:
    """Wait until processes end; return those that are left after the deadline.

    A child of this process stays a zombie: its status belongs to the code that started it.
    """
    left = dict(handles)
    poll = select.poll()
    for handle in left:
        poll.register(handle, select.POLLIN)
    end_ns = time.monotonic_ns() + int(deadline_s * 1e9)
    while left:
        remaining_ms = (end_ns - time.monotonic_ns()) // 1_000_000
        if remaining_ms <= 0:
            break
        for handle, _ in poll.poll(remaining_ms):
            poll.unregister(handle)
            left.pop(handle)
    return left
