# SPDX-License-Identifier: GPL-2.0-only
"""Compile the programs with bcc and leave them pinned in a bpffs.

The only module that imports bcc. It is run as a short-lived child process
(`python -m mrcd.loader`), because bcc with its compiler costs some 200 MB that
a daemon should not keep: the child compiles, loads, pins and exits.

bcc is compiler and map maker; programs are loaded by bpf(2) itself, which
gives flags and the verifier's figures (see mrcd/bpfsys.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mrcd import bpfsys, pins
from mrcd.paths import bpf_dir
from mrcd.sizes import Sizes as Sizes

MAPS = [
    "host",
    "planes",
    "addresses",
    "prefixes",
    "peers",
    "peer_planes",
    "sources",
    "balances",
    "qps",
    "txs",
    "rxs",
    "tx_entries",
    "rx_entries",
    "paths",
    "loop_paths",
    "loops",
    "survey",
    "chains",
    "judge_states",
    "tails",
    "tx_ring",
    "rx_ring",
    "tx_free",
    "rx_free",
    "active",
    "clock",
    "events",
    "counters",
]
CAPTURE_MAPS = ["captures", "capturing"]
"""Maps that only programs which capture have."""
PROGRAMS = {
    "mrc_spray": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_receive": bpfsys.PROG_TYPE_XDP,
    "mrc_deliver": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_learn": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_probe": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_resend": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_tick": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_idle": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_judge": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_control": bpfsys.PROG_TYPE_SCHED_CLS,
    "mrc_survey": bpfsys.PROG_TYPE_SCHED_CLS,
}
TAILS = {"mrc_resend": 0, "mrc_learn": 1, "mrc_probe": 2}
"""Programs that others end in, and their places in the map `tails`."""
_NICE_BESIDE_TRAFFIC = 10
_LD_IMM64 = 0x18
_PSEUDO_MAP_FD = 1


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One program as loaded: its own instructions, and those the verifier walked."""

    name: str
    instructions: int
    verifier: str


_INCLUDE = re.compile(r'^#include "([a-z0-9_]+\.[ch])"$', re.MULTILINE)


def source() -> str:
    """Return the programs as one text, with the project's own files expanded in place.

    bcc rewrites map accesses in the main file only, so files that touch maps
    must be part of it.
    """
    folder = bpf_dir()

    def expand(match: re.Match[str]) -> str:
        return (folder / match.group(1)).read_text()

    return _INCLUDE.sub(expand, (folder / "mrc.c").read_text())


