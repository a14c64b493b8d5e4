# SPDX-License-Identifier: GPL-2.0-only
"""A reader of BPF ring buffers.

bcc's own reader raises SystemExit on the types that our events use. The layout is that of
kernel/bpf/ringbuf.c: a page with the consumer's position, a page with the producer's position, then
the data mapped twice in a row so that records never wrap.
"""

from __future__ import annotations

import mmap
import struct

_BUSY = 1 << 31
_DISCARD = 1 << 30
_HEADER = 8


class RingBuffer:
    """The events of one ring buffer map, whose descriptor is readable while there are any."""

    def __init__(self, fd: int, size: int) -> None:
        page = mmap.PAGESIZE
        self.fd = fd
        self._size = size
        self._consumer = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._data = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        # A memoryview writes a position by one store. struct.pack_into writes zeros first, and a
        # program that reserves a record at that moment would find no room.
        self._consumed = memoryview(self._consumer).cast("Q")
        self._produced = memoryview(self._data)[:8].cast("Q")

    def take(self) -> list[bytes]:
        """Take and return all complete records, oldest first."""
        events = []
        position, produced = self._consumed[0], self._produced[0]
        while position < produced:
            at = mmap.PAGESIZE + (position & (self._size - 1))
            length = struct.unpack_from("=I", self._data, at)[0]
            if length & _BUSY:
                break
            size = length & ~(_BUSY | _DISCARD)
            if not length & _DISCARD:
                events.append(self._data[at + _HEADER : at + _HEADER + size])
            position += (size + _HEADER + 7) & ~7
        self._consumed[0] = position
        return events

    def skip(self) -> None:
        """Discard all records that are there."""
        self._consumed[0] = self._produced[0]

    def close(self) -> None:
        """Unmap the buffer."""
        self._consumed.release()
        self._produced.release()
        self._consumer.close()
        self._data.close()
