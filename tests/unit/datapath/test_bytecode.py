# SPDX-License-Identifier: GPL-2.0-only
"""Compiled programs in files, and instructions that are pointed at other maps."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mrcd.datapath import bytecode
from mrcd.datapath.bytecode import KEPT_MAX, Bytecode, KeptMap, pointed
from mrcd.datapath.sizes import Sizes
from mrcd.linux.bpfmap import MapDescription
from mrcd.wire.abi import ABI
from rigs.assembler import R1, R2, call, finish, insn, load_imm, load_map, move

ARRAY = MapDescription(2, 4, 64, 1, 0, 0, 0, 0)
CODE = Bytecode(
    maps=(KeptMap("host", ARRAY), KeptMap("qps", replace(ARRAY, entries=16))),
    programs={"mrc_tick": load_map(R1, 1) + load_map(R2, 0) + finish(0)},
    btf=b"\x9f\xeb",
)
SIZES = Sizes(mtu=1500, window=4096, ring_slots=8192, peers=4, qps=16, evs=128, prefixes=1024)


# ---- instructions


def test_pointed__map_references_are_replaced_and_nothing_else() -> None:
    wide_constant = insn(0x18, R2, 0, imm=7) + insn(0, imm=7)  # 64 bits, and no map
    behind = load_imm(R1, 7) + call(7) + move(R1, R2) + finish(7)
    program = load_map(R1, 7) + wide_constant + load_map(R2, 8) + behind
    moved = load_map(R1, 70) + wide_constant + load_map(R2, 8) + behind
    assert pointed(program, {7: 70, 8: 8}) == moved
    assert pointed(program, {7: 7, 8: 8}) == program


def test_pointed__references_may_trade_places() -> None:
    program = load_map(R1, 7) + load_map(R2, 8)
    assert pointed(program, {7: 8, 8: 7}) == load_map(R1, 8) + load_map(R2, 7)


def test_pointed__number_of_paths_is_written_into_the_program() -> None:
    move = struct.pack("=BBhi", 0xB7, 1, 0, ABI.EVS_PLACE)
    other = struct.pack("=BBhi", 0xB7, 2, 0, 77)
    assert (
        pointed(move + other, {}, {ABI.EVS_PLACE: 64})
        == struct.pack("=BBhi", 0xB7, 1, 0, 64) + other
    )
    assert pointed(move + other, {}) == move + other


def test_pointed__a_reference_without_a_target_is_an_error() -> None:
    with pytest.raises(KeyError):
        pointed(load_map(R1, 7), {8: 8})


def test_instructions__of_these_maps() -> None:
    wanted = load_map(R1, 31) + load_map(R2, 30) + finish(0)
    assert (
        bytecode.instructions(CODE, "mrc_tick", {"host": 30, "qps": 31, "events": 32}, {}) == wanted
    )
    with pytest.raises(KeyError):
        bytecode.instructions(CODE, "mrc_tick", {"host": 30}, {})


# ---- the key


def test_key__depends_on_the_text_and_on_what_is_compiled_in() -> None:
    def key(sizes: Sizes, text: str = "int x;") -> str:
        return bytecode.key_of(text, sizes.compiled().defines())

    assert key(SIZES) == key(replace(SIZES, peers=99, prefixes=7, loops=64, ring_slots=64))
    assert key(SIZES) == key(replace(SIZES, qps=400, evs=8, decap=True))
    others = [
        replace(SIZES, mtu=9000), replace(SIZES, window=8192), replace(SIZES, next_hops=True),
        replace(SIZES, encap=1), replace(SIZES, capture=True), replace(SIZES, xdp=True),
    ]  # fmt: skip
    assert len({key(SIZES), key(SIZES, "int y;"), *map(key, others)}) == 2 + len(others)


# ---- files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert bytecode.read(folder, "k") is None
    bytecode.write(folder, "k", CODE)
    assert bytecode.read(folder, "k") == CODE
    assert [entry.name for entry in folder.iterdir()] == ["k"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "k").stat().st_mode & 0o777 == 0o600
    bytecode.forget(folder, "k")
    assert bytecode.read(folder, "k") is None


def test_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    bytecode.write(tmp_path, "k", CODE)
    good = (tmp_path / "k").read_bytes()
    for place in range(0, len(good), 5):
        bad = bytearray(good)
        bad[place] ^= 0x10
        (tmp_path / "k").write_bytes(bytes(bad))
        assert bytecode.read(tmp_path, "k") is None
    for length in (0, 1, 32, len(good) - 1):
        (tmp_path / "k").write_bytes(good[:length])
        assert bytecode.read(tmp_path, "k") is None


def test_another_format_is_ignored(tmp_path: Path) -> None:
    bytecode.write(tmp_path, "k", msgspec.structs.replace(CODE, format=bytecode.FORMAT + 1))
    assert bytecode.read(tmp_path, "k") is None


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_may_write_is_ignored(tmp_path: Path, which: str, mode: int) -> None:
    folder = tmp_path / "cache"
    bytecode.write(folder, "k", CODE)
    (folder / "k" if which == "file" else folder).chmod(mode | 0o100)
    assert bytecode.read(folder, "k") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_another_user_owns_is_ignored(tmp_path: Path) -> None:
    bytecode.write(tmp_path, "k", CODE)
    os.chown(tmp_path / "k", 65534, 65534)
    assert bytecode.read(tmp_path, "k") is None


def test_the_one_unused_longest_makes_room(tmp_path: Path) -> None:
    for number in range(KEPT_MAX):
        bytecode.write(tmp_path, f"k{number}", CODE)
        os.utime(tmp_path / f"k{number}", (number, number))
    assert bytecode.read(tmp_path, "k0") == CODE  # used again
    bytecode.write(tmp_path, "new", CODE)
    kept = {entry.name for entry in tmp_path.iterdir()}
    assert len(kept) == KEPT_MAX
    assert {"k0", "new"} <= kept
    assert "k1" not in kept


def test_nothing_is_written_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError):
        bytecode.write(tmp_path, "k", CODE)
    assert not list(tmp_path.iterdir())
