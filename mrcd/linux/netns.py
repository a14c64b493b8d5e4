# SPDX-License-Identifier: GPL-2.0-only
"""Network namespaces by name, as `ip netns` knows them.

A namespace is a file in /run/netns with the kernel's namespace bind-mounted
on it. Python 3.11 has neither setns nor unshare, so both come from libc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

RUN_DIR = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SHARED = 1 << 20
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    """Raise OSError, saying what was tried, when a libc call returned -1."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, flags: int, fstype: str = "none") -> None:
    _call(
        f"mount {source} on {target}",
        _libc.mount(source.encode(), target.encode(), fstype.encode(), flags, None),
    )


def mount_bpffs(target: Path) -> None:
    """Mount a fresh bpffs on an existing folder."""
    _mount("bpf", str(target), 0, "bpf")


def unmount(target: Path) -> bool:
    """Detach every mount stacked on `target`; False when there was none."""
    found = False
    while _libc.umount2(str(target).encode(), _MNT_DETACH) == 0:
        found = True
    return found


def is_mounted(target: Path) -> bool:
    """Whether something is mounted exactly on `target`."""
    wanted = str(target)
    with open("/proc/self/mountinfo") as mounts:
        return any(line.split()[4] == wanted for line in mounts)


def path(name: str) -> Path:
    """Where the namespace `name` is, or would be, mounted."""
    return RUN_DIR / name


def names() -> list[str]:
    """Names of all namespaces of this machine, sorted."""
    try:
        return sorted(entry.name for entry in RUN_DIR.iterdir())
    except FileNotFoundError:
        return []


def inode(name: str) -> int:
    """The namespace's identity: what `stat /proc/<pid>/ns/net` shows inside."""
    return path(name).stat().st_ino


def prepare_run_dir() -> bool:
    """Make /run/netns as `ip netns add` does; True when this call made the mount.

    It must be a shared mount of its own, or a namespace deleted here lives on
    in the private mounts of every `ip netns exec` that is still running.
    """
    RUN_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    target = str(RUN_DIR)
    made = not is_mounted(RUN_DIR)
    if made:
        _mount(target, target, _MS_BIND | _MS_REC)
    _mount("", target, _MS_SHARED | _MS_REC)
    return made


def release_run_dir() -> None:
    """Undo `prepare_run_dir` if no namespace is left; else leave it alone."""
    if RUN_DIR.is_dir() and not names():
        unmount(RUN_DIR)
        with contextlib.suppress(OSError):
            RUN_DIR.rmdir()


def create(name: str) -> None:
    """Create the namespace `name`; FileExistsError if there is one."""
    target = path(name)
    os.close(os.open(target, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0))
    with _restored():
        _call(f"create network namespace {name}", _libc.unshare(_CLONE_NEWNET))
        _mount("/proc/thread-self/ns/net", str(target), _MS_BIND)


def delete(name: str) -> bool:
    """Delete the namespace `name`; False when it did not exist.

    The kernel frees its interfaces once the last process and socket has gone.
    """
    target = path(name)
    unmount(target)
    try:
        target.unlink()
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def entered(name: str | None) -> Iterator[None]:
    """Run a block with this thread inside `name` (None: stay where we are).

    Never await inside: other tasks of the loop would run in the namespace.
    """
    if name is None:
        yield
        return
    with _restored():
        enter(name)
        yield


def enter(name: str) -> None:
    """Move this thread into the namespace `name` for good."""
    try:
        handle = os.open(path(name), os.O_RDONLY)
    except FileNotFoundError:
        raise FileNotFoundError(f"network namespace {name} does not exist") from None
    try:
        _call(f"enter network namespace {name}", _libc.setns(handle, _CLONE_NEWNET))
    finally:
        os.close(handle)


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Bring this thread back to its network namespace at the end."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        try:
            _call("return to the first network namespace", _libc.setns(home, _CLONE_NEWNET))
        finally:
            os.close(home)
