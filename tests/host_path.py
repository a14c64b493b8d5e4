# SPDX-License-Identifier: GPL-2.0-only
"""Compile bpf/path.h and pick.h for the host. Their functions take structs instead of maps, so they
run anywhere."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from mrcd.wire.abi import ABI

_WRAPPERS = """
#include <linux/types.h>
typedef __u32 u32; typedef __u64 u64; typedef __s32 s32;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
struct bpf_spin_lock { __u32 val; };
#include "mrc_abi.h"
#include "bits.h"
#include "path.h"
#include "pick.h"
u32 host_next(u32 state, u32 event) { return path_next(state, event); }
u32 host_state(const struct mrc_tx *tx, u32 id) { return path_state(tx, id); }
u32 host_slot(u64 low, u64 high, u32 from) { return next_slot(low, high, from); }
void host_enter(struct mrc_tx *tx, u32 id, u32 to) { path_enter(tx, id, to); }
u32 host_pick(struct mrc_tx *tx, u64 planes, u64 preferred, u64 shares, u32 price)
{ return pick_path(tx, planes, preferred, shares, price); }
u32 host_serving(const struct mrc_tx *tx, u64 up, u64 spare)
{ return serving_planes(tx, up, spare); }
void host_plane_lost(struct mrc_tx *tx, u32 plane, u64 sent, u64 now)
{ plane_lost(tx, plane, sent, now); }
void host_plane_heard(struct mrc_tx *tx, u32 plane, u64 sent) { plane_heard(tx, plane, sent); }
u32 host_lost(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now, const struct mrc_host *h,
          u32 alive)
{ struct path_move m; path_lost(tx, path, id, now, h, alive, 0, &m); return m.from << 8 | m.to; }
u32 host_answered(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now, u32 marked)
{ struct path_move m; path_answered(tx, path, id, now, marked, 0, &m); return m.from << 8 | m.to; }
u32 host_cleared(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now)
{ struct path_move m = {}; path_cleared(tx, path, id, now, &m); return m.from << 8 | m.to; }
u32 host_silent(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now,
          const struct mrc_host *h)
{ struct path_move m; path_silent(tx, path, id, now, h, &m); return m.from << 8 | m.to; }
u32 host_marked(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now)
{ struct path_move m; return path_marked(tx, path, id, now, &m); }
"""
_U32, _U64, _PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_ARGUMENTS = {
    "host_next": (_U32, _U32),
    "host_state": (_PTR, _U32),
    "host_slot": (_U64, _U64, _U32),
    "host_enter": (_PTR, _U32, _U32),
    "host_pick": (_PTR, _U64, _U64, _U64, _U32),
    "host_serving": (_PTR, _U64, _U64),
    "host_plane_lost": (_PTR, _U32, _U64, _U64),
    "host_plane_heard": (_PTR, _U32, _U64),
    "host_lost": (_PTR, _PTR, _U32, _U64, _PTR, _U32),
    "host_answered": (_PTR, _PTR, _U32, _U64, _U32),
    "host_cleared": (_PTR, _PTR, _U32, _U64),
    "host_marked": (_PTR, _PTR, _U32, _U64),
    "host_silent": (_PTR, _PTR, _U32, _U64, _PTR),
}

_WITHOUT_RESULT = {"host_enter", "host_plane_lost", "host_plane_heard"}


def compiled(
    folder: Path,
    source: str,
    arguments: Mapping[str, tuple[type, ...]],
    without_result: Collection[str] = (),
) -> ctypes.CDLL:
    """Compile functions for the host, with undefined behaviour trapped.

    Return them with the types of their `arguments`; results are 32 bits wide, or there are none.
    """
    text, library = folder / "host.c", folder / "host.so"
    text.write_text(source)
    subprocess.run(
        ["gcc", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC",
         "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error",
         f"-I{ABI.path.parent}", "-o", library, text],
        check=True, timeout=60,
    )  # fmt: skip
    built = ctypes.CDLL(str(library))
    for name, types in arguments.items():
        function = getattr(built, name)
        function.argtypes = types
        function.restype = None if name in without_result else _U32
    return built


def build(folder: Path) -> ctypes.CDLL:
    """Compile `_WRAPPERS`, and return its functions with their types."""
    return compiled(folder, _WRAPPERS, _ARGUMENTS, _WITHOUT_RESULT)


class Memory:
    """A struct of mrc_abi.h in memory that C code may change."""

    def __init__(self, kind: str, **values: int | tuple[int, ...]) -> None:
        self._kind = ABI.structs[kind]
        self._bytes = ctypes.create_string_buffer(self._kind.pack(**values), self._kind.size)

    @property
    def at(self) -> int:
        return ctypes.addressof(self._bytes)

    def read(self) -> dict[str, int]:
        return self._kind.unpack(self._bytes.raw)

    def array(self, name: str) -> tuple[int, ...]:
        return self._kind.unpack_array(self._bytes.raw, name)

    def change(self, **values: int | tuple[int, ...]) -> None:
        old: dict[str, int | tuple[int, ...]] = dict(self.read())
        for each in self._kind.fields.values():
            if each.count > 1:
                old[each.name] = self.array(each.name)
        self._bytes.raw = self._kind.pack(**{**old, **values})
