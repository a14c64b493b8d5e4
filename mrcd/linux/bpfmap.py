# SPDX-License-Identifier: GPL-2.0-only
"""Create BPF maps and describe them, with the BTF of their contents.

A map whose values hold a `struct bpf_spin_lock` needs BTF: the kernel finds the lock by its type.
Source: `union bpf_attr`, `struct bpf_map_info` and `struct bpf_btf_info` in
include/uapi/linux/bpf.h of Linux 6.1 and later.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path

from mrcd.linux import bpf

_BTF_LOAD = 18
_MAP_INFO_BYTES = 88
_BTF_INFO_BYTES = 32


@dataclass(frozen=True, slots=True)
class MapDescription:
    """A map as the kernel describes it. Sizes are in bytes; BTF numbers are 0 without BTF."""

    kind: int
    key_size: int
    value_size: int
    entries: int
    flags: int
    btf_id: int
    btf_key_type: int
    btf_value_type: int


def described(fd: int) -> MapDescription:
    """Return the description of a map; BpfError when the descriptor is no map's."""
    info = ctypes.create_string_buffer(_MAP_INFO_BYTES)
    bpf.call(
        bpf.OBJ_GET_INFO_BY_FD,
        struct.pack("=IIQ", fd, _MAP_INFO_BYTES, bpf.address_of(info)),
        "map info",
    )
    kind, _ident, key_size, value_size, entries, flags = struct.unpack_from("=6I", info.raw, 0)
    btf_id, key_type, value_type = struct.unpack_from("=3I", info.raw, 64)
    return MapDescription(kind, key_size, value_size, entries, flags, btf_id, key_type, value_type)


def memory(fd: int) -> int:
    """Return the bytes of memory that a map of this process takes (bpf_map_show_fdinfo)."""
    rows = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next((int(row.split()[1]) for row in rows if row.startswith("memlock:")), 0)


def create(name: str, wanted: MapDescription, btf_fd: int = 0) -> int:
    """Create a map, empty or all zeros; return its descriptor.

    `btf_fd` is the descriptor of the BTF in which the description's types stand, 0 for none; the
    description's own `btf_id` is not looked at. Raises BpfError.
    """
    typed = btf_fd and wanted.btf_value_type
    attr = struct.pack(
        "=7I16s5I",
        wanted.kind,
        wanted.key_size,
        wanted.value_size,
        wanted.entries,
        wanted.flags,
        0,  # no inner map
        0,  # any NUMA node
        name.encode()[:15],
        0,  # no offload device
        btf_fd if typed else 0,
        wanted.btf_key_type if typed else 0,
        wanted.btf_value_type if typed else 0,
        0,
    )
    return bpf.call(bpf.MAP_CREATE, attr, f"create map {name}")


def load_btf(blob: bytes) -> int:
    """Give BTF to the kernel; return its descriptor. Raises BpfError."""
    raw = ctypes.create_string_buffer(blob, len(blob))
    attr = struct.pack("=QQIII", bpf.address_of(raw), 0, len(blob), 0, 0)
    return bpf.call(_BTF_LOAD, attr, "load BTF")


def btf_of(fd: int) -> tuple[int, bytes]:
    """Return the kernel's number of the BTF behind a descriptor, and the BTF. Raises BpfError."""

    def ask(blob: ctypes.Array[ctypes.c_char] | None) -> tuple[int, int]:
        place, room = (bpf.address_of(blob), len(blob)) if blob is not None else (0, 0)
        info = ctypes.create_string_buffer(
            struct.pack("=QII", place, room, 0).ljust(_BTF_INFO_BYTES, b"\0"), _BTF_INFO_BYTES
        )
        attr = struct.pack("=IIQ", fd, _BTF_INFO_BYTES, bpf.address_of(info))
        bpf.call(bpf.OBJ_GET_INFO_BY_FD, attr, "BTF info")
        size, ident = struct.unpack_from("=II", info.raw, 8)
        return size, ident

    size, ident = ask(None)
    blob = ctypes.create_string_buffer(size)
    ask(blob)
    return ident, blob.raw
