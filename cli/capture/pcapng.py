# SPDX-License-Identifier: GPL-2.0-only
"""Write pcapng files: packets of several interfaces, each with a comment.

Source: draft-ietf-opsawg-pcapng. Times are nanoseconds of CLOCK_REALTIME. The byte order is the
host's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import IO

from mrcd.model import Direction

_SECTION, _INTERFACE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 5, 6
_MAGIC = 0x1A2B3C4D
_LENGTH_UNKNOWN = 0xFFFFFFFFFFFFFFFF
_ETHERNET = 1
_COMMENT, _FLAGS = 1, 2
_IF_NAME, _IF_DESCRIPTION, _IF_TSRESOL = 2, 3, 9
_IS_START, _IS_END, _IS_RECEIVED, _IS_DROPPED = 2, 3, 4, 5
_APPLICATION = 4
_NANOSECONDS = b"\x09"
_DIRECTION: dict[Direction, int] = {"rx": 1, "tx": 2}
_TEXT_MAX = 0xFFFF - 3

Option = tuple[int, bytes]


class Writer:
    """A pcapng file that is being written."""

    def __init__(
        self,
        file: IO[bytes],
        interfaces: Sequence[tuple[str, str]],
        snaplen: int,
        application: str,
        comment: str,
    ) -> None:
        """Write the header. `interfaces` are (name, description); packets refer to their index."""
        self._file = file
        self._seen = [0] * len(interfaces)
        head = struct.pack("=IHHQ", _MAGIC, 1, 0, _LENGTH_UNKNOWN)
        about = [(_COMMENT, comment.encode()), (_APPLICATION, application.encode())]
        self._put(block(_SECTION, head, about))
        for name, description in interfaces:
            options = [
                (_IF_NAME, name.encode()),
                (_IF_DESCRIPTION, description.encode()),
                (_IF_TSRESOL, _NANOSECONDS),
            ]
            self._put(block(_INTERFACE, struct.pack("=HHI", _ETHERNET, 0, snaplen), options))

    def write(
        self,
        interface: int,
        time_ns: int,
        data: bytes,
        length: int,
        direction: Direction,
        comment: str,
    ) -> None:
        """Add a packet: `data` are the bytes kept, `length` is its length on the wire."""
        self._seen[interface] += 1
        head = struct.pack(
            "=IIIII", interface, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), length
        )
        options = [
            (_COMMENT, comment.encode()[:_TEXT_MAX]),
            (_FLAGS, struct.pack("=I", _DIRECTION[direction])),
        ]
        self._put(block(_PACKET, head + padded(data), options))

    def finish(self, begun_ns: int, ended_ns: int, lost: Sequence[int]) -> None:
        """Write each interface's counts: packets captured, and packets lost to a full buffer."""
        for index, seen in enumerate(self._seen):
            head = struct.pack("=III", index, ended_ns >> 32, ended_ns & 0xFFFFFFFF)
            options = [
                (_IS_START, struct.pack("=II", begun_ns >> 32, begun_ns & 0xFFFFFFFF)),
                (_IS_END, struct.pack("=II", ended_ns >> 32, ended_ns & 0xFFFFFFFF)),
                (_IS_RECEIVED, struct.pack("=Q", seen + lost[index])),
                (_IS_DROPPED, struct.pack("=Q", lost[index])),
            ]
            self._put(block(_STATISTICS, head, options))
        self.flush()

    def flush(self) -> None:
        """Flush, so that the reader of a pipe sees the packets."""
        self._file.flush()

    def _put(self, data: bytes) -> None:
        self._file.write(data)


def padded(data: bytes) -> bytes:
    """Pad with zeros to a multiple of four bytes."""
    return data + bytes(-len(data) % 4)


def block(kind: int, body: bytes, options: Iterable[Option]) -> bytes:
    """Return a block of a body, whose length is a multiple of four bytes, and options."""
    tail = b"".join(struct.pack("=HH", code, len(value)) + padded(value) for code, value in options)
    if tail:
        tail += bytes(4)  # opt_endofopt
    length = struct.pack("=I", 12 + len(body) + len(tail))
    return struct.pack("=I", kind) + length + body + tail + length
