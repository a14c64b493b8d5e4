# SPDX-License-Identifier: GPL-2.0-only
"""Maps and programs from a file equal those that the compiler makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from mrcd.datapath import bytecode, loader, precompile
from mrcd.datapath.sizes import Sizes
from mrcd.linux import bpfmap
from mrcd.linux.bpf import BpfError

SIZES = Sizes(mtu=1500, window=1024, ring_slots=2048, peers=6, qps=16, evs=32, prefixes=70, loops=5)
UNUSUAL_MTU = 1404  # for which no test has compiled


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs of SIZES."""
    folder = tmp_path_factory.mktemp("cache") / "mrcd"
    maps, programs, report = loader.load(SIZES, cache=folder)
    for fd in (*maps.values(), *programs.values()):
        os.close(fd)
    assert all(each.compiled for each in report)
    return folder


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def load(
    stack: ExitStack, sizes: Sizes, cache: Path | None
) -> tuple[dict[str, int], list[loader.ProgramReport]]:
    maps, programs, report = loader.load(sizes, cache=cache)
    for fd in (*maps.values(), *programs.values()):
        stack.callback(os.close, fd)
    return maps, report


def test_maps_have_the_sizes_that_the_sources_give_them(cache: Path, closing: ExitStack) -> None:
    """Compare with maps that the compiler makes of the real sizes, not of the compiled-in ones."""
    from bcc import BPF

    module = BPF(text=loader.source().encode(), cflags=["-Wno-unused-function", *SIZES.defines()])
    closing.callback(module.cleanup)
    maps, _report = load(closing, SIZES, cache)
    assert set(maps) == set(loader.MAPS)
    for name, fd in maps.items():
        there = bpfmap.described(int(module[name.encode()].map_fd))
        assert replace(bpfmap.described(fd), btf_id=0) == replace(there, btf_id=0), name


def test_programs_from_a_file_are_the_same(cache: Path, closing: ExitStack) -> None:
    compiled, first = load(closing, SIZES, None)
    kept, again = load(closing, SIZES, cache)
    assert [replace(each, compiled=False) for each in first] == again
    for name, fd in kept.items():
        described = replace(bpfmap.described(fd), btf_id=0)
        assert described == replace(bpfmap.described(compiled[name]), btf_id=0)


def test_other_capacities_need_no_compiler(cache: Path, closing: ExitStack) -> None:
    larger = replace(SIZES, peers=100, prefixes=500, ring_slots=64, loops=200)
    maps, report = load(closing, larger, cache)
    assert not any(each.compiled for each in report)
    assert bpfmap.described(maps["peers"]).entries == 100
    assert bpfmap.described(maps["rx_ring"]).entries == 64


def test_another_mtu_is_compiled(cache: Path, closing: ExitStack) -> None:
    _maps, report = load(closing, replace(SIZES, mtu=1400), cache)
    assert all(each.compiled for each in report)


def test_a_package_takes_what_a_daemon_has_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str, sizes: Sizes) -> bytecode.Bytecode:
        raise AssertionError(f"compiled for {sizes}")

    monkeypatch.setattr(loader, "compilation", refuse)
    precompile.compile_into(tmp_path / "new", cache, SIZES.compiled())
    key = bytecode.key_of(loader.source(), SIZES.compiled().defines())
    assert bytecode.read(tmp_path / "new", key) == bytecode.read(cache, key) is not None
    with pytest.raises(AssertionError, match="compiled for"):
        precompile.compile_into(tmp_path / "new", None, SIZES.compiled())
    with pytest.raises(AssertionError, match="compiled for"):
        precompile.compile_into(tmp_path / "new", cache, replace(SIZES.compiled(), mtu=UNUSUAL_MTU))


def test_a_process_that_loads_from_a_file_has_no_compiler(cache: Path) -> None:
    assert compiler_of(loading(cache)) is False


def test_loaders_that_start_together_compile_once(tmp_path: Path) -> None:
    together = [loading(tmp_path / "cache") for _ in range(3)]
    assert sorted(map(compiler_of, together)) == [False, False, True]


def loading(cache: Path) -> subprocess.Popen[str]:
    """Start a process that loads the programs, and then says whether it has a compiler."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from mrcd.datapath import loader\n"
        f"loader.load({SIZES!r}, cache=Path({str(cache)!r}))\n"
        "print('bcc' in sys.modules)\n"
    )
    script = script.replace("Sizes(", "loader.Sizes(")
    return subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def compiler_of(process: subprocess.Popen[str]) -> bool:
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return {"True\n": True, "False\n": False}[said]


def refused(cache: Path, folder: Path) -> tuple[Path, bytecode.Bytecode, bytecode.Bytecode]:
    """Keep programs that no verifier takes; return their file, what was in it, and them."""
    file = folder / bytecode.key_of(loader.source(), SIZES.compiled().defines())
    code = bytecode.read(cache, file.name)
    assert code is not None
    endless = code.programs["mrc_idle"][:8] + bytes([0x05, 0, 0xFE, 0xFF, 0, 0, 0, 0])
    bad = bytecode.Bytecode(code.maps, {**code.programs, "mrc_idle": endless}, code.btf)
    bytecode.write(file.parent, file.name, bad)
    return file, code, bad


def test_without_a_compiler_the_verifiers_reason_is_told(
    cache: Path, tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _code, _bad = refused(cache, tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "bcc", None)
    with pytest.raises(RuntimeError, match=r"kept programs cannot be loaded: .*mrc_idle") as told:
        load(closing, SIZES, file.parent)
    assert "install python3-bpfcc" in str(told.value)


def test_what_the_verifier_refuses_is_compiled_anew(
    cache: Path, tmp_path: Path, closing: ExitStack
) -> None:
    file, code, bad = refused(cache, tmp_path / "cache")
    with pytest.raises(BpfError):
        loader.given_to_kernel(bad, {}, SIZES, compiled=False)
    _maps, report = load(closing, SIZES, file.parent)
    assert all(each.compiled for each in report)
    assert bytecode.read(file.parent, file.name) == code  # and kept in its place


def test_a_folder_that_cannot_be_written_harms_nobody(closing: ExitStack) -> None:
    maps, report = load(closing, SIZES, Path("/proc/none"))
    assert all(each.compiled for each in report)
    assert set(maps) == set(loader.MAPS)
