# SPDX-License-Identifier: GPL-2.0-only
"""Save sessions so that they survive a restart of the daemon.

QPs live in the maps. The rest of a session's state (sids, epochs, the peer's Offer) is kept in one
file of the state folder. The file is valid only for the maps and the boot that it was written for,
so it records the boot id and the kernel's number of a map. A file that is missing, damaged or
written for other maps is no error: the sessions then start anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mrcd.handshake import Memory
from mrcd.handshake.channel import ChannelMemory
from mrcd.service import statefile
from mrcd.service.log import get_logger

log = get_logger()

NAME = "sessions.json"
VERSION = 2
ID_LEAP = 256
"""Added to the saved id of the last Port Status Update, because later updates may have been sent
without being saved."""


class Saved(msgspec.Struct, frozen=True):
    """The content of the file. There are no keys in it.

    `maps` is the kernel's number of the map `qps`, and `update_id` that of PortUpdates.
    """

    version: int
    boot: str
    maps: int
    update_id: int
    sessions: dict[str, Memory]
    channels: dict[str, ChannelMemory]


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def encode(saved: Saved) -> bytes:
    """Return the bytes of the file."""
    return msgspec.json.encode(saved)


def decode(data: bytes) -> Saved:
    """Reverse `encode`. Raises ValueError with the reason if the data is invalid."""
    try:
        saved = msgspec.json.decode(data, type=Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a file of sessions: {error}") from None
    if saved.version != VERSION:
        raise ValueError(f"version {saved.version}, this build writes {VERSION}")
    return saved


def load(folder: Path, maps: int) -> Saved:
    """Return the state saved for these maps, or an empty one if no valid file matches them."""
    nothing = Saved(VERSION, boot_id(), maps, 0, {}, {})
    path = folder / NAME
    try:
        saved = decode(path.read_bytes())
    except FileNotFoundError:
        return nothing
    except (OSError, ValueError) as error:
        log.warning("sessions.ignored", path=str(path), reason=str(error))
        return nothing
    if (saved.boot, saved.maps) != (nothing.boot, maps):
        return nothing  # it belongs to a data path that no longer exists
    return saved


def save(
    folder: Path,
    maps: int,
    update_id: int,
    sessions: Mapping[str, Memory],
    channels: Mapping[str, ChannelMemory],
) -> None:
    """Replace the file atomically. It need not survive a power cut, because the maps do not."""
    saved = Saved(VERSION, boot_id(), maps, update_id, dict(sessions), dict(channels))
    statefile.replace(folder / NAME, encode(saved), durable=False)
