# SPDX-License-Identifier: GPL-2.0-only
"""Take down what `mrcctl quick up` has brought up, whatever has become of it since.

The folder's file `places` tells where it is. The files are removed last, so that a later attempt
finds them as long as anything is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket as sockets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from cli.console.exits import CommandError
from cli.host.datapath import DEFAULT_BPFFS
from mrcd.model import DetachReport

LOWER = "mrc0p"
"""An interface that is there whenever mrc0 is, under a name that nothing else has."""
END_S = 15.0
"""The time that mrcd gets to end by itself. It is killed after that."""
_OWN_NETNS = "/proc/self/ns/net"
_AGAIN = "then run `mrcctl quick down` again"


@dataclass(frozen=True, slots=True)
class Places:
    """Where `quick up` was run: the control socket, the folder of pins, the network namespace."""

    socket: str
    bpffs: str = str(DEFAULT_BPFFS)
    netns: int = 0  # its inode; 0 if unknown


def here(socket: str, bpffs: str | None) -> Places:
    """Return the places of a `quick up` that runs now."""
    return Places(
        os.path.abspath(socket),
        os.path.abspath(bpffs or DEFAULT_BPFFS),
        os.stat(_OWN_NETNS).st_ino,
    )


def write(folder: Path, places: Places, down: Sequence[str]) -> None:
    """Note the places, and the NICs that were down, before anything changes."""
    (folder / "places").write_text(json.dumps(asdict(places)))
    (folder / "links").write_text(json.dumps(list(down)))


def take_down(folder: Path, socket: str) -> None:
    """End mrcd, take down what it has left, and remove the files. CommandError if any stays."""
    places = read(folder, socket)
    _refuse_elsewhere(places)
    _end(folder)
    _detach(folder, places)
    _remove_socket(Path(places.socket))
    if failed := lower_links(_links(folder)):
        raise CommandError(f"{'; '.join(failed)}: `ip link set NIC down` by hand")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CommandError(
            f"all is down, but {error.filename} stays: {error.strerror}; `rm -r {folder}`"
        ) from error


def lower_links(nics: Sequence[str]) -> list[str]:
    """Set NICs down again, as far as they are still there. Return what failed."""
    import asyncio  # noqa: PLC0415

    from mrcd.linux.netlink import Netlink  # noqa: PLC0415

    failed: list[str] = []

    async def work() -> None:
        async with Netlink() as nl:
            for nic in nics:
                try:
                    if nl.exists(nic):
                        await nl.set_link(nic, up=False)
                except OSError as error:
                    failed.append(str(error))

    if nics:
        asyncio.run(work())
    return failed


def read(folder: Path, socket: str) -> Places:
    """Return the places that were noted. Before they are, nothing has been started."""
    try:
        return Places(**json.loads((folder / "places").read_text()))
    except (OSError, ValueError, TypeError):
        return Places(socket)


def _links(folder: Path) -> list[str]:
    try:
        return [str(nic) for nic in json.loads((folder / "links").read_text())]
    except (OSError, ValueError, TypeError):
        return []


def _refuse_elsewhere(places: Places) -> None:
    """Raise CommandError in another network namespace than that of `quick up`, if it still is."""
    if places.netns in (0, os.stat(_OWN_NETNS).st_ino):
        return
    for path in _namespaces():
        with contextlib.suppress(OSError):
            if path.stat().st_ino == places.netns:
                raise CommandError(
                    "`quick up` was run in another network namespace, and only there its "
                    f"interfaces can be removed: `nsenter --net={path} mrcctl quick down`"
                )


def _namespaces() -> Iterator[Path]:
    yield from Path("/run/netns").glob("*")
    yield from (Path(f"/proc/{pid}/ns/net") for pid in os.listdir("/proc") if pid.isdigit())


def _end(folder: Path) -> None:
    """End the mrcd of this folder, and its privileged process. CommandError if one stays."""
    from cli.lab import processes  # noqa: PLC0415

    daemons = _daemons(folder)
    # The privileged process must not end first: mrcd takes the data path down with it.
    for pids in (daemons, _helpers(folder)):
        if left := processes.stop(pids, END_S):
            shown = " ".join(map(str, left))
            raise CommandError(
                f"mrcd, process {shown}, does not end, not even by SIGKILL, and the data path "
                f"cannot be taken down while it is there: see /proc/{left[0]}/stack, {_AGAIN}"
            )


def _daemons(folder: Path) -> list[int]:
    """Return the processes that were started as `mrcd --config FOLDER/mrcd.toml ...`."""
    asked = [b"--config", os.fsencode(folder / "mrcd.toml")]
    return [
        pid
        for pid, words in _commands()
        for k, word in enumerate(words)
        if os.path.basename(word) == b"mrcd" and words[k + 1 : k + 3] == asked
    ]


def _helpers(folder: Path) -> list[int]:
    """Return the privileged processes of this folder's daemons."""
    asked = [b"-m", b"mrcd.linux.privileged.server", os.fsencode(folder / "mrcd.toml")]
    return [pid for pid, words in _commands() if words[1:4] == asked]


def _commands() -> Iterator[tuple[int, list[bytes]]]:
    """Yield all processes with the words that they were started with."""
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                yield int(pid), Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _detach(folder: Path, places: Places) -> None:
    """Take down what mrcd has left in the kernel, which is nothing if it ended as it should."""
    from mrcd.datapath import pins  # noqa: PLC0415
    from mrcd.datapath.detach import detach  # noqa: PLC0415

    bpffs = Path(places.bpffs)
    if not bpffs.is_dir() or not pins.is_bpffs(bpffs):
        _refuse_without_pins(folder, bpffs)
        return
    try:
        with pins.owned(bpffs):
            report = detach(bpffs)
    except pins.PinError as error:
        raise CommandError(
            f"another mrcd has taken over the data path of `quick up`, so nothing was changed: "
            f"{error}. When it has ended, `mrcctl quick down` takes down what it has left; if it "
            f"is to stay, `rm -r {folder}`"
        ) from error
    _tell(folder, bpffs, report)


def _refuse_without_pins(folder: Path, bpffs: Path) -> None:
    """Raise CommandError if mrc0 is there but not the pins, which say what else to take down."""
    if not (folder / "pid").exists():
        return
    with contextlib.suppress(OSError):
        sockets.if_nametoindex(LOWER)
        raise CommandError(
            f"mrc0 is there, but {bpffs} is in no bpffs here, so its programs cannot be detached: "
            "run this where `quick up` was run, not in another mount namespace"
        )


def _tell(folder: Path, bpffs: Path, report: DetachReport) -> None:
    """Say what was taken down here. CommandError if anything is left."""
    if report.detached:
        click.echo(
            f"mrcd had ended and left its data path; taken down: {', '.join(report.detached)}",
            err=True,
        )
    if report.failed:
        raise CommandError(
            f"not all is down, and {folder} stays: {'; '.join(report.failed)}; mend that, {_AGAIN}"
            f", or remove what {bpffs} lists by hand"
        )


def _remove_socket(path: Path) -> None:
    """Remove the control socket of an mrcd that could not do it itself."""
    with contextlib.suppress(OSError), sockets.socket(sockets.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
