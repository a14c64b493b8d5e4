# SPDX-License-Identifier: GPL-2.0-only
"""What is remembered of a lab: /run/mrcd-lab/<name>/, and how it can fail.

lab.json is written before the first namespace is made, so that `lab down` can
clean up after a crash at any point; what it names, and only that, is deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from mrcd.fabric import description
from mrcd.fabric.description import Fabric
from mrcd.service import statefile

ROOT = Path("/run/mrcd-lab")
_NETNS_MARK = ROOT / ".made-run-netns"


class LabFailed(Exception):
    """The lab could not be changed as asked."""


class NoSuchElement(LabFailed):
    """There is no such lab, host or element; the message lists what there is."""


class NotPermitted(LabFailed):
    """Only root may do this."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault: `kind` is down, blackhole, loss, corrupt, rate or delay.

    `value` is parts per million for loss and corrupt, Mb/s for rate, microseconds
    for delay, else 0.
    """

    element: str
    kind: str
    value: int


@dataclass(frozen=True, slots=True)
class Lab:
    """The record of a lab: its namespaces, whether daemons run and switches mark, its faults."""

    name: str
    namespaces: tuple[str, ...]
    daemons: bool
    ecn: bool
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class HostPlaces:
    """Where the files of one host's daemon are."""

    folder: Path
    config: Path
    socket: Path
    pid: Path
    log: Path
    bpffs: Path


def folder(name: str) -> Path:
    """The folder of the lab `name`."""
    return ROOT / name


def bpffs(name: str) -> Path:
    """The lab's bpffs, where its daemons pin."""
    return folder(name) / "bpf"


def places(name: str, host: str) -> HostPlaces:
    """Where the daemon of a host keeps its files."""
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
    """Names of the labs that are up, even halfway."""
    try:
        return sorted(entry.name for entry in ROOT.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def write(lab: Lab) -> None:
    """Write the lab's record; a reader sees the old or the new one."""
    statefile.write(folder(lab.name) / "lab.json", asdict(lab))


def read(name: str) -> Lab:
    """The record of a lab; NoSuchElement lists the labs there are."""
    try:
        data = json.loads((folder(name) / "lab.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchElement(f"no lab {name!r} is up; {_known_labs()}") from None
    return Lab(
        name=data["name"],
        namespaces=tuple(data["namespaces"]),
        daemons=data["daemons"],
        ecn=data.get("ecn", False),  # absent: made before switches marked
        faults=tuple(Fault(**fault) for fault in data["faults"]),
    )


def read_fabric(name: str) -> Fabric:
    """The fabric of a lab that is up."""
    read(name)
    return description.load(folder(name) / "fabric.toml")


def _known_labs() -> str:
    known = labs()
    if known:
        return "there is " + ", ".join(known)
    return "`mrcctl lab up` makes one"


def require_root() -> None:
    """NotPermitted unless this process may make namespaces."""
    if os.geteuid() != 0:
        raise NotPermitted("labs are made of network namespaces: run this as root")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; it leaves nothing behind."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def mark_run_netns() -> None:
    """Remember that a lab made the mount on /run/netns."""
    ROOT.mkdir(mode=0o755, exist_ok=True)
    _NETNS_MARK.touch()


def forget_root() -> bool:
    """Remove the root folder after the last lab; True if /run/netns was ours."""
    if labs() or not ROOT.is_dir():
        return False
    marked = _NETNS_MARK.exists()
    _NETNS_MARK.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        ROOT.rmdir()
    return marked
