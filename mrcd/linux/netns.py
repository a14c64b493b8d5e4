# SPDX-License-Identifier: GPL-2.0-only
"""Network namespaces by name, as `ip netns` knows them.

A namespace is a file in /run/netns with the kernel's namespace bind-mounted on it. pyroute2.netns
lists, binds and enters them. Four things stay here, because pyroute2 0.9.7 does them otherwise:

* `create` forks for each namespace, which takes 5 ms instead of 0.25 and is unsafe in a process
  with threads. unshare(2), followed by pyroute2's `attach` to this thread, does not fork.
* `remove` unmounts once. Of several mounts on one file, the others would keep the file busy.
* `pushns` and `popns` share one stack among all threads, and save the namespace of the main
  thread.
* No function tells whether it was this process that mounted /run/netns. A lab must know, to undo
  the mount.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from pyroute2 import netns

from mrcd.linux import libc, mounts

RUN_DIR = Path("/run/netns")

_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def _trying(what: str) -> Iterator[None]:
    """Raise an OSError again with what was tried."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        raise OSError(code, f"{what}: {os.strerror(code)}") from None


def path(name: str) -> Path:
    """Return where the namespace `name` is, or would be, mounted."""
    return RUN_DIR / name


def names() -> list[str]:
    """Return the names of all namespaces of this machine, sorted."""
    return sorted(netns.listnetns(str(RUN_DIR)))


def inode(name: str) -> int:
    """Return the namespace's identity, the inode that `stat /proc/<pid>/ns/net` shows inside."""
    return path(name).stat().st_ino


def prepare_run_dir() -> bool:
    """Make /run/netns as `ip netns add` does; return True when this call made the mount.

    It must be a shared mount of its own. Otherwise a deleted namespace lives on in the private
    mounts of every `ip netns exec` that is still running.
    """
    RUN_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    made = not mounts.is_mounted(RUN_DIR)
    if made:
        mounts.mount_on_itself(RUN_DIR)
    mounts.share(RUN_DIR)
    return made


def release_run_dir() -> None:
    """Undo `prepare_run_dir` if no namespace is left; otherwise do nothing."""
    if RUN_DIR.is_dir() and not names():
        mounts.unmount(RUN_DIR)
        with contextlib.suppress(OSError):
            RUN_DIR.rmdir()


def create(name: str) -> None:
    """Create the namespace `name`; raise FileExistsError when there is one of that name."""
    with _trying(f"create network namespace {name}"), _restored():
        libc.call("unshare", "unshare", _CLONE_NEWNET)
        netns.attach(str(path(name)), threading.get_native_id(), libc=libc.LIBC)


@contextlib.contextmanager
def nameless() -> Iterator[None]:
    """Run a block with this thread in a new namespace, which ends with the block and its sockets.

    Never await inside, as in `entered`.
    """
    with _restored():
        with _trying("create a network namespace"):
            libc.call("unshare", "unshare", _CLONE_NEWNET)
        yield


def delete(name: str) -> bool:
    """Delete the namespace `name`; return False when it did not exist.

    The kernel frees its interfaces once its last process and socket are gone.
    """
    target = path(name)
    mounts.unmount(target)
    try:
        target.unlink()
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def entered(name: str | None) -> Iterator[None]:
    """Run a block with this thread inside `name`; None stays where the thread is.

    Never await inside: other tasks of the loop would run in the namespace.
    """
    if name is None:
        yield
        return
    with _restored():
        enter(name)
        yield


def enter(name: str) -> None:
    """Move this thread into the namespace `name` for good.

    Raises FileNotFoundError when there is no such namespace.
    """
    try:
        with _trying(f"enter network namespace {name}"):
            # Without flags the library does not create what is missing.
            netns.setns(str(path(name)), flags=0, libc=libc.LIBC)
    except FileNotFoundError:
        raise FileNotFoundError(f"network namespace {name} does not exist") from None


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Bring this thread back to its network namespace at the end."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        try:
            with _trying("return to the first network namespace"):
                netns.setns(home, flags=0, libc=libc.LIBC)
        finally:
            os.close(home)
