# SPDX-License-Identifier: GPL-2.0-only
"""Many map entries in one system call.

With one call for each entry, most of the time goes into the calls themselves.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator, Mapping

from mrcd.linux import bpf

_AT_ONCE = 4096
"""Entries written by one call: its buffers take some megabytes at most."""
_ROWS = 1024
"""Entries that `rows` reads by one call."""
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, 524)  # 524 is ENOTSUPP, internal to the kernel


def lookup(map_fd: int, first: int, count: int, value_size: int) -> list[bytes]:
    """Return the values first .. first + count - 1 of an array map, by one system call."""
    if count == 0:
        return []
    start = ctypes.create_string_buffer(struct.pack("=I", max(first - 1, 0)), 4)
    out = ctypes.create_string_buffer(4)
    key_buf = ctypes.create_string_buffer(4 * count)
    value_buf = ctypes.create_string_buffer(value_size * count)
    packed = _attr(map_fd, count, key_buf, value_buf, start if first else None, out)
    # The kernel writes the number of entries found into the attribute.
    attr = ctypes.create_string_buffer(packed.ljust(bpf.ATTR_SIZE, b"\0"), bpf.ATTR_SIZE)
    try:
        bpf.call(bpf.MAP_LOOKUP_BATCH, attr, "map batch look-up")
    except bpf.BpfError as error:
        if error.errno != errno.ENOENT:
            raise
    got = struct.unpack_from("=I", attr.raw, 32)[0]
    raw = value_buf.raw
    return [raw[i * value_size : (i + 1) * value_size] for i in range(got)]


def rows(map_fd: int, indices: range, value_size: int) -> Iterator[bytes]:
    """Yield the values of a range of indices in steps of 1, with little memory for any number."""
    for first in range(indices.start, indices.stop, _ROWS):
        yield from lookup(map_fd, first, min(_ROWS, indices.stop - first), value_size)


def update(map_fd: int, entries: Mapping[bytes, bytes]) -> None:
    """Write entries of an array, hash or prefix map, in place of those with the same keys.

    Keys and values have the map's sizes. Where the kernel has no batches for a map, its entries
    are written one by one.
    """
    items = list(entries.items())
    for at in range(0, len(items), _AT_ONCE):
        some = items[at : at + _AT_ONCE]
        try:
            _update(map_fd, some)
        except bpf.BpfError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            for key, value in some:
                bpf.update(map_fd, key, value)


def update_array(map_fd: int, first: int, values: list[bytes]) -> None:
    """Write values first, first + 1, ... of an array map."""
    keys = (struct.pack("=I", first + i) for i in range(len(values)))
    update(map_fd, dict(zip(keys, values, strict=True)))


def _update(map_fd: int, items: list[tuple[bytes, bytes]]) -> None:
    keys = b"".join(key for key, _value in items)
    values = b"".join(value for _key, value in items)
    key_buf = ctypes.create_string_buffer(keys, len(keys))
    value_buf = ctypes.create_string_buffer(values, len(values))
    attr = _attr(map_fd, len(items), key_buf, value_buf)
    bpf.call(bpf.MAP_UPDATE_BATCH, attr, "map batch update")


_Buffer = ctypes.Array[ctypes.c_char]


def _attr(
    map_fd: int,
    count: int,
    keys: _Buffer,
    values: _Buffer,
    start: _Buffer | None = None,
    end: _Buffer | None = None,
) -> bytes:
    """Return the member "batch" of union bpf_attr.

    The kernel begins after the key in `start`, and writes the key where it ended into `end`.
    """
    at = [0 if buf is None else bpf.address_of(buf) for buf in (start, end, keys, values)]
    return struct.pack("=QQQQIIQQ", *at, count, map_fd, 0, 0)
