# SPDX-License-Identifier: GPL-2.0-only
"""The record of a lab in /run/mrcd-lab/<name>/, and the exceptions of labs.

lab.json is written before the first namespace is created, so that `lab down` can clean up after a
crash at any point. It deletes only what lab.json names.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.lab import shape
from cli.lab.shape import Shape
from mrcd.fabric import description
from mrcd.fabric.description import Fabric
from mrcd.service import statefile

ROOT = Path("/run/mrcd-lab")
CACHE_DIR = Path("/var/cache/mrcd-lab")
"""Compiled programs, for all labs of this machine; they outlive a lab and may be removed."""
SHAPE = "shape.toml"
"""The file in the folder of a lab that has a shape and no fabric."""
_NETNS_MARK = ROOT / ".made-run-netns"


class LabFailed(Exception):
    """The lab could not be changed as asked."""


class NoSuchElement(LabFailed):
    """There is no such lab, host or element; the message lists what exists."""


class NotPermitted(LabFailed):
    """The operation needs root."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault: `kind` is down, blackhole, loss, corrupt, rate or delay.

    `value` is in parts per million for loss and corrupt, in Mb/s for rate, in microseconds for
    delay, and 0 otherwise.
    """

    element: str
    kind: str
    value: int


@dataclass(frozen=True, slots=True)
class Lab:
    """The record of a lab: its namespaces, whether daemons run and switches mark, its faults.

    `queues` and `qdisc` say of what kind the hosts' NICs are (multiqueue.py).
    """

    name: str
    namespaces: tuple[str, ...]
    daemons: bool
    ecn: bool
    faults: tuple[Fault, ...]
    queues: int = 1
    qdisc: str = ""


@dataclass(frozen=True, slots=True)
class HostPlaces:
    """The paths of the files of one host's daemon."""

    folder: Path
    config: Path
    socket: Path
    pid: Path
    log: Path
    bpffs: Path


def folder(name: str) -> Path:
    """Return the folder of the lab `name`."""
    return ROOT / name


def bpffs(name: str) -> Path:
    """Return the path of the lab's bpffs, where its daemons pin objects."""
    return folder(name) / "bpf"


def secret(name: str) -> Path:
    """Return the path of the secret that all hosts of the lab share."""
    return folder(name) / "fabric.secret"


def places(name: str, host: str) -> HostPlaces:
    """Return the paths of the files of a host's daemon."""
    home = folder(name) / host
    return HostPlaces(
        folder=home,
        config=home / "mrcd.toml",
        socket=home / "mrcd.sock",
        pid=home / "mrcd.pid",
        log=home / "mrcd.log",
        bpffs=bpffs(name) / host,
    )


def labs() -> list[str]:
    """Return the names of the labs that are up, even partly."""
    try:
        return sorted(entry.name for entry in ROOT.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def write(lab: Lab) -> None:
    """Replace the lab's record; a reader sees the old or the new one."""
    statefile.write(folder(lab.name) / "lab.json", asdict(lab))


def read(name: str) -> Lab:
    """Return the record of a lab; raises NoSuchElement with the existing labs."""
    try:
        data = json.loads((folder(name) / "lab.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchElement(f"no lab {name!r} is up; {_known_labs()}") from None
    return Lab(
        name=data["name"],
        namespaces=tuple(data["namespaces"]),
        daemons=data["daemons"],
        ecn=data.get("ecn", False),  # absent if built before switches could mark
        faults=tuple(Fault(**fault) for fault in data["faults"]),
        queues=data.get("queues", 1),  # absent if built before NICs could have several
        qdisc=data.get("qdisc", ""),
    )


def read_shape(name: str) -> Shape | None:
    """Return the shape of a lab that is up; None if it has a fabric instead."""
    read(name)
    file = folder(name) / SHAPE
    with contextlib.suppress(FileNotFoundError):
        return shape.parse(file.read_text(), file, name=name)
    return None


def read_fabric(name: str) -> Fabric:
    """Return the fabric of a lab that is up; raises NoSuchElement if it has none."""
    if read_shape(name) is not None:
        raise NoSuchElement(f"lab {name} has no fabric: it was built with --shape")
    return description.load(folder(name) / "fabric.toml")


def _known_labs() -> str:
    known = labs()
    if known:
        return "known: " + ", ".join(known)
    return "`mrcctl lab up` makes one"


def require_root() -> None:
    """Raise NotPermitted unless this process may create namespaces."""
    if os.geteuid() != 0:
        raise NotPermitted("labs are made of network namespaces: run this as root")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, without a lock file."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def mark_run_netns() -> None:
    """Record that a lab created the mount on /run/netns."""
    ROOT.mkdir(mode=0o755, exist_ok=True)
    _NETNS_MARK.touch()


def forget_root() -> bool:
    """Remove the root folder after the last lab; return whether a lab created /run/netns."""
    if labs() or not ROOT.is_dir():
        return False
    marked = _NETNS_MARK.exists()
    _NETNS_MARK.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        ROOT.rmdir()
    return marked
