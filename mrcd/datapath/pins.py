# SPDX-License-Identifier: GPL-2.0-only
"""The folder in a bpffs where the data path lives: maps, programs, links.

What is pinned stays when the daemon dies:

    link_xdp_NAME, link_tc_NAME   what holds a program on an interface
    layout-KEY/                   the maps of one layout (mrcd/datapath/sizes.py)
    layout-KEY/code-KEY/          programs that use them

A folder is made under the name building-KEY and gets its own when it is complete, so what has the
name is whole. Empty folders record what else must be undone: "device-NAME", an interface of ours;
"clsact-NAME", a filter on it; "address-NAME~HEX~BITS" and "route-NAME~HEX~BITS", what an interface
was given.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from mrcd.linux import mounts

PRIO = 4971
"""Priority of our clsact filters."""
_RECORDS = ("device-", "clsact-", "address-", "route-")
_KERNELS = ("maps.debug", "progs.debug")  # the kernel's own, at the top of a bpffs


class PinError(Exception):
    """The pin folder cannot be used; the message says where and why."""


def prepare(folder: Path) -> None:
    """Make `folder` an empty folder of a bpffs, mounting one over it where there is none."""
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


def is_bpffs(folder: Path) -> bool:
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
    record(folder, kind, _given(name, address, bits))


def forget_given(
    folder: Path, kind: str, name: str, address: IPv4Address | IPv6Address, bits: int
) -> None:
    """The opposite of `record_given`."""
    forget(folder, kind, _given(name, address, bits))


def _given(name: str, address: IPv4Address | IPv6Address, bits: int) -> str:
    return f"{name}~{address.packed.hex()}~{bits}"


def given(entry: str) -> tuple[str, str]:
    """The interface and the address/bits of what `record_given` wrote down."""
    name, packed, bits = entry.split("~")
    return name, f"{ip_address(bytes.fromhex(packed))}/{bits}"


def forget(folder: Path, kind: str, name: str) -> None:
    """The opposite of `record`."""
    with contextlib.suppress(FileNotFoundError):
        (folder / f"{kind}-{name}").rmdir()


def _entries(folder: Path) -> Iterator[Path]:
    """What is pinned in a folder, and folders of pins; neither records nor what is the kernel's."""
    for entry in folder.iterdir():
        if entry.name not in _KERNELS and not entry.name.startswith(_RECORDS):
            yield entry


def clear(folder: Path) -> list[str]:
    """Remove every pin; links detach by it. Records stay. Returns what was removed, in order."""
    if not folder.is_dir():
        return []
    names = sorted(
        (entry.name for entry in _entries(folder)),
        key=lambda name: (not name.startswith("link_"), name),
    )
    return [removed for name in names for removed in remove(folder / name)]


def remove(path: Path) -> list[str]:
    """Remove a pin, or a folder of pins with all that is in it; the names of what was removed."""
    if not path.is_dir():
        path.unlink()
        return [path.name]
    below = sorted(path.iterdir(), key=lambda entry: (entry.is_dir(), entry.name))
    removed = [f"{path.name}/{name}" for entry in below for name in remove(entry)]
    path.rmdir()
    return removed or [path.name]


def layout(folder: Path, key: str) -> Path:
    """Where the maps of a layout are, when they are complete."""
    return folder / f"layout-{key}"


def code(layout_folder: Path, key: str) -> Path:
    """Where programs are, when they are complete."""
    return layout_folder / f"code-{key}"


def draft(folder: Path) -> Path:
    """An empty folder under whose name `folder` can be filled; `complete` then renames it."""
    path = folder.with_name(f"building-{folder.name}")
    if path.is_dir():
        remove(path)
    path.mkdir()
    return path


def complete(path: Path) -> Path:
    """Give what was made in a draft its name, in one step. The folder as it is then."""
    folder = path.with_name(path.name.removeprefix("building-"))
    if folder.is_dir():  # one that cannot be used any more, or it would not have been made again
        folder.rename(folder.with_name(f"replaced-{folder.name}"))
    path.rename(folder)
    return folder


def strays(folder: Path, keep: Path) -> list[Path]:
    """What lies in the folder and belongs to no layout but `keep`: links and records aside."""
    return sorted(e for e in _entries(folder) if e != keep and not e.name.startswith("link_"))


def stray_code(layout_folder: Path, keep: Path) -> list[Path]:
    """Programs of a layout that are not `keep`, half-made ones among them."""
    return sorted(e for e in layout_folder.iterdir() if e.is_dir() and e != keep)
