# SPDX-License-Identifier: GPL-2.0-only
"""The folder in a bpffs where the data path lives: maps, programs, links.

Pins outlive the daemon:

    link_xdp_NAME, link_tc_NAME   the link that holds a program on an interface
    layout-KEY/                   the maps of one layout (mrcd/datapath/sizes.py)
    layout-KEY/code-KEY/          programs that use them

A folder is made under the name building-KEY and renamed when it is complete, so a folder with its
final name is whole. Empty folders record what else must be undone: "device-NAME", an interface of
ours; "clsact-NAME", a filter on it; "address-NAME~HEX~BITS" and "route-NAME~HEX~BITS", an address
or a route that an interface was given.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from mrcd.linux import mounts

_RECORDS = ("device-", "clsact-", "address-", "route-")
_KERNELS = ("maps.debug", "progs.debug")  # the kernel's own, at the top of a bpffs


class PinError(Exception):
    """The pin folder cannot be used; the message says where and why."""


def prepare(folder: Path) -> None:
    """Make sure that `folder` is in a bpffs; mount one over the folder if it is not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_bpffs(folder):
            mounts.mount_bpffs(folder)
    except OSError as error:
        raise PinError(
            f"{folder}: cannot prepare a bpffs there: {error}; root can: `mkdir -p {folder} && "
            f"mount -t bpf bpf {folder}`, and give it to mrcd's user"
        ) from error


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. PinError if another live daemon holds it."""
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


def is_bpffs(folder: Path) -> bool:
    """Return whether a path lies in a bpffs: the mount with the longest matching target counts."""
    best, kind = "", ""
    resolved = str(folder.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, target, fstype, *_ = line.split()
        inside = resolved == target or resolved.startswith(target.rstrip("/") + "/")
        if inside and len(target) >= len(best):
            best, kind = target, fstype
    return kind == "bpf"


def recorded(folder: Path, kind: str) -> list[str]:
    """Return the names recorded under `kind`: device, clsact, address or route."""
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
    record(folder, kind, _given(name, address, bits))


def forget_given(
    folder: Path, kind: str, name: str, address: IPv4Address | IPv6Address, bits: int
) -> None:
    """Undo `record_given`."""
    forget(folder, kind, _given(name, address, bits))


def _given(name: str, address: IPv4Address | IPv6Address, bits: int) -> str:
    return f"{name}~{address.packed.hex()}~{bits}"


def given(entry: str) -> tuple[str, str]:
    """Return the interface and the address/bits in an entry of `record_given`."""
    name, packed, bits = entry.split("~")
    return name, f"{ip_address(bytes.fromhex(packed))}/{bits}"


def forget(folder: Path, kind: str, name: str) -> None:
    """Undo `record`."""
    with contextlib.suppress(FileNotFoundError):
        (folder / f"{kind}-{name}").rmdir()


def _entries(folder: Path) -> Iterator[Path]:
    """Yield pins and folders of pins; leave out records and the kernel's own entries."""
    for entry in folder.iterdir():
        if entry.name not in _KERNELS and not entry.name.startswith(_RECORDS):
            yield entry


def clear(folder: Path) -> list[str]:
    """Remove every pin, which detaches links; records stay. Return the removed names in order."""
    if not folder.is_dir():
        return []
    names = sorted(
        (entry.name for entry in _entries(folder)),
        key=lambda name: (not name.startswith("link_"), name),
    )
    return [removed for name in names for removed in remove(folder / name)]


def remove(path: Path) -> list[str]:
    """Remove a pin, or a folder of pins with its contents. Return the removed names."""
    if not path.is_dir():
        path.unlink()
        return [path.name]
    below = sorted(path.iterdir(), key=lambda entry: (entry.is_dir(), entry.name))
    removed = [f"{path.name}/{name}" for entry in below for name in remove(entry)]
    path.rmdir()
    return removed or [path.name]


def layout(folder: Path, key: str) -> Path:
    """Return the final place of a layout's maps."""
    return folder / f"layout-{key}"


def code(layout_folder: Path, key: str) -> Path:
    """Return the final place of programs."""
    return layout_folder / f"code-{key}"


def draft(folder: Path) -> Path:
    """Make an empty folder in which to build `folder`; `complete` renames it."""
    path = folder.with_name(f"building-{folder.name}")
    if path.is_dir():
        remove(path)
    path.mkdir()
    return path


def complete(path: Path) -> Path:
    """Give a draft its final name in one step. Return the folder."""
    folder = path.with_name(path.name.removeprefix("building-"))
    if folder.is_dir():  # unusable, or there would be no draft
        folder.rename(folder.with_name(f"replaced-{folder.name}"))
    path.rename(folder)
    return folder


def strays(folder: Path, keep: Path) -> list[Path]:
    """Return the entries of the folder except the layout `keep`, links and records."""
    return sorted(e for e in _entries(folder) if e != keep and not e.name.startswith("link_"))


def stray_code(layout_folder: Path, keep: Path) -> list[Path]:
    """Return a layout's folders of programs except `keep`, half-made ones included."""
    return sorted(e for e in layout_folder.iterdir() if e.is_dir() and e != keep)
