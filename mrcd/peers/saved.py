# SPDX-License-Identifier: GPL-2.0-only
"""Sessions as they are remembered across a restart of the daemon.

QPs live in the maps; what a session knows beside them (sids, epochs, the peer's Offer) is in one
file of the state folder. It means something only for the maps of one boot that it was written for,
so it names them by the kernel's number. A file that is missing, damaged or of other maps is no
error: the sessions it should have held begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mrcd.handshake import Memory
from mrcd.service import statefile
from mrcd.service.log import get_logger

log = get_logger()

NAME = "sessions.json"
VERSION = 1
ID_LEAP = 256
"""Added to the number of the last Port Status Update: some may have left unrecorded."""


class Saved(msgspec.Struct, frozen=True):
    """The file. `maps` is the kernel's number of the map `qps`, `update_id` that of PortUpdates."""

    version: int
    boot: str
    maps: int
    update_id: int
    sessions: dict[str, Memory]


def boot_id() -> str:
    """What the kernel calls this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def encode(saved: Saved) -> bytes:
    """The file's content."""
    return msgspec.json.encode(saved)


def decode(data: bytes) -> Saved:
    """The opposite of `encode`; ValueError with the reason when it is no such file."""
    try:
        saved = msgspec.json.decode(data, type=Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a file of sessions: {error}") from None
    if saved.version != VERSION:
        raise ValueError(f"version {saved.version}, this build writes {VERSION}")
    return saved


def load(folder: Path, maps: int) -> Saved:
    """What was remembered for these maps; nothing where there is nothing that fits."""
    nothing = Saved(VERSION, boot_id(), maps, 0, {})
    path = folder / NAME
    try:
        saved = decode(path.read_bytes())
    except FileNotFoundError:
        return nothing
    except (OSError, ValueError) as error:
        log.warning("sessions.ignored", path=str(path), reason=str(error))
        return nothing
    if (saved.boot, saved.maps) != (nothing.boot, maps):
        return nothing  # of a data path that is gone
    return saved


def save(folder: Path, maps: int, update_id: int, sessions: Mapping[str, Memory]) -> None:
    """Replace the file in one step. It need not survive a power cut: the maps do not."""
    saved = Saved(VERSION, boot_id(), maps, update_id, dict(sessions))
    statefile.replace(folder / NAME, encode(saved), durable=False)
