# SPDX-License-Identifier: GPL-2.0-only
"""Keep compiled programs in a file, and make maps and programs of them without a compiler.

Compiling takes seconds and some 200 MB, and needs clang and kernel headers. The result depends on
the sources and on the constants that are compiled in, not on the running kernel or processor,
because the programs include UAPI headers only, and their structs have the same layout on every
processor of 64 bits and of the same byte order. So the instructions, the definitions of the maps
and their BTF are kept under a hash of the text and the constants. The kernel's verifier checks them
at each load.

A file is as privileged as the programs in it. One that another user could have written is ignored.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import struct
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from mrcd.linux import bpfmap
from mrcd.linux.bpfmap import MapDescription

FORMAT = 1
"""The format of the files. A file of another format is compiled anew."""
KEPT_MAX = 64
"""Files in the folder, of some 100 KB each. The one that was unused longest goes first."""
_LOCK = ".lock"
_LD_IMM64 = 0x18
_MOV_IMM = 0xB7
_PSEUDO_MAP_FD = 1
_DIGEST_BYTES = 32


class KeptMap(msgspec.Struct, frozen=True):
    """A map as the kernel is told to create it."""

    name: str
    description: MapDescription


class Bytecode(msgspec.Struct, frozen=True):
    """Compiled programs. Each reference to a map is the place of the map in `maps`."""

    maps: tuple[KeptMap, ...]
    programs: dict[str, bytes]
    btf: bytes
    format: int = FORMAT


def key_of(source: str, defines: list[str]) -> str:
    """Return the name of a compilation: of this text, with these constants, in this byte order.

    Nothing else of a processor is in the programs or in the layout of the maps.
    """
    text = "\n".join([str(FORMAT), sys.byteorder, *defines, source])
    return hashlib.sha256(text.encode()).hexdigest()


# ---- from a compiler, to a kernel ----------------------------------------------------------


def taken(programs: Mapping[str, bytes], maps: Mapping[str, int]) -> Bytecode:
    """Return what a compiler made.

    programs: instructions that refer to maps by descriptor. maps: the descriptors of all maps.
    Raises BpfError where the kernel does not describe the maps, RuntimeError where their BTF is
    out of reach.
    """
    described = {name: bpfmap.described(fd) for name, fd in maps.items()}
    places = {fd: place for place, fd in enumerate(maps.values())}
    return Bytecode(
        maps=tuple(KeptMap(name, replace(one, btf_id=0)) for name, one in described.items()),
        programs={name: pointed(insns, places) for name, insns in programs.items()},
        btf=_btf_of({one.btf_id for one in described.values()} - {0}),
    )


def make_maps(
    code: Bytecode, wanted: Collection[str], entries: Mapping[str, int]
) -> dict[str, int]:
    """Create the maps named in `wanted`, with `entries` of some; return their descriptors.

    Raises BpfError when the kernel refuses one; none is left then.
    """
    made: dict[str, int] = {}
    with contextlib.ExitStack() as always, contextlib.ExitStack() as failed:
        btf = bpfmap.load_btf(code.btf) if code.btf else 0
        if btf:
            always.callback(os.close, btf)  # the maps keep it
        for each in code.maps:
            if each.name not in wanted:
                continue
            one = each.description
            one = replace(one, entries=entries.get(each.name, one.entries))
            made[each.name] = bpfmap.create(each.name, one, btf)
            failed.callback(os.close, made[each.name])
        failed.pop_all()
    return made


def instructions(
    code: Bytecode, name: str, maps: Mapping[str, int], numbers: Mapping[int, int]
) -> bytes:
    """Return a program's instructions for these maps' descriptors, and with these numbers in it.

    Raises KeyError for no map.
    """
    places = {place: maps[each.name] for place, each in enumerate(code.maps) if each.name in maps}
    return pointed(code.programs[name], places, numbers)


def pointed(
    insns: bytes, targets: Mapping[int, int], numbers: Mapping[int, int] | None = None
) -> bytes:
    """Return instructions with each reference to a map replaced by its target.

    `numbers` replace what stands for them. Raises KeyError for a reference without a target.
    """
    out = bytearray(insns)
    at = 0
    while at < len(out):
        code, registers, _offset, imm = struct.unpack_from("=BBhi", out, at)
        if code == _LD_IMM64:
            if registers >> 4 == _PSEUDO_MAP_FD:
                struct.pack_into("=i", out, at + 4, targets[imm])
            at += 8  # a wide instruction takes two
        elif code == _MOV_IMM and numbers and imm in numbers:
            struct.pack_into("=i", out, at + 4, numbers[imm])
        at += 8
    return bytes(out)


def _btf_of(idents: set[int]) -> bytes:
    """Return the BTF of the compiler's maps, which this process still holds open.

    The kernel gives BTF by number to CAP_SYS_ADMIN only. The compiler's descriptor is in this
    process, so no such right is needed.
    """
    if not idents:
        return b""
    (ident,) = idents
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "btf" in os.readlink(f"/proc/self/fd/{entry}"):
                found, blob = bpfmap.btf_of(int(entry))
                if found == ident:
                    return blob
    raise RuntimeError(f"the compiler keeps BTF {ident} to itself")


# ---- files ---------------------------------------------------------------------------------


def read(folder: Path, key: str) -> Bytecode | None:
    """Return what is kept under a key; None for nothing, or nothing that can be trusted."""
    path = folder / key
    try:
        with path.open("rb") as file:
            if not (_ours(folder.stat()) and _ours(os.fstat(file.fileno()))):
                return None
            raw = file.read()
    except OSError:
        return None
    digest, packed = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != digest:
        return None
    try:
        code = msgspec.msgpack.decode(zlib.decompress(packed), type=Bytecode)
    except (msgspec.DecodeError, zlib.error):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return code if code.format == FORMAT else None


def write(folder: Path, key: str, code: Bytecode) -> None:
    """Keep a compilation; an older one makes room.

    Raises OSError when that fails, PermissionError for a folder in which another user may write.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _ours(folder.stat()):
        raise PermissionError(f"{folder}: another user may write there")
    packed = zlib.compress(msgspec.msgpack.encode(code))
    draft = folder / f".{key}.{os.getpid()}"
    try:
        with open(draft, "wb", opener=_private) as file:
            file.write(hashlib.sha256(packed).digest() + packed)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / key)
    finally:
        draft.unlink(missing_ok=True)
    kept = [path for path in folder.iterdir() if path.name != _LOCK]
    kept.sort(key=_used_at, reverse=True)
    for path in kept[KEPT_MAX:]:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(folder: Path, key: str) -> Iterator[None]:
    """Wait until no other process compiles what is to be kept under a key.

    Where the folder cannot be written nobody waits.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = held.enter_context(open(folder / _LOCK, "ab", opener=_private))
            fcntl.lockf(file, fcntl.LOCK_EX, 1, int(key[:12], 16))
        yield


def forget(folder: Path, key: str) -> None:
    """Remove what is kept under a key."""
    with contextlib.suppress(OSError):
        (folder / key).unlink()


def _ours(there: os.stat_result) -> bool:
    """Return whether only root and this user can have written something."""
    return there.st_uid in (0, os.geteuid()) and not there.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another loader removed it meanwhile
        return 0.0
