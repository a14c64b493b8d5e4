# SPDX-License-Identifier: GPL-2.0-only
"""Mounts of this process's mount namespace, by mount(2) and umount2(2)."""

from __future__ import annotations

import os
from pathlib import Path

from mrcd.linux import libc

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SHARED = 1 << 20
_MNT_DETACH = 2


def _mount(source: str, target: Path, flags: int, fstype: str = "none") -> None:
    libc.call(
        f"mount {source} on {target}",
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        fstype.encode(),
        flags,
        None,
    )


def mount_bpffs(target: Path) -> None:
    """Mount a fresh bpffs on an existing folder."""
    _mount("bpf", target, 0, "bpf")


def mount_on_itself(target: Path) -> None:
    """Make a folder, with all that is mounted in it, a mount of its own."""
    _mount(str(target), target, _MS_BIND | _MS_REC)


def share(target: Path) -> None:
    """Propagate what is mounted and unmounted below `target` to copies of the mount."""
    _mount("", target, _MS_SHARED | _MS_REC)


def unmount(target: Path) -> bool:
    """Detach every mount stacked on `target`; return False when there was none."""
    found = False
    while libc.LIBC.umount2(os.fsencode(target), _MNT_DETACH) == 0:
        found = True
    return found


def is_mounted(target: Path) -> bool:
    """Return whether something is mounted exactly on `target`."""
    wanted = str(target)
    with open("/proc/self/mountinfo") as mounts:
        return any(line.split()[4] == wanted for line in mounts)
