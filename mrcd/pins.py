# SPDX-License-Identifier: GPL-2.0-only
"""The folder in a bpffs where the data path lives: maps, programs, links.

What is pinned stays when the daemon dies. Empty folders record what else must
be undone: "device-NAME", an interface of ours; "clsact-NAME", a filter on it;
"address-NAME~HEX~BITS" and "route-NAME~HEX~BITS", what a plane was given.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from mrcd import netns

PRIO = 4971
"""Priority of our clsact filters."""


class PinError(Exception):
    """The pin folder cannot be used; the message says where and why."""


def prepare(folder: Path) -> None:
    """Make `folder` an empty folder of a bpffs, mounting one over it where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_bpffs(folder):
            netns.mount_bpffs(folder)
    except OSError as error:
        raise PinError(f"{folder}: cannot prepare a bpffs there: {error}") from error


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Be the only daemon of this folder; PinError while another one is alive."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PinError(
                f"{folder}: another mrcd keeps its data path there: stop it first, or give this "
                "one a folder and a socket of its own (--bpffs, --socket)"
            ) from None
        yield
    finally:
        os.close(handle)


def _is_bpffs(folder: Path) -> bool:
    """Whether a path lies in a bpffs: the mount with the longest matching target counts."""
    best, kind = "", ""
    resolved = str(folder.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, target, fstype, *_ = line.split()
        inside = resolved == target or resolved.startswith(target.rstrip("/") + "/")
        if inside and len(target) >= len(best):
            best, kind = target, fstype
    return kind == "bpf"


def recorded(folder: Path, kind: str) -> list[str]:
    """What is recorded under `kind`: device, clsact, address or route."""
    if not folder.is_dir():
        return []
    prefix = f"{kind}-"
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def record(folder: Path, kind: str, name: str) -> None:
    """Remember that `name` is to be undone."""
    (folder / f"{kind}-{name}").mkdir(exist_ok=True)


def record_given(
    folder: Path, kind: str, name: str, address: IPv4Address | IPv6Address, bits: int
) -> None:
    """Remember an address or route that interface `name` was given; read by `given`."""
    record(folder, kind, f"{name}~{address.packed.hex()}~{bits}")


def given(entry: str) -> tuple[str, str]:
    """The interface and the address/bits of what `record_given` wrote down."""
    name, packed, bits = entry.split("~")
    return name, f"{ip_address(bytes.fromhex(packed))}/{bits}"


def forget(folder: Path, kind: str, name: str) -> None:
    """The opposite of `record`."""
    with contextlib.suppress(FileNotFoundError):
        (folder / f"{kind}-{name}").rmdir()


def clear(folder: Path) -> list[str]:
    """Remove every pin; links detach by it. Records stay. Returns what was removed, in order."""
    if not folder.is_dir():
        return []
    names = sorted(
        (entry.name for entry in folder.iterdir() if not entry.is_dir()),
        key=lambda name: (not name.startswith("link_"), name),
    )
    for name in names:
        (folder / name).unlink()
    return names