def load(
    sizes: Sizes, *, xdp_frags: bool = False
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    """Compile and load; returns map descriptors, program descriptors and a report.

    Raises bpfsys.BpfError when the kernel refuses a program, RuntimeError when
    bcc cannot compile (usually: kernel headers missing, `make setup` cures).
    """
    module = _compile(sizes)
    maps = {name: int(module[name].map_fd) for name in MAPS}
    programs, report = _load_programs(module, {}, xdp_frags=xdp_frags)
    point_tails(maps, programs)
    return maps, programs, report


def point_tails(maps: Mapping[str, int], programs: Mapping[str, int]) -> None:
    """Make these programs those that others end in."""
    for name, place in TAILS.items():
        bpfsys.update(maps["tails"], struct.pack("=I", place), struct.pack("=I", programs[name]))


def load_over(
    maps: Mapping[str, int], sizes: Sizes, *, xdp_frags: bool = False
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    """Compile and load for maps that are there; as `load`, but the maps are those of a capture.

    bcc cannot do without maps of its own. They are made, with small rings (their number of slots
    is compiled into no program), and what the programs say of them is turned to the others.
    """
    module = _compile(replace(sizes, ring_slots=1))
    moved = {int(module[name].map_fd): fd for name, fd in maps.items()}
    own = {name: int(module[name].map_fd) for name in CAPTURE_MAPS if sizes.capture}
    programs, report = _load_programs(module, moved, xdp_frags=xdp_frags)
    return own, programs, report


def _compile(sizes: Sizes) -> Any:
    from bcc import BPF  # type: ignore[import-untyped]  # noqa: PLC0415

    flags = ["-Wall", "-Werror", "-Wno-unused-function", *sizes.defines()]
    try:
        module = BPF(text=source(), cflags=flags)
    except Exception as error:
        raise RuntimeError(
            f"bcc cannot compile the programs: {error}; it needs the kernel headers in "
            f"/lib/modules/{os.uname().release}/build (package linux-headers; `make setup` "
            "installs or links them)"
        ) from error
    _modules.append(module)  # bcc closes its maps with the object
    return module


def _load_programs(
    module: Any, moved: Mapping[int, int], *, xdp_frags: bool
) -> tuple[dict[str, int], list[ProgramReport]]:
    programs: dict[str, int] = {}
    report = []
    for name, kind in PROGRAMS.items():
        insns = retargeted(bytes(module.dump_func(name.encode())), moved)
        load_flags = bpfsys.F_XDP_HAS_FRAGS if xdp_frags and kind == bpfsys.PROG_TYPE_XDP else 0
        programs[name], verdict = bpfsys.load_program(kind, insns, name=name, flags=load_flags)
        report.append(ProgramReport(name, len(insns) // 8, verdict))
    return programs, report


def retargeted(insns: bytes, moved: Mapping[int, int]) -> bytes:
    """The instructions with each map descriptor in `moved` replaced by the other."""
    out = bytearray(insns)
    at = 0
    while at < len(out):
        code, registers, _offset, imm = struct.unpack_from("=BBhi", out, at)
        if code == _LD_IMM64:
            if registers >> 4 == _PSEUDO_MAP_FD:
                struct.pack_into("=i", out, at + 4, moved.get(imm, imm))
            at += 8  # it takes two
        at += 8
    return bytes(out)


_modules: list[object] = []


def fill_rings(maps: Mapping[str, int], slots: int) -> None:
    """Make every slot of both rings a free one."""
    for name in ("tx_free", "rx_free"):
        for slot in range(slots):
            bpfsys.update(maps[name], None, struct.pack("=I", slot))


def build(
    folder: Path, code: str, sizes: Sizes, *, adopt: bool, xdp_frags: bool
) -> list[ProgramReport]:
    """Pin what is missing of a layout's folder: all of it, or with `adopt` only the programs."""
    if adopt:
        maps = {name: bpfsys.get(folder / name) for name in MAPS}
        own, programs, report = load_over(maps, sizes, xdp_frags=xdp_frags)
        target = pins.draft(pins.code(folder, code))
        for name, fd in own.items():
            bpfsys.pin(fd, target / name)
    else:
        maps, programs, report = load(sizes, xdp_frags=xdp_frags)
        fill_rings(maps, sizes.ring_slots)
        whole = pins.draft(folder)
        for name, fd in maps.items():
            bpfsys.pin(fd, whole / name)
        target = pins.code(whole, code)
        target.mkdir()
    for name, fd in programs.items():
        bpfsys.pin(fd, target / name)
    pins.complete(target if adopt else whole)
    return report


def main() -> int:
    """Child process: the order as JSON on stdin, a report on stdout."""
    order = json.load(sys.stdin)
    with contextlib.suppress(OSError):
        # Started by a daemon that is ahead of everybody. Where packets flow, they come first.
        os.setpriority(os.PRIO_PROCESS, 0, _NICE_BESIDE_TRAFFIC if order["adopt"] else 0)
    order |= {"folder": Path(order["folder"]), "sizes": Sizes(**order["sizes"])}
    try:
        report = build(**order)
    except (OSError, RuntimeError) as error:
        json.dump({"error": str(error)}, sys.stdout)
        return 1
    json.dump({"programs": [asdict(entry) for entry in report]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
