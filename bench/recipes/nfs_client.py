# SPDX-License-Identifier: GPL-2.0-only
"""Write to a file over NFS with libnfs: python -m bench.recipes.nfs_client URL SECONDS FOLDER.

The URL is nfs://ADDRESS/EXPORT/FILE?version=3, the file exists, and writes are synchronous.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.recipes.blocks import BYTES, WriteFailed, write_for

_LIBRARY = "libnfs.so.13"


class _Url(ctypes.Structure):
    """The parts of a URL, as in struct nfs_url of libnfs.h."""

    _fields_ = (
        ("server", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("file", ctypes.c_char_p),
    )


@dataclass(frozen=True, slots=True)
class File:
    """An open file of an export."""

    library: Any
    context: ctypes.c_void_p
    handle: ctypes.c_void_p

    def write(self, place: int, content: bytes) -> None:
        """Write one block; return when the server has it on stable storage."""
        done = self.library.nfs_pwrite(
            self.context, self.handle, ctypes.c_uint64(place * BYTES),
            ctypes.c_uint64(len(content)), content,
        )  # fmt: skip
        if done != len(content):
            raise WriteFailed(f"wrote {done} of {len(content)} bytes: {_error(self)}")


def opened(url: str) -> File:
    """Mount an export, and open a file of it for synchronous writes."""
    library = ctypes.CDLL(_LIBRARY)
    library.nfs_init_context.restype = ctypes.c_void_p
    library.nfs_get_error.restype = ctypes.c_char_p
    library.nfs_parse_url_full.restype = ctypes.POINTER(_Url)
    file = File(library, ctypes.c_void_p(library.nfs_init_context()), ctypes.c_void_p())
    parts = library.nfs_parse_url_full(file.context, url.encode())
    if not parts:
        raise WriteFailed(f"{url}: {_error(file)}")
    where = parts.contents
    if library.nfs_mount(file.context, where.server, where.path):
        raise WriteFailed(f"mount of {url}: {_error(file)}")
    flags = os.O_WRONLY | os.O_SYNC
    if library.nfs_open(file.context, where.file, flags, ctypes.byref(file.handle)):
        raise WriteFailed(f"open {url}: {_error(file)}")
    return file


def _error(file: File) -> str:
    return str(file.library.nfs_get_error(file.context).decode(errors="replace"))


def main() -> None:
    """Write for some seconds."""
    url, seconds, folder = sys.argv[1:]
    write_for(float(seconds), opened(url).write, Path(folder))


if __name__ == "__main__":
    main()
