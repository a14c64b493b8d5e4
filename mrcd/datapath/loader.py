# SPDX-License-Identifier: GPL-2.0-only
"""Compile the programs with bcc and leave them pinned in a bpffs.

No other module imports bcc. This one runs as a short-lived child process
(`python -m mrcd.datapath.loader`) that compiles, loads, pins and exits, because bcc and its
compiler take some 200 MB that a daemon should not keep.

bcc compiles and makes maps. Programs are loaded by bpf(2) itself, which accepts flags and returns
the verifier's figures (mrcd/linux/bpf.py).
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

from mrcd.datapath import pins
from mrcd.datapath.sizes import Sizes as Sizes
from mrcd.linux import bpf
from mrcd.wire.sources import bpf_dir

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
    "scratch",
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
"""Maps that only recording programs have."""
PROGRAMS = {
    "mrc_spray": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_receive": bpf.PROG_TYPE_XDP,
    "mrc_deliver": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_learn": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_probe": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_resend": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_tick": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_idle": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_judge": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_control": bpf.PROG_TYPE_SCHED_CLS,
    "mrc_survey": bpf.PROG_TYPE_SCHED_CLS,
}
TAILS = {"mrc_resend": 0, "mrc_learn": 1, "mrc_probe": 2}
"""Targets of tail calls, and their places in the map `tails`."""
_NICE_BESIDE_TRAFFIC = 10
_LD_IMM64 = 0x18
_PSEUDO_MAP_FD = 1


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """A loaded program: its number of instructions, and the verifier's figures."""

    name: str
    instructions: int
    verifier: str


_INCLUDE = re.compile(r'^#include "([a-z0-9_]+\.h)"$', re.MULTILINE)


def source() -> str:
    """Return the programs as one text, with project headers expanded in place.

    bcc rewrites map accesses in the main file only, so headers that access maps must be part of it.
    """
    folder = bpf_dir()

    def expand(match: re.Match[str]) -> str:
        return (folder / match.group(1)).read_text()

    return _INCLUDE.sub(expand, (folder / "mrc.c").read_text())


def load(
    sizes: Sizes, *, xdp_frags: bool = False
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    """Compile and load. Return map descriptors, program descriptors and a report.

    mrcd.linux.bpf.BpfError: the kernel refuses a program. RuntimeError: bcc cannot compile,
    usually because kernel headers are missing, which `make setup` installs.
    """
    module = _compile(sizes)
    maps = {name: int(module[name].map_fd) for name in MAPS}
    programs, report = _load_programs(module, {}, xdp_frags=xdp_frags)
    point_tails(maps, programs)
    return maps, programs, report


def point_tails(maps: Mapping[str, int], programs: Mapping[str, int]) -> None:
    """Make these programs the targets of tail calls."""
    for name, place in TAILS.items():
        bpf.update(maps["tails"], struct.pack("=I", place), struct.pack("=I", programs[name]))


def load_over(
    maps: Mapping[str, int], sizes: Sizes, *, xdp_frags: bool = False
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    """Compile and load programs for existing maps; as `load`, but return the maps of a capture.

    bcc always makes maps of its own. They get small rings, since no program is compiled for the
    number of slots, and map references in the programs are then turned to the existing maps.
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
        load_flags = bpf.F_XDP_HAS_FRAGS if xdp_frags and kind == bpf.PROG_TYPE_XDP else 0
        programs[name], verdict = bpf.load_program(kind, insns, name=name, flags=load_flags)
        report.append(ProgramReport(name, len(insns) // 8, verdict))
    return programs, report


def retargeted(insns: bytes, moved: Mapping[int, int]) -> bytes:
    """Return the instructions with each map descriptor in `moved` replaced by its value there."""
    out = bytearray(insns)
    at = 0
    while at < len(out):
        code, registers, _offset, imm = struct.unpack_from("=BBhi", out, at)
        if code == _LD_IMM64:
            if registers >> 4 == _PSEUDO_MAP_FD:
                struct.pack_into("=i", out, at + 4, moved.get(imm, imm))
            at += 8  # this instruction takes two places
        at += 8
    return bytes(out)


_modules: list[object] = []


def fill_rings(maps: Mapping[str, int], slots: int) -> None:
    """Mark every slot of both rings as free."""
    for name in ("tx_free", "rx_free"):
        for slot in range(slots):
            bpf.update(maps[name], None, struct.pack("=I", slot))


def build(
    folder: Path, code: str, sizes: Sizes, *, adopt: bool, xdp_frags: bool
) -> list[ProgramReport]:
    """Make and pin a layout's folder; with `adopt`, only the programs in it. Return a report."""
    if adopt:
        maps = {name: bpf.get(folder / name) for name in MAPS}
        own, programs, report = load_over(maps, sizes, xdp_frags=xdp_frags)
        target = pins.draft(pins.code(folder, code))
        for name, fd in own.items():
            bpf.pin(fd, target / name)
    else:
        maps, programs, report = load(sizes, xdp_frags=xdp_frags)
        fill_rings(maps, sizes.ring_slots)
        whole = pins.draft(folder)
        for name, fd in maps.items():
            bpf.pin(fd, whole / name)
        target = pins.code(whole, code)
        target.mkdir()
    for name, fd in programs.items():
        bpf.pin(fd, target / name)
    pins.complete(target if adopt else whole)
    return report


def main() -> int:
    """Run as the child process: read the order as JSON on stdin, write a report to stdout."""
    order = json.load(sys.stdin)
    with contextlib.suppress(OSError):
        # The daemon, whose priority this process inherits, runs before others. Beside a data path
        # that runs, compiling gives way to the packets.
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
