# SPDX-License-Identifier: GPL-2.0-only
"""Read constants, comments and struct layouts from the project's C headers.

The headers are parsed, never copied into Python by hand. cffi's ABI mode does the parsing, so
nothing is compiled. This module reads bpf/mrc_wire.h; mrcd/wire/abi.py reads bpf/mrc_abi.h.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cffi  # type: ignore[import-untyped]

from mrcd.wire.sources import bpf_dir

_DEFINE = re.compile(r"^#define[ \t]+(\w+)[ \t]+(0[xX][0-9a-fA-F]+|\d+)[uUlL]*[ \t]*$", re.M)
_COMMENTED = re.compile(r"^#define[ \t]+(\w+)[ \t]+\w+[ \t]+/\*((?:[^*]|\*(?!/))*)\*/", re.M)
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_TYPEDEFS = """
typedef uint8_t __u8; typedef uint16_t __u16; typedef uint32_t __u32; typedef uint64_t __u64;
typedef int8_t __s8; typedef int16_t __s16; typedef int32_t __s32; typedef int64_t __s64;
struct bpf_spin_lock { __u32 val; };
"""


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a C struct; `count` is 1 unless the member is an array.

    Sizes and offsets are in bytes.
    """

    name: str
    offset: int
    item_size: int
    count: int

    @property
    def size(self) -> int:
        """The size of the whole member in bytes."""
        return self.item_size * self.count


@dataclass(frozen=True, slots=True)
class Struct:
    """The layout of one C struct, and a codec for it. All integers are unsigned."""

    name: str
    size: int
    fields: Mapping[str, Field]
    byteorder: Literal["big", "little"]

    def pack(self, **values: int | tuple[int, ...]) -> bytes:
        """Encode the struct; padding and members that are not given are zero.

        Raises ValueError for a number that does not fit and KeyError for an unknown member.
        """
        data = bytearray(self.size)
        for name, value in values.items():
            field = self.fields[name]
            items = value if isinstance(value, tuple) else (value,)
            if len(items) != field.count:
                raise ValueError(f"{self.name}.{name}: {len(items)} items, not {field.count}")
            try:
                raw = b"".join(item.to_bytes(field.item_size, self.byteorder) for item in items)
            except OverflowError:
                raise ValueError(f"{value} does not fit into {self.name}.{name}") from None
            data[field.offset : field.offset + field.size] = raw
        return bytes(data)

    def unpack(self, data: bytes, at: int = 0) -> dict[str, int]:
        """Return the plain integer members by name; raises ValueError when `data` is too short."""
        if len(data) - at < self.size:
            raise ValueError(f"{len(data) - at} bytes are too short for {self.name}")
        return {
            field.name: self._item(data, at + field.offset, field.item_size)
            for field in self.fields.values()
            if field.count == 1
        }

    def unpack_array(self, data: bytes, name: str, at: int = 0) -> tuple[int, ...]:
        """Return the items of the array member `name`."""
        field = self.fields[name]
        start = at + field.offset
        steps = range(start, start + field.size, field.item_size)
        return tuple(self._item(data, step, field.item_size) for step in steps)

    def _item(self, data: bytes, at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], self.byteorder)


def picker(kind: Struct, *names: str) -> Callable[[bytes], tuple[int, ...]]:
    """Return a function that reads these plain members of a struct without unpacking the rest.

    ValueError unless the names are in the order of their offsets.
    """
    layout, at = "=", 0
    for name in names:
        member = kind.fields[name]
        if member.offset < at or member.count != 1:
            raise ValueError(f"{kind.name}.{name}: not a plain member behind the one before")
        layout += f"{member.offset - at}x{ {1: 'B', 2: 'H', 4: 'I', 8: 'Q'}[member.size] }"
        at = member.offset + member.size
    return struct.Struct(layout).unpack_from


def words(address: bytes) -> tuple[int, ...]:
    """Return an IPv6 address as four words whose bytes in memory are the address."""
    return struct.unpack("=4I", address)


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of one C header: integer constants, the comments beside them, structs.

    The constants are also attributes.
    """

    path: Path
    constants: Mapping[str, int]
    comments: Mapping[str, str]
    structs: Mapping[str, Struct]

    def __getattr__(self, name: str) -> int:
        try:
            return self.constants[name]
        except KeyError:
            raise AttributeError(f"{self.path} defines no {name}") from None


def read_header(path: Path, byteorder: Literal["big", "little"] = sys.byteorder) -> Header:
    """Read a header of "#define NAME integer" lines and structs of fixed-width integers.

    Include guards and includes are skipped. `byteorder` applies to the struct codecs.
    """
    text = path.read_text(encoding="utf-8")
    bare = _COMMENT.sub("", text)
    constants = {name: int(value, 0) for name, value in _DEFINE.findall(bare)}
    comments = {
        name: " ".join(re.sub(r"\n\s*\*", " ", comment).split())
        for name, comment in _COMMENTED.findall(text)
    }
    declarations = re.sub(r"^[ \t]*#.*$", "", bare, flags=re.M)
    declarations = re.sub(
        r"\[(\w+)\]", lambda found: f"[{constants.get(found[1], found[1])}]", declarations
    )
    ffi = cffi.FFI()
    ffi.cdef(_TYPEDEFS + declarations)
    names = re.findall(r"^struct (\w+) \{", declarations, re.M)
    return Header(path, constants, comments, {n: _layout(ffi, n, byteorder) for n in names})


def _layout(ffi: cffi.FFI, name: str, byteorder: Literal["big", "little"]) -> Struct:
    kind = ffi.typeof(f"struct {name}")
    fields = {}
    for member, info in kind.fields:
        is_array = info.type.kind == "array"
        item = info.type.item if is_array else info.type
        count = info.type.length if is_array else 1
        fields[member] = Field(member, info.offset, ffi.sizeof(item), count)
    return Struct(name, ffi.sizeof(kind), fields, byteorder)


WIRE = read_header(bpf_dir() / "mrc_wire.h", "big")
"""The layouts and constants of packets on the wire."""
