# SPDX-License-Identifier: GPL-2.0-only
"""A hand-made ring buffer, laid out as in kernel/bpf/ringbuf.c."""

from __future__ import annotations

import mmap
import os
import struct

PAGE = mmap.PAGESIZE
SIZE = PAGE
BUSY, DISCARD = 1 << 31, 1 << 30


class Producer:
    """A file with the pages of a ring; the second copy of the data is a second page."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + 2 * SIZE)
        self.position = 0

    def _write(self, at: int, data: bytes) -> None:
        os.pwrite(self.fd, data, at)

    def put(self, data: bytes, flags: int = 0) -> int:
        """Add a record, and return the position of its header."""
        at = self.position % SIZE
        record = struct.pack("=II", len(data) | flags, 0) + data
        for copy in (0, SIZE):  # both mappings show the same bytes
            for i, byte in enumerate(record):
                self._write(2 * PAGE + (at + i) % SIZE + copy, bytes([byte]))
        self.position += (len(record) + 7) & ~7
        self._write(PAGE, struct.pack("=Q", self.position))
        return at

    def commit(self, at: int, length: int) -> None:
        for copy in (0, SIZE):
            self._write(2 * PAGE + at + copy, struct.pack("=I", length))

    @property
    def consumed(self) -> int:
        value: int = struct.unpack("=Q", os.pread(self.fd, 8, 0))[0]
        return value
