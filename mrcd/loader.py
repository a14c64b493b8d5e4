# SPDX-License-Identifier: GPL-2.0-only
"""Compile the programs with bcc and leave them pinned in a bpffs.

The only module that imports bcc. It is run as a short-lived child process
(`python -m mrcd.loader`), because bcc with its compiler costs some 200 MB that
a daemon should not keep: the child compiles, loads, pins and exits.

bcc is compiler and map maker; programs are loaded by bpf(2) itself, which
gives flags and the verifier's figures (see mrcd/bpfsys.py).
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from mrcd import bpfsys
from mrcd.paths import bpf_dir

MAPS = [
    "host",
    "planes",
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the maps are made for.

    mtu: mrc0's, bytes. window: PSNs, a power of two, at least twice the MPR.
    evs: EVs of one plane in a QP's set, a power of two. encap: one of
    MRC_ENCAP_*. Others are counts.
    """

    mtu: int
    window: int
    ring_slots: int
    peers: int
    qps: int
    evs: int
    prefixes: int
    loops: int = 1
    encap: int = 0

    def defines(self) -> list[str]:
        """The CFG_ constants the programs are compiled with."""
        return [
            f"-DCFG_MTU={self.mtu}",
            f"-DCFG_SLOT_BYTES={-(-self.mtu // 8) * 8}",
            f"-DCFG_WINDOW={self.window}",
            f"-DCFG_RING_SLOTS={self.ring_slots}",
            f"-DCFG_MAX_PEERS={max(1, self.peers)}",
            f"-DCFG_MAX_QPS={max(1, self.qps)}",
            f"-DCFG_EVS={self.evs}",
            f"-DCFG_MAX_PREFIXES={max(1, self.prefixes)}",
            f"-DCFG_LOOPS={max(1, self.loops)}",
            f"-DCFG_ENCAP={self.encap}",
            f"-DCFG_ACTIVE_WORDS={-(-max(1, self.qps) // 64)}",
        ]


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One program as loaded: its own instructions, and those the verifier walked."""

    name: str
    instructions: int
    verifier: str


_INCLUDE = re.compile(r'^#include "([a-z0-9_]+\.h)"$', re.MULTILINE)


def source() -> str:
    """The programs as one text, project headers expanded in place.

    bcc rewrites map accesses in the main file only, so headers that touch maps
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
    maps = {name: module[name].map_fd for name in MAPS if name != "events"}
    maps["events"] = module["events"].map_fd
    programs: dict[str, int] = {}
    report = []
    for name, kind in PROGRAMS.items():
        insns = bytes(module.dump_func(name.encode()))
        load_flags = bpfsys.F_XDP_HAS_FRAGS if xdp_frags and kind == bpfsys.PROG_TYPE_XDP else 0
        programs[name], verdict = bpfsys.load_program(kind, insns, name=name, flags=load_flags)
        report.append(ProgramReport(name, len(insns) // 8, verdict))
    for name, place in TAILS.items():
        bpfsys.update(maps["tails"], struct.pack("=I", place), struct.pack("=I", programs[name]))
    _modules.append(module)  # bcc closes its maps with the object
    return maps, programs, report


_modules: list[object] = []


def main() -> int:
    """Child process: sizes and the pin folder as JSON on stdin, a report on stdout."""
    order = json.load(sys.stdin)
    folder = Path(order["folder"])
    try:
        maps, programs, report = load(Sizes(**order["sizes"]), xdp_frags=order["xdp_frags"])
        for name, fd in maps.items():
            bpfsys.pin(fd, folder / name)
        for name, fd in programs.items():
            bpfsys.pin(fd, folder / name)
    except (bpfsys.BpfError, RuntimeError) as error:
        json.dump({"error": str(error)}, sys.stdout)
        return 1
    json.dump({"programs": [asdict(entry) for entry in report]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
